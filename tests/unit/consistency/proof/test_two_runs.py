"""``spe compare`` without Spark: what is chosen, what is refused, the verdict, and what is printed."""

from __future__ import annotations

from typing import Any

import pytest

from consistency.proof.report.model import Verdict
from consistency.proof.two_runs.choice import (
    chosen_client,
    chosen_key,
    chosen_outputs,
    columns_of,
    compared,
    format_of,
    window_of,
)
from consistency.proof.two_runs.decision import Found, decide_side_by_side, text, worst
from consistency.proof.two_runs.model import (
    ComparedOutput,
    DifferenceKind,
    RowDifference,
    Wanted,
    WindowDifferences,
    floats_text,
)
from spe.config import load_data
from spe.errors import SpeError
from spe.plan.deploy import Deployed, with_default_client
from spe.stream.names import StreamId
from spe.stream.schema import Schema

QUERY: dict[str, Any] = {
    "out": {"filter": {"from": "a", "where": "k > 0"}},
    "sums": {
        "aggregate": {
            "from": "a",
            "window": {"tumbling": "1s"},
            "group_by": "k",
            "compute": {"total": "sum(x)", "n": "count(*)"},
        }
    },
}
OUT, SUMS = StreamId("out"), StreamId("sums")


def deployed(**more: Any) -> Deployed:
    config: dict[str, Any] = {
        "sources": {
            "a": {
                "schema": {"ts": "timestamp", "k": "int64", "x": "float64", "s": "string"},
                "time": "ts",
                "from": {"jsonl": "in.jsonl"},
                "replay": {"max": True},
            }
        },
        "query": QUERY,
        "outputs": ["out", "sums"],
        **more,
    }
    plan, directory = load_data(config)
    return Deployed(plan, with_default_client(plan, directory))


PLAN, DIRECTORY = deployed()


def test_runs_are_compared_in_all_outputs_and_a_table_in_one() -> None:
    assert chosen_outputs(PLAN, Wanted(), PLAN) == [OUT, SUMS]
    assert chosen_outputs(PLAN, Wanted(outputs=("sums",)), PLAN) == [SUMS]
    assert chosen_outputs(PLAN, Wanted(outputs=("sums",)), None) == [SUMS]
    with pytest.raises(SpeError, match="a table is one output; say which with --output: one of: out, sums"):
        chosen_outputs(PLAN, Wanted(), None)
    with pytest.raises(SpeError, match="no output 'sum'"):
        chosen_outputs(PLAN, Wanted(outputs=("sum",)), None)


def test_outputs_that_only_one_run_has_are_refused() -> None:
    fewer = deployed(query={"sums": QUERY["sums"]}, outputs=["sums"]).plan
    with pytest.raises(SpeError, match="the other run has no output 'out', only one of: sums"):
        chosen_outputs(PLAN, Wanted(), fewer)
    with pytest.raises(SpeError, match="the run has no output 'out', which the other run has"):
        chosen_outputs(fewer, Wanted(), PLAN)
    assert chosen_outputs(PLAN, Wanted(outputs=("sums",)), fewer) == [SUMS]


@pytest.mark.parametrize(
    ("compute", "ignored", "said"),
    [
        (
            {"total": "sum(x)", "n": "sum(x)"},
            (),
            "attribute 'n' of output 'sums' is int64, and float64 in the other",
        ),
        ({"total": "sum(x)"}, (), "output 'sums' of the other run has no attribute 'n'"),
        ({"total": "sum(x)", "n": "count(*)", "m": "count(*)"}, (), "has no attribute 'm', which it has in the other"),
        ({"n": "count(*)", "total": "sum(x)"}, (), ""),
        ({"total": "sum(x)", "n": "sum(x)"}, ("n",), ""),
    ],
)
def test_other_attributes_are_refused_unless_they_are_ignored(
    compute: dict[str, str], ignored: tuple[str, ...], said: str
) -> None:
    sums = {"aggregate": {**QUERY["sums"]["aggregate"], "compute": compute}}
    other = deployed(query={**QUERY, "sums": sums}).plan
    wanted = Wanted(outputs=("sums",), ignored=ignored)
    if not said:
        assert chosen_outputs(PLAN, wanted, other) == [SUMS]
        return
    with pytest.raises(SpeError) as caught:
        chosen_outputs(PLAN, wanted, other)
    assert said in str(caught.value)


def test_the_key_is_that_of_the_operator_or_all_but_floats() -> None:
    assert chosen_key(PLAN, SUMS, Wanted()) == ["k", "window_start", "window_end"]
    assert chosen_key(PLAN, SUMS, Wanted(ignored=("window_start",))) == ["k", "window_end"]
    assert chosen_key(PLAN, SUMS, Wanted(key=("n",))) == ["n"]
    assert chosen_key(PLAN, OUT, Wanted()) == ["ts", "k", "s"]
    assert window_of(PLAN.query.schema_of(SUMS)) == "window_end"
    assert window_of(PLAN.query.schema_of(OUT)) == ""
    assert window_of(Schema.of(window_end="int64")) == ""
    with pytest.raises(SpeError, match="no attribute 'm'"):
        chosen_key(PLAN, SUMS, Wanted(key=("m",)))
    with pytest.raises(SpeError, match="no attribute 'm'"):
        chosen_key(PLAN, SUMS, Wanted(columns=(("m", "x"),)))
    with pytest.raises(SpeError, match="'k' cannot be of the key and be ignored"):
        chosen_key(PLAN, SUMS, Wanted(key=("k",), ignored=("k",)))
    with pytest.raises(SpeError, match="nothing to compare"):
        compared(PLAN.query.schema_of(OUT), Wanted(ignored=("ts", "k", "x", "s")))


def test_the_client_is_the_only_reader_or_the_one_that_is_named() -> None:
    two = deployed(clients={"one": {"reads": ["out", "sums"]}, "two": {"reads": ["sums"]}}).directory
    assert chosen_client(two, OUT, "") == "one"
    assert chosen_client(two, SUMS, "two") == "two"
    assert chosen_client(two, SUMS, "", "two") == "two"
    for wanted, output, said in (
        ("", SUMS, "several clients read 'sums'; say whose rows count with --client, one of: one, two"),
        ("two", OUT, "client 'two' does not read 'out'"),
        ("three", OUT, "no client 'three'"),
    ):
        with pytest.raises(SpeError, match=said):
            chosen_client(two, output, wanted)
    with pytest.raises(SpeError, match="no client recorded 'out'"):
        chosen_client(deployed(clients={"two": {"reads": ["sums"]}}).directory, OUT, "")


@pytest.mark.parametrize(
    ("names", "given", "expected"),
    [
        (["a.parquet"], "", "parquet"),
        (["_SUCCESS", ".part.crc", "part-0.csv", "c.csv"], "", "csv"),
        (["a.json", "b.jsonl"], "", "jsonl"),
        (["a.txt"], "csv", "csv"),
        (["k=1/d=2/a.csv", "k=2/d=1/b.csv", "_delta_log/0.json", ".x/a.json"], "", "csv"),
        (["_k=1/a.csv"], "", "csv"),
    ],
)
def test_the_format_of_a_table_follows_from_its_files(names: list[str], given: str, expected: str) -> None:
    assert format_of(names, "t", given) == expected


@pytest.mark.parametrize(
    ("names", "given", "said"),
    [
        (["a.txt"], "", "t: cannot see the format of a.txt; say it with --format"),
        (["a.csv", "a.parquet"], "", "cannot see the format"),
        (["_SUCCESS"], "", "t has no files: it is neither a run nor a table"),
        (["a.csv", "more/b.csv"], "", "t: more/b.csv lies in a folder of its own; expected files in t itself, or in"),
        (["k=1/a.csv", "k=1/more/b.csv"], "csv", "t: k=1/more/b.csv lies in a folder of its own"),
        (["a.csv", "k=1/b.csv"], "", "t: a.csv and k=1/b.csv lie in folders of different columns"),
        (["a.csv"], "avro", "--format: expected one of: parquet, csv, jsonl, got 'avro'"),
    ],
)
def test_other_files_are_refused(names: list[str], given: str, said: str) -> None:
    with pytest.raises(SpeError, match=said):
        format_of(names, "t", given)


def test_table_columns_are_matched_by_name() -> None:
    schema = PLAN.query.schema_of(SUMS)
    there = ["_partition", "_id", "_time", "key", "window_start", "window_end", "total", "n", "engine"]
    names, apart = columns_of(there, schema, Wanted(columns=(("k", "key"),)), "t")
    assert names["k"] == "key"
    assert apart == ["engine"]
    for columns, wanted, said in (
        (there, Wanted(), "t has no column 'k'; it has: _partition"),
        (["_kind", *there], Wanted(), "t was written by a sink with corrections"),
        (there, Wanted(time="at", columns=(("k", "key"),)), r"t has no column 'at' \(--time\)"),
    ):
        with pytest.raises(SpeError, match=said):
            columns_of(columns, schema, wanted, "t")


@pytest.mark.parametrize(
    ("changes", "verdict", "reasons"),
    [
        ({}, Verdict.CONSISTENT, []),
        ({"missing": 1}, Verdict.INCONSISTENT, ["1 row missing"]),
        ({"added": 2, "differs": 2}, Verdict.INCONSISTENT, ["2 rows added", "2 rows differ"]),
        ({"differs": 1, "unfinished": ["a"]}, Verdict.INCONSISTENT, ["1 row differs"]),
        ({"unfinished": ["a"], "until": "t"}, Verdict.UNKNOWN, ["compared until t only: a may have more to come"]),
        ({"run_rows": 0, "other_rows": 0}, Verdict.UNKNOWN, ["neither side has a row: there is nothing to compare"]),
    ],
)
def test_the_verdict_is_of_the_rows_that_both_can_have(
    changes: dict[str, Any], verdict: Verdict, reasons: list[str]
) -> None:
    found = {"run_rows": 9, "other_rows": 9, "missing": 0, "added": 0, "differs": 0, "unfinished": [], "until": ""}
    assert decide_side_by_side(Found(**{**found, **changes})) == (verdict, reasons)


def test_the_worst_verdict_counts() -> None:
    c, i, u = Verdict.CONSISTENT, Verdict.INCONSISTENT, Verdict.UNKNOWN
    assert [worst(v) for v in ([c], [c, u], [u, i, c])] == [c, u, i]


def test_printed_differences_name_rows_by_window_and_key() -> None:
    one = ComparedOutput(
        output="sums",
        client="board",
        run="runs/new",
        other="old.parquet",
        verdict=Verdict.INCONSISTENT,
        reasons=["1 row missing", "1 row differs"],
        key=["k", "window_end"],
        apart=["engine"],
        until="",
        floats=floats_text(1e-9),
        run_rows=9,
        other_rows=10,
        missing=1,
        added=0,
        differs=1,
        columns={"n": 1},
        by="window_end",
        windows=[WindowDifferences(window="12:00:01", missing=1, added=0, differs=1)],
        rows=[
            RowDifference(kind=DifferenceKind.MISSING, run=None, other={"k": 1, "window_end": "12:00:01", "n": None}),
            RowDifference(
                kind=DifferenceKind.DIFFERS,
                run={"k": 2, "window_end": "12:00:01", "n": 3},
                other={"k": 2, "window_end": "12:00:01", "n": 4},
            ),
        ],
    )
    assert text(one) == [
        "INCONSISTENT  sums: 8 rows equal; runs/new (board) has 9, old.parquet 10",
        "  compared by k, window_end; floats within 1e-09 of the larger one",
        "  not compared: engine",
        "  1 row missing",
        "  1 row differs",
        "  differing: n in 1 row",
        "  window_end 12:00:01: 1 missing, 1 differ",
        "    missing: k 1, window_end 12:00:01, n null",
        "    differs: k 2, window_end 12:00:01: n 3, other 4",
    ]
