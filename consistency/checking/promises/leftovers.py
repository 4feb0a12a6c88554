"""After healing nothing is left of the failures: no state, no memory, no subscription, no busy loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from consistency.checking.counters import Counters
from consistency.checking.finding import Finding
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.stream.history import (
    Buffers,
    Closed,
    History,
    Note,
    Opened,
    ProcessDown,
    ProcessUp,
    Promoted,
    SchedulerRounds,
    StateChanged,
    host_of,
)
from spe.stream.ids import Channel
from spe.stream.names import NodeState

#: Notes that must not occur, whatever fails: a peer broke the rules, an operator raised, replicas differ.
BAD_NOTES = ("quarantine", "bad_peer", "replica_stopped", "replicas_differ")
#: Number of acknowledged elements that an output may keep: one, where an acknowledgement ends inside it.
LOG_ENTRIES = 1


def check_alarms(history: History, rounds_per_second: int, counters: Counters) -> Iterator[Finding]:
    """Checks at any time: no alarm in the trace, and no second with too many rounds."""
    for event in history:
        if isinstance(event, Note) and event.name in BAD_NOTES:
            yield Finding("quiet", event.name, event.at_us, event.host, event.text)
        elif isinstance(event, SchedulerRounds):
            counters.add("seconds of rounds")
            if event.count > rounds_per_second:
                what = f"{event.count} rounds in a second, expected at most {rounds_per_second}"
                yield Finding("quiet", "nothing spins", event.at_us, "", what)


def check_quiet(
    history: History, plan: Plan, directory: Directory, counters: Counters, dead: Set[str] = frozenset()
) -> Iterator[Finding]:
    """Checks the end of a run, after healing.

    Args:
      dead: processes that do not come back: they need not run nor read anything, and logs that they read are not
        truncated.
    """
    if dead & set(directory.nodes):
        counters.add("runs with a node left dead")
    yield from _buffers(history, plan, directory, counters, dead)
    yield from _subscriptions(history, plan, directory, counters, dead)
    yield from _processes(history, directory, dead)


def _buffers(
    history: History, plan: Plan, directory: Directory, counters: Counters, dead: Set[str]
) -> Iterator[Finding]:
    last = {e.replica: e for e in history if isinstance(e, Buffers)}
    waited_for = directory.read_by(plan, dead)
    keeping = {
        str(partition)
        for partition in directory.placement
        for s in plan.unit[partition.unit].outputs
        if Channel(s, partition.partition) in waited_for
    }
    for replica, event in sorted(last.items()):
        counters.add("buffers checked")
        if event.held_bytes:
            yield Finding("quiet", "SUnions are empty", event.at_us, replica, f"holds {event.held_bytes} bytes")
        if event.tentative:
            yield Finding("quiet", "nothing tentative is kept", event.at_us, replica, "holds tentative tuples")
        if event.log_entries > LOG_ENTRIES and replica.partition("@")[0] not in keeping:
            what = f"keeps {event.log_entries} stable elements, expected at most {LOG_ENTRIES}"
            yield Finding("quiet", "outputs are truncated", event.at_us, replica, what)


def _subscriptions(
    history: History, plan: Plan, directory: Directory, counters: Counters, dead: Set[str]
) -> Iterator[Finding]:
    """Checks that every input of every replica and client has its MAIN, and nothing else."""
    feeds: dict[tuple[str, Channel], dict[int, str]] = {}
    states: dict[str, NodeState] = {}
    for event in history:
        match event:
            case Opened(_, consumer, channel, _, generation, mode):
                feeds.setdefault((consumer, channel), {})[generation] = mode
            case Promoted(_, consumer, channel, generation, mode):
                if generation in feeds.get((consumer, channel), {}):
                    feeds[consumer, channel][generation] = mode
            case Closed(_, consumer, channel, generation):
                feeds.get((consumer, channel), {}).pop(generation, None)
            case StateChanged(_, replica, state):
                states[replica] = state
                if state is NodeState.RECOVERING:
                    for key in [k for k in feeds if k[0] == replica]:
                        feeds[key].clear()
            case ProcessUp(_, host) | ProcessDown(_, host):
                for key in [k for k in feeds if host_of(k[0]) == host]:
                    feeds[key].clear()
                states = {replica: state for replica, state in states.items() if host_of(replica) != host}
    if not feeds:
        return
    for consumer, channel in _wanted(plan, directory, states):
        if host_of(consumer) in dead:
            continue
        counters.add("subscriptions checked at the end")
        modes = list(feeds.get((consumer, channel), {}).values())
        if modes != ["main"]:
            what = f"{channel}: reads it over {modes or 'nothing'}, expected one main subscription"
            yield Finding("quiet", "every input is read", history.end_us, consumer, what)


def _wanted(plan: Plan, directory: Directory, states: Mapping[str, NodeState]) -> Iterator[tuple[str, Channel]]:
    """Yields the inputs of all replicas that should run, and of the standbys that do."""
    for partition_id, nodes in directory.placement.items():
        running = [
            n
            for n in directory.hosts(partition_id)
            if n in nodes or states.get(f"{partition_id}@{n}") is NodeState.STABLE
        ]
        for node in running:
            for channel in plan.unit[partition_id.unit].channels_in(partition_id.partition):
                yield f"{partition_id}@{node}", channel
    for name, client in directory.clients.items():
        for stream in client.reads:
            for partition in range(plan.partitions_of(stream)):
                yield f"client:{name}", Channel(stream, partition)


def _processes(history: History, directory: Directory, dead: Set[str]) -> Iterator[Finding]:
    """Checks that every process of the plan runs once, except those that are dead for good."""
    running: dict[str, int] = {}
    recorded = False
    for event in history:
        match event:
            case ProcessUp(at_us, host):
                recorded = True
                running[host] = running.get(host, 0) + 1
                if running[host] > 1:
                    yield Finding("quiet", "a process runs once", at_us, host, f"runs {running[host]} times")
            case ProcessDown(_, host):
                running[host] = 0
    expected = [*directory.addresses(), *(f"client:{c}" for c in directory.clients)]
    for host in expected if recorded else ():
        if not running.get(host) and host not in dead:
            yield Finding("quiet", "every process runs", history.end_us, host, "does not run")
