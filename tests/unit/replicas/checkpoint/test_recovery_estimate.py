"""The expected time to recover from a checkpoint log (G7), computed from a configuration; refused times."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from replicas.checkpoint.recovery_estimate import ExpectedRecovery, expected, recovery_rows, too_short
from replicas.checkpoint.targets import ASSUMED, Workload, least
from replicas.cli.app import execute
from spe.config import load_text

ORDERS = "orders: {from: {generator: {name: orders, rate: RATE, duration: 9s}}MORE}"


def config(query: str, log: str, *, rate: int = 50_000, more: str = "", fragment: str = "", before: str = "") -> str:
    source = ORDERS.replace("RATE", str(rate)).replace("MORE", f", {more}" if more else "")
    first = f"  first: {{operators: [{before.partition(':')[0].strip()}]}}\n" if before else ""
    return (
        f"sources:\n  {source}\nquery:\n{before and f'  {before}' + chr(10)}  out: {query}\n"
        f"fragments:\n{first}  f: {{operators: [out]{fragment}, checkpoint: {{continuous: true, {log}}}}}\n"
    )


def only(text: str) -> ExpectedRecovery:
    (one,) = expected(*load_text(text))
    return one


TUMBLING = "{aggregate: {from: orders, window: 60s, group_by: key, compute: {n: count(*)}}}"
SLIDING = TUMBLING.replace("window: 60s", "window: {sliding: 60s, slide: 20s}")
COUNTING = TUMBLING.replace("window: 60s", "window: {count: 10}")
BY_ATTRIBUTE = TUMBLING.replace("window: 60s", "window: {tumbling: 60s, on: ts}")
JOIN = "{join: {left: orders, right: orders, on: key, window: 10s}}"
TOPK = "{topk: {from: orders, k: 3, order_by: [price], window: 10s}}"
WHOLE = "{custom: {from: [orders], class: 'tests.support.operators_for_tests:Unstorable'}}"
KEYED = "{custom: {from: [orders], class: 'tests.support.operators_for_tests:Visits', arguments: {by: [key], gap: 9}}}"
FILTER = "{filter: {from: orders, where: price > 10}}"


@pytest.mark.parametrize(
    ("query", "workload"),
    [
        (TUMBLING, Workload(1e6, 0, 50_000, 0, 60)),
        (SLIDING, Workload(3e6, 0, 50_000, 0, 60)),
        (COUNTING, Workload(1e6, 5_000, 50_000, 0, math.inf)),
        (BY_ATTRIBUTE, Workload(1e6, 0, 50_000, 0, math.inf)),
        (JOIN, Workload(0, 0, 50_000, 500_000, math.inf)),
        (TOPK, Workload(0, 0, 50_000, 500_000, math.inf)),
        (WHOLE, Workload(1, 0, 50_000, 0, math.inf)),
        (KEYED, Workload(1e6, 50_000, 0, 0, math.inf)),
        (FILTER, Workload(0, 0, 50_000, 0, math.inf)),
    ],
)
def test_state_and_input_follow_from_the_query(query: str, workload: Workload) -> None:
    one = only(config(query, "recovery: 60s, groups: 1000000"))
    assert one.workload == pytest.approx(workload)
    assert (one.knows_groups, one.knows_rate) == (True, True)


def test_rates_are_of_wall_time_and_of_one_partition() -> None:
    quick = only(config(TUMBLING, "recovery: 60s, groups: 1000", more="replay: {speed: 4}"))
    assert quick.workload == Workload(1000, 0, 200_000, 0, 15)
    divided = only(config(TUMBLING, "recovery: 60s, groups: 1000", fragment=", key: key, partitions: 4"))
    assert divided.workload == Workload(1000, 0, 12_500, 0, 60)
    paced = only(config(JOIN, "recovery: 60s", more="replay: {rate: 1000}"))
    assert paced.workload == Workload(0, 0, 1000, 0, math.inf), "tuple time passes at a speed that nobody knows"


@pytest.mark.parametrize(
    ("more", "before"),
    [("replay: {max: true}", ""), ("", "big: {filter: {from: orders, where: price > 10}}")],
)
def test_a_rate_may_be_unknown(more: str, before: str) -> None:
    query = TUMBLING.replace("from: orders", "from: big") if before else TUMBLING
    one = only(config(query, "recovery: 60s, groups: 1000", more=more, before=before))
    assert not one.knows_rate
    assert one.least == least(ASSUMED, Workload(1000), 0.05)


def refused(text: str) -> list[str]:
    return [message for _, message in too_short(*load_text(text))]


@pytest.mark.parametrize(
    ("query", "log", "message"),
    [
        (
            BY_ATTRIBUTE,
            "recovery: 8s, groups: 1000000",
            "8s is too short for unit 'f': 5s to load records and 5s to replay rows (assumed: 5 µs to load a record, "
            "5 µs to rewrite it, 1 µs to replay a row); expected at least 10s, or share: 9%, or more partitions",
        ),
        (BY_ATTRIBUTE, "recovery: 4900ms, groups: 1000000", "4.9s is too short"),
        (JOIN, "recovery: 400ms", "expected at least 500ms, or a shorter window, or more partitions"),
    ],
)
def test_a_time_below_the_least_is_refused_with_that_figure(query: str, log: str, message: str) -> None:
    (said,) = refused(config(query, log))
    assert message in said


@pytest.mark.parametrize(
    ("query", "log"),
    [
        (BY_ATTRIBUTE, "recovery: 10s, groups: 1000000"),
        (BY_ATTRIBUTE, "recovery: 8s, groups: 1000000, share: 9%"),
        (BY_ATTRIBUTE, "recovery: 1ms"),  # nobody knows how many groups there are
        (BY_ATTRIBUTE, "rows: 1, groups: 1000000"),  # an experiment has no time to keep
        (JOIN, "recovery: 500ms"),
        (FILTER, "recovery: 1ms"),
    ],
)
def test_feasible_recovery_time_is_not_refused(query: str, log: str) -> None:
    assert refused(config(query, log)) == []


@pytest.mark.parametrize(
    ("query", "log", "more", "row"),
    [
        (
            BY_ATTRIBUTE,
            "recovery: 20s, groups: 1000000",
            "",
            ["recovery 20s", "least 10s", "Q 1,000,000 records, U 5,000,000 rows, 5% of the time for rewriting"],
        ),
        (
            BY_ATTRIBUTE,
            "recovery: 2s",
            "",
            ["recovery 2s", "up to 400,000 records could be loaded; groups: N says how many groups there are", ""],
        ),
        (
            BY_ATTRIBUTE,
            "recovery: 8s, groups: 1000000",
            "replay: {max: true}",
            ["recovery 8s", "least 5s, and what replay takes at a rate that is not known", ""],
        ),
        (JOIN, "records: 9000, rows: 250000", "", ["at most 9,000 records, at most 250,000 rows", "least 500ms", ""]),
    ],
)
def test_check_shows_the_least_and_the_limits(query: str, log: str, more: str, row: list[str]) -> None:
    assert recovery_rows(*load_text(config(query, log, more=more))) == [["f", *row]]


def test_only_replicas_with_a_log_are_listed() -> None:
    assert recovery_rows(*load_text(config(FILTER, "recovery: 1s").partition(", checkpoint")[0] + "}\n")) == []


def test_the_command_line_says_it_with_its_assumptions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(config(JOIN, "recovery: 2s"), encoding="utf-8")
    assert execute(["check", str(file)]) == 0
    assert capsys.readouterr().out.endswith(
        "\nRECOVERY FROM THE LOG   without the start of the process; assumed: 5 µs to load a record, 5 µs to rewrite "
        "it, 1 µs to replay a row; as far as share allows, 10% of recovery replays rows that operators do not keep\n"
        "  f  recovery 2s  least 500ms  Q 0 records, U 700,000 rows, 0% of the time for rewriting\n"
    )
    file.write_text(config(JOIN, "recovery: 100ms"), encoding="utf-8")
    assert execute(["check", str(file)]) != 0
    assert f"{file}:6: fragments.f.checkpoint.recovery: 100ms is too short" in capsys.readouterr().err
    file.write_text(FILTERED, encoding="utf-8")
    assert execute(["check", str(file)]) == 0
    assert "RECOVERY" not in capsys.readouterr().out


FILTERED = f"sources:\n  {ORDERS.replace('RATE', '5').replace('MORE', '')}\nquery:\n  out: {FILTER}\n"
