"""Faults: their notation, which of them hold, when they happen, and their effect inside a process."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from random import Random

import pytest
import trio

from replicas.faults.injection import FaultInjector
from replicas.faults.model import (
    ALL,
    Fault,
    configured_faults,
    load_faults,
    load_faults_text,
    one_fault,
    processes_of,
)
from replicas.faults.runner import FaultRunner, Happening
from replicas.faults.state import Action, Conditions, Do, FaultState
from replicas.faults.storage import FaultyStorage
from replicas.simulation.world.clock import JumpClock, SimClock
from replicas.simulation.world.disk import SimDisk
from replicas.simulation.world.host import SimCompute
from replicas.simulation.world.network import HostNetwork, SimNetwork
from spe.config import read_document
from spe.errors import ConfigError, LinkBroken
from spe.runtime.env import Env
from spe.runtime.production import NullTrace
from tests.support.plans import SEQUENCE, chain, source, union_of

READER = {"kind": "generator", "generator": "sequence", "rate": 10.0}
PLAN, DIRECTORY = chain(
    [source("a", reader=READER), source("b", reader=READER)], [("all_of_it", union_of("a", "b"), SEQUENCE)]
)
NAMES = processes_of(DIRECTORY)
SECOND = 1_000_000


def read(text: str) -> list[Fault]:
    return load_faults_text(text, "f.yaml", DIRECTORY)


def mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        read(text)
    return raised.value.problems


# -- as written ------------------------------------------------------------------------------------------------------


def test_processes_of_plan_are_its_nodes_sources_and_clients() -> None:
    assert NAMES == ["n1a", "n1b", "source:a", "source:b", "client:c"]


def test_faults_are_read_in_order_of_time() -> None:
    faults = read("""
        - {at: 10s, kind: cut, from: source:a, to: [n1a, n1b], for: 5s}
        - {at: 2500ms, kind: kill, target: n1a, for: 3s}
        - {at: 20s, kind: delay, from: n1a, to: client:c, by: 200ms, one_way: true}
        - {at: 30s, kind: heal}
    """)
    assert faults == [
        Fault("kill", ("n1a",), for_us=3 * SECOND, at_us=2_500_000),
        Fault("cut", ("source:a",), ("n1a", "n1b"), for_us=5 * SECOND, at_us=10 * SECOND),
        Fault("delay", ("n1a",), ("client:c",), one_way=True, by_us=200_000, at_us=20 * SECOND),
        Fault("heal", at_us=30 * SECOND),
    ]


def test_faults_are_read_from_json_and_from_a_faults_key() -> None:
    expected = [Fault("freeze", ("n1b",), for_us=SECOND, at_us=0)]
    assert read('[{"at": 0, "kind": "freeze", "target": "n1b", "for": "1s"}]') == expected
    assert read('{"faults": [{"at": 0, "kind": "freeze", "target": ["n1b"], "for": "1s"}]}') == expected


def test_a_target_of_a_cut_means_its_links_to_all_others() -> None:
    (fault,) = read("- {at: 1s, kind: cut, target: source:a}")
    assert (fault.first, fault.second) == (("source:a",), (ALL,))


def test_a_source_or_client_may_be_named_without_prefix() -> None:
    (fault,) = read("- {at: 1s, kind: cut, from: a, to: c}")
    assert (fault.first, fault.second) == (("source:a",), ("client:c",))


def test_every_mistake_is_reported_with_its_line() -> None:
    found = mistakes(
        "- {at: 1s, kind: kil, target: n1a}\n"
        "- {kind: kill, target: n1a}\n"
        "- {at: 1s, kind: kill, target: n1c, for: 3}\n"
        "- {at: 1s, kind: kill}\n"
        "- {at: 1s, kind: cut, from: n1a}\n"
        "- {at: 1s, kind: cut, target: n1a, from: n1a, to: n1b}\n"
        "- {at: 1s, kind: stall, target: n1a}\n"
        "- {at: 1s, kind: delay, target: n1a}\n"
        "- {at: 1s, kind: freeze, target: n1a, by: 1s}\n"
        "- {at: 1s, kind: cut, target: n1a, one_way: true}\n"
        "- {at: 1s, kind: kill, target: all}\n"
        "- {at: 1s, kind: kill, target: n1a, colour: red}\n"
        "- {at: 1s, kind: replan, target: n1a}\n"
        "- {at: 1s, kind: kill, target: n1a, change: query}\n"
    )
    lines = [int(text.split(":")[1]) for text in found]
    assert lines == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
    assert "expected 'cut', 'delay', 'slow'" in found[0]
    assert "at is missing" in found[1]
    assert "expected a duration with its unit" in found[2]
    assert "kill needs a target" in found[3]
    assert "expected from and to, got from alone" in found[4]
    assert "not both" in found[5]
    assert "only a source can stall" in found[6]
    assert "delay needs by" in found[7]
    assert "'by' does not go with freeze" in found[8]
    assert "one_way needs from and to" in found[9]
    assert "no process 'all'" in found[10]
    assert "unknown key" in found[11]
    assert "replan needs change" in found[12]
    assert "'change' does not go with kill" in found[13]


def test_a_restart_with_another_plan_is_read_and_written() -> None:
    (fault,) = read("- {at: 1s, kind: replan, target: a, change: bucket, for: 2s}")
    assert (fault.first, fault.change) == (("source:a",), "bucket")
    assert str(fault) == "replan source:a with another bucket for 2s"
    assert read(json.dumps([fault.to_data()])) == [fault]


def test_an_unknown_process_is_refused_with_a_suggestion() -> None:
    (found,) = mistakes("- {at: 1s, kind: kill, target: n1c}")
    assert "f.yaml:1" in found
    assert "no process 'n1c' (did you mean 'n1" in found


@pytest.mark.parametrize("text", ["kill: n1a", "7", "[1]", "- {at: 1s, kind: kill, target: n1a", "faults: 3"])
def test_anything_but_a_list_of_faults_is_refused(text: str) -> None:
    assert mistakes(text)


def test_a_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read"):
        load_faults(tmp_path / "nowhere.yaml", DIRECTORY)


def test_a_configuration_may_contain_faults(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(
        "cluster: x\nfaults:\n  - {at: 1s, kind: kill, target: n1a}\n  - {at: 2s, kind: kil, target: n1b}\n"
    )
    with pytest.raises(ConfigError, match=r"c\.yaml:4: faults\[1\]\.kind"):
        configured_faults(read_document(config), DIRECTORY)
    config.write_text("cluster: x\n")
    assert configured_faults(read_document(config), DIRECTORY) == []


@pytest.mark.parametrize(
    "text",
    [
        "- {at: 1s, kind: kill, target: [n1a, n1b], for: 1500ms}",
        "- {at: 0, kind: cut, from: n1a, to: [n1b, source:a], one_way: true, for: 90s}",
        "- {at: 1s, kind: delay, target: n1a, by: 20ms}",
        "- {at: 61s, kind: heal, from: n1a, to: n1b}",
        "- {at: 1s, kind: heal}",
    ],
)
def test_a_fault_written_as_data_is_read_back_as_it_was(text: str) -> None:
    (fault,) = read(text)
    (again,) = load_faults_text(str([fault.to_data()]), "again", DIRECTORY)
    assert again == fault
    data = {k: v for k, v in fault.to_data().items() if k != "at"}
    assert one_fault(data, DIRECTORY).to_data() == {**fault.to_data(), "at": "0s"}


def test_a_fault_prints_as_the_command_line_takes_it() -> None:
    texts = [
        str(f)
        for f in read("""
            - {at: 1s, kind: kill, target: [n1a, n1b], for: 1500ms}
            - {at: 2s, kind: cut, target: source:a, for: 5s}
            - {at: 3s, kind: cut, from: n1a, to: n1b}
            - {at: 4s, kind: delay, from: n1a, to: all, by: 200ms, one_way: true}
        """)
    ]
    assert texts == [
        "kill n1a,n1b for 1.5s",
        "cut source:a for 5s",
        "cut n1a ↔ n1b",
        "delay n1a → all by 200ms",
    ]


# -- which hold ------------------------------------------------------------------------------------------------------


def begin(state: FaultState, text: str) -> tuple[int, list[Action]]:
    (fault,) = read("- {at: 0, " + text + "}")
    return state.begin(fault)


def test_a_kill_with_a_length_ends_in_a_start() -> None:
    state = FaultState(NAMES)
    number, actions = begin(state, "kind: kill, target: [n1a, n1b], for: 1s")
    assert actions == [Action(Do.KILL, "n1a"), Action(Do.KILL, "n1b")]
    assert state.end(number) == [Action(Do.START, "n1a"), Action(Do.START, "n1b")]


def test_both_ends_hear_of_a_cut() -> None:
    state = FaultState(NAMES)
    number, actions = begin(state, "kind: cut, from: source:a, to: n1a, for: 1s")
    assert actions == [Action(Do.TELL, "n1a"), Action(Do.TELL, "source:a")]
    assert state.conditions("n1a").cuts == (("source:a", "in"), ("source:a", "out"))
    assert state.conditions("source:a").cuts == (("n1a", "in"), ("n1a", "out"))
    assert state.conditions("n1b") == Conditions()
    assert state.end(number) == actions
    assert state.conditions("n1a") == Conditions()


def test_one_way_cut_holds_data_of_the_first_end() -> None:
    state = FaultState(NAMES)
    begin(state, "kind: cut, from: n1a, to: n1b, one_way: true")
    assert state.conditions("n1a").cuts == (("n1b", "out"),)
    assert state.conditions("n1b").cuts == (("n1a", "in"),)


def test_all_means_every_other_process() -> None:
    state = FaultState(NAMES)
    _, actions = begin(state, "kind: cut, target: source:a")
    assert [a.process for a in actions] == NAMES
    assert {peer for peer, _ in state.conditions("source:a").cuts} == {"n1a", "n1b", "source:b", "client:c"}


def test_a_link_is_cut_while_any_cut_of_it_lasts() -> None:
    state = FaultState(NAMES)
    first, _ = begin(state, "kind: cut, from: n1a, to: n1b, for: 1s")
    second, _ = begin(state, "kind: cut, from: n1b, to: [n1a, client:c], for: 2s")
    assert state.end(first) == []
    assert ("n1b", "out") in state.conditions("n1a").cuts
    assert {a.process for a in state.end(second)} == {"n1a", "n1b", "client:c"}
    assert state.conditions("n1a") == Conditions()


def test_the_longest_of_several_delays_counts() -> None:
    state = FaultState(NAMES)
    begin(state, "kind: delay, from: n1a, to: n1b, by: 100ms, one_way: true")
    number, _ = begin(state, "kind: delay, from: n1a, to: n1b, by: 300ms, one_way: true")
    assert state.conditions("n1a").delays == (("n1b", 300_000),)
    assert state.conditions("n1b").delays == ()
    assert state.end(number) == [Action(Do.TELL, "n1a")]
    assert state.conditions("n1a").delays == (("n1b", 100_000),)


def test_a_process_is_frozen_while_any_freeze_of_it_lasts() -> None:
    state = FaultState(NAMES)
    first, _ = begin(state, "kind: freeze, target: n1a, for: 1s")
    second, _ = begin(state, "kind: freeze, target: [n1a, n1b], for: 2s")
    assert state.end(first) == []
    assert state.frozen() == {"n1a", "n1b"}
    assert state.end(second) == [Action(Do.RESUME, "n1a"), Action(Do.RESUME, "n1b")]


def test_a_restarted_process_is_not_frozen_but_still_cut_off() -> None:
    state = FaultState(NAMES)
    freeze, _ = begin(state, "kind: freeze, target: n1a, for: 9s")
    begin(state, "kind: cut, from: n1a, to: n1b")
    state.started("n1a")
    assert state.frozen() == set()
    assert state.conditions("n1a").cuts == (("n1b", "in"), ("n1b", "out"))
    assert state.end(freeze) == []


def test_heal_ends_lasting_faults_and_starts_no_process() -> None:
    state = FaultState(NAMES)
    killed, _ = begin(state, "kind: kill, target: n1b, for: 9s")
    frozen, _ = begin(state, "kind: freeze, target: n1a, for: 9s")
    begin(state, "kind: stall, target: source:a")
    begin(state, "kind: cut, from: source:b, to: client:c")
    _, actions = begin(state, "kind: heal")
    assert actions == [
        Action(Do.RESUME, "n1a"),
        Action(Do.TELL, "source:a"),
        Action(Do.TELL, "source:b"),
        Action(Do.TELL, "client:c"),
    ]
    assert not state.holds
    assert state.end(frozen) == []
    assert state.end(killed) == [Action(Do.START, "n1b")]


def test_heal_of_a_process_leaves_other_links() -> None:
    state = FaultState(NAMES)
    number, _ = begin(state, "kind: cut, target: source:a")
    begin(state, "kind: heal, target: n1a")
    assert ("source:a", "in") not in state.conditions("n1a").cuts
    assert ("source:a", "in") in state.conditions("n1b").cuts
    begin(state, "kind: heal, from: n1b, to: source:a")
    assert state.conditions("n1b") == Conditions()
    assert state.is_active(number)
    begin(state, "kind: heal, target: source:a")
    assert not state.is_active(number)


def test_conditions_survive_serialization() -> None:
    conditions = Conditions((("n1a", "in"), ("n1b", "out")), (("n1a", 20_000),), True)
    assert Conditions.from_data(conditions.to_data()) == conditions


@pytest.mark.parametrize(
    "data", [{}, {"kind": "kill"}, {"kind": "conditions", "cuts": [["n1", "up"]], "delays": [], "stalled": 0}]
)
def test_wrong_conditions_are_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="no conditions"):
        Conditions.from_data(data)


# -- when they happen ------------------------------------------------------------------------------------------------


class Hands:
    """Records actions with their times."""

    def __init__(self, clock: SimClock, *, broken: str = "") -> None:
        self._clock = clock
        self._start_us = clock.wall_us()
        self._broken = broken
        self.done: list[str] = []

    async def perform(self, action: Action) -> str:
        at = (self._clock.wall_us() - self._start_us) / SECOND
        self.done.append(f"{at:g} {action.do} {action.process}")
        return "it does not run" if action.process == self._broken else ""


async def test_faults_start_at_their_times_and_end_after_lengths(jump_clock: JumpClock) -> None:
    clock = SimClock()
    hands = Hands(clock)
    told: list[str] = []
    runner = FaultRunner(
        clock, FaultState(NAMES), hands.perform, report=lambda event, h: told.append(f"{event} {h.fault}")
    )
    schedule = read("""
        - {at: 2s, kind: kill, target: n1a, for: 3s}
        - {at: 3s, kind: freeze, target: n1b, for: 1s}
        - {at: 6s, kind: restart, target: n1b}
    """)
    async with trio.open_nursery() as nursery:
        await nursery.start(runner.run, schedule, clock.wall_us())
        assert runner.pending
        await trio.sleep(10)
        assert not runner.pending
        nursery.cancel_scope.cancel()
    assert hands.done == ["2 kill n1a", "3 freeze n1b", "4 resume n1b", "5 start n1a", "6 restart n1b"]
    assert told == [
        "began kill n1a for 3s",
        "began freeze n1b for 1s",
        "ended freeze n1b for 1s",
        "ended kill n1a for 3s",
        "began restart n1b",
    ]


async def test_an_injected_fault_joins_the_schedule(jump_clock: JumpClock) -> None:
    """Errors are returned to the caller."""
    clock = SimClock()
    hands = Hands(clock, broken="n1b")
    runner = FaultRunner(clock, FaultState(NAMES), hands.perform)
    assert await runner.inject(one_fault({"kind": "heal"}, DIRECTORY)) == "the run has not begun"
    async with trio.open_nursery() as nursery:
        await nursery.start(runner.run, [], clock.wall_us())
        assert await runner.inject(one_fault({"kind": "freeze", "target": "n1a", "for": "2s"}, DIRECTORY)) == ""
        assert (
            await runner.inject(one_fault({"kind": "kill", "target": "n1b"}, DIRECTORY)) == "kill n1b: it does not run"
        )
        await trio.sleep(5)
        nursery.cancel_scope.cancel()
    assert hands.done == ["0 freeze n1a", "0 kill n1b", "2 resume n1a"]
    freeze, kill = runner.happenings
    assert freeze.ended_us == (freeze.began_us or 0) + 2 * SECOND
    assert kill.errors == ["kill n1b: it does not run"]


async def test_a_fault_may_target_the_node_that_a_client_reads(jump_clock: JumpClock) -> None:
    """The node is determined when the fault happens; if the client reads no node, nothing happens."""
    clock = SimClock()
    hands = Hands(clock)
    reads: dict[str, str] = {"c": "n1a"}
    runner = FaultRunner(clock, FaultState(NAMES), hands.perform, reads=reads.get)
    schedule = read("""
        - {at: 1s, kind: kill, target: "reads:c", for: 1s}
        - {at: 5s, kind: kill, target: "reads:c", for: 1s}
        - {at: 9s, kind: kill, target: "reads:c", for: 1s}
    """)
    async with trio.open_nursery() as nursery:
        await nursery.start(runner.run, schedule, clock.wall_us())
        await trio.sleep(3)
        reads["c"] = "n1b"
        await trio.sleep(4)
        reads.clear()
        await trio.sleep(4)
        assert not runner.pending
        nursery.cancel_scope.cancel()
    assert hands.done == ["1 kill n1a", "2 start n1a", "5 kill n1b", "6 start n1b"]
    assert str(runner.happenings[1].fault) == "kill n1b for 1s"
    assert runner.happenings[2].errors == ["client c reads nobody"]


async def test_a_heal_ends_the_faults_it_heals(jump_clock: JumpClock) -> None:
    """1. a cut without an end and a freeze with one; 2. a heal; 3. the end of the freeze does nothing"""
    clock = SimClock()
    hands = Hands(clock)
    runner = FaultRunner(clock, FaultState(NAMES), hands.perform)
    schedule = read("""
        - {at: 1s, kind: cut, from: n1a, to: n1b}
        - {at: 1s, kind: freeze, target: source:a, for: 5s}
        - {at: 2s, kind: heal}
    """)
    async with trio.open_nursery() as nursery:
        begun = clock.wall_us()
        await nursery.start(runner.run, schedule, begun)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    ended: dict[str, int | None] = {h.fault.kind: h.ended_us for h in runner.happenings}
    assert ended["cut"] == ended["freeze"] == begun + 2 * SECOND
    assert not any(done.startswith("6 ") for done in hands.done)


async def test_faults_at_one_time_are_done_in_order(jump_clock: JumpClock) -> None:
    """A heal that ends a freeze must not resume the process before it is frozen, or it would stay frozen."""
    clock = SimClock()
    hands = Hands(clock)
    told: list[str] = []
    runner = FaultRunner(
        clock, FaultState(NAMES), hands.perform, report=lambda event, h: told.append(f"{event} {h.fault.kind}")
    )
    times = range(1, 41)
    schedule = read("".join(f"- {{at: {t}s, kind: freeze, target: n1a}}\n- {{at: {t}s, kind: heal}}\n" for t in times))
    async with trio.open_nursery() as nursery:
        await nursery.start(runner.run, schedule, clock.wall_us())
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    wanted, frozen = [], False
    for event in told:
        if event == "began freeze":
            wanted.append("freeze n1a")
            frozen = True
        elif event == "began heal" and frozen:
            wanted.append("resume n1a")
            frozen = False
    assert [done.split(" ", 1)[1] for done in hands.done] == wanted
    assert len(wanted) > 20


def test_a_fault_is_pending_until_its_end() -> None:
    cut = Fault("cut", ("n1a",), ("n1b",))
    assert Happening(cut, planned_us=5).pending
    assert not Happening(cut, began_us=5).pending
    lasting = Fault("cut", ("n1a",), ("n1b",), for_us=3)
    assert Happening(lasting, began_us=5).pending
    assert not Happening(lasting, began_us=5, ended_us=8).pending


# -- inside a process ------------------------------------------------------------------------------------------------


def env_on(network: SimNetwork, host: str) -> Env:
    return Env(SimClock(), HostNetwork(network, host), SimDisk(), SimCompute(), Random(1), NullTrace())


async def test_process_cut_off_cannot_reach_its_peer(jump_clock: JumpClock) -> None:
    network = SimNetwork()
    faults = FaultInjector(env_on(network, "n1a"), {"n1b": "n1b:1"})
    arrived: list[bytes] = []

    async def serve(stream: trio.abc.Stream) -> None:
        arrived.append(bytes(await stream.receive_some(10)))

    async with trio.open_nursery() as nursery:
        await nursery.start(env_on(network, "n1b").network.serve, "n1b:1", serve)
        assert await faults(Conditions((("n1b", "in"), ("n1b", "out"))).to_data()) == ""
        with pytest.raises(LinkBroken):
            await faults.env.network.connect("n1b:1")
        assert await faults(Conditions().to_data()) == ""
        stream = await faults.env.network.connect("n1b:1")
        await stream.send_all(b"hello")
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert arrived == [b"hello"]


async def test_nothing_passes_a_cut_that_is_stated_again(jump_clock: JumpClock) -> None:
    """1. the outgoing direction is cut, bytes are held; 2. another fault is added; 3. only the heal releases them"""
    network = SimNetwork()
    faults = FaultInjector(env_on(network, "n1a"), {"n1b": "n1b:1"})
    arrived: list[bytes] = []

    async def serve(stream: trio.abc.Stream) -> None:
        arrived.append(bytes(await stream.receive_some(10)))

    async with trio.open_nursery() as nursery:
        await nursery.start(env_on(network, "n1b").network.serve, "n1b:1", serve)
        stream = await faults.env.network.connect("n1b:1")
        faults.apply(Conditions((("n1b", "out"),)))
        await stream.send_all(b"held")
        faults.apply(Conditions((("n1b", "out"), ("source:a", "in")), stalled=True))
        await trio.sleep(5)
        assert arrived == []
        faults.apply(Conditions())
        await trio.sleep(1)
        assert arrived == [b"held"]
        nursery.cancel_scope.cancel()


async def test_an_injector_accepts_only_conditions() -> None:
    faults = FaultInjector(env_on(SimNetwork(), "n1a"), {})
    assert "no conditions" in await faults({"kind": "explode"})


async def test_a_stalled_disk_syncs_nothing_until_it_resumes(jump_clock: JumpClock) -> None:
    storage = FaultyStorage(SimDisk())
    file = storage.open(PurePosixPath("log"))
    synced: list[float] = []

    async def write() -> None:
        file.append(b"x")
        await file.sync()
        synced.append(trio.current_time())
        await storage.write_atomic(PurePosixPath("mark"), b"1")
        synced.append(trio.current_time())

    storage.stall(True)
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await trio.sleep(3)
        assert synced == []
        assert file.read(0, 9) == b"x"
        storage.stall(False)
    assert synced == [start + 3, start + 3]
    assert storage.read(PurePosixPath("mark")) == b"1"
