"""Patterns of faults that find the most defects.

Durations are near the times that the protocol waits for: the heartbeat timeout, αX and X.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate
from typing import Final

from consistency.faults.kind import Runs
from consistency.faults.kinds import KINDS
from replicas.simulation.scenarios.drawing import Drawing, Entry, entry, link_entry
from spe.plan.directory import COORDINATOR
from spe.stream.ids import PartitionId
from spe.stream.names import NodeState
from spe.stream.times import MILLISECOND, SECOND

Pattern = Callable[[Drawing, int], Iterable[Entry]]
#: Patterns by name, and the names that they stand before in the order of draws.
_PATTERNS: Final[dict[Runs, list[tuple[str, str | None, Pattern]]]] = {runs: [] for runs in Runs}


def patterns_of(runs: Runs) -> dict[str, Pattern]:
    """Returns single faults of each kind, and patterns, by name, in the order of draws."""
    patterns: dict[str, Pattern] = {
        draw.name: partial(Drawing.of_kind, kind=kind, draw=draw)
        for kind in KINDS.values()
        for draw in kind.draws
        if draw.runs is runs
    }
    names = list(patterns)
    for name, before, pattern in _PATTERNS[runs]:
        patterns[name] = pattern
        names.insert(len(names) if before is None else names.index(before), name)
    return {name: patterns[name] for name in names}


def _pattern(name: str, runs: Runs = Runs.ALL, before: str | None = None) -> Callable[[Pattern], Pattern]:
    """Adds a pattern for some runs; the order of draws decides which faults a seed has."""

    def add(pattern: Pattern) -> Pattern:
        _PATTERNS[runs].append((name, before, pattern))
        return pattern

    return add


# --- links, and processes of a role ---


@_pattern("one way", before="isolated")
def _one_way(drawing: Drawing, at: int) -> Iterator[Entry]:
    a, b = drawing.random.choice(drawing.links)
    if drawing.random.random() < 0.5:
        a, b = b, a
    yield link_entry(at, "cut", a, b, drawing.length(), one_way=True)


@_pattern("refused", before="reset")
def _refused(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Connections that break during the fault cannot be opened again at once."""
    a, b = drawing.random.choice(drawing.links)
    yield link_entry(at, "refuse", a, b, drawing.length())
    yield link_entry(at, "reset", a, b)


@_pattern("producer of a client", before="freeze")
def _kill_producer(drawing: Drawing, at: int) -> Iterator[Entry]:
    client = drawing.random.choice(drawing.clients).partition(":")[2]
    yield entry(at, "kill", f"reads:{client}", drawing.length())


@_pattern("swizzle")
def _swizzle(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Fails the links of a random subset one by one, and heals them in another order."""
    random = drawing.random
    links = random.sample(drawing.links, min(len(drawing.links), random.randint(2, 6)))
    times = list(accumulate([drawing.pause(50, 200, 500) for _ in range(2 * len(links))], initial=at))
    begins, ends = times[: len(links)], times[len(links) : -1]
    random.shuffle(ends)
    for (a, b), begin, end in zip(links, begins, ends, strict=True):
        yield link_entry(begin, "cut", a, b, end - begin)


@_pattern("starve")
def _starve(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Cuts a node off from all its producers and consumers."""
    node = drawing.random.choice(drawing.nodes)
    length = drawing.length()
    for a, b in drawing.links:
        if node in (a, b):
            yield link_entry(at, "cut", a, b, length)


@_pattern("flap")
def _flap(drawing: Drawing, at: int) -> Iterator[Entry]:
    a, b = drawing.random.choice(drawing.links)
    for _ in range(4):
        yield link_entry(at, "cut", a, b, 300 * MILLISECOND)
        at += 300 * MILLISECOND + drawing.pause(100, 400)


@_pattern("one by one")
def _one_by_one(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Kills the replicas of a partition in turn, each shortly after the previous one has returned."""
    nodes = list(drawing.random.choice(sorted(drawing.directory.placement.values())))
    drawing.random.shuffle(nodes)
    for node in nodes:
        length = drawing.length()
        yield entry(at, "kill", str(node), length)
        at += length + drawing.gap()


# --- inputs, and their corrections ---


@_pattern("overlapping")
def _overlapping(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Fails two inputs at different times, and heals them at different times."""
    for source in drawing.random.sample(drawing.sources, min(2, len(drawing.sources))):
        yield entry(at, "cut", source, drawing.grid(drawing.random.choice(drawing.waits[1:]) * 2))
        at += drawing.gap()


@_pattern("kill in stabilization")
def _kill_in_stabilization(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Fails an input long enough to need a correction, and kills a replica during the correction."""
    _, length, failure = drawing.input_failure(at)
    yield failure
    kind = drawing.random.choice(["kill", "kill", "power", "freeze", "cut"])
    yield entry(at + length, kind, "state:STABILIZATION", drawing.length())


@_pattern("handed on")
def _handed_on(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Heals an input while another one is silent: another input has failed, or it fails again as its correction
    ends.
    """
    source, length, failure = drawing.input_failure(at)
    yield failure
    shift = drawing.grid(drawing.random.choice([-0.7, -0.5, -0.3, 0.2, 0.5, 1.0]) * drawing.waits[1])
    target = drawing.random.choice(drawing.sources) if shift < 0 else source
    if shift > 0 or target != source:
        yield entry(at + length + shift, "cut", target, drawing.length())


@_pattern("partner dies")
def _partner_dies(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Heals a failure after which only one of the correcting replicas is left."""
    _, length, failure = drawing.input_failure(at)
    yield failure
    at += length + drawing.pause(-1000, -300, 50, 150, 300, 700)
    nodes = list(drawing.random.choice(sorted(drawing.directory.placement.values())))
    for node in drawing.random.sample(nodes, len(nodes) - 1):
        yield entry(at, "kill", str(node), 8 * SECOND)


@_pattern("fail again")
def _fail_again(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Fails the same input again during its correction, or while a restarted replica catches up."""
    source, length, failure = drawing.input_failure(at)
    if drawing.random.random() < 0.5:
        yield entry(at, "kill", drawing.random.choice(drawing.nodes), length)
    else:
        yield failure
    yield entry(at + length + drawing.pause(50, 150, 300, 700), "cut", source, drawing.length())


@_pattern("together")
def _together(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Kills several nodes, or all, at one moment, and restarts them at different times."""
    least = min(2, len(drawing.nodes))
    kind = drawing.random.choice(["kill", "kill", "power"])
    for node in drawing.random.sample(drawing.nodes, drawing.random.randint(least, len(drawing.nodes))):
        yield entry(at, kind, node, drawing.length())


# --- disks, plans, and logs ---


@_pattern("lie", Runs.DISKS, before="wipe")
def _lie(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Lets a disk lie, and then fails the power: during the lie, or a moment after it."""
    node, length = drawing.random.choice(drawing.nodes), drawing.length()
    yield entry(at, "lie", node, length)
    yield entry(at + max(length + drawing.pause(-50, 50), 0), "power", node, drawing.length())


def source_disk(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Flips a bit on the disk of a source, or lets its disk lie; then restarts it."""
    source = drawing.random.choice(drawing.sources)
    if drawing.random.random() < 0.5:
        yield entry(at, "flip", source)
        yield entry(at + drawing.gap(), "kill", source, drawing.length())
        return
    yield from _lies_until_power_fails(drawing, source, at)


def _lies_until_power_fails(drawing: Drawing, host: str, at: int) -> Iterator[Entry]:
    length = drawing.length()
    yield entry(at, "lie", host, length)
    yield entry(at + length, "power", host, drawing.length())


def replan(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Restarts a process with another configuration, and corrects it later."""
    target = drawing.random.choice([*drawing.nodes, *drawing.nodes, *drawing.sources, *drawing.clients])
    change = drawing.random.choice(["query", "query", "bucket", "limits", "timing"])
    yield entry(at, "replan", target, drawing.length(), change=change)


@_pattern("other checkpoints", Runs.LOGS)
def _other_checkpoints(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Turns checkpoint logs on or off for one node, or for all at once, and back."""
    targets = drawing.random.choice([drawing.nodes, [drawing.random.choice(drawing.nodes)]])
    yield entry(at, "replan", targets, drawing.length(), change="checkpoints")


@_pattern("all die", Runs.LOGS)
def _all_die(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Kills all replicas of a partition that writes a log, at once or within a moment."""
    directory = drawing.directory
    for node in drawing.random.choice([directory.placement[partition] for partition in directory.logs]):
        yield entry(at, drawing.random.choice(["kill", "kill", "power"]), str(node), drawing.length())
        at += drawing.pause(0, 0, 50, 400)


@_pattern("all below die", Runs.RETENTION)
def _below_dies(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Kills all holders of a partition's state, downstream of a source that deletes its log, and perhaps the source."""
    random, directory = drawing.random, drawing.directory
    hosts = [str(n) for n in directory.hosts(random.choice(list(directory.placement)))]
    if random.random() < 0.3:
        hosts.append(f"source:{random.choice(drawing.retained)}")
    for host in hosts:
        yield entry(at, random.choice(["kill", "power"]), host, drawing.length())
        at += drawing.pause(0, 0, 50, 400)


@_pattern("source dies", Runs.RETENTION)
def _source_dies(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Kills a source repeatedly, in the middle of its deletions."""
    source = f"source:{drawing.random.choice(drawing.retained)}"
    for _ in range(drawing.random.choice([1, 3, 6])):
        kind = drawing.random.choice(["power", "restart"])
        yield entry(at, kind, source, None if kind == "restart" else 50 * MILLISECOND)
        at += drawing.pause(300, 1000, 1100)


# --- clients that record and have sinks ---


@_pattern("client dies", Runs.CLIENTS, before="client with a slow disk")
def _client_dies(drawing: Drawing, at: int) -> Iterator[Entry]:
    kind = drawing.random.choice(["kill", "power", "restart"])
    length = None if kind == "restart" else drawing.length()
    yield entry(at, kind, drawing.random.choice(drawing.clients), length)


@_pattern("client dies in a failure", Runs.CLIENTS, before="client with a slow disk")
def _client_dies_in_a_failure(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Kills a client that holds tentative tuples, until after their correction, or shortly before it."""
    _, length, failure = drawing.input_failure(at)
    yield failure
    yield from _client_dies(drawing, max(at + length + drawing.pause(-300, -50, 50, 300), 0))


@_pattern("client loses its disk", Runs.CLIENTS, before="client with a slow disk")
def _client_loses_its_disk(drawing: Drawing, at: int) -> Iterator[Entry]:
    client = drawing.random.choice(drawing.clients)
    if drawing.random.random() < 0.3:
        yield entry(at, "wipe", client, drawing.length())
        return
    yield from _lies_until_power_fails(drawing, client, at)


# --- standbys and the coordinator ---


@_pattern("coordinator", Runs.STANDBYS)
def _coordinator(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Kills the coordinator, or fills its disk; sometimes while it has to decide."""
    random = drawing.random
    kind = random.choice(["kill", "kill", "power", "restart", "freeze", "full"])
    yield entry(at, kind, COORDINATOR, None if kind == "restart" else drawing.length())
    if kind == "full" and random.random() < 0.5:  # it cannot begin an epoch
        yield entry(at + drawing.gap(), "restart", COORDINATOR)
    if random.random() < 0.5:
        yield from drawing.placed(random.choice(drawing.backed), at + drawing.gap())


@_pattern("coordinator cut off", Runs.STANDBYS)
def _coordinator_cut(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Cuts the coordinator off from nodes, which it takes for dead, and whose partitions it activates elsewhere."""
    links = [pair for pair in drawing.links if pair[0] == COORDINATOR]
    length = drawing.length()
    for a, b in drawing.random.sample(links, drawing.random.randint(1, len(links))):
        yield link_entry(at, "cut", a, b, length)


@_pattern("kill in install", Runs.STANDBYS)
def _kill_in_install(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Loses a partition, and kills its next node, or an upstream one, before it runs."""
    yield from drawing.placed(drawing.random.choice(drawing.backed), at)
    at += drawing.pause(100, 300, 600)
    kind = drawing.random.choice(["kill", "kill", "power", "freeze"])
    yield entry(at, kind, f"state:{NodeState.RECOVERING.name}", drawing.length())


@_pattern("kill the helper", Runs.STANDBYS)
def _kill_the_helper(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Kills a standby that runs while its primaries return."""
    partition = drawing.random.choice(drawing.backed)
    length = drawing.pause(1000, 2000, 3000)
    yield from drawing.placed(partition, at, length)
    at += length + drawing.pause(0, 50, 150, 300, 700)
    for node in drawing.directory.standbys[partition].nodes[: drawing.random.choice([1, 2])]:
        yield entry(at, "kill", str(node), drawing.length())


def arrivals(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Kills several nodes at once, which return one by one; sometimes the coordinator dies between."""
    random, nodes = drawing.random, drawing.nodes
    back = at
    for node in random.sample(nodes, random.randint(min(2, len(nodes)), len(nodes))):
        back += drawing.pause(500, 1000, 2000, 3000)
        yield entry(at, "kill", node, back - at)
    if random.random() < 0.5:
        yield entry(at + drawing.pause(50, 300, 1000, 2500), "kill", COORDINATOR, drawing.length())


@_pattern("damaged", Runs.STANDBYS)
def _damaged(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Loses a partition whose standbys hold damaged checkpoints: mostly one file of many, sometimes all."""
    partition = _behind_others(drawing)
    flips = drawing.random.choice([1, 6, 15])
    for node in drawing.directory.standbys[partition].nodes:
        yield from (entry(at, "flip", str(node)) for _ in range(flips))
    length = drawing.pause(1000, 4000, 8000)
    yield from drawing.placed(partition, at + drawing.pause(0, 50, 300), length)


@_pattern("damaged helper", Runs.STANDBYS)
def _damaged_helper(drawing: Drawing, at: int) -> Iterator[Entry]:
    """Loses all nodes that run a partition, including active standbys, and damages a file of a standby."""
    partition = _behind_others(drawing)
    yield from drawing.placed(partition, at, 8 * SECOND)
    at += drawing.pause(0, 1000, 2000, 4000)
    for node in drawing.directory.standbys[partition].nodes:
        yield from (entry(at, "flip", str(node)) for _ in range(drawing.random.choice([1, 2])))
        yield entry(at, "kill", str(node), drawing.length())


def _behind_others(drawing: Drawing) -> PartitionId:
    """Returns a backed partition, if possible one that reads no source: the others can begin from nothing."""
    further = [partition for partition in drawing.backed if not any(drawing.inputs_are_sources(partition))]
    return drawing.random.choice(further or drawing.backed)
