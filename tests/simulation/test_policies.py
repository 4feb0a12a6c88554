"""The promises of each policy, in chains of nodes and on one node; and outputs without failed inputs."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import trio

from replicas.simulation.world.clock import EPOCH_US, JumpClock
from spe.config import load_data
from spe.plan.deploy import Deployed
from spe.plan.directory import Directory
from spe.plan.nodes import Policy
from spe.plan.plan import Limits, Plan
from spe.stream.batch import Batch, Boundary, Undo
from spe.stream.history import Delivered
from spe.stream.ids import PartitionId
from spe.stream.names import Kind, NodeId, NodeState, StreamId, UnitId
from tests.simulation.test_buffers import longer
from tests.simulation.test_cluster import SCHEMA, SECONDS, X_US, Outcome, make_plan, run
from tests.simulation.test_two_feeds import END_S, one_failure
from tests.support.faulty_cluster import FaultyCluster
from tests.support.long_forms import long_but
from tests.support.plans import chain, pass_on, placed, source
from tests.support.situations import Met, inside, play

#: αX of each node, as in make_plan.
ALPHA_X_US = 900_000
#: Buckets, boundaries, ticks and heartbeats on the way.
SLACK_US = 150_000
CUT_S = 4.0

#: The trace of a consumer that reaches its source again, behind time and name.
REACHED = ["peer_reached", "peer=source:b"]
#: Longest way of a result to the client.
ON_THE_WAY_US = 5_000

GRID = list(product(Policy, Policy))


async def cut_a_source(plan: Plan, directory: Directory, *, until: float = SECONDS + 12) -> Outcome:
    """The outcome of a run in which a source is cut off for four seconds."""
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(3)
            cluster.cut("source:b", "*")
            await trio.sleep(CUT_S)
            cluster.heal()
            outcome = await run(cluster, until)
            outcome.assert_complete()
            assert all(r.state is NodeState.STABLE for r in cluster.replicas().values())
            return outcome


@pytest.mark.parametrize(
    ("depth", "failure", "stabilization"),
    long_but(
        [
            (3, Policy.PROCESS, Policy.PROCESS),
            (1, Policy.PROCESS, Policy.DELAY),
            (1, Policy.PROCESS, Policy.SUSPEND),
            (1, Policy.DELAY, Policy.PROCESS),
            (2, Policy.DELAY, Policy.DELAY),
            (1, Policy.SUSPEND, Policy.PROCESS),
        ],
        [(d, f, s) for d in (1, 2, 3) for f, s in GRID if d == 1 or f is s],
    ),
)
async def test_every_pair_of_policies_keeps_its_promise(
    jump_clock: JumpClock, depth: int, failure: Policy, stabilization: Policy
) -> None:
    outcome = await cut_a_source(
        *make_plan(depth, failure=failure, stabilization=stabilization),
    )
    wait_us = outcome.longest_wait_us()
    if failure is Policy.SUSPEND:
        assert outcome.tentative == 0  # the policy gives up availability
        assert outcome.undos == 0
        assert wait_us >= CUT_S * 1e6 - X_US
        return
    assert outcome.tentative > 0
    assert outcome.undos > 0
    if failure is Policy.PROCESS and stabilization is not Policy.DELAY:
        assert wait_us <= ALPHA_X_US + SLACK_US * depth  # αX once, not once per node (T7)
    assert wait_us <= depth * X_US + SLACK_US * depth


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("cut_s", [0.95, 1.5, 4.0])
async def test_once_a_source_is_back_nothing_more_is_tentative(
    jump_clock: JumpClock, cut_s: float, replicas: int
) -> None:
    """T9: results that are about to be corrected are not shown as tentative first."""
    async with FaultyCluster(*make_plan(replicas=replicas)) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(3)
            cluster.cut("source:b", "*")
            await trio.sleep(cut_s)
            cluster.heal()
            outcome = await run(cluster, SECONDS + 5)
            outcome.assert_complete()
            back_s = min(float(at) for at, *words in map(str.split, cluster.log) if words[1:3] == REACHED)
            tentative = [
                c for c in outcome.changes if isinstance(c.element, Batch) and c.element.kind is Kind.TENTATIVE
            ]
            assert tentative, "the failure is long enough"
            late = [c for c in tentative if c.arrived_us - EPOCH_US >= 1e6 * back_s + ON_THE_WAY_US]
            assert not late, f"{sum(len(c.element) for c in late)} after {back_s} s"


@pytest.mark.parametrize("stabilization", long_but([Policy.PROCESS], [Policy.PROCESS, Policy.DELAY]))
def test_policy_delay_makes_fewer_tentative_tuples(stabilization: Policy) -> None:
    """Delaying up to X helps on a single node (DPC section 6.1)."""

    def tentative(failure: Policy) -> int:
        deployed = make_plan(1, failure=failure, stabilization=stabilization)
        return trio.run(cut_a_source, *deployed, clock=JumpClock()).tentative

    assert 0 < tentative(Policy.DELAY) < tentative(Policy.PROCESS)


@pytest.mark.parametrize("lone", [False, True], ids=["with a partner", "alone"])
def test_suspend_silences_an_only_replica_and_not_a_pair(lone: bool) -> None:
    """An only replica has no partner with fresh results during its redo (R5)."""

    def played(policy: Policy) -> Met:
        replicas = 1 if lone else 2
        plan, directory = make_plan(1, rate=50.0, replicas=replicas, stabilization=policy, limits=Limits(slice_rows=4))
        return play(*longer(plan, directory, 13), one_failure, turn_us=20_000)

    suspending, processing = played(Policy.SUSPEND), played(Policy.PROCESS)
    assert not suspending.spans("u1/0@n1a", NodeState.STABILIZATION, fresh=True)
    assert bool(processing.spans("u1/0@n1a", NodeState.STABILIZATION, fresh=True)) == lone
    begin, end = suspending.corrected("u1/0@n1a")
    silence_us = suspending.longest_gap_us("c", (begin, end + SLACK_US))
    assert (silence_us > 4 * SLACK_US) == lone


def test_live_results_lack_no_row_that_redo_took_first() -> None:
    """Under policy delay redo overtakes buckets that live still holds back (R6)."""

    async def failure_without_partner(cluster: FaultyCluster) -> None:
        await trio.sleep_until(3)
        cluster.kill("n1b")
        await one_failure(cluster)
        await trio.sleep_until(END_S - 1)
        cluster.restart("n1b")

    delay = Policy.DELAY
    plan, directory = make_plan(1, rate=50.0, failure=delay, stabilization=delay, limits=Limits(slice_rows=4))
    met = play(*longer(plan, directory, END_S), failure_without_partner, turn_us=20_000)
    (span,) = met.spans("u1/0@n1a", NodeState.STABILIZATION, fresh=True)
    got = [(inside(span, e.at_us), e.element) for e in met.history if isinstance(e, Delivered)]
    promised = [e.time for then, e in got if then and isinstance(e, Boundary) and e.kind is Kind.TENTATIVE]

    def rows(kind: Kind, *, then: bool) -> list[tuple[int, str]]:
        batches = [e for at, e in got if isinstance(e, Batch) and e.kind is kind and at >= then]
        found = ((t, str(row)) for e in batches for t, row in zip(e.rows.time.tolist(), e.rows.to_tuples()))
        return sorted(row for row in found if promised[0] <= row[0] < promised[-1])

    assert len(rows(Kind.TENTATIVE, then=True)) > 50
    assert rows(Kind.TENTATIVE, then=True) == rows(Kind.STABLE, then=False)


# --- X on one node ---


def on_one_node(depth: int, failure: Policy) -> Deployed:
    """A chain of units on the same two nodes."""
    plan, directory = make_plan(depth, failure=failure)
    names = directory.placement[PartitionId(UnitId("u1"), 0)]
    nodes, placement = {n: directory.nodes[n] for n in names}, dict.fromkeys(directory.placement, names)
    return Deployed(plan, replace(placed(directory, placement), nodes=nodes))


def test_units_in_sequence_on_a_node_divide_its_x() -> None:
    plan, directory = on_one_node(3, Policy.DELAY)
    shares = [directory.share(plan, u.id, NodeId("n1a")) for u in plan.units]
    assert [s.x_us for s in shares] == [X_US // 3] * 3
    assert [s.alpha_x_us for s in shares] == [ALPHA_X_US // 3] * 3
    plan, spread = make_plan(3)
    places = [(u.id, n) for u in plan.units for n in spread.placement[PartitionId(u.id, 0)]]
    assert {spread.share(plan, unit, n).x_us for unit, n in places} == {X_US}


def test_units_side_by_side_do_not_divide_x() -> None:
    """Two ways through a node: x → y on one, z alone on the other."""
    data = {
        "cluster": "sides",
        "bucket": "100ms",
        "defaults": {"x": "2s"},
        "sources": {n: {"from": {"generator": {"name": "orders"}}, "boundary": "100ms"} for n in "ab"},
        "query": {
            "x": {"filter": {"from": "a", "where": "qty > 1"}},
            "y": {"filter": {"from": "x", "where": "qty > 2"}},
            "z": {"filter": {"from": "b", "where": "qty > 1"}},
        },
        "outputs": ["y", "z"],
        "fragments": {n: {"operators": [n], "replicas": ["n1", "n2"]} for n in "xyz"},
        "nodes": ["n1", "n2"],
    }
    plan, directory = load_data(data)
    shares = {u.outputs[0]: directory.share(plan, u.id, NodeId("n1")).x_us for u in plan.units}
    assert shares == {"x": 1_000_000, "y": 1_000_000, "z": 2_000_000}


@pytest.mark.parametrize("failure", [Policy.PROCESS, Policy.DELAY])
async def test_a_node_keeps_x_with_any_number_of_units(jump_clock: JumpClock, failure: Policy) -> None:
    outcome = await cut_a_source(*on_one_node(2, failure))
    assert outcome.tentative > 0
    assert outcome.longest_wait_us() <= X_US + SLACK_US


# --- states per output stream ---


def two_paths() -> Deployed:
    """One fragment with two independent paths: a → left, b → right."""
    reader = {"kind": "generator", "generator": "sequence", "rate": 100.0, "duration": f"{SECONDS}s"}
    sources = [
        replace(source(n, reader=reader | {"seed": at}, schema=SCHEMA), boundary_us=100_000)
        for at, n in enumerate("ab")
    ]
    plan, directory = chain(
        sources, [("left", pass_on("a"), SCHEMA), ("right", pass_on("b"), SCHEMA)], x_us=X_US, bucket_us=100_000
    )
    names = directory.placement[PartitionId(UnitId("u1"), 0)]
    outputs = (StreamId("left"), StreamId("right"))
    directory = replace(
        placed(directory, dict.fromkeys(directory.placement, names)),
        clients={"c": replace(directory.clients["c"], reads=outputs)},
        nodes={n: directory.nodes[n] for n in names},
    )
    return Deployed(replace(plan, query=replace(plan.query, outputs=outputs)), directory)


async def test_an_output_without_failed_inputs_stays_stable(jump_clock: JumpClock) -> None:
    async with FaultyCluster(*two_paths()) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(3)
            states: set[NodeState] = set()
            switches = {str(i.channel): i.switches for i in cluster.clients["c"].inputs}
            cluster.cut("source:b", "*")
            for _ in range(40):
                await trio.sleep(0.1)
                states |= {r.state for n, r in cluster.replicas().items() if n.startswith("u1")}
            cluster.heal()
            outcome = await run(cluster, SECONDS + 5)
            outcome.assert_complete()
            kinds: dict[str, set[Kind]] = {"left": set(), "right": set()}
            for change in outcome.changes:
                if isinstance(change.element, Batch):
                    kinds[change.channel.stream].add(change.element.kind)
            assert kinds == {"left": {Kind.STABLE}, "right": {Kind.STABLE, Kind.TENTATIVE}}
            assert not any(isinstance(c.element, Undo) for c in outcome.changes if c.channel.stream == "left")
            assert states == {NodeState.STABLE}
            left = next(i for i in cluster.clients["c"].inputs if i.channel.stream == "left")
            assert left.switches == switches[str(left.channel)]


# --- masked ---


@pytest.mark.parametrize(
    "what",
    long_but(
        ["kill", "freeze", "cut source", "one way"],
        ["kill", "power", "freeze", "cut source", "cut link", "freeze source", "kill source", "one way"],
    ),
)
async def test_short_failures_and_kills_are_masked(jump_clock: JumpClock, what: str) -> None:
    """Cuts shorter than αX less the time to notice them."""
    plan, directory = make_plan(2)
    directory = replace(directory, nodes={n: replace(one, x_us=4_000_000) for n, one in directory.nodes.items()})
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(3)
            match what:
                case "kill" | "power":
                    cluster.kill("n1a", power=what == "power")
                case "freeze":
                    cluster.freeze("n1b")
                case "freeze source":
                    cluster.freeze("source:b")
                case "kill source":
                    cluster.kill("source:b")
                case "cut source":
                    cluster.cut("source:b", "*")
                case "cut link":
                    cluster.cut("n1a", "n2a")
                case "one way":
                    cluster.cut("n1a", "n2b", one_way=True)
            await trio.sleep(1.0)
            cluster.heal()
            for host in ("n1b", "source:b"):
                if what.startswith("freeze"):
                    cluster.thaw(host)
            if what in ("kill", "power"):
                cluster.restart("n1a")
            if what == "kill source":
                cluster.restart("source:b")
            outcome = await run(cluster, SECONDS + 5)
            outcome.assert_complete()
            assert outcome.tentative == 0
            assert outcome.undos == 0


async def test_a_thawed_replica_with_old_data_undoes_nothing_stable(jump_clock: JumpClock) -> None:
    """It thaws when all others have advanced, and neither it nor its consumers undo anything stable."""
    async with FaultyCluster(*make_plan(2)) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(2)
            (reading,) = [i.main.producer for i in cluster.clients["c"].inputs if i.main is not None]
            for host in (reading, "n1a"):
                cluster.freeze(host)
            await trio.sleep(4)
            for host in (reading, "n1a"):
                cluster.thaw(host)
            outcome = await run(cluster, SECONDS + 5)
            outcome.assert_complete()
            assert outcome.tentative == 0
            assert outcome.undos == 0
