"""Small versions of the papers' experiments: each runs, writes its results, and shows the expected effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from benchmarks.experiments.__main__ import main
from benchmarks.experiments.measures import expected
from benchmarks.experiments.setup import Setup
from spe.stream.times import SECOND

pytestmark = pytest.mark.long


def results(name: str, folder: Path) -> list[dict[str, Any]]:
    assert main([name, "--quick", "--out", str(folder)]) == 0, "a promise was not kept"
    assert "<polyline" in (folder / f"{name}.svg").read_text()
    rows: list[dict[str, Any]] = pq.read_table(folder / f"{name}.parquet").to_pylist()
    return rows


def test_the_model_of_one_node() -> None:
    """D = 10 s, αX = 2.7 s; 2,000 of 3,000 tuples/s still arrive; 12,000/s are reprocessed: R_s = 2.5, R_c = 3.33 s."""
    setup = Setup(failure_us=10 * SECOND, speed=12_000)
    assert expected(setup).tentative == 20_000 + 10_000
    assert expected(setup).delay_us == round(2.8 * SECOND)
    suspended = Setup(failure_us=10 * SECOND, speed=12_000, failure="delay", stabilization="suspend")
    assert expected(suspended).tentative == 2000 * 7.3
    assert expected(suspended).delay_us == round((0.1 + 2.7 + 2.5) * SECOND)
    assert expected(Setup(failure_us=2 * SECOND)).tentative == 0


def test_process_policy_keeps_x_and_suspend_does_not(tmp_path: Path) -> None:
    works_on, waits = results("policies", tmp_path)
    assert (works_on["keeps_x"], waits["keeps_x"]) == (True, False)
    assert works_on["tentative"] > waits["tentative"]
    assert works_on["correcting_s"] == pytest.approx(4.15 / (12_500 / 4500 - 1), abs=0.1)  # R_c of the missing input


def test_a_chain_waits_alpha_x_once(tmp_path: Path) -> None:
    one, two = results("chains", tmp_path)
    assert one["delay_s"] == two["delay_s"] == 0.9
    available = 20 * 2  # per second, for two seconds
    assert min(one["tentative"], two["tentative"]) >= available
    assert available < one["model_tentative"] < two["model_tentative"]


def test_the_delay_of_serialisation_is_half_a_bucket(tmp_path: Path) -> None:
    for row in results("serialisation", tmp_path):
        assert row["longest_ms"] == row["bucket_ms"]
        assert row["mean_ms"] == pytest.approx(row["bucket_ms"] / 2, abs=10)
        assert row["held"] == row["model_held"] == row["most_held"] / 2


def test_a_kill_makes_no_gap_and_a_cut_one_of_four_heartbeats(tmp_path: Path) -> None:
    killed, cut = results("switching", tmp_path)
    assert killed["gap_ms"] == killed["ordinary_ms"] == 20
    assert 300 <= cut["gap_ms"] <= 500
    assert killed["tentative"] == cut["tentative"] == 0


def test_checkpoint_and_undo_are_measured_on_the_same_input(tmp_path: Path) -> None:
    """Times depend on the machine; the kept rows do not."""
    every = results("reconciling", tmp_path)
    rows = [row for row in every if row["sweep"] == "state"]
    assert [(row["way"], row["state"]) for row in rows] == [
        (way, state) for state in (20, 500) for way in ("checkpoint", "undo")
    ]
    assert all(row["correction_ms"] > 0 and row["redone"] == 4995 for row in rows)
    later = [row for row in every if row["sweep"] == "interval" and row["interval_s"]]
    assert all(row["redone"] == 3000 * (5 + row["interval_s"] / 2) and row["model_ms"] > 0 for row in later)
    kept = {row["state"]: row["buffered_rows"] for row in rows if row["way"] == "undo"}
    assert 20 <= kept[20] < kept[500]
    assert all(row["buffered_rows"] == 0 for row in rows if row["way"] == "checkpoint")


def test_tentative_tuples_are_near_their_lower_bound(tmp_path: Path) -> None:
    delay, process = results("bound", tmp_path)
    bucket = 300 / 10
    assert abs(delay["tentative"] - delay["model_tentative"]) <= bucket
    assert abs(process["tentative"] - process["model_tentative"]) <= bucket
    assert process["tentative"] - delay["tentative"] == pytest.approx(200 * 2.7, abs=2 * bucket)
    assert delay["outage_s"] == process["outage_s"] == delay["failure_s"]


def test_accuracy_follows_of_and_not_ic_for_joins(tmp_path: Path) -> None:
    rows = results("fidelity", tmp_path)
    for row in rows:
        assert row["accuracy"] == pytest.approx(row["of"], abs=0.05)
        assert row["ic"] > row["of"]
    at = {(row["query"], row["planner"], row["budget"]): row for row in rows}
    by_of, by_ic = at["jams", "dynamic", 4], at["jams", "best IC of whole trees", 4]
    assert by_ic["ic"] > by_of["ic"]
    assert by_ic["accuracy"] < by_of["accuracy"]
    assert at["top-100 pages", "greedy", 4]["of"] < at["top-100 pages", "structure-aware", 4]["of"]


def test_active_replicas_recover_before_checkpoints_and_half(tmp_path: Path) -> None:
    active, checkpoint, half = results("recovery", tmp_path)
    assert active["tentative_s"] is checkpoint["tentative_s"] is None, "all is there, or nothing"
    assert active["recovered_s"] < half["tentative_s"] < half["recovered_s"]
    assert active["recovered_s"] < checkpoint["recovered_s"]


def test_checkpoints_lie_where_a_full_node_can_use_them(tmp_path: Path) -> None:
    at = {(row["job"], row["placement"]): row for row in results("usable", tmp_path)}
    assert at["pair", "correlated"]["usable"] == 1.0
    assert at["pair", "baseline"]["usable"] < 0.6
    four = {placement: row for (job, placement), row in at.items() if job != "pair"}
    assert four["correlated"]["usable"] >= 2 * four["even"]["usable"]
    assert four["correlated"]["score"] == pytest.approx(four["correlated"]["best_score"])


def test_load_aware_checkpoints_assist_more_moves(tmp_path: Path) -> None:
    at = {row["placement"]: row for row in results("elasticity", tmp_path)}
    assert at["correlated"]["assisted"] > at["even"]["assisted"]
    assert at["correlated"]["with_cpal_s"] < at["even"]["with_cpal_s"]
    assert all(row["ours_s"] < row["with_cpal_s"] <= row["direct_s"] for row in at.values())


def test_the_densest_queries_are_near_the_optimum(tmp_path: Path) -> None:
    for row in results("scheduling", tmp_path):
        assert row["mean_of_optimum"] > 0.99
        assert row["operator_centric"] < row["best_density"] / 4
        assert row["best_density"] <= row["optimum"]


def test_returning_nodes_each_complete_what_they_can(tmp_path: Path) -> None:
    at_once, operators, queries, fidelity = results("arrivals", tmp_path)
    assert [row["area_queries"] for row in (at_once, operators, queries)] == [4, 6, 9]
    assert at_once["area_of"] < operators["area_of"] < queries["area_of"] < fidelity["area_of"]


def test_a_checkpoint_log_keeps_to_its_limits(tmp_path: Path) -> None:
    """What is made again is compared there; here: Q and U are kept, and what is rewritten falls with both.

    Of Q a step's records are allowed for, as it is no more than there are windows; of U a step's rows.
    """
    small_q, large_q, small_u, large_u, none = results("log-limits", tmp_path)
    assert small_q["most_records"] <= 1.1 * small_q["most"] < none["most_records"] <= large_q["most"]
    assert small_u["rows"] <= 1.1 * small_u["most"] < large_u["rows"] <= 1.1 * large_u["most"] < none["rows"]
    assert small_q["rewritten"] > small_u["rewritten"] > large_u["rewritten"] > 0
    assert large_q["rewritten"] == none["rewritten"] == 0


def test_a_checkpoint_log_is_made_again_for_each_size(tmp_path: Path) -> None:
    """How long that takes depends on the machine."""
    rows = results("log-recovery", tmp_path)
    assert [(row["groups"], row["number"]) for row in rows] == [(g, n) for g in (1_000, 10_000) for n in (1, 2, 3)]
    assert all(row["records"] > row["groups"] / 2 and row["took_s"] > 0 for row in rows)


def test_a_checkpoint_log_writes_less_than_whole_checkpoints(tmp_path: Path) -> None:
    found = results("log-costs", tmp_path)
    assert [row["changed"] for row in found] == 3 * [0.01] + 3 * [0.6]
    whole, *logs = found[:3]
    assert all(log["net_kb_per_s"] < whole["net_kb_per_s"] / 10 for log in logs)
    assert all(log["disk_kb_per_s"] == 2 * log["net_kb_per_s"] for log in logs), "two copies"
    assert all(0 < row["kept_upstream_kb"] <= row["most_kept_kb"] for row in found)
    # How much depends on the measured speed of a row: a tenth of twice the time is for as many rows or more.
    assert logs[0]["kept_upstream_kb"] < logs[1]["kept_upstream_kb"]


def test_openings_and_pacing_are_compared_with_no_log(tmp_path: Path) -> None:
    """The amounts depend on the machine."""
    for plain, openings, _ in zip(*[iter(results("log-throughput", tmp_path))] * 3, strict=True):
        assert (plain["log"], plain["cost"], plain["openings"]) == ("none", 0, 0)
        assert (openings["log"], openings["rewritten"]) == ("openings", 0)
    none, *periods = results("log-period", tmp_path)
    assert none["against_none"] == 1
    assert [row["period_ms"] for row in periods] == [25, 250]
    assert periods[0]["rewritten"] > 0


@pytest.mark.processes
def test_node_with_standby_is_compared_with_node_without(tmp_path: Path) -> None:
    """The amount depends on the machine."""
    without, each_second = results("checkpointing", tmp_path)
    assert (without["against_none"], without["standby_cpu"]) == (1, None)
    assert each_second["against_none"] > 1
    assert each_second["standby_cpu"] > 0


@pytest.mark.processes
def test_a_node_process_corrects_everything_that_was_tentative(tmp_path: Path) -> None:
    """Times depend on the machine; the results do not."""
    for row in results("healing", tmp_path):
        assert row["redone"] == 990 * row["failure_s"]
        assert row["tentative"] >= 660 * row["failure_s"]
        assert 0 < row["first_s"] <= row["last_s"]


def test_queries_come_back_with_the_nodes_that_arrive(tmp_path: Path) -> None:
    """In simulation; those that are complete first have the largest area."""
    at = {row["order"]: row for row in results("incremental", tmp_path)}
    areas = [at[order]["queries"] for order in ("at once", "operators", "complete queries", "standbys everywhere")]
    assert areas == sorted(areas)
    assert areas[-1] == 6
    assert at["at once"]["first_s"] == at["at once"]["all_s"]
    assert at["standbys everywhere"]["recovered_s"] <= 1
    assert all(at[order]["recovered_s"] >= at[order]["all_s"] for order in ("at once", "operators", "fidelity"))
    assert at["complete queries"]["first_s"] < at["operators"]["first_s"]
    assert at["at once"]["fidelity"] < at["operators"]["fidelity"] < at["fidelity"]["fidelity"]
    # Both plan the same here, but for what a look at each 100 ms sees.
    assert abs(at["fidelity"]["fidelity"] - at["complete queries"]["fidelity"]) < 0.01


def test_queries_independent_of_failure_are_unaffected(tmp_path: Path) -> None:
    downstream, upstream = results("locations", tmp_path)
    assert (downstream["failed"], upstream["failed"]) == (3, 6)
    assert downstream["normal_lag_s"] == downstream["lag_before_s"] < 0.2
    assert upstream["normal_lag_s"] is None
    assert 3 < downstream["all_s"] < 5
    assert 3 < upstream["all_s"] < 5


@pytest.mark.processes
def test_direct_migration_leaves_gap_until_install(tmp_path: Path) -> None:
    """How long depends on the machine; three heartbeats pass before an install begins."""
    ours, direct = results("migration", tmp_path)
    assert (ours["method"], ours["tentative"]) == ("ours", 0)
    assert direct["silence_ms"] > 200
    assert min(ours["completion_s"], direct["completion_s"]) > 0


@pytest.mark.processes
def test_all_tuples_are_counted_for_any_number_of_partitions(tmp_path: Path) -> None:
    """What that costs depends on the machine."""
    few, more = results("partitions", tmp_path)
    assert (few["partitions"], more["partitions"], few["came"]) == (2, 10, 1)
    assert min(few["nodes_cpu"], more["nodes_cpu"]) > 0


@pytest.mark.processes
def test_most_moves_take_as_long_as_was_expected(tmp_path: Path) -> None:
    """In simulation; how long real ones take depends on the machine."""
    *rows, real = results("predicting", tmp_path)
    assert (real["which"], real["moves"]) == ("real processes", 2)
    assert rows[-1]["which"] == "all"
    assert rows[-1]["moves"] == 16
    assert min(row["near"] for row in rows) >= 0.75
