"""Why an output is tentative, late or silent: what is said during each kind of fault that a simulation has."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import pytest
import trio

from consistency.explaining.explain import BETWEEN_US, explain
from consistency.explaining.model import Cause, CauseKind, Condition, Explanation, Look
from consistency.faults.kinds import KINDS
from replicas.client.statistics import ChannelStats
from replicas.faults.model import load_faults_text
from replicas.local.polling import Poller
from replicas.simulation.driver import FaultDriver
from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.cluster import SimCluster
from spe.config import load_text
from spe.plan.delays import ReplayEpoch, delay_bound_us
from spe.plan.deploy import Deployed, with_addresses
from spe.status import ClientStatus, ProcessStatus, UnreachedStatus
from spe.stream.ids import Channel
from spe.wire.messages.commands import MoveAnswer, MoveOrder
from tests.support.long_forms import long_but

CONFIG = """
sources:
  a: {from: {generator: {name: orders, rate: 100, seed: 1, duration: 600s}}}
  b: {from: {generator: {name: orders, rate: 100, seed: 2, duration: 600s}}}
query:
  all: {union: [a, b]}
  large: {filter: {from: all, where: qty >= 0}}
fragments:
  first: {operators: [all], replicas: [n1, n2]}
  second: {operators: [large], replicas: [n3, n4]}
nodes: {n1: {}, n2: {}, n3: {}, n4: {}}
clients: {plain: {reads: large}, kept: {reads: large, sinks: [{jsonl: out}]}}
"""
SETTINGS = "defaults: {x: 2s}\n"
#: The faults begin then; nothing is wrong before.
BEGIN_S = 6.0


def deployed(settings: str) -> Deployed:
    plan, directory = load_text(CONFIG + settings)
    addresses = {name: f"{name}:1" for name in directory.addresses()}
    return Deployed(plan, with_addresses(directory, addresses))


class Cluster:
    """A simulated cluster, and the statuses of all its processes."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.driver = FaultDriver(cluster, Random(1), unlimited=True)
        self._taken: dict[str, int] = {}
        self._stats: dict[str, ChannelStats] = {}

    async def look(self) -> Look:
        """As ``spe status`` asks; clients are not asked over connections here, for they have no address."""
        cluster = self.cluster
        poller = Poller(cluster.env("control"), cluster.plan, cluster.directory.addresses(), "")
        async with trio.open_nursery() as nursery:
            for name in cluster.directory.addresses():
                nursery.start_soon(poller.ask_status, name)
        statuses = {name: seen.status for name, seen in poller.seen.items()}
        errors = dict(poller.errors)
        for client in cluster.directory.clients:
            name = f"client:{client}"
            if cluster.runs(name):
                statuses[name] = self._client(client)
            else:
                errors[name] = UnreachedStatus("silent", "no answer")
        took_us = {name: seen.took_us for name, seen in poller.seen.items()}
        return Look(cluster.env("control").clock.wall_us(), statuses, errors, took_us)

    def _client(self, name: str) -> ProcessStatus:
        cluster = self.cluster
        if name in cluster.client_processes:
            return cluster.client_processes[name].status()
        channel = Channel(cluster.plan.query.outputs[0], 0)
        stats = self._stats.setdefault(name, ChannelStats(channel, epoch=ReplayEpoch()))
        stats.bound_us = delay_bound_us(cluster.plan, cluster.directory, channel.stream)
        for change in cluster.changes[name][self._taken.get(name, 0) :]:
            stats.apply(change)
        self._taken[name] = len(cluster.changes[name])
        main = cluster.clients[name].inputs[0].main
        one = stats.status(cluster.env("control").clock.wall_us(), None if main is None else main.producer)
        return ClientStatus(name=f"client:{name}", incarnation=1, channels=(one,), switches=())

    async def explain(self, client: str = "plain") -> Explanation:
        before = await self.look()
        await trio.sleep(BETWEEN_US / 1e6)
        now = await self.look()
        found = explain(self.cluster.plan, self.cluster.directory, before, now)
        return next(e for e in found if e.client == client)


async def explained(faults: str, after_s: float, client: str = "plain", settings: str = SETTINGS) -> Explanation:
    """What is said so long after the faults began."""
    plan, directory = deployed(settings)
    async with SimCluster(plan, directory, seed=1) as sim, trio.open_nursery() as nursery:
        here = Cluster(sim)
        await sim.start()
        await nursery.start(here.driver.run, tuple(load_faults_text(faults, "faults", directory)))
        await trio.sleep(BEGIN_S + after_s)
        found = await here.explain(client)
        assert not here.driver.skipped
        nursery.cancel_scope.cancel()
    return found


A, PLAIN, KEPT = "source:a", "client:plain", "client:kept"


class Case(NamedTuple):
    """Faults, and what is to be said of them.

    Attributes:
      kinds: of the faults.
      faults: in YAML, without the time; they begin together.
      after_s: when to look.
      causes: kinds and processes; of a link or its reader one of several replicas may be named.
      elsewhere: what is wrong and does not reach the output, at least.
      says: what the first cause says.
    """

    kinds: set[str]
    faults: tuple[str, ...]
    after_s: float
    condition: Condition
    causes: tuple[tuple[CauseKind, set[str]], ...] = ()
    elsewhere: tuple[tuple[CauseKind, set[str]], ...] = ()
    client: str = "plain"
    settings: str = SETTINGS
    says: str = ""


DOWN, LINK, QUIET, DISK, SLOW = CauseKind.DOWN, CauseKind.LINK, CauseKind.QUIET, CauseKind.DISK, CauseKind.SLOW
TENTATIVE, SILENT, FINE = Condition.TENTATIVE, Condition.SILENT, Condition.FINE
#: A source reaches neither of the nodes that read it; the client reads one of these, by way of another node.
NO_LINK = ((LINK, {A}),)

CASES = {
    # A source.
    "source killed": Case({"kill"}, (f"kind: kill, target: '{A}'",), 4, TENTATIVE, ((DOWN, {A}),)),
    "source without power": Case({"power"}, (f"kind: power, target: '{A}'",), 4, TENTATIVE, ((DOWN, {A}),)),
    "source frozen": Case({"freeze"}, (f"kind: freeze, target: '{A}'",), 4, TENTATIVE, ((DOWN, {A}),)),
    "source stalls": Case({"stall"}, (f"kind: stall, target: '{A}'",), 4, TENTATIVE, ((QUIET, {A}),)),
    "disk hangs": Case({"slow-disk"}, (f"kind: slow-disk, target: '{A}', by: 30s",), 4, TENTATIVE, ((QUIET, {A}),)),
    "disk full": Case({"full"}, (f"kind: full, target: '{A}'",), 4, TENTATIVE, ((DISK, {A}),)),
    # Its links.
    "source cut off": Case(
        {"cut"}, (f"kind: cut, target: '{A}'",), 4, TENTATIVE, NO_LINK, says="is cut, or far too slow"
    ),
    "before X is over": Case({"cut"}, (f"kind: cut, target: '{A}'",), 0.2, SILENT, NO_LINK),
    "one way": Case({"cut"}, (f"kind: cut, from: '{A}', to: [n1, n2], one_way: true",), 4, TENTATIVE, NO_LINK),
    "the other way": Case({"cut"}, (f"kind: cut, from: [n1, n2], to: '{A}', one_way: true",), 4, TENTATIVE, NO_LINK),
    "link too long": Case({"delay"}, (f"kind: delay, target: '{A}', by: 3s",), 6, TENTATIVE, NO_LINK),
    "link too thin": Case(
        {"slow"}, (f"kind: slow, from: '{A}', to: [n1, n2], bytes_per_second: 300",), 6, TENTATIVE, NO_LINK
    ),
    "link that loses": Case({"loss"}, (f"kind: loss, from: '{A}', to: [n1, n2], share: 0.9",), 6, TENTATIVE, NO_LINK),
    "link that refuses": Case(
        {"reset", "refuse"},
        (f"kind: refuse, from: '{A}', to: [n1, n2]", f"kind: reset, from: '{A}', to: [n1, n2]"),
        4,
        TENTATIVE,
        NO_LINK,
        says="refuses connections: a firewall, or n",
    ),
    "X below a delay": Case(
        {"delay"},
        (f"kind: delay, from: '{A}', to: [n1, n2], by: 600ms, one_way: true",),
        6,
        TENTATIVE,
        ((CauseKind.X, {A}),),
        settings="defaults: {x: 500ms}\ntiming: {heartbeat: 500ms}\n",
    ),
    # Between nodes, and to clients.
    "nodes cut off": Case(
        {"cut"},
        ("kind: cut, from: [n1, n2], to: [n3, n4]",),
        4,
        SILENT,
        ((LINK, {"n1"}), (LINK, {"n2"})),
    ),
    "client cut off": Case(
        {"cut"},
        (f"kind: cut, from: [n3, n4], to: '{PLAIN}'",),
        4,
        SILENT,
        ((LINK, {"n3", PLAIN}), (LINK, {"n4", PLAIN})),
    ),
    "client lags": Case({"lag"}, (f"kind: lag, target: '{PLAIN}', by: 3s",), 10, SILENT, ((SLOW, {PLAIN}),)),
    "client's disk slow": Case(
        {"slow-disk"},
        (f"kind: slow-disk, target: '{KEPT}', by: 30s",),
        6,
        SILENT,
        ((SLOW, {KEPT}),),
        client="kept",
    ),
    "client's disk full": Case(
        {"full"}, (f"kind: full, target: '{KEPT}'",), 4, SILENT, ((DISK, {KEPT}),), client="kept"
    ),
    "client killed": Case(
        {"kill"},
        (f"kind: kill, target: '{KEPT}', for: 60s",),
        4,
        Condition.UNKNOWN,
        ((DOWN, {KEPT}),),
        client="kept",
    ),
    # Nodes: others serve, while there are any.
    "both replicas killed": Case(
        {"kill"}, ("kind: kill, target: [n3, n4], for: 60s",), 4, SILENT, ((DOWN, {"n3"}), (DOWN, {"n4"}))
    ),
    "both replicas upstream killed": Case(
        {"kill"}, ("kind: kill, target: [n1, n2], for: 60s",), 4, SILENT, ((DOWN, {"n1"}), (DOWN, {"n2"}))
    ),
    "one replica killed": Case({"kill"}, ("kind: kill, target: n3",), 4, FINE, elsewhere=((DOWN, {"n3"}),)),
    "node wiped": Case({"wipe"}, ("kind: wipe, target: n3",), 4, FINE, elsewhere=((DOWN, {"n3"}),)),
    "node far too slow": Case({"busy"}, ("kind: busy, target: n1, times: 2000",), 8, FINE, elsewhere=((DOWN, {"n1"}),)),
    "node with another query": Case(
        {"replan"},
        ("kind: replan, target: n3, change: query",),
        4,
        FINE,
        elsewhere=((CauseKind.REFUSED, {"n3"}),),
    ),
    "one killed, the other one with another query": Case(
        {"kill", "replan"},
        ("kind: kill, target: n3, for: 60s", "kind: replan, target: n4, change: query"),
        4,
        SILENT,
        ((DOWN, {"n3"}), (CauseKind.REFUSED, {"n4"})),
    ),
    # What is masked: nothing is wrong, and nothing else is said.
    "nothing": Case(set(), (), 4, FINE),
    "node restarted": Case({"restart"}, ("kind: restart, target: n3",), 6, FINE),
    "connection reset": Case({"reset"}, (f"kind: reset, from: '{A}', to: [n1, n2]",), 4, FINE),
    "connection half open": Case({"half-open"}, (f"kind: half-open, from: '{A}', to: n1",), 4, FINE),
    "bit flipped": Case({"flip"}, ("kind: flip, target: n1",), 4, FINE),
    "disk that lies": Case({"lie"}, ("kind: lie, target: n1",), 4, FINE),
    "clock off": Case({"skew"}, ("kind: skew, target: n1, by: 5s",), 4, FINE),
}

#: One of each kind of cause, and of each kind of output.
SHORT = [
    "nothing", "source killed", "source stalls", "disk full", "source cut off", "before X is over",
    "link too thin", "X below a delay", "client lags", "client's disk full", "both replicas killed",
    "one replica killed", "node far too slow", "node with another query", "clock off",
]  # fmt: skip


@pytest.mark.parametrize("name", long_but(SHORT, CASES))
async def test_the_cause_is_the_fault(jump_clock: JumpClock, name: str) -> None:
    case = CASES[name]
    faults = ", ".join(f"{{at: {BEGIN_S}s, {fault}}}" for fault in case.faults)
    found = await explained(f"[{faults}]", case.after_s, case.client, case.settings)
    said = "\n".join(found.lines())

    assert found.condition is case.condition, said
    assert matches(found.causes, case.causes), said
    assert not case.says or case.says in found.causes[0].why, said
    assert all(any(fits(cause, one) for cause in found.elsewhere) for one in case.elsewhere), said
    if case.condition is FINE:
        assert not found.causes, said
        assert len(found.elsewhere) == len(case.elsewhere), said
    else:
        assert found.steps[0].who == f"client:{case.client}"
        assert found.next, said


def fits(cause: Cause, expected: tuple[CauseKind, set[str]]) -> bool:
    kind, processes = expected
    return cause.kind is kind and processes <= set(cause.processes)


def matches(found: Sequence[Cause], expected: Sequence[tuple[CauseKind, set[str]]]) -> bool:
    """Is each expected cause found, and nothing else?"""
    return len(found) == len(expected) and all(any(fits(cause, one) for cause in found) for one in expected)


def test_every_kind_of_fault_is_explained() -> None:
    assert set().union(*(case.kinds for case in CASES.values())) | {"heal"} == set(KINDS)


async def test_when_all_is_healed_nothing_is_wrong(jump_clock: JumpClock) -> None:
    faults = f"[{{at: {BEGIN_S}s, kind: cut, target: '{A}'}}, {{at: 10s, kind: heal}}]"
    later = await explained(faults, 12)
    assert (later.condition, later.causes, later.elsewhere) == (FINE, (), ())


async def test_the_chain_goes_from_the_client_to_the_source(jump_clock: JumpClock) -> None:
    found = await explained(f"[{{at: {BEGIN_S}s, kind: stall, target: '{A}'}}]", 4)
    whos = [step.who.split("@")[0] for step in found.steps]

    assert whos == [PLAIN, "second/0", "second/0", "first/0", "first/0", A]
    assert [step.depth for step in found.steps] == list(range(len(whos)))
    assert found.lines()[0] == "large/0 at client plain is tentative"
    assert found.lines()[-1].startswith("next: second/0@")


async def test_moves_on_the_way_to_an_output_are_named(jump_clock: JumpClock) -> None:
    """The target does not reach source a, so the move waits: the output is fine, and the new replica is no failure."""
    spare = CONFIG.replace("n4: {}", "n4: {}, n5: {spare: true}")
    plan, directory = load_text(spare + SETTINGS)
    addresses = {name: f"{name}:1" for name in directory.addresses()}
    directory = with_addresses(directory, addresses)
    faults = f"[{{at: 3s, kind: cut, from: '{A}', to: n5}}]"
    async with SimCluster(plan, directory, seed=1) as sim, trio.open_nursery() as nursery:
        here = Cluster(sim)
        await sim.start()
        await nursery.start(here.driver.run, tuple(load_faults_text(faults, "faults", directory)))
        await trio.sleep(BEGIN_S)
        assert sim.coordinator is not None
        assert await sim.coordinator.move(MoveOrder("move", "first/0", "n1", "n5", 0)) == MoveAnswer(1, 1, "")
        await trio.sleep(2)
        found = await here.explain()
        nursery.cancel_scope.cancel()

    assert (found.condition, found.causes) == (FINE, ())
    (told,) = found.moves
    assert told.startswith("move 1 of first/0 from n1 to n5, phase ")
    assert f"under way: {told}" in found.lines()
    assert not any(cause.kind is CauseKind.RECOVERING for cause in found.elsewhere)
