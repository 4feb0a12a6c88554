"""``spe report --follow``: a run that is proved in ranges gets the verdict of one that is proved at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from consistency.proof.follow import follow_loop as following
from consistency.proof.follow import ranges
from consistency.proof.report.follow_model import Followed, FollowedOutput
from consistency.proof.report.model import Flaw, Verdict
from consistency.proof.report.schema import FOLLOW_SCHEMA
from replicas.cli.follow import follow
from replicas.cli.report import INCONSISTENT, UNKNOWN
from replicas.faults.model import read_faults
from replicas.reference import run_reference
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.simulate import simulate
from replicas.simulation.world.cluster import SimCluster
from spe import prove
from spe.log.source_log import read_source_log
from spe.problems import Problems
from spe.stream.batch import Batch, Boundary, Element, Undo
from spe.stream.change import Change
from spe.stream.history import Delivered
from spe.stream.names import Kind
from tests.spark.test_report import CONFIG, CUT, EVENTS, SECOND, altered
from tests.spark.test_truth import SOURCE, A, B, aggregate, join, logged, window
from tests.support.reports import check_schema
from tests.support.runs import make_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("commands_use_it")]

TS = {"on": "ts"}
#: What keeps something of the past in each of its ways, also one behind the other.
QUERY: dict[str, Any] = {
    "both": {"union": ["b", "a"]},
    "sliding": aggregate("both", window("dense", **TS), {"j": "j"}, total="sum(x)", n="count(*)", k="last(k)"),
    "top_sums": {"topk": {"from": "sliding", "k": 2, "order_by": ["total desc", "j"]}},
    "counted": aggregate("both", {"count": 3}, {"k": "k"}, n="sum(n)", most="max(x)"),
    "of_counted": aggregate("counted", window("sliding"), {"k": "k"}, n="count(*)", first="first(n)"),
    "full": join("full", within=["5us", "20us"]),
    "right_window": join("right", window=window("sliding", **TS), where="l_n + r_n > 0"),
}  # fmt: skip
HARD: dict[str, Any] = {
    "bucket": "20us",
    "sources": {"a": SOURCE, "b": SOURCE},
    "query": QUERY,
    "outputs": [name for name in QUERY if name != "both"],
    "clients": {"honest": {"reads": [name for name in QUERY if name != "both"]}},
}


def result(path: Path) -> Followed:
    text = (path / following.RESULT).read_text()
    check_schema(text, FOLLOW_SCHEMA)
    return Followed.model_validate_json(text)


def test_every_operator_is_proved_in_ranges(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ranges need of the past is there, and nothing of it counts twice: the reference run is right in each."""
    monkeypatch.setattr(ranges, "STEP_RECORDS", 24)
    inputs = {A: list(logged(1, 120)), B: list(logged(2, 100))}
    plan = make_run(tmp_path / "shape", HARD, {})
    received = [Change(c, e, n) for n, (c, e) in enumerate(run_reference(plan, inputs, step_rows=20))]
    make_run(tmp_path / "run", HARD, inputs, {"honest": received}, segment_bytes=3_000)
    assert follow(str(tmp_path / "run")) == UNKNOWN
    found = result(tmp_path / "run")
    assert found.reasons == ["nothing failed: whether failures are put right was not tried"]
    assert (found.ended, found.proved_us, found.consistent_us) == (True, None, None)
    assert 3 <= found.steps == len(found.latest)
    assert sum(o.truth for o in found.outputs) == sum(
        len(e) for _, e in run_reference(plan, inputs) if isinstance(e, Batch)
    )
    assert all(o.truth == o.stable > 20 for o in found.outputs)


def forged(changes: list[Change]) -> list[Change]:
    """One row more in the middle, with an id of its own; later ones follow."""
    at = stable_batches(changes)[6]
    one = changes[at].element
    assert isinstance(one, Batch)
    again = Batch(
        one.kind, one.from_id, one.upto_id + 1, None, one.rows.take(np.array([*range(len(one)), len(one) - 1]))
    )
    return [*changes[:at], replaced(changes[at], again), *(shifted(c) for c in changes[at + 1 :])]


def shifted(change: Change) -> Change:
    one = change.element
    if isinstance(one, Batch):
        return replaced(change, Batch(one.kind, one.from_id + 1, one.upto_id + 1, None, one.rows))
    if isinstance(one, Boundary):
        return replaced(change, Boundary(one.kind, one.time, one.upto_id + 1))
    return replaced(change, Undo(one.upto_id + 1)) if isinstance(one, Undo) else change


def replaced(change: Change, element: Element) -> Change:
    return Change(change.channel, element, change.arrived_us)


def stable_batches(changes: list[Change]) -> list[int]:
    return [
        n
        for n, c in enumerate(changes)
        if isinstance(c.element, Batch) and c.element.kind is Kind.STABLE and len(c.element) > 1
    ]


def lost(changes: list[Change]) -> list[Change]:
    """Without the last row of a batch in the middle, whose id nothing has."""
    at = stable_batches(changes)[5]
    one = changes[at].element
    assert isinstance(one, Batch)
    less = Batch(one.kind, one.from_id, one.upto_id, one.row_ids()[:-1], one.rows.slice(0, len(one) - 1))
    return [*changes[:at], replaced(changes[at], less), *changes[at + 1 :]]


def twice(changes: list[Change]) -> list[Change]:
    """An early batch comes once more, long after the client had its time for final."""
    early, late = stable_batches(changes)[1], stable_batches(changes)[-2]
    return [*changes[:late], changes[early], *changes[late:]]


FORGERIES: dict[str, Callable[[list[Change]], list[Change]]] = {
    "honest": lambda changes: changes,
    "robbed": lambda changes: lost(altered(changes)),
    "flooded": lambda changes: twice(forged(changes)),
}


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated run in which source a is cut off for 3 s; each client but one was lied to in its own way."""
    config = CONFIG | {"clients": {name: {"reads": ["sums"]} for name in FORGERIES}}
    clusters: list[SimCluster] = []
    faults = tuple(read_faults([CUT], (), Scenario(0, config).deployed().directory, Problems()))
    scenario = Scenario(3, config, faults=faults, heal_us=6 * SECOND)
    outcome = simulate(scenario, watch=lambda cluster: clusters.append(cluster) if not clusters else None)
    assert outcome.holds
    inputs = {
        s: list(read_source_log(clusters[0].env(f"source:{s}").storage, PurePosixPath(s), source.schema))
        for s, source in clusters[0].plan.sources.items()
    }
    received = {
        name: forge(
            [
                Change(e.channel, e.element, e.at_us)
                for e in outcome.history
                if isinstance(e, Delivered) and e.consumer == f"client:{name}"
            ]
        )
        for name, forge in FORGERIES.items()
    }
    path = tmp_path_factory.mktemp("followed") / "simulated"
    make_run(path, config, inputs, received, EVENTS, segment_bytes=20_000)
    return path


@pytest.fixture(scope="module")
def both(spark: SparkSession, run_dir: Path) -> tuple[Followed, dict[str, dict[Flaw, int]], Verdict]:
    """What is found in ranges; and flaws by client, and the verdict, of the same run as a whole."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ranges, "STEP_RECORDS", 200)
        assert follow(str(run_dir)) == INCONSISTENT
    whole = prove(spark, run_dir)
    return result(run_dir), {o.client: {f.flaw: f.count for f in o.findings} for o in whole.outputs}, whole.verdict


def of(found: Followed, client: str) -> FollowedOutput:
    return next(o for o in found.outputs if o.client == client)


@pytest.mark.parametrize("client", FORGERIES)
def test_client_verdicts_in_ranges_equal_those_of_the_whole(
    both: tuple[Followed, dict[str, dict[Flaw, int]], Verdict], client: str
) -> None:
    found, whole, verdict = both
    assert found.verdict is verdict is Verdict.INCONSISTENT
    assert found.steps >= 3
    assert {f.flaw: f.count for f in of(found, client).findings} == whole[client]
    assert of(found, client).verdict is (Verdict.CONSISTENT if client == "honest" else Verdict.INCONSISTENT)
    assert bool(whole[client]) is (client != "honest")


def test_tentative_tuples_are_counted(both: tuple[Followed, dict[str, dict[Flaw, int]], Verdict]) -> None:
    honest = of(both[0], "honest")
    assert honest.tentative == honest.undone > 0
    assert honest.corrections >= 1


def test_first_wrong_tuple_ends_the_consistent_range(
    both: tuple[Followed, dict[str, dict[Flaw, int]], Verdict],
) -> None:
    found = both[0]
    assert found.proved_us is None
    firsts = [one.time for o in found.outputs for f in o.findings for one in f.offenders]
    assert found.consistent_until == min(firsts)
    assert {f.flaw: f.offenders[0].tuple["key"] is not None for f in of(found, "robbed").findings} == {
        Flaw.MISSING: True,
        Flaw.ALTERED: True,
    }
