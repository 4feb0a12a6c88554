"""Random faults for a plan, as data: single ones of random kinds, patterns, or one failure of a special sort.

Each seed leaves out kinds at random (swarm testing): a kind that is always present hides the effects of its absence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from random import Random
from typing import Final

from consistency.checking.bounds import has_room
from consistency.checking.schedule import Paths, Reach, World
from consistency.faults.kind import Runs
from replicas.faults.model import Fault, read_faults
from replicas.simulation.scenarios.drawing import Drawing, Entry, entry, link_entry
from replicas.simulation.scenarios.feature_set import NONE, Feature, Features
from replicas.simulation.scenarios.patterns import Pattern, arrivals, patterns_of, replan, source_disk
from spe.errors import ConfigError
from spe.plan.describe import show_duration
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.problems import Problems
from spe.stream.ids import Channel
from spe.stream.names import NodeState
from spe.stream.times import MILLISECOND, SECOND

#: Numbers of faults of a run, not counting the rest of the last pattern; the last number is the maximum (a node that is
#: left dead comes on top).
COUNTS: Final = (2, 3, 4, 6, 8, 12, 20, 40)
#: Share of the runs with one lasting failure.
_LASTING: Final = 0.25
#: Share of the faults about standbys, if there are any.
_OF_STANDBYS: Final = 0.3
#: A set of links that is cut for long: number of links, and least length in multiples of X.
LASTING_LINKS: Final = (2, 6)
LASTING_X: Final = 10
#: Number of sets drawn to find one that leaves a client the requested paths: without a path nothing is promised (P1).
_LASTING_TRIES: Final = 40
#: Length of an input failure whose correction takes seconds.
_LONG_MS: Final = (5_000, 8_000)
#: Faults during a correction that takes seconds.
_IN_CORRECTIONS: Final = ("nothing", "it fails again", "another input fails", "a node dies", "who corrects dies")
#: Length of each failure of an input that fails again and again.
_AGAIN_MS: Final = (3_000, 7_000)
#: Time until it fails again, in multiples of the failure's length: its correction takes about as long.
_AGAIN_AFTER: Final = (0.0, 0.3)
#: Share of such failures during which a node dies.
_AND_A_NODE: Final = 0.15
#: Share of such sets that make one replica useless and leave its partner tentative results.
_UNEVEN: Final = 0.3
#: Links of such a set fail within this time.
_STAGGERED_MS: Final = (0, 0, 100, 500)


def random_faults(
    random: Random, plan: Plan, directory: Directory, *, from_us: int, to_us: int, features: Features = NONE
) -> tuple[Fault, ...]:
    """Returns faults that begin within a time, in order of time; see the module."""
    entries = _entries(Drawing(random, plan, directory, from_us, to_us, features))
    problems = Problems()
    written = [{**e, "at": show_duration(e["at"])} for e in entries]
    faults = read_faults(written, (), directory, problems, source_disks=Feature.SOURCE_DISKS in features)
    if problems:
        raise ConfigError([str(p) for p in problems.found])
    return tuple(faults)


def _entries(drawing: Drawing) -> list[Entry]:
    entries = _special_faults(drawing)
    if entries is None:
        entries = _mixed_faults(drawing)
    # Partitions without room would wait for a dead node forever.
    if Feature.LEFT_DEAD in drawing.features and not drawing.short:
        entries += _left_dead(drawing)
    if Feature.LOST_LOGS in drawing.features:
        at = drawing.moment(drawing.from_us + SECOND)
        entries.append(entry(at, "wipe", drawing.random.choice(drawing.sources), drawing.length()))
    return sorted((e for e in entries if e["at"] < drawing.to_us), key=lambda e: e["at"])


def _special_faults(drawing: Drawing) -> list[Entry] | None:
    """Returns the faults of a run that has one sort only; None for any other run."""
    features = drawing.features
    if Feature.CHANGING_FEEDS in features:
        return list(_changing_feeds(drawing))
    if Feature.OLD_CHECKPOINTS in features:
        return list(_old_checkpoint(drawing))
    if Feature.LASTING_LINKS in features and (links := list(_lasting_links(drawing))):
        return links
    if Feature.LONG_CORRECTIONS in features:
        return list(_long_correction(drawing))
    if drawing.random.random() < _LASTING and has_room(drawing.plan):
        return _lasting(drawing)
    return None


def _mixed_faults(drawing: Drawing) -> list[Entry]:
    random, features = drawing.random, drawing.features

    def some(runs: Runs, share: float) -> list[Pattern]:
        return [pattern for pattern in patterns_of(runs).values() if random.random() < share]

    patterns = some(Runs.ALL, 0.5) or [patterns_of(Runs.ALL)["cut"]]
    of_standbys = some(Runs.STANDBYS, 0.5) if drawing.backed else []
    if drawing.short:
        of_standbys += [arrivals] * 2
    if Feature.DISKS in features:
        patterns += some(Runs.DISKS, 0.7) * 2
    if Feature.CLIENTS in features:
        patterns += some(Runs.CLIENTS, 0.7) * 2
    if Feature.SOURCE_DISKS in features:
        patterns += [source_disk] * 3
    if Feature.OTHER_PLANS in features:
        patterns += [replan] * 3
    if drawing.directory.logs:
        patterns += some(Runs.LOGS, 0.7) * 2
    if drawing.retained:
        patterns += some(Runs.RETENTION, 0.7) * 2
    count = random.choice(COUNTS)
    entries: list[Entry] = []
    while len(entries) < count:
        at = drawing.moment()
        drawn = of_standbys if of_standbys and random.random() < _OF_STANDBYS else patterns
        entries += random.choice(drawn)(drawing, at)
    return entries[: COUNTS[-1]]  # a pattern is not cut short for less than that


def _lasting(drawing: Drawing) -> list[Entry]:
    """Returns one failure that lasts: only in a time without change a remaining path promises anything (P1)."""
    random = drawing.random
    at = drawing.moment(to_us=drawing.from_us + 2 * SECOND)
    name = random.choice([*["source"] * 4, "freeze", "kill", "isolated", "cut"])
    length = show_duration(drawing.grid(max(drawing.to_us - at - random.randrange(2 * SECOND), SECOND)))
    return [{**e, "for": length} for e in patterns_of(Runs.ALL)[name](drawing, at)]


def _lasting_links(drawing: Drawing) -> Iterator[Entry]:
    """Cuts a set of links for 10 X or longer; nothing if there are too few links, or not enough time.

    Each is cut in both directions or in one, so that a replica's reachable inputs differ from its partner's.
    """
    random = drawing.random
    least_us = LASTING_X * max(node.x_us for node in drawing.directory.nodes.values())
    latest_us = drawing.to_us - least_us - max(_STAGGERED_MS) * MILLISECOND
    if len(drawing.links) < LASTING_LINKS[0] or latest_us <= drawing.from_us:
        return
    begin = drawing.moment(to_us=min(latest_us, drawing.from_us + 3 * SECOND) + 1)
    links = _uneven_links(drawing) if random.random() < _UNEVEN else []
    wanted = random.choice([Reach.TENTATIVE, Reach.STABLE])
    for _ in range(0 if links else _LASTING_TRIES):
        links = random.sample(drawing.links, min(len(drawing.links), random.randint(*LASTING_LINKS)))
        if _leaves(drawing, links, wanted):
            break
    for a, b in links:
        at = begin + drawing.pause(*_STAGGERED_MS)
        one_way = random.choice([{}, {"one_way": True}])
        a, b = (b, a) if one_way and random.random() < 0.5 else (a, b)
        yield link_entry(at, "cut", a, b, drawing.to_us - at, **one_way)


def _long_correction(drawing: Drawing) -> Iterator[Entry]:
    """Yields a long failure of an input, and up to two faults during its correction, which takes seconds."""
    random = drawing.random
    at, source = drawing.moment(SECOND, 4 * SECOND), random.choice(drawing.sources)
    length = drawing.grid(random.randint(*_LONG_MS) * MILLISECOND)
    yield entry(at, "cut", source, length)
    for event in random.sample(_IN_CORRECTIONS, random.choice([1, 2])):
        then = at + length + drawing.grid(random.randint(-300, 3000) * MILLISECOND)
        lasts = drawing.grid(random.randint(1_000, 6_000) * MILLISECOND)
        if event == "it fails again":
            yield entry(then, "cut", source, lasts)
        elif event == "another input fails":
            yield entry(then, "cut", random.choice(drawing.sources), lasts)
        elif event == "a node dies":
            yield entry(then, "kill", random.choice(drawing.nodes), lasts)
        elif event == "who corrects dies":
            yield entry(then, "kill", f"state:{NodeState.STABILIZATION.name}", lasts)


def _changing_feeds(drawing: Drawing) -> Iterator[Entry]:
    """Yields failures and stalls of an input, each about when the previous one has been corrected.

    Tentative and correcting producers are then at different positions, and readers change between them.
    """
    random = drawing.random
    at, source = drawing.moment(SECOND, 3 * SECOND), random.choice(drawing.sources)
    kind = "cut"
    while at < drawing.to_us:
        length = drawing.grid(random.randint(*_AGAIN_MS) * MILLISECOND)
        yield entry(at, kind, source, length)
        at += length
        if random.random() < _AND_A_NODE:
            died = at + drawing.grid(random.randint(-500, 2_000) * MILLISECOND)
            yield entry(died, "kill", random.choice(drawing.nodes), drawing.length())
        at += drawing.grid(random.uniform(*_AGAIN_AFTER) * length)
        kind = random.choice(["stall", "stall", "freeze", "cut"])


def _old_checkpoint(drawing: Drawing) -> Iterator[Entry]:
    """Yields the death of an active standby with its primary, with one of its files damaged; the standby returns
    first.

    It may have its older checkpoint left, or the newest one; before that another fault happens.
    """
    random, patterns = drawing.random, patterns_of(Runs.ALL)
    at = drawing.moment(drawing.from_us + 2 * SECOND, drawing.to_us - 4 * SECOND)
    for _ in range(random.choice([0, 0, 1, 2])):
        before = drawing.moment(to_us=at)
        yield from patterns[random.choice(["cut", "source", "reset", "late"])](drawing, before)
    partition = random.choice([p for p in drawing.backed if not all(drawing.inputs_are_sources(p))])
    standby = str(drawing.directory.standbys[partition].nodes[0])
    yield entry(at, "flip", standby)
    back = drawing.pause(50, 300, 500, 1_000)
    yield entry(at + drawing.pause(0, 0, 50, 150), "kill", standby, back)
    yield from drawing.placed(partition, at + drawing.pause(0, 0, 50, 150), drawing.pause(5_000, 8_000))


def _uneven_links(drawing: Drawing) -> list[tuple[str, str]]:
    """Returns links: one replica loses all its inputs, another of the same partition a single one; [] if there are
    none.

    The first runs but is useless to its readers, the second has tentative results.
    """
    plan, directory = drawing.plan, drawing.directory
    sets = []
    for partition, nodes in directory.placement.items():
        inputs = [
            [str(p) for p in directory.producer_addresses(plan, c)]
            for c in plan.unit[partition.unit].channels_in(partition.partition)
        ]
        for lost, other in permutations(map(str, nodes), 2):
            links = [(p, lost) for producers in inputs for p in producers]
            for producers in inputs if len(inputs) > 1 else ():
                sets.append([pair for pair in links + [(p, other) for p in producers] if pair[0] != pair[1]])
    least, most = LASTING_LINKS
    fitting = [links for links in sets if least <= len(links) <= most]
    return drawing.random.choice(fitting) if fitting else []


def _leaves(drawing: Drawing, cut: Sequence[tuple[str, str]], wanted: Reach) -> bool:
    """Returns whether these are the paths to a client that are left."""
    paths = Paths(drawing.plan, drawing.directory, World(cut=frozenset(cut)))
    return any(
        paths.channel(f"client:{client.name}", Channel(stream, partition)) is wanted
        for client in drawing.directory.clients.values()
        for stream in client.reads
        for partition in range(drawing.plan.partitions_of(stream))
    )


def _left_dead(drawing: Drawing) -> list[Entry]:
    """Kills a node permanently: each of its partitions has another node."""
    directory = drawing.directory
    spare = [
        str(node)
        for node in directory.nodes
        if all(
            len(directory.hosts(partition)) > 1
            for partition in directory.placement
            if node in directory.hosts(partition)
        )
    ]
    if not spare:
        return []
    at, random = drawing.moment(), drawing.random
    return [entry(at, random.choice(["kill", "power"]), random.choice(spare))]
