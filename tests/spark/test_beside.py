"""``spe compare``: the rows of a run beside those of another run, and of tables that say otherwise."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from consistency.proof.two_runs.model import SideBySide
from replicas.cli.app import execute
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from tests.support.long_forms import long_but
from tests.support.runs import make_run, mounted
from tests.support.streams import parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("commands_use_it")

CONFIG: dict[str, Any] = {
    "sources": {
        "a": {
            "schema": {"ts": "timestamp", "k": "int64", "x": "float64", "s": "string"},
            "time": "ts",
            "from": {"jsonl": "none.jsonl"},
            "replay": {"max": True},
        }
    },
    "query": {"out": {"filter": {"from": "a", "where": "k is not null or k is null"}}},
    "outputs": ["out"],
    "clients": {"board": {"reads": ["out"]}},
}
NAMES = {"ts": "timestamp", "more": "int64", "window_end": "int64"}
SCHEMA = Schema.of(ts="timestamp", k="int64", x="float64", s="string")
#: ts, k, x, s.  Rows 3 and 4 are equal.
ROWS: list[tuple[int, int | None, float | None, str | None]] = [
    (1, 1, 0.1, "a"),
    (2, 2, -0.0, "b,\"c\""),
    (3, 3, float("nan"), None),
    (3, 3, float("nan"), None),
    (5, None, 1e300, "e"),
    (6, 6, 0.1 + 0.2, "z"),
]  # fmt: skip


def a_run(path: Path, rows: list[tuple[Any, ...]], end: str = "inf") -> Path:
    """A run whose client got these rows, the first ones tentatively, too."""
    from spe.stream.batch import Batch, Rows
    from spe.stream.names import Kind

    data = [(ts * 1_000_000, *more) for ts, *more in rows]
    batch = Batch(Kind.STABLE, 0, len(rows), None, Rows.from_tuples(SCHEMA, [r[0] for r in data], data))
    elements = [*parse("T/7:1,1,1.5,wrong U(0)", SCHEMA), batch, *parse(f"B{end}({len(rows)})", SCHEMA)]
    channel = Channel(StreamId("out"), 0)
    make_run(path, CONFIG, {StreamId("a"): [batch]}, {"board": [Change(channel, e, 1_000) for e in elements]})
    return path


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_run(tmp_path_factory.mktemp("beside") / "run", ROWS)


def a_table(file: Path, rows: list[tuple[Any, ...]], **more: list[Any]) -> Path:
    """The rows as Parquet, CSV or JSON lines, as another engine may write them."""
    ts, k, x, s = (list(column) for column in zip(*rows))
    times = [datetime.fromtimestamp(t, UTC) for t in ts]
    if file.suffix == ".parquet":
        table = pa.table({"ts": pa.array(times, pa.timestamp("ms", tz="UTC")), "k": pa.array(k, pa.int32()), "x": x,
                          "s": s, **more})  # fmt: skip
        pq.write_table(table, file)
        return file
    cells = [{"ts": t.isoformat(), "k": a, "x": b, "s": c} for t, a, b, c in zip(times, k, x, s)]
    if file.suffix == ".jsonl":
        file.write_text("".join(json.dumps({n: v for n, v in one.items() if v is not None}) + "\n" for one in cells))
        return file
    quoted = ['"' + str(v).replace('"', '""') + '"' if isinstance(v, str) else "" if v is None else repr(v)
              for one in cells for v in one.values()]  # fmt: skip
    lines = [",".join(quoted[at : at + 4]) for at in range(0, len(quoted), 4)]
    file.write_text("\n".join(["ts,k,x,s", *lines]).replace("nan", "NaN") + "\n")
    return file


def found(out: Path) -> Any:
    (one,) = SideBySide.model_validate_json((out / "comparison.json").read_text()).outputs
    return one


@pytest.mark.parametrize("suffix", long_but(["csv"], ["parquet", "csv", "jsonl"]))
def test_a_table_with_the_same_rows_is_consistent(
    run_dir: Path, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In any order, and with other types of the same values; −0.0 is 0.0, and NaN is NaN."""
    table = a_table(tmp_path / f"t.{suffix}", [*reversed(ROWS)])
    assert execute(["compare", str(run_dir), str(table)]) == 0
    assert "CONSISTENT  out: 6 rows equal" in capsys.readouterr().out


def changed(rows: list[Any]) -> list[Any]:
    """Without the second of two equal rows; with another float, another text under a null key, and one row more."""
    del rows[3]
    rows[0] = (1, 1, 0.1 + 1e-12, "a")
    rows[3] = (5, None, 1e300, "other")
    return [*rows, (9, 9, 9.0, "new")]


def test_each_difference_is_named_by_key(
    run_dir: Path, tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    table = a_table(tmp_path / "t.parquet", changed([*ROWS]), extra=[1] * 6)
    out, junit = tmp_path / "found", tmp_path / "found.xml"
    command = ["compare", str(run_dir), str(table), "--key", "k", "--out", str(out), "--junit", str(junit)]
    assert execute(command) == 1
    one = found(out)
    assert (one.run_rows, one.other_rows, one.missing, one.added, one.differs) == (6, 6, 1, 1, 2)
    assert (one.columns, one.apart, one.key, one.floats) == (
        {"x": 1, "s": 1},
        ["extra", "tuple time"],
        ["k"],
        "exactly",
    )
    first = "1970-01-01 00:00:01"
    assert [(r.kind, r.run, r.other) for r in one.rows] == [
        ("missing", None, {"ts": "1970-01-01 00:00:09", "k": 9, "x": 9.0, "s": "new"}),
        ("added", {"ts": "1970-01-01 00:00:03", "k": 3, "x": "nan", "s": None}, None),
        ("differs", {"ts": first, "k": 1, "x": 0.1, "s": "a"}, {"ts": first, "k": 1, "x": 0.1 + 1e-12, "s": "a"}),
        ("differs", {"ts": "1970-01-01 00:00:05", "k": None, "x": 1e300, "s": "e"},
         {"ts": "1970-01-01 00:00:05", "k": None, "x": 1e300, "s": "other"}),
    ]  # fmt: skip
    assert spark.read.parquet(str(out / "out.parquet")).count() == 4
    (failure,) = ET.parse(junit).getroot().iter("failure")
    assert failure.get("message") == "1 row missing; 1 row added; 2 rows differ"
    assert "INCONSISTENT  out: 3 rows equal" in capsys.readouterr().out


@pytest.mark.long
def test_floats_are_equal_within_given_tolerance(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(1, 1, 0.1 + 1e-12, "a"), *ROWS[1:5], (6, 6, 0.3, "z")]
    table = a_table(tmp_path / "t.parquet", rows)
    assert execute(["compare", str(run_dir), str(table)]) == 1
    assert "differing: x in 2 rows" in capsys.readouterr().out
    assert execute(["compare", str(run_dir), str(table), "--tolerance", "1e-9"]) == 0
    assert "floats within 1e-09 of the larger one" in capsys.readouterr().out
    assert execute(["compare", str(run_dir), str(table), "--ignore", "x"]) == 0


def test_unfinished_run_is_compared_as_far_as_it_is_final(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = a_run(tmp_path / "part", ROWS[:4], "5000000")
    assert execute(["compare", str(part), str(run_dir)]) == 2
    said = capsys.readouterr().out
    assert f"compared until 1970-01-01 00:00:05 only: {part} may have more to come" in said
    assert "UNKNOWN  out: 4 rows equal" in said
    wrong = a_run(tmp_path / "wrong", [*ROWS[:3], (4, 4, 4.0, "d")], "5000000")
    assert execute(["compare", str(wrong), str(run_dir), "--out", str(tmp_path / "found")]) == 1
    one = found(tmp_path / "found")
    assert (one.missing, one.added, one.by) == (1, 1, "the tuple time")
    assert [(w.window[-2:], w.missing, w.added) for w in one.windows] == [("03", 1, 0), ("04", 0, 1)]
    table = a_table(tmp_path / "t.parquet", ROWS)
    capsys.readouterr()
    assert execute(["compare", str(part), str(table)]) == 2
    assert "name the column that has them with --time" in capsys.readouterr().err
    assert execute(["compare", str(part), str(table), "--time", "ts"]) == 2
    assert "UNKNOWN  out: 4 rows equal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda f: pq.write_table(pa.table({"ts": [1], "k": [1], "x": [1.0]}), f),
            "has no column 's'; it has: ts, k, x",
        ),
        (
            lambda f: pq.write_table(pa.table({"ts": [1], "k": [1], "x": [1.0], "s": ["a"]}), f),
            "column 'ts' of .*table is bigint, from which attribute 'ts' \\(timestamp\\) cannot be read",
        ),
        (
            lambda f: f.write_text('{"ts": "1970-01-01T00:00:01Z", "k": 1.7, "x": 1, "s": "a"}\n'),
            "column 'k' of .*table has '1.7', which is no value of its attribute",
        ),
        (lambda f: f.write_text("[1]\nx\n"), "has lines that are no JSON objects"),
    ],
    ids=["columns", "types", "values", "JSON"],
)
def test_a_table_of_another_schema_is_refused(
    run_dir: Path, tmp_path: Path, make: Callable[[Path], None], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "table"
    make(file)
    format_ = "parquet" if file.read_bytes().startswith(b"PAR1") else "jsonl"
    assert execute(["compare", str(run_dir), str(file), "--format", format_]) == 2

    assert re.search(said, capsys.readouterr().err)


HEADER = "ts,k,x,s"
FIRST, SECOND = "1970-01-01T00:00:01Z,1,0.1,a", "1970-01-01T00:00:02Z,2,0.0,b"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"t.csv": [HEADER, FIRST, f"{SECOND},5"]}, "t.csv has a row of more or fewer cells than its header: [1970-"),
        ({"t.csv": [HEADER, "1970-01-01T00:00:01Z,1"]}, "t.csv has a row of more or fewer cells than its header"),
        ({"a.csv": [HEADER, FIRST], "b.csv": ["ts,x,k,s", FIRST]}, " has another header than ts,"),
        ({"a.csv": [HEADER, FIRST], "more/b.csv": [HEADER, SECOND]}, "more/b.csv lies in a folder of its own"),
    ],
    ids=["long row", "short row", "other order", "subfolder"],
)
def test_csv_that_would_be_read_as_something_else_is_refused(
    tmp_path: Path, files: dict[str, list[str]], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, table = a_run(tmp_path / "run", [(1, 1, 0.1, "a"), (2, 2, 0.0, "b")]), tmp_path / "a table"
    for name, lines in files.items():
        (table / name).parent.mkdir(parents=True, exist_ok=True)
        (table / name).write_text("\n".join(lines) + "\n")
    assert execute(["compare", str(run), (table / "t.csv" if "t.csv" in files else table).as_uri()]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.long
def test_csv_may_have_many_files_and_columns_without_a_name(run_dir: Path, tmp_path: Path) -> None:
    table = tmp_path / "table"
    for number, part in enumerate((ROWS[:2], ROWS[2:])):
        (table / f"day={number}").mkdir(parents=True)
        a_table(table / f"day={number}" / "part.csv", part)
    assert execute(["compare", str(run_dir), str(table)]) == 0
    one = a_table(tmp_path / "one.csv", ROWS)
    one.write_text(
        "".join(f"{',' if at == 0 else f'{at},'}{line}\n" for at, line in enumerate(one.read_text().splitlines()))
    )
    assert execute(["compare", str(run_dir), str(one)]) == 0


@pytest.mark.parametrize(("name", "status"), [("t[12].csv", 2), ("t{1,2}.jsonl", 2), ("t[12]*.parquet", 0)])
def test_a_path_is_no_pattern(
    run_dir: Path, tmp_path: Path, name: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark would read the other file."""
    suffix = name.rpartition(".")[2]
    a_table(tmp_path / f"t1.{suffix}", ROWS[:2])
    table = a_table(tmp_path / name, ROWS)
    assert execute(["compare", str(run_dir), str(table)]) == status
    assert status == 0 or f"{table}: Spark takes it for a pattern" in capsys.readouterr().err


def test_files_of_parquet_have_the_same_columns(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "a table [1]"
    for number, part in enumerate((ROWS[:2], ROWS[2:])):
        (table / f"day={number}").mkdir(parents=True)
        a_table(table / f"day={number}" / "part.parquet", part)
    assert execute(["compare", str(run_dir), str(table)]) == 0
    file = table / "day=1" / "part.parquet"
    pq.write_table(pq.read_table(file).drop_columns(["x"]), file)
    assert execute(["compare", str(run_dir), str(table)]) == 2
    said = capsys.readouterr().err
    assert "day=1/part.parquet are of one table, and " in said
    assert "only one of them has the column 'x'; expected the same columns in each file" in said


@pytest.mark.long
def test_tuple_time_is_compared_where_both_sides_have_it(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = [datetime.fromtimestamp(ts + (k == 2), UTC) for ts, k, *_ in ROWS]
    table = a_table(tmp_path / "t.parquet", ROWS, _time=later)
    out = tmp_path / "what was found"
    assert execute(["compare", str(run_dir), str(table), "--out", str(out)]) == 1
    assert list((out / "out.parquet").glob("*.parquet"))
    one = found(out)
    assert (one.missing, one.added, one.differs, one.columns, one.apart) == (0, 0, 1, {"tuple time": 1}, [])
    said = capsys.readouterr().out
    assert "tuple time 1970-01-01 00:00:02, other 1970-01-01 00:00:03" in said
    assert execute(["compare", str(run_dir), str(a_table(tmp_path / "u.parquet", ROWS)), "--out", str(out)]) == 0
    assert "not compared: tuple time" in capsys.readouterr().out
    assert not (out / "out.parquet").exists()
    assert found(out).verdict == "CONSISTENT"
    mine = (tmp_path / "t.parquet").rename(tmp_path / "out.parquet")
    assert execute(["compare", str(run_dir), str(mine), "--out", str(tmp_path)]) == 2
    assert "would be overwritten with the differences" in capsys.readouterr().err


@pytest.mark.long
def test_attributes_may_have_the_names_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``more`` was a column of ours; ``window_end`` need not be the end of a window."""
    query = {"out": {"filter": {"from": "a", "where": "more > 0"}}}
    config = {**CONFIG, "sources": {"a": {**CONFIG["sources"]["a"], "schema": NAMES}}, "query": query}
    schema, output = Schema.of(**NAMES), Channel(StreamId("out"), 0)
    elements = parse("S1/1000000:1000000,1,5 Binf(1)", schema)
    make_run(
        tmp_path / "run", config, {StreamId("a"): elements}, {"board": [Change(output, e, 1_000) for e in elements]}
    )
    table, junit = tmp_path / "t.csv", tmp_path / "found.xml"
    table.write_text("ts,more,window_end\n1970-01-01T00:00:01Z,1,6\n")
    assert execute(["compare", str(tmp_path / "run"), str(table), "--key", "more"]) == 1
    assert "differs: more 1: window_end 5, other 6" in capsys.readouterr().out
    table.write_text("ts,more,window_end\n1970-01-01T00:00:01Z,many,6\n")
    assert execute(["compare", str(tmp_path / "run"), str(table), "--junit", str(junit)]) == 2
    (error,) = ET.parse(junit).getroot().iter("error")
    assert "has 'many', which is no value" in error.get("message", "")


def test_a_table_may_be_one_file_on_another_file_system(run_dir: Path, tmp_path: Path, spark: SparkSession) -> None:
    a_table(tmp_path / "t.csv", ROWS)
    assert execute(["compare", str(run_dir), f"{mounted(spark, tmp_path, 'beside')}/t.csv"]) == 0
