"""Lines of JSON made column by column are those of ``json.dumps``, row by row."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.connectors.formats.byte_texts import floats, packed
from replicas.connectors.formats.json_text import json_lines, json_rows, json_text
from spe.stream.batch import Batch, Column, Rows
from spe.stream.names import Kind
from spe.stream.schema import Schema
from spe.stream.strings import StringDictionary
from spe.stream.times import BEFORE_TIME, END_OF_TIME, iso_timestamp

SCHEMA = Schema.of(**{"n": "int64", "at": "timestamp", '100% "of" ä': "float64", "is": "bool", "s": "string"})
SECOND = 1_000_000
TIMES = st.one_of(
    st.integers(-3 * SECOND, 3 * SECOND),
    st.integers(-5, 5).map(lambda s: s * SECOND),
    st.sampled_from([BEFORE_TIME, END_OF_TIME, 1_767_225_600_000_000, -(2**62)]),
    st.integers(-(2**63), 2**63 - 1),
)
INTS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.one_of(
    st.sampled_from(["", "a", "%s", '"', "\n", "\u2028", "ä", "😀", "\x00", "\n" + "ä" * 99]), st.text(max_size=5)
)
DECIMALS = st.tuples(st.integers(-(10**16), 10**16), st.integers(0, 7)).map(lambda d: d[0] / 10 ** d[1])
FLOATS = st.one_of(st.floats(), DECIMALS, st.integers(-99_999, 99_999).map(lambda n: n / 100))
ROWS = st.lists(
    st.tuples(
        TIMES,
        st.none() | INTS,
        st.none() | TIMES,
        st.none() | FLOATS,
        st.none() | st.booleans(),
        st.none() | TEXTS.filter(lambda t: not any("\ud800" <= c <= "\udfff" for c in t)),
    ),
    max_size=8,
)


def row_by_row(batch: Batch, schema: Schema, corrections: bool, first: dict[str, Any]) -> list[str]:
    lines = []
    for id_, time, row in zip(batch.row_ids().tolist(), batch.rows.time.tolist(), batch.rows.to_tuples()):
        members: dict[str, Any] = {"_id": id_, "_time": iso_timestamp(time) + "Z"}
        for attribute, value in zip(schema, row):
            if value is not None and str(attribute.type) == "timestamp":
                value = iso_timestamp(value) + "Z"
            elif isinstance(value, float) and not math.isfinite(value):
                value = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
            members[attribute.name] = value
        if corrections:
            members = {"_kind": "insert", "_tentative": batch.kind is Kind.TENTATIVE, **members}
        lines.append(json.dumps({**first, **members}, ensure_ascii=False, allow_nan=False))
    return lines


def lines_of(batch: Batch, schema: Schema, corrections: bool, begin: str = "") -> list[str]:
    lines = json_lines(batch, schema, corrections, begin)
    assert b"".join(json_text(batch, schema, corrections, begin)).decode() == "".join(f"{line}\n" for line in lines)
    return lines


@given(rows=ROWS, corrections=st.booleans(), kind=st.sampled_from(Kind), stamped=st.booleans())
def test_each_line_is_that_of_its_row(
    rows: list[tuple[Any, ...]], corrections: bool, kind: Kind, stamped: bool
) -> None:
    if stamped:  # by the attribute
        rows = [(*r[:2], r[0], *r[3:]) for r in rows]
    batch = Batch(kind, 7, 7 + len(rows), None, Rows.from_tuples(SCHEMA, [r[0] for r in rows], [r[1:] for r in rows]))
    assert lines_of(batch, SCHEMA, corrections) == row_by_row(batch, SCHEMA, corrections, {})
    first = {"_stream": "50% ü", "_partition": 3}
    begin = json.dumps(first, ensure_ascii=False)
    assert lines_of(batch, SCHEMA, corrections, begin) == row_by_row(batch, SCHEMA, corrections, first)


def test_an_attribute_with_a_name_of_ours_stands_for_it() -> None:
    schema = Schema.of(_id="string", n="int64")
    batch = Batch(Kind.STABLE, 0, 1, None, Rows.from_tuples(schema, [0], [("mine", 5)]))
    assert lines_of(batch, schema, False) == ['{"_id": "mine", "_time": "1970-01-01T00:00:00Z", "n": 5}']


@pytest.mark.parametrize("long", [False, True])
def test_so_many_rows_that_they_are_made_in_parts(long: bool) -> None:
    """Each part has texts of its own widths."""
    found = np.random.default_rng(3)
    count = 10_000
    texts = [f"{n}" * (50 if long and n % 3_000 == 0 else 1) for n in range(count)]
    numbers = (10.0 ** (np.arange(count) // 700)).astype(np.int64) * found.choice([-1, 1], count)
    cells = zip(numbers.tolist(), range(count), (numbers / 100).tolist(), [True, None] * (count // 2), texts)
    batch = Batch(Kind.STABLE, 0, count, None, Rows.from_tuples(SCHEMA, range(0, 7 * count, 7), list(cells)))
    assert lines_of(batch, SCHEMA, False) == row_by_row(batch, SCHEMA, False, {})


@given(st.lists(FLOATS, min_size=1))
def test_floats_are_as_repr_gives_them(values: list[float]) -> None:
    assert packed([*floats(np.array(values)), b" "], len(values)).decode().split() == list(map(repr, values))


def test_rows_that_are_rejected_may_hold_anything() -> None:
    """What a reader of the user's gives was not looked at yet."""
    dictionary = StringDictionary(["half: \udc80"])
    columns = [Column(np.array([1, -2], np.int32)), Column(np.zeros(2, np.int32), np.array([True, False]), dictionary)]
    assert json_rows(columns, Schema.of(n="int64", s="string")) == [
        '{"n": 1, "s": "half: \udc80"}',
        '{"n": -2, "s": null}',
    ]
    columns = [Column(np.array([0.1, 2], np.float32)), Column(np.array([2, 0], np.uint8))]
    wanted = [f'{{"x": {float(np.float32(0.1))!r}, "is": true}}', '{"x": 2.0, "is": false}']
    assert json_rows(columns, Schema.of(x="float64", **{"is": "bool"})) == wanted
    assert json_rows([Column(np.zeros(0, np.int64))], Schema.of(n="int64")) == []
