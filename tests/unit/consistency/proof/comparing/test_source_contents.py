"""A source's log against its file, by content: each format, and what each change of log or file makes of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402

from consistency.proof.comparing.digests import Digester, digests_of, halves  # noqa: E402
from consistency.proof.comparing.source_contents import NotCompared, differences, read_file  # noqa: E402
from consistency.proof.recorded.query_file import SourceEntry, read  # noqa: E402
from consistency.proof.recorded.records import Table  # noqa: E402
from replicas.connectors import open_reader  # noqa: E402
from spe.config import load_data  # noqa: E402
from spe.stream.batch import Batch, Rows  # noqa: E402
from spe.stream.names import Kind, StreamId  # noqa: E402
from spe.stream.schema import Schema  # noqa: E402
from tests.support.runs import write_source_log  # noqa: E402

A = StreamId("a")
SCHEMA = Schema.of(ts="timestamp!", n="int64", price="float64", name="string", ok="bool")
#: Values as a row of the log has them.
Row = tuple[Any, ...]
ROWS: list[Row] = [
    (0, 1, 0.1, "a", True),
    (1_000_001, -7, 1e22, 'näme "b", c', False),
    (86_400_000_000, None, None, None, None),
    (86_400_000_000, None, None, None, None),
    (1_700_000_000_123_456, 2**40, -2.5, "line\nbreak", True),
]


def iso(us: int) -> str:
    return f"{str(pa.scalar(us, pa.timestamp('us')).as_py()).replace(' ', 'T')}Z"


def csv_text(rows: Sequence[Row], **_: Any) -> str:
    def cell(value: Any) -> str:
        text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n') else text

    return "ts,n,price,name,ok\n" + "".join(",".join([iso(r[0]), *map(cell, r[1:])]) + "\n" for r in rows)


def jsonl_text(rows: Sequence[Row]) -> str:
    return "".join(json.dumps(dict(zip(SCHEMA.names, [iso(r[0]), *r[1:]]))) + "\n" for r in rows)


def write_parquet(file: Path, rows: Sequence[Row]) -> None:
    types = (pa.timestamp("us"), pa.int64(), pa.float64(), pa.string(), pa.bool_())
    arrays = [pa.array(column, type_) for column, type_ in zip(zip(*rows), types)]
    pq.write_table(pa.table(arrays, names=list(SCHEMA.names)), file)


def write_avro(file: Path, rows: Sequence[Row]) -> None:
    import fastavro

    types = ["double", "string", "boolean"]
    fields = [{"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}}]
    fields += [{"name": n, "type": ["null", t]} for n, t in zip(SCHEMA.names[1:], ["long", *types])]
    with file.open("wb") as opened:
        schema = fastavro.parse_schema({"type": "record", "name": "r", "fields": fields})
        fastavro.writer(opened, schema, [dict(zip(SCHEMA.names, row)) for row in rows])


WRITERS = {
    "csv": lambda file, rows: file.write_text(csv_text(rows)),
    "jsonl": lambda file, rows: file.write_text(jsonl_text(rows)),
    "parquet": write_parquet,
    "avro": write_avro,
}


def entry(kind: str, file: Path, **options: Any) -> SourceEntry:
    return SourceEntry(None, "ts", 0, kind, {kind: str(file), **options}, {})


def log(path: Path, rows: Sequence[Row], schema: Schema = SCHEMA) -> Table:
    times = [row[0] for row in rows]
    batch = Batch(Kind.STABLE, 0, len(rows), None, Rows.from_tuples(schema, times, rows))
    write_source_log(path, A, schema, [batch])
    return Table(True, schema, (str(path / "sources" / "a"),))


def said(
    path: Path, source: SourceEntry, file: Path, logged: Sequence[Row], *, refused: int = 0, ended: bool = True
) -> list[str]:
    rows = Rows.from_tuples(SCHEMA, [row[0] for row in logged], logged)
    sums = halves(digests_of(Digester(SCHEMA), rows))
    return differences(read_file(file, source, SCHEMA), log(path, logged), len(logged), sums, refused, ended=ended)


@pytest.mark.parametrize("kind", list(WRITERS))
def test_a_log_is_compared_with_each_kind_of_file(tmp_path: Path, kind: str) -> None:
    if kind == "avro":
        pytest.importorskip("fastavro")
    file = tmp_path / "in"
    WRITERS[kind](file, ROWS)
    found = read_file(file, entry(kind, file), SCHEMA)
    assert found.plain.all()
    assert len(found.digests) == len(ROWS)
    assert said(tmp_path / "right", entry(kind, file), file, ROWS[::-1]) == []
    forged = [*ROWS[:4], (*ROWS[4][:1], 70, *ROWS[4][2:])]
    assert said(tmp_path / "cell", entry(kind, file), file, forged) == [
        "no row of its input has the contents of 1 tuple of its log: id 5",
        "its log lacks the contents of 1 well-formed row of its input: row 5",
    ]
    assert said(tmp_path / "less", entry(kind, file), file, ROWS[1:]) == [
        "its log lacks the contents of 1 well-formed row of its input: row 1"
    ]
    assert said(tmp_path / "refused", entry(kind, file), file, ROWS[1:], refused=1) == []
    assert said(tmp_path / "open", entry(kind, file), file, ROWS[1:], ended=False) == []
    pair = [*ROWS[:2], ROWS[0], ROWS[0], ROWS[4]]  # two equal rows for two other equal ones
    assert len(said(tmp_path / "pair", entry(kind, file), file, pair)) == 2


MALFORMED = {
    "csv": "ts,n,price,name,ok\n{good}\n0,1,1,a,true\nnever,1,1,a,true\n\n{good}x,1\n{iso},1_0,1,a,true\n"
    '{iso},1,1,"a"x,true\n{iso},1,1,a\n',
    "jsonl": '{json}\nno json\n[1]\n\n{{"ts": null}}\n{{"ts": "{iso}", "n": "5"}}\n{{"ts": "{iso}", "n": 1.0}}\n'
    '{{"ts": "{iso}", "n": true}}\n{{"ts": "{iso}", "n": 18446744073709551616}}\n'
    '{{"ts": "{iso}", "name": "\\ud800"}}\n',
}


@pytest.mark.parametrize("kind", list(MALFORMED))
def test_rejected_rows_of_a_source_are_not_plain(tmp_path: Path, kind: str) -> None:
    """The engine's reader takes the good rows only; whatever it sets aside counts among those that are not plain."""
    good = csv_text(ROWS[:1]).splitlines()[1]
    file = tmp_path / "in"
    file.write_text(MALFORMED[kind].format(good=good, json=jsonl_text(ROWS[:1]).strip(), iso=iso(0)))
    config = {
        "sources": {"a": {"schema": {a.name: f"{a.type}{'' if a.nullable else '!'}" for a in SCHEMA}, "time": "ts",
                          "from": {kind: "in"}}},
        "query": {"f": {"filter": {"from": "a", "where": "true"}}},
    }  # fmt: skip
    plan, _ = load_data(config, folder=tmp_path)
    reader = open_reader(plan.sources[A])
    chunks = list(reader.chunks(0))  # type: ignore[union-attr]
    taken = sum(len(chunk) for chunk in chunks)
    found = read_file(file, entry(kind, file), SCHEMA)
    assert len(found.plain) == taken + sum(len(chunk.malformed) for chunk in chunks)
    assert int(found.plain.sum()) == taken == 1
    # With as many tuples as the file has plain rows, none of them may have other contents.
    assert len(said(tmp_path, entry(kind, file), file, [(0, 5, 5.0, "forged", True)])) == 1


def test_a_day_that_there_is_not_makes_one_row_odd(tmp_path: Path) -> None:
    """Not those beside it, of which a text that is no plain time would even be a null."""
    file, schema = tmp_path / "in", Schema.of(ts="timestamp!", seen="timestamp")
    odd = ["2023-02-29T00:00:00", "2024-01-01T24:00:00", "2024-01-01T00:00:60", "2024-01-01T00:00:00z"]
    cells = ["1970-01-01T00:00:01Z", *odd, "", "1968-02-29 00:00:00.5"]
    file.write_text("ts,seen\n" + "".join(f"{iso(0)},{cell}\n" for cell in cells))
    found = read_file(file, entry("csv", file), schema)
    assert found.plain.tolist() == [True, *[False] * len(odd), True, True]
    want = Rows.from_tuples(schema, [0] * 3, [(0, 1_000_000), (0, None), (0, -58_060_799_500_000)])
    assert found.digests.tolist() == digests_of(Digester(schema), want).tolist()


def test_columns_units_and_nulls_are_read_as_configured(tmp_path: Path) -> None:
    file = tmp_path / "in"
    file.write_text("5;NA;3\n6;2;NA\n")
    options = read(
        "sources: {a: {schema: {ts: timestamp!, n: int64}, time: ts, from: {csv: in, delimiter: ';', header: false, "
        "columns: {ts: 2, n: 1}, 'null': NA, timestamps: ms}}}\nquery: {f: {filter: {from: a, where: 'true'}}}"
    ).sources["a"]
    schema = Schema.of(ts="timestamp!", n="int64")
    found = read_file(file, options, schema)
    assert found.plain.tolist() == [True, False]
    want = Rows.from_tuples(schema, [3000], [(3000, None)])
    assert found.digests.tolist() == digests_of(Digester(schema), want).tolist()


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_every_unit_have_the_same_contents(tmp_path: Path, unit: str) -> None:
    file, schema = tmp_path / "in", Schema.of(ts="timestamp")
    pq.write_table(
        pa.table({"ts": pa.array([-2_000_000_000, None]).cast(pa.timestamp("ns")).cast(unit and pa.timestamp(unit))}),
        file,
    )
    found = read_file(file, SourceEntry(None, None, 0, "parquet", {"parquet": "in"}, {}), schema)
    want = Rows.from_tuples(schema, [0, 0], [(-2_000_000,), (None,)])
    assert found.digests.tolist() == digests_of(Digester(schema), want).tolist()


def test_input_that_is_not_reread_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotCompared, match="live input"):
        read_file(tmp_path, entry("tcp", tmp_path), SCHEMA)
    with pytest.raises(NotCompared, match="arrow is not read again"):
        read_file(tmp_path, entry("arrow", tmp_path), SCHEMA)
    pq.write_table(pa.table({"ts": pa.array([1], pa.decimal128(5, 2))}), tmp_path / "in")
    with pytest.raises(NotCompared, match=r"a column of decimal128\(5, 2\) is not read again as timestamp"):
        read_file(tmp_path / "in", entry("parquet", tmp_path / "in"), Schema.of(ts="timestamp"))
