"""Received results as tables: types, nulls and timestamps of Arrow and pandas, and which rows are in which view."""

from __future__ import annotations

import datetime
import math
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from replicas.client.tables import ResultTable, ResultTables
from spe.errors import ConfigError
from spe.stream.batch import Batch, Column, Element, Rows, Undo
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from spe.stream.schema import AttributeType, Schema
from spe.stream.strings import StringDictionary
from spe.stream.times import parse_timestamp
from tests.simulation.test_connect import shop

NEEDS_PANDAS = pytest.mark.skipif(find_spec("pandas") is None, reason="pandas is not installed")


def rows_of(schema: Schema, records: list[tuple[Any, ...]], begin: int = 0) -> Rows:
    columns = []
    for at, attribute in enumerate(schema):
        cells = [record[at] for record in records]
        valid = None if None not in cells else np.array([cell is not None for cell in cells])
        if attribute.type is AttributeType.STRING:
            dictionary = StringDictionary()
            columns.append(Column(dictionary.encode([cell or "" for cell in cells]), valid, dictionary))
        else:
            columns.append(Column(np.array([cell or 0 for cell in cells], attribute.type.dtype), valid))
    time = np.arange(begin, begin + len(records), dtype=np.int64)
    return Rows(time, time, tuple(columns))


SCHEMA = Schema.of(n="int64!", i="int64", f="float64", b="bool", s="string", at="timestamp!", t="timestamp")
BIG = 2**62 + 1
NOON = parse_timestamp("2026-01-01T12:00:00.000001")
TABLE = ResultTable(
    SCHEMA,
    rows_of(SCHEMA, [(1, BIG, 0.5, True, "tea", NOON, NOON), (2, None, None, None, None, NOON, None)]),
    np.array([False, True]),
)
MOMENT = datetime.datetime(2026, 1, 1, 12, 0, 0, 1, tzinfo=datetime.UTC)


def test_arrow_has_types_nulls_and_microseconds_in_utc() -> None:
    table = TABLE.to_arrow()
    assert [(f.name, str(f.type), f.nullable) for f in table.schema] == [
        ("n", "int64", False),
        ("i", "int64", True),
        ("f", "double", True),
        ("b", "bool", True),
        ("s", "string", True),
        ("at", "timestamp[us, tz=UTC]", False),
        ("t", "timestamp[us, tz=UTC]", True),
        ("_tentative", "bool", False),
    ]
    assert table.to_pylist() == [
        {"n": 1, "i": BIG, "f": 0.5, "b": True, "s": "tea", "at": MOMENT, "t": MOMENT, "_tentative": False},
        {"n": 2, "i": None, "f": None, "b": None, "s": None, "at": MOMENT, "t": None, "_tentative": True},
    ]


@NEEDS_PANDAS
def test_pandas_keeps_integers_with_nulls_exact() -> None:
    frame = TABLE.to_pandas()
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == {
        "n": "Int64",
        "i": "Int64",
        "f": "Float64",
        "b": "boolean",
        "s": "string",
        "at": "datetime64[us, UTC]",
        "t": "datetime64[us, UTC]",
        "_tentative": "boolean",
    }
    assert frame["i"][0] == BIG
    assert frame["at"][0].to_pydatetime() == MOMENT
    assert frame.isna().sum().to_dict() == {"n": 0, "i": 1, "f": 1, "b": 1, "s": 1, "at": 0, "t": 1, "_tentative": 0}


@NEEDS_PANDAS
def test_not_a_number_is_no_null() -> None:
    schema = Schema.of(f="float64")
    table = ResultTable(schema, rows_of(schema, [(math.nan,), (None,)]))
    assert table.to_arrow().column("f").null_count == 1
    assert table.to_pandas()["f"].array._mask.tolist() == [False, True]


@NEEDS_PANDAS
def test_a_table_without_rows_has_its_columns() -> None:
    table = ResultTable(SCHEMA, Rows.empty(SCHEMA))
    assert (len(table), table.to_arrow().num_columns, list(table.to_pandas().columns)) == (0, 7, list(SCHEMA.names))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="to_pandas needs pandas: pip install pandas"):
        TABLE.to_pandas()


def test_current_rows_have_tentative_ones_until_they_are_undone() -> None:
    plan, _ = shop()
    channel, schema = Channel(StreamId("sums"), 0), plan.query.schema_of(StreamId("sums"))
    rows = [(at, at + 1, at, 10 * at) for at in range(4)]
    received = ResultTables(plan)

    def take(element: Element) -> tuple[list[int], list[int], list[bool]]:
        received.apply(Change(channel, element, 0))
        current = received.current("sums")
        assert current.tentative is not None
        stable = [row["n"] for row in received.stable("sums").records()]
        return stable, [row["n"] for row in current.records()], current.tentative.tolist()

    stable, tentative = rows_of(schema, rows[:2]), rows_of(schema, rows[2:], 2)
    assert len(received.current("sums")) == len(received.stable("sums")) == 0
    assert take(Batch(Kind.STABLE, 0, 2, None, stable)) == ([0, 1], [0, 1], [False, False])
    assert take(Batch(Kind.TENTATIVE, 2, 4, None, tentative)) == ([0, 1], [0, 1, 2, 3], [False, False, True, True])
    assert take(Undo(2)) == ([0, 1], [0, 1], [False, False])
