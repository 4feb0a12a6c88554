"""Readers give rows as columns, in order of arrival; malformed rows are reported with their lines."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.connectors import Live, Malformed, Replay, RowChunk, open_reader
from replicas.connectors.formats.csv import CsvLines
from replicas.connectors.formats.jsonl import JsonLines
from replicas.connectors.tcp import LineSplitter, StandardInput, TcpListener
from spe.connectors import READERS
from spe.errors import SpeError
from spe.plan.generators import GENERATORS
from spe.plan.plan import Source
from spe.stream.batch import Batch, Rows
from spe.stream.names import Kind, StreamId
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME, SECOND, parse_timestamp
from spe.wire.codec import ElementEncoder
from tests.support.source_env import source_env

TRADES = Schema.of(ts="timestamp!", key="string", price="float64", qty="int64", sold="bool")


def source(reader: Mapping[str, Any], schema: Schema = TRADES, time: str | None = "ts") -> Source:
    return Source(
        stream=StreamId("trades"),
        schema=schema,
        boundary_us=10,
        disorder_us=0,
        ahead_us=None,
        time=time,
        reader=reader,
        replay={"max": True},
        on_malformed="skip",
    )


def replay(reader: Mapping[str, Any], schema: Schema = TRADES, time: str | None = "ts") -> Replay:
    made = open_reader(source(reader, schema, time))
    assert isinstance(made, Replay)
    return made


def tuples(chunks: list[RowChunk]) -> list[tuple[Any, ...]]:
    out: list[tuple[Any, ...]] = []
    for chunk in chunks:
        time = np.zeros(len(chunk), np.int64)
        out += Rows(time, time, chunk.columns).to_tuples()
    return out


def malformed(chunks: list[RowChunk]) -> list[tuple[int, str]]:
    return [(row.line, row.reason) for chunk in chunks for row in chunk.malformed]


def written(folder: Path, text: str | bytes, name: str = "in.csv") -> str:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


# -- CSV --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("unit", "seen"), [("iso", '"1970-01-01T00:00:01"'), ("s", "1"), ("ms", "1000")])
def test_a_timestamp_of_json_may_be_null(tmp_path: Path, unit: str, seen: str) -> None:
    schema, file = Schema.of(key="string", seen="timestamp"), tmp_path / "in.jsonl"
    file.write_text(f'{{"key": "a", "seen": null}}\n{{"key": "b"}}\n{{"key": "c", "seen": {seen}}}\n')
    (chunk,) = replay({"kind": "jsonl", "path": str(file), "timestamps": unit}, schema, None).chunks(0)
    assert chunk.malformed == []
    assert chunk.columns[1].to_list() == [None, None, SECOND]


def test_csv_is_read_by_its_header_in_any_column_order(tmp_path: Path) -> None:
    path = written(tmp_path, "qty,sold,ts,key,price,more\n3,true,2020-01-01T00:00:01Z,a,1.5,x\n4,f,2020-01-01,b,-0,y\n")
    chunks = list(replay({"kind": "csv", "path": path}).chunks(0))
    first = parse_timestamp("2020-01-01")
    assert tuples(chunks) == [(first + SECOND, "a", 1.5, 3, True), (first, "b", 0.0, 4, False)]
    events = chunks[0].events
    assert events is not None
    assert events.tolist() == [first + SECOND, first]
    assert not np.signbit(chunks[0].columns[2].values).any()


def test_csv_options_name_columns_delimiter_null_and_unit(tmp_path: Path) -> None:
    path = written(tmp_path, "t;k;p;q;s\n1.5;NA;NA;NA;NA\n2;';';1;2;0\n")
    options = {
        "kind": "csv",
        "path": path,
        "delimiter": ";",
        "quote": "'",
        "null": "NA",
        "timestamps": "s",
        "columns": {"ts": "t", "key": "k", "price": "p", "qty": "q", "sold": "s"},
    }
    assert tuples(list(replay(options).chunks(0))) == [
        (1_500_000, None, None, None, None),
        (2_000_000, ";", 1.0, 2, False),
    ]


def test_a_header_that_is_not_csv_is_reported(tmp_path: Path) -> None:
    """Such as in a file of another kind: the csv module takes no field of more than 128 KiB."""
    path = written(tmp_path, "x" * 200_000 + "\n")
    with pytest.raises(SpeError, match=":1: the header is no CSV: field larger than"):
        list(replay({"kind": "csv", "path": path}).chunks(0))


def test_csv_without_a_header_is_read_by_column_number(tmp_path: Path) -> None:
    path = written(tmp_path, "x,5,a\nx,6,b\n")
    options = {"kind": "csv", "path": path, "header": False, "timestamps": "us", "columns": {"ts": 1, "key": 2}}
    assert tuples(list(replay(options, Schema.of(ts="timestamp!", key="string")).chunks(0))) == [(5, "a"), (6, "b")]


def test_malformed_csv_rows_are_stored_with_line_and_reason(tmp_path: Path) -> None:
    lines = [
        "ts,key,price,qty,sold",
        "1,good,1,1,1",
        "2,few,1",
        "x,bad time,1,1,1",
        "4,bad int,1,1.5,1",
        "5,too large,1,9223372036854775808,1",
        ",no time,1,1,1",
        "7,underscore,1_0,1,1",
        "8,bad bool,1,1,maybe",
        '9,"bro"ken,1,1,1',
        "10,good,,,",
    ]
    path = written(tmp_path, "\n".join(lines).encode() + b"\n11,\xff,1,1,1\n\n12,good,1,1,1\n")
    chunks = list(replay({"kind": "csv", "path": path, "timestamps": "us"}).chunks(0))
    assert [row[:2] for row in tuples(chunks)] == [(1, "good"), (10, "good"), (12, "good")]
    assert malformed(chunks) == [
        (3, "expected 5 cells, got 3"),
        (4, "ts: expected a number of us since the epoch, got 'x'"),
        (5, "qty: expected int64, got '1.5'"),
        (6, "qty: expected int64, got '9223372036854775808'"),
        (7, "ts: null, but the attribute is not nullable"),
        (8, "price: expected float64, got '1_0'"),
        (9, "sold: expected bool, got 'maybe'"),
        (10, "no CSV: ',' expected after '\"'"),
        (12, "key: not UTF-8"),
    ]
    assert chunks[0].malformed[0] == Malformed(3, "expected 5 cells, got 3", "2,few,1")


@pytest.mark.parametrize("block", [1, 1 << 18])
def test_a_row_that_is_no_csv_has_its_text_and_its_lines(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a quote that is not closed takes the lines behind it; other quoted cells may have lines."""
    monkeypatch.setattr("replicas.connectors.formats.csv._BLOCK", block)
    rows = '1,"a\nb"\n2,"x"y\n\n3,"c"\n4,"open\n5,d\n6,"z"z\r\n7,e\n8,"end\n9,f\n'
    path = written(tmp_path, f"ts,key\n{rows}")
    chunks = list(
        replay({"kind": "csv", "path": path, "timestamps": "us"}, Schema.of(ts="int64", key="string")).chunks(0)
    )
    assert [row for chunk in chunks for row in zip(*[c.to_list() for c in chunk.columns])] == [
        (1, "a\nb"),
        (3, "c"),
        (7, "e"),
    ]
    expected = "',' expected after '\"'"
    far = block > 1  # else the first of its lines are not kept any more
    assert [row for chunk in chunks for row in chunk.malformed] == [
        Malformed(4, f"no CSV: {expected}", '2,"x"y'),
        Malformed(7, f"no CSV: {expected}, up to line 9", '4,"open\n5,d\n6,"z"z' if far else ""),
        Malformed(11, "no CSV: unexpected end of data, up to line 12", '8,"end\n9,f'),
    ]


def test_each_line_of_csv_is_a_row() -> None:
    """An empty one as well: lines and rows have the same numbers, as of events whose data is nothing."""
    lines = CsvLines(Schema.of(n="int64", key="string"), None, {})
    chunk = lines.chunk(10, ["1,a", "", "x,b", '"', "\n", "5,c"])
    assert (chunk.first, chunk.taken, chunk.columns[0].to_list()) == (10, 6, [1, 5])
    empty = "no CSV: an empty line"
    assert [(row.line, row.reason, row.text) for row in chunk.malformed] == [
        (12, empty, ""),
        (13, "n: expected int64, got 'x'", "x,b"),
        (14, "no CSV: unexpected end of data", '"'),
        (15, empty, "\n"),
    ]


def test_a_null_event_time_is_malformed_also_where_nullable(tmp_path: Path) -> None:
    path = written(tmp_path, 'ts\n1\n""\n3\n')
    chunks = list(replay({"kind": "csv", "path": path, "timestamps": "us"}, Schema.of(ts="timestamp")).chunks(0))
    assert tuples(chunks) == [(1,), (3,)]
    assert malformed(chunks) == [(3, "no event time")]


@pytest.mark.parametrize("bad", ["garbage", '{"ts": null, "v": 1}', '{"ts": 3, "v": null}', '{"v": 2}'])
def test_a_rejected_row_leaves_no_mask_in_non_nullable_columns(tmp_path: Path, bad: str) -> None:
    """Otherwise the batch could not be sent: the wire refuses a mask for an attribute that is not nullable."""
    schema = Schema.of(ts="timestamp!", v="int64!", s="string!")
    lines = ['{"ts": 1, "v": 1, "s": "a"}', bad, '{"ts": 2, "v": 2, "s": "b"}']
    path = written(tmp_path, "\n".join(lines) + "\n", "in.jsonl")
    (chunk,) = replay({"kind": "jsonl", "path": path, "timestamps": "us"}, schema).chunks(0)
    assert [m.line for m in chunk.malformed] == [2]
    assert all(column.valid is None for column in chunk.columns)
    time = np.zeros(len(chunk), np.int64)
    sent = ElementEncoder(schema).encode_many([Batch(Kind.STABLE, 0, 2, None, Rows(time, time, chunk.columns))])
    assert sent


def test_the_consumed_rows_include_malformed_ones(tmp_path: Path) -> None:
    path = written(tmp_path, "ts\nx\n1\ny\n2\nz\n")
    (chunk,) = replay({"kind": "csv", "path": path, "timestamps": "us"}, Schema.of(ts="timestamp!")).chunks(0)
    assert [chunk.consumed(n) for n in range(len(chunk) + 1)] == [1, 3, 5]


def test_a_missing_file_or_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpeError, match=r"nowhere\.csv: cannot be read: No such file"):
        list(replay({"kind": "csv", "path": str(tmp_path / "nowhere.csv")}).chunks(0))
    path = written(tmp_path, "ts,price\n")
    with pytest.raises(SpeError, match=r"in\.csv: no column key, qty, sold; the header has: ts, price"):
        list(replay({"kind": "csv", "path": path}).chunks(0))
    with pytest.raises(SpeError, match="needs the option 'path'"):
        replay({"kind": "csv"})
    with pytest.raises(SpeError, match="expected a reader kind of csv, jsonl"):
        replay({"kind": "orc"})


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "arrow", "avro"])
def test_a_file_can_be_read_from_any_row(tmp_path: Path, kind: str) -> None:
    schema = Schema.of(ts="timestamp!")
    n = 20_000
    path = str(tmp_path / "rows")
    if kind == "csv":
        written(tmp_path, "ts\n" + "".join(f"{i}\n" for i in range(n)), "rows")
    elif kind == "jsonl":
        written(tmp_path, "".join(f'{{"ts": {i}}}\n' for i in range(n)), "rows")
    elif kind == "avro":
        fields = [{"name": "ts", "type": "long"}]
        with Path(path).open("wb") as file:
            fastavro.writer(file, {"type": "record", "name": "r", "fields": fields}, [{"ts": i} for i in range(n)])
    elif kind == "arrow":
        table = pyarrow.table({"ts": pyarrow.array(range(n), pyarrow.timestamp("us"))})
        with pyarrow.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=12_000)
    else:
        array = pyarrow.array(range(n), pyarrow.timestamp("us"))
        pyarrow.parquet.write_table(pyarrow.table({"ts": array}), path, row_group_size=7_000)
    for skip in (0, 1, 8_191, 8_192, 8_193, n - 1, n):
        chunks = list(replay({"kind": kind, "path": path, "timestamps": "us"}, schema).chunks(skip))
        assert [row[0] for row in tuples(chunks)] == list(range(skip, n))
        assert [c.first for c in chunks[:1]] == ([skip] if skip < n else [])


# -- JSON lines -------------------------------------------------------------------------------------------------


def test_json_lines_take_typed_values_and_missing_keys_are_null(tmp_path: Path) -> None:
    lines = [
        '{"ts": "1970-01-01T00:00:01", "key": "a", "price": 1, "qty": 2, "sold": true, "other": []}',
        '{"ts": 3, "name": "ignored"}',
    ]
    path = written(tmp_path, "\n".join(lines))
    chunks = list(replay({"kind": "jsonl", "path": path, "timestamps": "us"}).chunks(0))
    assert tuples(chunks) == [(SECOND, "a", 1.0, 2, True), (3, None, None, None, None)]


def test_malformed_json_lines_are_stored_with_line_and_reason(tmp_path: Path) -> None:
    lines = [
        '{"ts": 1}',
        "{",
        "[1]",
        '{"ts": true}',
        '{"ts": 5, "qty": 1.5}',
        '{"ts": 6, "qty": 99999999999999999999}',
        '{"ts": 7, "key": 7}',
        '{"ts": 8, "key": "\\ud800"}',
        "{}",
        '{"ts": "yesterday"}',
        "",
        '{"ts": 12, "sold": false}',
    ]
    chunks = list(replay({"kind": "jsonl", "timestamps": "us", "path": written(tmp_path, "\n".join(lines))}).chunks(0))
    assert [row[0] for row in tuples(chunks)] == [1, 12]
    found = malformed(chunks)
    assert [line for line, _ in found] == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    reasons = [reason for _, reason in found]
    assert reasons[0].startswith("no JSON: ")
    assert reasons[1:] == [
        "expected a JSON object, got list",
        "ts: expected timestamp, got 'True'",
        "qty: expected int64, got '1.5'",
        "qty: 99999999999999999999 is beyond 64 bits",
        "key: expected string, got '7'",
        "key: not UTF-8",
        "ts: null, but the attribute is not nullable",
        "ts: expected a number of us since the epoch, got 'yesterday'",
    ]


_NUMBERS = Schema.of(ts="timestamp!", n="int64", x="float64")


@pytest.mark.parametrize("number", ["1e400", "-1E+400", "9" * 309 + ".0"])
def test_json_numbers_beyond_64_bits_are_malformed(tmp_path: Path, number: str) -> None:
    lines = [f'{{"ts": {n}, "x": {x}}}' for n, x in enumerate(["1e308", number, "Infinity", "-Infinity"])]
    path = written(tmp_path, "\n".join(lines))
    chunks = list(replay({"kind": "jsonl", "path": path, "timestamps": "us"}, _NUMBERS).chunks(0))
    assert [row[2] for row in tuples(chunks)] == [1e308, float("inf"), float("-inf")]
    assert malformed(chunks) == [(2, f"x: {number[:40]} is beyond float64")]


@pytest.mark.parametrize(
    ("n", "x", "reason"),
    [
        ("1", "1e400", "x: expected float64, got '1e400'"),
        ("1", "-1e400", "x: expected float64, got '-1e400'"),
        ("\u0661\u0662", "1", "n: expected int64, got '\u0661\u0662'"),
        ("1", "\u0661.5", "x: expected float64, got '\u0661.5'"),
        ("1", "\uff11", "x: expected float64, got '\uff11'"),
    ],
)
def test_csv_numbers_are_of_ascii_digits_and_64_bits(tmp_path: Path, n: str, x: str, reason: str) -> None:
    path = written(tmp_path, f"ts,n,x\n1,1,inf\n2,{n},{x}\n3,3,-Infinity\n")
    chunks = list(replay({"kind": "csv", "path": path, "timestamps": "us"}, _NUMBERS).chunks(0))
    assert tuples(chunks) == [(1, 1, float("inf")), (3, 3, float("-inf"))]
    assert malformed(chunks) == [(3, reason)]


@pytest.mark.parametrize(("unit", "text"), [("us", "\u0661"), ("iso", "\u0662026-01-01")])
def test_csv_timestamps_are_of_ascii_digits(tmp_path: Path, unit: str, text: str) -> None:
    path = written(tmp_path, f"ts\n{text}\n")
    chunks = list(replay({"kind": "csv", "path": path, "timestamps": unit}, Schema.of(ts="timestamp!")).chunks(0))
    assert tuples(chunks) == []
    assert [line for line, _ in malformed(chunks)] == [2]


@pytest.mark.parametrize(("unit", "number"), [("s", 1.5), ("ms", 1500), ("us", 1_500_000), ("ns", 1_500_000_000)])
def test_json_numbers_are_times_in_the_given_unit(tmp_path: Path, unit: str, number: float) -> None:
    path = written(tmp_path, f'{{"ts": {number}}}')
    chunks = list(replay({"kind": "jsonl", "path": path, "timestamps": unit}, Schema.of(ts="timestamp!")).chunks(0))
    assert tuples(chunks) == [(1_500_000,)]


@pytest.mark.parametrize(
    "line",
    ['{"n": 1}', ' {"n": 1}', '{"n": 1} ', '{"n": 1}{"n": 2}', '{"n": 1,}', "[1]", "{}", "", "{", '\ufeff{"n": 1}'],
)
def test_a_line_of_json_is_one_object_and_nothing_else(line: str) -> None:
    chunk = JsonLines(Schema.of(n="int64"), None, {}).chunk(0, ['{"n": 0}', line])
    try:
        expected = [0, json.loads(line)["n"] if json.loads(line) else None]
    except (ValueError, TypeError):
        expected = [0]
    assert chunk.columns[0].to_list() == expected


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_whole_numbers_of_time_are_read_at_once_as_one_by_one(unit: str) -> None:
    numbers = [0, -1, 1, -1500, 1500, 10**9, -(10**12), 2**62, 2**63 - 1, -(2**63), 2**63]
    lines = JsonLines(Schema.of(ts="timestamp"), None, {"timestamps": unit})

    def read(some: list[int], *more: str) -> tuple[list[int], list[int]]:
        chunk = lines.chunk(0, [*(json.dumps({"ts": n}) for n in some), *more])
        return chunk.columns[0].to_list(), [m.line for m in chunk.malformed]

    iso = '{"ts": "1970-01-01"}'  # so that each is looked at
    for some in (numbers, numbers[:-1], numbers[:-4]):
        values, malformed = read(some, iso)
        assert read(some) == (values[:-1], malformed)


def test_json_numbers_without_a_unit_are_malformed_times(tmp_path: Path) -> None:
    path = written(tmp_path, '{"ts": 1767268800}\n{"ts": "1970-01-01T00:00:01"}')
    chunks = list(replay({"kind": "jsonl", "path": path}, Schema.of(ts="timestamp!")).chunks(0))
    assert tuples(chunks) == [(1_000_000,)]
    ((_, reason),) = malformed(chunks)
    assert reason == (
        "ts: expected an ISO 8601 timestamp, got '1767268800'; "
        "for numbers since the epoch say timestamps: s, ms, us or ns"
    )


# -- Parquet ----------------------------------------------------------------------------------------------------


def parquet(folder: Path, **columns: Any) -> str:
    path = str(folder / "in.parquet")
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("width", "least", "most"), [(0, 1 << 16, 1 << 16), (200, 20_000, 50_000), (2_000, 8_192, 8_192)]
)
def test_chunks_of_columns_have_many_rows_and_few_bytes(
    tmp_path: Path, kind: str, width: int, least: int, most: int
) -> None:
    """At most 65,536 rows; of long texts, no more than make 8 MiB, and at least 8,192."""
    count = (1 << 16) + 5
    texts = [f"{n:0{width}}" for n in range(count)] if width else [""] * count
    table = pyarrow.table({"ts": range(count), "key": texts})
    path = str(tmp_path / "in")
    if kind == "parquet":
        pyarrow.parquet.write_table(table, path, use_dictionary=False, compression="none")
    else:
        with pyarrow.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    schema = Schema.of(ts="timestamp!", key="string")
    reader = {"kind": kind, "path": path, "timestamps": "us"}
    found = [len(chunk) for chunk in replay(reader, schema).chunks(0)]
    assert sum(found) == count
    assert least <= max(found) <= most


def test_parquet_types_are_widened_and_nulls_stay_null(tmp_path: Path) -> None:
    path = parquet(
        tmp_path,
        at=pyarrow.array([1, 2, 3], pyarrow.timestamp("ms")),
        key=["a", None, "a"],
        price=pyarrow.array([1.5, None, -0.0], pyarrow.float32()),
        qty=pyarrow.array([None, 7, 8], pyarrow.int32()),
        sold=[True, None, False],
    )
    chunks = list(replay({"kind": "parquet", "path": path, "columns": {"ts": "at"}}).chunks(0))
    assert tuples(chunks) == [(1000, "a", 1.5, None, True), (2000, None, None, 7, None), (3000, "a", 0.0, 8, False)]
    assert [c.values.dtype for c in chunks[0].columns] == [a.type.dtype for a in TRADES]


def test_parquet_dictionaries_and_sliced_timestamps_are_read(tmp_path: Path) -> None:
    path = parquet(
        tmp_path,
        ts=pyarrow.array([1_500, -500, 2_999], pyarrow.timestamp("ns")),
        key=pyarrow.array(["x", None, "y"]).dictionary_encode(),
    )
    chunks = list(replay({"kind": "parquet", "path": path}, Schema.of(ts="timestamp!", key="string")).chunks(0))
    assert tuples(chunks) == [(1, "x"), (-1, None), (2, "y")]


def test_parquet_rows_come_in_file_order_or_sorted_by_a_column(tmp_path: Path) -> None:
    path = parquet(tmp_path, ts=pyarrow.array([1, 2, 3], pyarrow.timestamp("us")), arrival_seq=[2, 0, 1])
    schema = Schema.of(ts="timestamp!")
    options = {"kind": "parquet", "path": path}
    assert tuples(list(replay(options, schema).chunks(0))) == [(1,), (2,), (3,)]
    assert tuples(list(replay({**options, "sort": "arrival_seq"}, schema).chunks(0))) == [(2,), (3,), (1,)]


def test_parquet_rows_with_a_forbidden_null_are_malformed(tmp_path: Path) -> None:
    path = parquet(tmp_path, ts=pyarrow.array([1, None, 3], pyarrow.timestamp("us")))
    chunks = list(replay({"kind": "parquet", "path": path}, Schema.of(ts="timestamp!")).chunks(0))
    assert tuples(chunks) == [(1,), (3,)]
    assert malformed(chunks) == [(2, "ts: null, but the attribute is not nullable")]


@pytest.mark.parametrize("by_dictionary", [True, False])
def test_parquet_texts_that_are_no_unicode_are_malformed(by_dictionary: bool, tmp_path: Path) -> None:
    """Their rows, as of other files, and not the whole file."""
    data = pyarrow.array([b"a", b"\xffb", None, b"a"], pyarrow.binary())
    names = pyarrow.Array.from_buffers(pyarrow.string(), 4, data.buffers())
    path = str(tmp_path / "in.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"n": [1, 2, 3, 4], "name": names}), path, use_dictionary=by_dictionary)
    (chunk,) = replay({"kind": "parquet", "path": path}, Schema.of(n="int64!", name="string"), None).chunks(0)
    assert [c.to_list() for c in chunk.columns] == [[1, 3, 4], ["a", None, "a"]]
    (row,) = chunk.malformed
    assert (row.where, row.reason, row.text) == ("row 2", "name: not UTF-8", "{'n': 2, 'name': b'\\xffb'}")


def test_parquet_integers_are_times_in_the_given_unit(tmp_path: Path) -> None:
    path = parquet(tmp_path, ts=pyarrow.array([1, 2**62, -3], pyarrow.int64()))
    options = {"kind": "parquet", "path": path, "timestamps": "ms"}
    chunks = list(replay(options, Schema.of(ts="timestamp!")).chunks(0))
    assert tuples(chunks) == [(1_000,), (-3_000,)]
    assert malformed(chunks) == [(2, f"ts: {2**62} ms since the epoch is beyond 64 bits")]
    with pytest.raises(SpeError, match="column ts is int64; timestamp was expected; for numbers since the epoch say"):
        list(replay({"kind": "parquet", "path": path}, Schema.of(ts="timestamp!")).chunks(0))


def test_parquet_texts_are_times_if_iso_is_given(tmp_path: Path) -> None:
    path = parquet(tmp_path, ts=["1970-01-01T00:00:01", "soon", None])
    options = {"kind": "parquet", "path": path, "timestamps": "iso"}
    chunks = list(replay(options, Schema.of(ts="timestamp")).chunks(0))
    assert tuples(chunks) == [(1_000_000,)]
    assert malformed(chunks) == [(2, "ts: expected an ISO 8601 timestamp, got 'soon'"), (3, "no event time")]


def test_parquet_floats_are_times_in_the_given_unit(tmp_path: Path) -> None:
    path = parquet(tmp_path, ts=pyarrow.array([1.5, float("nan")], pyarrow.float64()))
    chunks = list(replay({"kind": "parquet", "path": path, "timestamps": "s"}, Schema.of(ts="timestamp!")).chunks(0))
    assert tuples(chunks) == [(1_500_000,)]
    assert malformed(chunks) == [(2, "ts: expected a number of s since the epoch, got 'nan'")]


@pytest.mark.parametrize(
    "type_", [pyarrow.string(), pyarrow.large_string(), pyarrow.string_view(), pyarrow.dictionary("int32", "string")]
)
def test_parquet_texts_of_every_kind_are_read(tmp_path: Path, type_: Any) -> None:
    """With dictionaries that stay, that change, and that Parquet gives up."""
    texts = ["a", None, "b", "a"] * 3_000 + [f"{n}" * 30 for n in range(60_000)] + ["b", "c", None] * 3_000
    array = pyarrow.array(texts, pyarrow.string())
    of_type = array.dictionary_encode() if pyarrow.types.is_dictionary(type_) else array.cast(type_)
    path = str(tmp_path / "in.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"key": of_type}), path, row_group_size=20_000)
    schema = Schema.of(key="string")
    assert [key for (key,) in tuples(list(replay({"kind": "parquet", "path": path}, schema, None).chunks(0)))] == texts
    skipped = list(replay({"kind": "parquet", "path": path}, schema, None).chunks(41_003))
    assert [key for (key,) in tuples(skipped)] == texts[41_003:]


def test_a_dictionary_of_arrow_may_have_doubles_and_nulls(tmp_path: Path) -> None:
    path = str(tmp_path / "in.arrow")
    batches = [
        pyarrow.record_batch({"key": pyarrow.DictionaryArray.from_arrays([0, 1, None, 2, 3], given)})
        for given in (["x", "y", "x", "z"], ["x", "y", "x", "z"])
    ]
    with pyarrow.ipc.new_stream(path, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    found = list(replay({"kind": "arrow", "path": path}, Schema.of(key="string"), None).chunks(0))
    assert [key for (key,) in tuples(found)] == ["x", "y", None, "x", "z"] * 2


def test_parquet_files_that_do_not_fit_are_reported(tmp_path: Path) -> None:
    schema = Schema.of(ts="timestamp!")
    path = parquet(tmp_path, ts=["text"])
    with pytest.raises(SpeError, match="column ts is string; timestamp was expected"):
        list(replay({"kind": "parquet", "path": path}, schema).chunks(0))
    with pytest.raises(SpeError, match="no column seq; the file has: ts"):
        list(replay({"kind": "parquet", "path": path, "sort": "seq"}, schema).chunks(0))
    with pytest.raises(SpeError, match="cannot be read"):
        list(replay({"kind": "parquet", "path": str(tmp_path / "nowhere")}, schema).chunks(0))
    with pytest.raises(SpeError, match="cannot be read"):
        list(replay({"kind": "parquet", "path": written(tmp_path, "no parquet")}, schema).chunks(0))


def test_pandas_is_not_imported_to_read_parquet(tmp_path: Path) -> None:
    """That takes 0.2 s."""
    at = pyarrow.array([1, 2, 3], pyarrow.timestamp("ms"))
    path = parquet(tmp_path, ts=at, n=[1, 2, 3], x=[1.5, -0.0, 2.0], key=["a", "b", "a"], yes=[True, False, True])
    program = f"""
import sys
from replicas.connectors.files.parquet_source import ParquetFiles
from spe.stream.schema import Schema
schema = Schema.of(ts="timestamp!", n="int64!", x="float64!", key="string!", yes="bool!")
with open({path!r}, "rb") as file:
    (chunk,) = ParquetFiles(schema, "ts", {{}}).rows(file, "in", 0)
assert len(chunk) == 3
assert "pyarrow" in sys.modules
print("pandas" in sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


def test_without_pyarrow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SpeError, match=r"pip install '\.\[parquet\]'"):
        list(replay({"kind": "parquet", "path": written(tmp_path, "")}, Schema.of(ts="timestamp!")).chunks(0))


# -- generators -------------------------------------------------------------------------------------------------


def generated(name: str, skip: int = 0, **options: Any) -> list[tuple[Any, ...]]:
    reader = {"kind": "generator", "generator": name, "start": "2020-01-01", "count": 3000, **options}
    return tuples(list(replay(reader, schema_of(name)).chunks(skip)))


def schema_of(name: str) -> Schema:
    schema = GENERATORS[name].schema
    return TRADES if schema is None else schema


@pytest.mark.parametrize("name", GENERATORS)
def test_generator_follows_its_schema_and_seed(name: str) -> None:
    schema = schema_of(name)
    chunks = list(replay({"kind": "generator", "generator": name, "start": 0, "count": 50}, schema).chunks(0))
    for attribute, column in zip(schema, chunks[0].columns, strict=True):
        assert column.values.dtype == attribute.type.dtype
        assert attribute.nullable or column.valid is None
    assert generated(name, seed=7) == generated(name, seed=7)
    assert generated(name, seed=7) != generated(name, seed=8)


@pytest.mark.parametrize("name", GENERATORS)
def test_any_row_can_be_generated_alone(name: str) -> None:
    whole = generated(name, seed=1, disorder="10ms", rate=700)
    for skip in (1, 699, 700, 2999):
        assert generated(name, skip, seed=1, disorder="10ms", rate=700) == whole[skip:]


def test_the_event_time_of_row_i_is_start_plus_i_over_rate() -> None:
    start = parse_timestamp("2020-01-01")
    assert [r[0] - start for r in generated("sequence", rate=3, count=5)] == [0, 333_333, 666_666, 1_000_000, 1_333_333]
    assert [r[0] - start for r in generated("sequence", rate=0.5, count=3)] == [0, 2_000_000, 4_000_000]
    assert [r[1] for r in generated("sequence", rate=3, count=4)] == [0, 1, 2, 3]


def test_disorder_moves_times_back_by_less_than_its_bound() -> None:
    exact = [r[0] for r in generated("orders", rate=1000)]
    moved = [r[0] for r in generated("orders", rate=1000, disorder="20ms")]
    back = [a - b for a, b in zip(exact, moved)]
    assert 0 <= min(back) < max(back) < 20_000
    assert moved != sorted(moved)


def test_burst_squeezes_rows_of_interval_into_first_quarter() -> None:
    start = parse_timestamp("2020-01-01")
    squeezed = [r[0] - start for r in generated("sequence", rate=4, count=8, burst="1s")]
    assert squeezed == [0, 62_500, 125_000, 187_500, 1_000_000, 1_062_500, 1_125_000, 1_187_500]


def test_drift_makes_other_keys_frequent_after_its_time() -> None:
    steady = [r[1] for r in generated("orders", rate=1000, keys=100, skew=1.5)]
    drifting = [r[1] for r in generated("orders", rate=1000, keys=100, skew=1.5, drift="1s")]
    assert drifting[:1000] == steady[:1000]
    assert [max(set(part), key=part.count) for part in (drifting[:1000], drifting[1000:2000], drifting[2000:])] == [
        0,
        62,
        24,
    ]
    assert [(key + 62) % 100 for key in steady[1000:2000]] == drifting[1000:2000]
    options = {"generator": "orders", "start": 0, "count": 3000, "rate": 1000, "skew": 1.5, "drift": "1s"}
    replayed = replay({"kind": "generator", **options}, GENERATORS["orders"].schema)
    assert [r[1] for r in tuples(list(replayed.chunks(1500)))] == drifting[1500:]


def test_the_generator_rows_fills_any_schema() -> None:
    schema = Schema.of(name="string", at="timestamp!", sold="bool!", price="float64", seen="timestamp", n="int64!")
    reader = {"kind": "generator", "generator": "rows", "start": 0, "rate": 10, "count": 1000, "keys": 5}
    rows = tuples(list(replay(reader, schema, "at").chunks(0)))
    assert [r[1] for r in rows[:3]] == [0, 100_000, 200_000]
    assert {r[5] for r in rows} == {0, 1, 2, 3, 4}
    assert {r[0] for r in rows} == {None, *(f"value {i}" for i in range(5))}
    assert {r[3] for r in rows} == {None, 0.0, 0.25, 0.5, 0.75, 1.0}
    assert all(r[1] is not None and r[2] is not None and r[5] is not None for r in rows)


def test_extremes_fill_the_stated_share_of_cells() -> None:
    """Floats come as a reader brings them: no −0.0 and one pattern of NaN (U12)."""
    reader = {"kind": "generator", "generator": "rows", "start": 0, "rate": 5000, "count": 5000, "extremes": 0.2}
    schema = Schema.of(ts="timestamp!", n="int64", m="int64!", x="float64", s="string", b="bool", at="timestamp")
    (chunk,) = replay(reader, schema, "ts").chunks(0)
    columns = dict(zip(schema.names, chunk.columns, strict=True))

    def nulls(name: str) -> int:
        valid = columns[name].valid
        return 0 if valid is None else int((~valid).sum())

    for name in ("n", "m"):
        ends = np.isin(columns[name].values, [-(2**63), 2**63 - 1])
        assert 0.8 * 0.2 * 5000 / 3 < ends.sum() < 1.2 * 0.2 * 5000 / 2.5
    assert nulls("m") == 0
    assert all(0.02 * 5000 < nulls(name) < 0.1 * 5000 for name in ("n", "x", "s", "at", "b"))
    x = columns["x"].values
    assert np.isposinf(x).any()
    assert np.isneginf(x).any()
    assert (abs(x) == 5e-324).any()
    assert not (np.signbit(x) & (x == 0)).any()
    assert len(set(x[np.isnan(x)].view(np.int64).tolist())) == 1
    texts = set(columns["s"].to_list())
    assert "" in texts
    assert max(len(t) for t in texts if t is not None) == 2000
    assert max(columns["at"].values) == END_OF_TIME - 1


def test_a_generator_stops_after_its_duration() -> None:
    assert len(generated("sequence", rate=100, count=None, duration="2500ms")) == 250


def test_skew_prefers_the_first_keys_and_some_readings_are_null() -> None:
    urls = [r[1] for r in generated("pages", keys=50, skew=1.2)]
    assert urls.count("/page/0") > 3 * urls.count("/page/9") > 0
    keys = [r[1] for r in generated("orders", keys=10)]
    assert all(200 < keys.count(k) < 400 for k in range(10))
    nulls = sum(r[2] is None for r in generated("readings"))
    assert 10 < nulls < 60


def test_cars_are_slow_where_incidents_are_reported() -> None:
    """Ten seconds of each, from generators of other seeds and rates."""
    speeds: dict[int, list[float]] = {}
    for _, _, segment, speed in generated("locations", keys=100, rate=1000, count=10_000, seed=7):
        speeds.setdefault(segment, []).append(speed)
    reports = Counter(r[1] for r in generated("incidents", keys=100, rate=50, count=500, seed=8))

    stuck = {segment for segment, values in speeds.items() if max(values) < 15}
    assert stuck == {segment for segment, count in reports.items() if count > 20}
    assert 0 < len(stuck) < 20
    assert min(v for segment, values in speeds.items() if segment not in stuck for v in values) >= 50
    assert 0 < sum(count for segment, count in reports.items() if segment not in stuck) < 100


def test_wrong_generator_options_are_named() -> None:
    with pytest.raises(SpeError, match="no generator 'weather'; there are: sequence, orders"):
        open_reader(source({"kind": "generator", "generator": "weather"}))
    with pytest.raises(SpeError, match=r"reader\.rate: expected a positive number, got 0"):
        open_reader(source({"kind": "generator", "generator": "orders", "rate": 0}))
    with pytest.raises(SpeError, match="give one, or read its log"):
        list(replay({"kind": "generator", "generator": "orders"}).chunks(0))


# -- live lines -------------------------------------------------------------------------------------------------

NUMBERS = Schema.of(ts="timestamp!", n="int64")


def joined(data: list[bytes]) -> tuple[list[str], int]:
    splitter = LineSplitter()
    lines, too_long = [], 0
    for part in data:
        more, long = splitter.feed(part)
        lines += more
        too_long += long
    return lines + splitter.end(), too_long


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["", "a", "bc", "été"]), max_size=8), st.data())
def test_lines_do_not_depend_on_packets(lines: list[str], data: st.DataObject) -> None:
    whole = "\r\n".join(lines).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)])]
    assert joined(parts) == ([line for line in lines if line], 0)


def test_an_overlong_line_is_dropped_and_counted() -> None:
    chunk = b"x" * 400_000
    assert joined([b"first\n", chunk, chunk, chunk, chunk, b"x\nnext\n"]) == (["first", "next"], 1)
    assert joined([b"y" * 1_500_000 + b"\nnext"]) == (["next"], 1)


@pytest.mark.parametrize(
    ("form", "sent", "wrong"),
    [
        ("jsonl", ['{"ts": 1, "n": 1}\n{"ts": 2, "n"', ": 2}\nno json"], "no JSON: "),
        # Of a row that was to be "3,345".
        ("csv", ["1,1\n2,", "2\n3,34"], "expected a newline behind the line, got the end of the connection: "),
    ],
)
async def test_the_last_line_over_tcp_needs_an_end(form: str, sent: list[str], wrong: str) -> None:
    """That of JSON has one without a newline."""
    env = source_env()
    options = {"kind": "tcp", "address": "127.0.0.1:0", "timestamps": "us", "format": form}
    listener = open_reader(source(options, NUMBERS))
    assert isinstance(listener, TcpListener)
    got: list[RowChunk] = []
    enough = trio.Event()

    async def accept(chunk: RowChunk) -> None:
        await trio.lowlevel.checkpoint()
        got.append(chunk)
        if sum(len(c) + len(c.malformed) for c in got) == 3:
            enough.set()

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.read, env, accept)
            while listener.address is None:
                await trio.lowlevel.checkpoint()
            stream = await env.network.connect(listener.address)
            for text in sent:
                await stream.send_all(text.encode())
            await stream.aclose()
            await enough.wait()
            nursery.cancel_scope.cancel()
    assert tuples(got) == [(1, 1), (2, 2)]
    ((line, reason),) = malformed(got)
    assert line == 3
    assert reason.startswith(wrong)


async def test_unfinished_lines_of_many_producers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicas.connectors.tcp._OPEN_BYTES_MAX", 1_000)
    env = source_env()
    listener = open_reader(source({"kind": "tcp", "address": "127.0.0.1:0"}, NUMBERS))
    assert isinstance(listener, TcpListener)

    async def accept(_chunk: RowChunk) -> None:
        await trio.lowlevel.checkpoint()

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.read, env, accept)
            while listener.address is None:
                await trio.lowlevel.checkpoint()
            first, second = [await env.network.connect(listener.address) for _ in range(2)]
            async with first, second:
                await first.send_all(b"x" * 600)
                await trio.testing.wait_all_tasks_blocked(0.05)
                await second.send_all(b"y" * 600)
                with contextlib.suppress(trio.BrokenResourceError):
                    assert await second.receive_some(10) == b"", "it is sent away"
                await first.send_all(b"\n")
                third = await env.network.connect(listener.address)
                async with third:
                    await third.send_all(b"z" * 600 + b"\n")
                    await trio.testing.wait_all_tasks_blocked(0.05)
            nursery.cancel_scope.cancel()


async def test_standard_input_ends_with_the_stream() -> None:
    read_end, write_end = os.pipe()
    reader = StandardInput(NUMBERS, "ts", {"format": "csv", "timestamps": "us"}, read_end)
    os.write(write_end, b'1,10\n2,"open\n3,30')
    os.close(write_end)
    got: list[RowChunk] = []

    async def accept(chunk: RowChunk) -> None:
        await trio.lowlevel.checkpoint()
        got.append(chunk)

    await reader.read(source_env(), accept)
    os.close(read_end)
    assert tuples(got) == [(1, 10), (3, 30)]
    assert malformed(got) == [(2, "no CSV: unexpected end of data")]


@pytest.mark.parametrize("form", ["jsonl", "csv"])
async def test_a_line_that_is_too_long_may_come_alone(form: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"x" * 1_200_000 + b"\n" + {"jsonl": b'{"ts": 1, "n": 10}', "csv": b"1,10"}[form])
    got: list[RowChunk] = []

    async def accept(chunk: RowChunk) -> None:
        await trio.lowlevel.checkpoint()
        got.append(chunk)

    with path.open("rb") as file:
        options = {"format": form, "timestamps": "us"}
        await StandardInput(NUMBERS, "ts", options, file.fileno()).read(source_env(), accept)
    assert tuples(got) == [(1, 10)]
    assert malformed(got) == [(1, "a line of more than 1048576 bytes")]


LIVE = ("tcp", "stdin", "http", "sse", "push", "kafka", "postgres", "directory")


def test_every_reader_is_declared_live_or_not() -> None:
    options = {
        "path": "",
        "folder": "",
        "address": "localhost:0",
        "listen": "localhost:0",
        "url": "http://localhost",
        "generator": "orders",
        "writers": ["etl"],
        "servers": [],
        "topics": [],
        **{"table": "t", "changes": "refuse", "snapshot": True, "slot": "s", "publication": "p"},
    }
    made = {kind: open_reader(source({"kind": kind, **options})) for kind in READERS}
    assert {kind for kind, reader in made.items() if isinstance(reader, Live)} == {*LIVE}
    with pytest.raises(SpeError, match=r"reader\.format: expected jsonl or csv"):
        open_reader(source({"kind": "stdin", "format": "xml"}))
