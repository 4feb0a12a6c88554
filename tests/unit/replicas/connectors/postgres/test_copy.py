"""Binary COPY: what is encoded is what PostgreSQL's format says, for every type, with nulls and texts in between."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.connectors.postgres import copy
from spe.stream.batch import Column
from spe.stream.schema import AttributeType

INT, FLOAT, BOOL, STRING, TIMESTAMP = (
    AttributeType.INT64,
    AttributeType.FLOAT64,
    AttributeType.BOOL,
    AttributeType.STRING,
    AttributeType.TIMESTAMP,
)
EPOCH_US = 946_684_800_000_000
VALUES: dict[AttributeType, st.SearchStrategy[Any]] = {
    INT: st.integers(-(2**63), 2**63 - 1),
    FLOAT: st.floats(allow_nan=False).map(lambda x: x + 0.0),
    BOOL: st.booleans(),
    STRING: st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
    TIMESTAMP: st.integers(-(2**57), 2**61),
}
FORMS = {INT: ">q", FLOAT: ">d", BOOL: ">?", TIMESTAMP: ">q"}


def decoded(data: bytes, types: list[AttributeType]) -> list[tuple[Any, ...]]:
    rows, at = [], 0
    while at < len(data):
        (count,) = struct.unpack_from(">h", data, at)
        assert count == len(types)
        at += 2
        row: list[Any] = []
        for type_ in types:
            (size,) = struct.unpack_from(">i", data, at)
            at += 4
            if size < 0:
                row.append(None)
                continue
            cell, at = data[at : at + size], at + size
            if type_ is STRING:
                row.append(cell.decode())
                continue
            (value,) = struct.unpack(FORMS[type_], cell)
            row.append(value + EPOCH_US if type_ is TIMESTAMP else value)
        rows.append(tuple(row))
    return rows


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[AttributeType], list[tuple[Any, ...]]]:
    types = draw(st.lists(st.sampled_from(list(AttributeType)), min_size=1, max_size=6))
    cells = [draw(st.booleans()) for _ in types]
    row = st.tuples(
        *[VALUES[t] | st.none() if nullable else VALUES[t] for t, nullable in zip(types, cells, strict=True)]
    )
    return types, draw(st.lists(row, min_size=1, max_size=6))


@given(tables())
def test_rows_are_encoded_by_the_copy_format(table: tuple[list[AttributeType], list[tuple[Any, ...]]]) -> None:
    types, rows = table
    columns = [Column.from_list(list(cells), type_) for cells, type_ in zip(zip(*rows), types)]
    fields = [copy.attribute(column, type_, i) for i, (column, type_) in enumerate(zip(columns, types))]
    assert decoded(copy.tuples(fields), types) == rows


def test_nulls_and_constants_of_any_count() -> None:
    fields = [copy.constant("undo", 3), copy.ints(np.array([1, 2, 3]), width=4), copy.nulls(3)]
    expected = b"".join(
        struct.pack(">hi4sii", 3, 4, b"undo", 4, number) + struct.pack(">i", -1) for number in (1, 2, 3)
    )
    assert copy.tuples(fields) == expected


@pytest.mark.parametrize(
    ("type_", "cells", "said"),
    [
        (STRING, ["a", "", "b\0c", "d\0"], "NUL character"),
        (TIMESTAMP, [0, 1, -(2**61), 2], "the timestamp lies outside of 4713 BC to 294276"),
    ],
)
def test_value_outside_postgresql_is_refused_with_its_place(type_: AttributeType, cells: list[Any], said: str) -> None:
    with pytest.raises(copy.CellRefused, match=said) as caught:
        copy.attribute(Column.from_list(cells, type_), type_, 5)
    assert (caught.value.row, caught.value.field) == (2, 5)


def test_value_under_a_null_does_not_matter() -> None:
    column = Column(np.array([-(2**61), 7]), np.array([False, True]))
    assert decoded(copy.tuples([copy.attribute(column, TIMESTAMP, 0)]), [TIMESTAMP]) == [(None,), (7,)]
