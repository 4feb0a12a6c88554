"""Random faults for a plan, as data: single ones of random kinds, and the patterns that find the most defects.

Each seed leaves out kinds at random (swarm testing): a kind that is always present hides the effects of its absence.
Durations are near the times that the protocol waits for: the heartbeat timeout, αX and X.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, permutations
from random import Random
from typing import Any, Final

from consistency.checking.bounds import has_room
from consistency.checking.schedule import Paths, Reach, World
from replicas.faults.model import Fault, processes_of, read_faults
from replicas.simulation.scenarios.feature_set import NONE, Feature, Features
from spe.errors import ConfigError
from spe.plan.describe import show_duration
from spe.plan.directory import COORDINATOR, Directory
from spe.plan.plan import Plan
from spe.problems import Problems
from spe.stream.ids import Channel, PartitionId
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
_GRID_US: Final = 50 * MILLISECOND

Entry = dict[str, Any]


def random_faults(
    random: Random, plan: Plan, directory: Directory, *, from_us: int, to_us: int, features: Features = NONE
) -> tuple[Fault, ...]:
    """Returns faults that begin within a time, in order of time; see the module."""
    entries = _Drawing(random, plan, directory, from_us, to_us, features).draw()
    problems = Problems()
    written = [{**e, "at": show_duration(e["at"])} for e in entries]
    faults = read_faults(written, (), directory, problems, source_disks=Feature.SOURCE_DISKS in features)
    if problems:
        raise ConfigError([str(p) for p in problems.found])
    return tuple(faults)


class _Drawing:
    def __init__(
        self, random: Random, plan: Plan, directory: Directory, from_us: int, to_us: int, features: Features
    ) -> None:
        self._random = random
        self._plan = plan
        self._directory = directory
        self._features = features
        self._from_us, self._to_us = from_us, to_us
        self._nodes = [str(n) for n in directory.nodes]
        self._sources = [f"source:{s}" for s in plan.sources]
        self._clients = [f"client:{c}" for c in directory.clients]
        self._hosts = processes_of(directory)
        self._links = _links(plan, directory)
        self._backed = sorted(directory.standbys)
        self._short = Feature.SHORTAGE in features and bool(self._backed)
        #: Sources that delete the oldest part of their logs.
        self._retained = [s for s, source in plan.sources.items() if source.retain is not None]
        self._servers = [*self._nodes, COORDINATOR] if self._backed else self._nodes
        node = next(iter(directory.nodes.values()))
        waits = (4 * plan.timing.heartbeat_us, node.alpha_x_us, node.x_us)
        around = [round(w * f) for w in waits for f in (0.5, 0.9, 1.1, 2.0)]
        self._lengths = [50 * MILLISECOND, *around, 4 * node.x_us, 8 * SECOND, 8 * SECOND]
        self._waits = waits

    def draw(self) -> list[Entry]:
        entries = self._faults()
        # Partitions without room would wait for a dead node forever.
        if Feature.LEFT_DEAD in self._features and not self._short:
            entries += self._left_dead()
        if Feature.LOST_LOGS in self._features:
            at = self._grid(self._random.randrange(self._from_us + SECOND, self._to_us))
            entries += self._one(at, "wipe", self._sources)
        return sorted((e for e in entries if e["at"] < self._to_us), key=lambda e: e["at"])

    def _faults(self) -> list[Entry]:
        random = self._random
        if Feature.CHANGING_FEEDS in self._features:
            return list(self._changing_feeds())
        if Feature.OLD_CHECKPOINTS in self._features:
            return list(self._old_checkpoint())
        if Feature.LASTING_LINKS in self._features and (links := list(self._lasting_links())):
            return links
        if Feature.LONG_CORRECTIONS in self._features:
            return list(self._long_correction())
        if random.random() < _LASTING and has_room(self._plan):
            return self._lasting()
        kinds = [kind for kind in KINDS.values() if random.random() < 0.5] or [_Drawing._cut]
        of_standbys = [k for k in STANDBY_KINDS.values() if random.random() < 0.5] if self._backed else []
        if self._short:
            of_standbys += [_Drawing._arrivals] * 2
        if Feature.DISKS in self._features:
            kinds += [kind for kind in DISK_KINDS.values() if random.random() < 0.7] * 2
        if Feature.CLIENTS in self._features:
            kinds += [kind for kind in CLIENT_KINDS.values() if random.random() < 0.7] * 2
        if Feature.SOURCE_DISKS in self._features:
            kinds += [_Drawing._source_disk] * 3
        if Feature.OTHER_PLANS in self._features:
            kinds += [_Drawing._replan] * 3
        if self._directory.logs:
            kinds += [kind for kind in LOG_KINDS.values() if random.random() < 0.7] * 2
        if self._retained:
            kinds += [kind for kind in RETENTION_KINDS.values() if random.random() < 0.7] * 2
        count = random.choice(COUNTS)
        entries: list[Entry] = []
        while len(entries) < count:
            at = self._grid(random.randrange(self._from_us, self._to_us))
            drawn = of_standbys if of_standbys and random.random() < _OF_STANDBYS else kinds
            entries += random.choice(drawn)(self, at)
        return entries[: COUNTS[-1]]  # a pattern is not cut short for less than that

    def _lasting(self) -> list[Entry]:
        """Returns one failure that lasts: only in a time without change a remaining path promises anything (P1)."""
        random = self._random
        at = self._grid(random.randrange(self._from_us, self._from_us + 2 * SECOND))
        kind = random.choice([*["source"] * 4, "freeze", "kill", "isolated", "cut"])
        length = show_duration(self._grid(max(self._to_us - at - random.randrange(2 * SECOND), SECOND)))
        return [{**e, "for": length} for e in KINDS[kind](self, at)]

    def _lasting_links(self) -> Iterator[Entry]:
        """Cuts a set of links for 10 X or longer; nothing if there are too few links, or not enough time.

        Each is cut in both directions or in one, so that a replica's reachable inputs differ from its partner's.
        """
        random = self._random
        least_us = LASTING_X * max(node.x_us for node in self._directory.nodes.values())
        latest_us = self._to_us - least_us - max(_STAGGERED_MS) * MILLISECOND
        if len(self._links) < LASTING_LINKS[0] or latest_us <= self._from_us:
            return
        begin = self._grid(random.randrange(self._from_us, min(latest_us, self._from_us + 3 * SECOND) + 1))
        links = self._uneven_links() if random.random() < _UNEVEN else []
        wanted = random.choice([Reach.TENTATIVE, Reach.STABLE])
        for _ in range(0 if links else _LASTING_TRIES):
            links = random.sample(self._links, min(len(self._links), random.randint(*LASTING_LINKS)))
            if self._leaves(links, wanted):
                break
        for a, b in links:
            at = begin + random.choice(_STAGGERED_MS) * MILLISECOND
            one_way = random.choice([{}, {"one_way": True}])
            a, b = (b, a) if one_way and random.random() < 0.5 else (a, b)
            yield {"at": at, "kind": "cut", "from": a, "to": b, "for": show_duration(self._to_us - at), **one_way}

    def _long_correction(self) -> Iterator[Entry]:
        """Yields a long failure of an input, and up to two faults during its correction, which takes seconds."""
        random = self._random
        at, source = self._grid(random.randrange(SECOND, 4 * SECOND)), random.choice(self._sources)
        length = self._grid(random.randint(*_LONG_MS) * MILLISECOND)
        yield {"at": at, "kind": "cut", "target": source, "for": show_duration(length)}
        for what in random.sample(_IN_CORRECTIONS, random.choice([1, 2])):
            then = at + length + self._grid(random.randint(-300, 3000) * MILLISECOND)
            lasts = {"for": show_duration(self._grid(random.randint(1_000, 6_000) * MILLISECOND))}
            if what == "it fails again":
                yield {"at": then, "kind": "cut", "target": source, **lasts}
            elif what == "another input fails":
                yield {"at": then, "kind": "cut", "target": random.choice(self._sources), **lasts}
            elif what == "a node dies":
                yield {"at": then, "kind": "kill", "target": random.choice(self._nodes), **lasts}
            elif what == "who corrects dies":
                yield {"at": then, "kind": "kill", "target": f"state:{NodeState.STABILIZATION.name}", **lasts}

    def _changing_feeds(self) -> Iterator[Entry]:
        """Yields failures and stalls of an input, each about when the previous one has been corrected.

        Tentative and correcting producers are then at different positions, and readers change between them.
        """
        random = self._random
        at, source = self._grid(random.randrange(SECOND, 3 * SECOND)), random.choice(self._sources)
        kind = "cut"
        while at < self._to_us:
            length = self._grid(random.randint(*_AGAIN_MS) * MILLISECOND)
            yield {"at": at, "kind": kind, "target": source, "for": show_duration(length)}
            at += length
            if random.random() < _AND_A_NODE:
                died = at + self._grid(random.randint(-500, 2_000) * MILLISECOND)
                yield {"at": died, "kind": "kill", "target": random.choice(self._nodes), "for": self._for()}
            at += self._grid(round(random.uniform(*_AGAIN_AFTER) * length))
            kind = random.choice(["stall", "stall", "freeze", "cut"])

    def _old_checkpoint(self) -> Iterator[Entry]:
        """Yields the death of an active standby with its primary, with one of its files damaged; the standby returns
        first.

        It may have its older checkpoint left, or the newest one; before that another fault happens.
        """
        random = self._random
        at = self._grid(random.randrange(self._from_us + 2 * SECOND, self._to_us - 4 * SECOND))
        for _ in range(random.choice([0, 0, 1, 2])):
            before = self._grid(random.randrange(self._from_us, at))
            yield from random.choice([KINDS["cut"], KINDS["source"], KINDS["reset"], KINDS["late"]])(self, before)
        partition = random.choice([partition for partition in self._backed if not self._reads_only_sources(partition)])
        standby = str(self._directory.standbys[partition].nodes[0])
        yield {"at": at, "kind": "flip", "target": standby}
        back = show_duration(random.choice([50, 300, 500, 1_000]) * MILLISECOND)
        yield {"at": at + self._moment(), "kind": "kill", "target": standby, "for": back}
        yield from self._placed(partition, at + self._moment(), show_duration(random.choice([5, 8]) * SECOND))

    def _moment(self) -> int:
        return self._random.choice([0, 0, 50, 150]) * MILLISECOND

    def _uneven_links(self) -> list[tuple[str, str]]:
        """Returns links: one replica loses all its inputs, another of the same partition a single one; [] if there are
        none.

        The first runs but is useless to its readers, the second has tentative results.
        """
        sets = []
        for partition, nodes in self._directory.placement.items():
            inputs = [
                [str(p) for p in self._directory.producer_addresses(self._plan, c)]
                for c in self._plan.unit[partition.unit].channels_in(partition.partition)
            ]
            for lost, other in permutations(map(str, nodes), 2):
                links = [(p, lost) for producers in inputs for p in producers]
                for producers in inputs if len(inputs) > 1 else ():
                    sets.append([pair for pair in links + [(p, other) for p in producers] if pair[0] != pair[1]])
        least, most = LASTING_LINKS
        fitting = [links for links in sets if least <= len(links) <= most]
        return self._random.choice(fitting) if fitting else []

    def _leaves(self, cut: Sequence[tuple[str, str]], wanted: Reach) -> bool:
        """Returns whether these are the paths to a client that are left."""
        paths = Paths(self._plan, self._directory, World(cut=frozenset(cut)))
        return any(
            paths.channel(f"client:{client.name}", Channel(stream, partition)) is wanted
            for client in self._directory.clients.values()
            for stream in client.reads
            for partition in range(self._plan.partitions_of(stream))
        )

    def _left_dead(self) -> list[Entry]:
        """Kills a node permanently: each of its partitions has another node."""
        directory = self._directory
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
        at = self._grid(self._random.randrange(self._from_us, self._to_us))
        return [{"at": at, "kind": self._random.choice(["kill", "power"]), "target": self._random.choice(spare)}]

    def _grid(self, us: int) -> int:
        return us // _GRID_US * _GRID_US

    def _length(self) -> int:
        return self._grid(self._random.choice(self._lengths)) or _GRID_US

    def _for(self) -> str:
        return show_duration(self._length())

    def _gap(self) -> int:
        return self._random.choice([50, 100, 300, 600, 1000, 2000]) * MILLISECOND

    # --- single faults ---

    def _one(self, at: int, kind: str, hosts: Sequence[str], **more: Any) -> list[Entry]:
        """Returns a temporary fault of one of some processes."""
        return [{**self._once(at, kind, hosts)[0], "for": self._for(), **more}]

    def _once(self, at: int, kind: str, hosts: Sequence[str]) -> list[Entry]:
        return [{"at": at, "kind": kind, "target": self._random.choice(hosts)}]

    def _cut(self, at: int) -> Iterator[Entry]:
        for a, b in self._some_links():
            yield self._link("cut", at, a, b)

    def _some_links(self) -> list[tuple[str, str]]:
        return self._random.sample(self._links, min(len(self._links), self._random.choice([1, 1, 2, 3])))

    def _link(self, kind: str, at: int, a: str, b: str, **more: Any) -> Entry:
        return {"at": at, "kind": kind, "from": a, "to": b, "for": self._for(), **more}

    def _one_way(self, at: int) -> Iterator[Entry]:
        a, b = self._random.choice(self._links)
        if self._random.random() < 0.5:
            a, b = b, a
        yield self._link("cut", at, a, b, one_way=True)

    def _late(self, at: int) -> Iterator[Entry]:
        for a, b in self._some_links():
            by, jitter = self._random.choice([("5ms", "1ms"), ("50ms", "50ms"), ("200ms", "20ms")])
            yield self._link("delay", at, a, b, by=by, jitter=jitter)

    def _slow(self, at: int) -> Iterator[Entry]:
        for a, b in self._some_links():
            yield self._link("slow", at, a, b, bytes_per_second=self._random.choice([2_000.0, 20_000.0]))

    def _lossy(self, at: int) -> Iterator[Entry]:
        for a, b in self._some_links():
            yield self._link("loss", at, a, b, share=self._random.choice([0.02, 0.3]))

    def _refused(self, at: int) -> Iterator[Entry]:
        """Connections that break during the fault cannot be opened again at once."""
        a, b = self._random.choice(self._links)
        yield self._link("refuse", at, a, b)
        yield {"at": at, "kind": "reset", "from": a, "to": b}

    def _reset(self, at: int) -> Iterator[Entry]:
        for a, b in self._some_links():
            yield {"at": at, "kind": "reset", "from": a, "to": b}

    def _half_open(self, at: int) -> Iterator[Entry]:
        for a, b in self._some_links():
            yield {"at": at, "kind": "half-open", "from": a, "to": b}

    def _kill_what_is_read(self, at: int) -> Iterator[Entry]:
        client = self._random.choice(self._clients).partition(":")[2]
        yield {"at": at, "kind": "kill", "target": f"reads:{client}", "for": self._for()}

    def _lie(self, at: int) -> Iterator[Entry]:
        """Lets a disk lie, and then fails the power: during the lie, or a moment after it."""
        node, length = self._random.choice(self._nodes), self._length()
        yield {"at": at, "kind": "lie", "target": node, "for": show_duration(length)}
        at += max(length + self._random.choice([-50, 50]) * MILLISECOND, 0)
        yield {"at": at, "kind": "power", "target": node, "for": self._for()}

    def _source_disk(self, at: int) -> Iterator[Entry]:
        """Flips a bit on the disk of a source, or lets its disk lie; then restarts it."""
        source = self._random.choice(self._sources)
        if self._random.random() < 0.5:
            yield {"at": at, "kind": "flip", "target": source}
            yield {"at": at + self._gap(), "kind": "kill", "target": source, "for": self._for()}
            return
        length = self._length()
        yield {"at": at, "kind": "lie", "target": source, "for": show_duration(length)}
        yield {"at": at + length, "kind": "power", "target": source, "for": self._for()}

    def _replan(self, at: int) -> Iterator[Entry]:
        """Restarts a process with another configuration, and corrects it later."""
        target = self._random.choice([*self._nodes, *self._nodes, *self._sources, *self._clients])
        change = self._random.choice(["query", "query", "bucket", "limits", "timing"])
        yield {"at": at, "kind": "replan", "target": target, "change": change, "for": self._for()}

    def _other_checkpoints(self, at: int) -> Iterator[Entry]:
        """Turns checkpoint logs on or off for one node, or for all at once, and back."""
        target = self._random.choice([self._nodes, [self._random.choice(self._nodes)]])
        yield {"at": at, "kind": "replan", "target": target, "change": "checkpoints", "for": self._for()}

    def _all_die(self, at: int) -> Iterator[Entry]:
        """Kills all replicas of a partition that writes a log, at once or within a moment."""
        nodes = self._random.choice([self._directory.placement[partition] for partition in self._directory.logs])
        for node in nodes:
            kind = self._random.choice(["kill", "kill", "power"])
            yield {"at": at, "kind": kind, "target": str(node), "for": self._for()}
            at += self._random.choice([0, 0, 50, 400]) * MILLISECOND

    def _below_dies(self, at: int) -> Iterator[Entry]:
        """Kills all holders of a partition's state, downstream of a source that deletes its log, and perhaps the
        source.
        """
        directory = self._directory
        hosts = [str(n) for n in directory.hosts(self._random.choice(list(directory.placement)))]
        if self._random.random() < 0.3:
            hosts.append(f"source:{self._random.choice(self._retained)}")
        for host in hosts:
            yield {"at": at, "kind": self._random.choice(["kill", "power"]), "target": host, "for": self._for()}
            at += self._random.choice([0, 0, 50, 400]) * MILLISECOND

    def _source_dies(self, at: int) -> Iterator[Entry]:
        """Kills a source repeatedly, in the middle of its deletions."""
        source = f"source:{self._random.choice(self._retained)}"
        for _ in range(self._random.choice([1, 3, 6])):
            kind = self._random.choice(["power", "restart"])
            lasts = {} if kind == "restart" else {"for": "50ms"}
            yield {"at": at, "kind": kind, "target": source, **lasts}
            at += self._random.choice([300, 1000, 1100]) * MILLISECOND

    def _skew(self, at: int) -> Iterator[Entry]:
        target, by = self._random.choice([(self._nodes, "1h"), (self._nodes, "10ms"), (self._sources, "10ms")])
        yield {"at": at, "kind": "skew", "target": self._random.choice(target), "by": by, "for": self._for()}

    # --- clients that record and have sinks ---

    def _client_dies(self, at: int) -> Iterator[Entry]:
        kind = self._random.choice(["kill", "power", "restart"])
        lasts = {} if kind == "restart" else {"for": self._for()}
        yield {"at": at, "kind": kind, "target": self._random.choice(self._clients), **lasts}

    def _client_dies_in_a_failure(self, at: int) -> Iterator[Entry]:
        """Kills a client that holds tentative tuples, until after their correction, or shortly before it."""
        source, length = self._random.choice(self._sources), self._grid(2 * self._waits[2])
        yield {"at": at, "kind": "cut", "target": source, "for": show_duration(length)}
        at += length + self._random.choice([-300, -50, 50, 300]) * MILLISECOND
        yield from self._client_dies(max(at, 0))

    def _client_loses_its_disk(self, at: int) -> Iterator[Entry]:
        client = self._random.choice(self._clients)
        if self._random.random() < 0.3:
            yield {"at": at, "kind": "wipe", "target": client, "for": self._for()}
            return
        length = self._length()
        yield {"at": at, "kind": "lie", "target": client, "for": show_duration(length)}
        yield {"at": at + length, "kind": "power", "target": client, "for": self._for()}

    # --- patterns ---

    def _swizzle(self, at: int) -> Iterator[Entry]:
        """Fails the links of a random subset one by one, and heals them in another order."""
        links = self._random.sample(self._links, min(len(self._links), self._random.randint(2, 6)))
        steps = [self._random.choice([50, 200, 500]) * MILLISECOND for _ in range(2 * len(links))]
        times = list(accumulate(steps, initial=at))
        begins, ends = times[: len(links)], times[len(links) : -1]
        self._random.shuffle(ends)
        for (a, b), begin, end in zip(links, begins, ends, strict=True):
            yield {"at": begin, "kind": "cut", "from": a, "to": b, "for": show_duration(end - begin)}

    def _starve(self, at: int) -> Iterator[Entry]:
        """Cuts a node off from all its producers and consumers."""
        node = self._random.choice(self._nodes)
        length = self._for()
        for a, b in self._links:
            if node in (a, b):
                yield {"at": at, "kind": "cut", "from": a, "to": b, "for": length}

    def _flap(self, at: int) -> Iterator[Entry]:
        a, b = self._random.choice(self._links)
        for _ in range(4):
            yield {"at": at, "kind": "cut", "from": a, "to": b, "for": "300ms"}
            at += 300 * MILLISECOND + self._random.choice([100, 400]) * MILLISECOND

    def _one_by_one(self, at: int) -> Iterator[Entry]:
        """Kills the replicas of a partition in turn, each shortly after the previous one has returned."""
        nodes = list(self._random.choice(sorted(self._directory.placement.values())))
        self._random.shuffle(nodes)
        for node in nodes:
            length = self._length()
            yield {"at": at, "kind": "kill", "target": str(node), "for": show_duration(length)}
            at += length + self._gap()

    def _overlapping(self, at: int) -> Iterator[Entry]:
        """Fails two inputs at different times, and heals them at different times."""
        for source in self._random.sample(self._sources, min(2, len(self._sources))):
            length = self._random.choice(self._waits[1:]) * 2
            yield {"at": at, "kind": "cut", "target": source, "for": show_duration(self._grid(length))}
            at += self._gap()

    def _kill_in_stabilization(self, at: int) -> Iterator[Entry]:
        """Fails an input long enough to need a correction, and kills a replica during the correction."""
        source, length = self._random.choice(self._sources), self._grid(2 * self._waits[2])
        yield {"at": at, "kind": "cut", "target": source, "for": show_duration(length)}
        kind = self._random.choice(["kill", "kill", "power", "freeze", "cut"])
        yield {"at": at + length, "kind": kind, "target": "state:STABILIZATION", "for": self._for()}

    def _handed_on(self, at: int) -> Iterator[Entry]:
        """Heals an input while another one is silent: another input has failed, or it fails again as its correction
        ends.
        """
        source, length = self._random.choice(self._sources), self._grid(2 * self._waits[2])
        yield {"at": at, "kind": "cut", "target": source, "for": show_duration(length)}
        shift = self._grid(round(self._random.choice([-0.7, -0.5, -0.3, 0.2, 0.5, 1.0]) * self._waits[1]))
        target = self._random.choice(self._sources) if shift < 0 else source
        if shift > 0 or target != source:
            yield {"at": at + length + shift, "kind": "cut", "target": target, "for": self._for()}

    def _partner_dies(self, at: int) -> Iterator[Entry]:
        """Heals a failure after which only one of the correcting replicas is left."""
        source, length = self._random.choice(self._sources), self._grid(2 * self._waits[2])
        yield {"at": at, "kind": "cut", "target": source, "for": show_duration(length)}
        at += length + self._random.choice([-1000, -300, 50, 150, 300, 700]) * MILLISECOND
        nodes = list(self._random.choice(sorted(self._directory.placement.values())))
        for node in self._random.sample(nodes, len(nodes) - 1):
            yield {"at": at, "kind": "kill", "target": str(node), "for": show_duration(8 * SECOND)}

    def _fail_again(self, at: int) -> Iterator[Entry]:
        """Fails the same input again during its correction, or while a restarted replica catches up."""
        source, length = self._random.choice(self._sources), self._grid(2 * self._waits[2])
        if self._random.random() < 0.5:
            yield {"at": at, "kind": "kill", "target": self._random.choice(self._nodes), "for": show_duration(length)}
        else:
            yield {"at": at, "kind": "cut", "target": source, "for": show_duration(length)}
        at += length + self._random.choice([50, 150, 300, 700]) * MILLISECOND
        yield {"at": at, "kind": "cut", "target": source, "for": self._for()}

    def _together(self, at: int) -> Iterator[Entry]:
        """Kills several nodes, or all, at one moment, and restarts them at different times."""
        least = min(2, len(self._nodes))
        kind = self._random.choice(["kill", "kill", "power"])
        for node in self._random.sample(self._nodes, self._random.randint(least, len(self._nodes))):
            yield {"at": at, "kind": kind, "target": node, "for": self._for()}

    # --- standbys and the coordinator ---

    def _placed(self, partition: PartitionId, at: int, length: str | None = None) -> Iterator[Entry]:
        """Kills all nodes that run a partition."""
        for node in self._directory.placement[partition]:
            yield {"at": at, "kind": "kill", "target": str(node), "for": length or self._for()}

    def _coordinator(self, at: int) -> Iterator[Entry]:
        """Kills the coordinator, or fills its disk; sometimes while it has to decide."""
        kind = self._random.choice(["kill", "kill", "power", "restart", "freeze", "full"])
        lasts = {} if kind == "restart" else {"for": self._for()}
        yield {"at": at, "kind": kind, "target": COORDINATOR, **lasts}
        if kind == "full" and self._random.random() < 0.5:  # it cannot begin an epoch
            yield {"at": at + self._gap(), "kind": "restart", "target": COORDINATOR}
        if self._random.random() < 0.5:
            yield from self._placed(self._random.choice(self._backed), at + self._gap())

    def _coordinator_cut(self, at: int) -> Iterator[Entry]:
        """Cuts the coordinator off from nodes, which it takes for dead, and whose partitions it activates elsewhere."""
        links = [pair for pair in self._links if pair[0] == COORDINATOR]
        length = self._for()
        for a, b in self._random.sample(links, self._random.randint(1, len(links))):
            yield {"at": at, "kind": "cut", "from": a, "to": b, "for": length}

    def _kill_in_install(self, at: int) -> Iterator[Entry]:
        """Loses a partition, and kills its next node, or an upstream one, before it runs."""
        yield from self._placed(self._random.choice(self._backed), at)
        at += self._random.choice([100, 300, 600]) * MILLISECOND
        kind = self._random.choice(["kill", "kill", "power", "freeze"])
        yield {"at": at, "kind": kind, "target": f"state:{NodeState.RECOVERING.name}", "for": self._for()}

    def _kill_the_helper(self, at: int) -> Iterator[Entry]:
        """Kills a standby that runs while its primaries return."""
        partition = self._random.choice(self._backed)
        length = self._grid(self._random.choice([1, 2, 3]) * SECOND)
        yield from self._placed(partition, at, show_duration(length))
        at += length + self._random.choice([0, 50, 150, 300, 700]) * MILLISECOND
        for node in self._directory.standbys[partition].nodes[: self._random.choice([1, 2])]:
            yield {"at": at, "kind": "kill", "target": str(node), "for": self._for()}

    def _arrivals(self, at: int) -> Iterator[Entry]:
        """Kills several nodes at once, which return one by one; sometimes the coordinator dies between."""
        nodes = self._random.sample(self._nodes, self._random.randint(min(2, len(self._nodes)), len(self._nodes)))
        back = at
        for node in nodes:
            back += self._grid(self._random.choice([500, 1000, 2000, 3000]) * MILLISECOND)
            yield {"at": at, "kind": "kill", "target": node, "for": show_duration(back - at)}
        if self._random.random() < 0.5:
            died = at + self._random.choice([50, 300, 1000, 2500]) * MILLISECOND
            yield {"at": died, "kind": "kill", "target": COORDINATOR, "for": self._for()}

    def _damaged(self, at: int) -> Iterator[Entry]:
        """Loses a partition whose standbys hold damaged checkpoints: mostly one file of many, sometimes all."""
        further = [
            partition for partition in self._backed if not self._reads_sources(partition)
        ]  # the others can begin from nothing
        partition = self._random.choice(further or self._backed)
        flips = self._random.choice([1, 6, 15])
        for node in self._directory.standbys[partition].nodes:
            yield from ({"at": at, "kind": "flip", "target": str(node)} for _ in range(flips))
        lasts = show_duration(self._random.choice([1, 4, 8]) * SECOND)
        yield from self._placed(partition, at + self._random.choice([0, 50, 300]) * MILLISECOND, lasts)

    def _damaged_helper(self, at: int) -> Iterator[Entry]:
        """Loses all nodes that run a partition, including active standbys, and damages a file of a standby."""
        partition = self._random.choice(
            [partition for partition in self._backed if not self._reads_sources(partition)] or self._backed
        )
        yield from self._placed(partition, at, show_duration(8 * SECOND))
        at += self._random.choice([0, 1, 2, 4]) * SECOND
        for node in self._directory.standbys[partition].nodes:
            yield from ({"at": at, "kind": "flip", "target": str(node)} for _ in range(self._random.choice([1, 2])))
            yield {"at": at, "kind": "kill", "target": str(node), "for": self._for()}

    def _reads_only_sources(self, partition: PartitionId) -> bool:
        return all(
            c.stream in self._plan.sources for c in self._plan.unit[partition.unit].channels_in(partition.partition)
        )

    def _reads_sources(self, partition: PartitionId) -> bool:
        return any(
            c.stream in self._plan.sources for c in self._plan.unit[partition.unit].channels_in(partition.partition)
        )


def _links(plan: Plan, directory: Directory) -> list[tuple[str, str]]:
    """Returns (producer, consumer) of every pair of processes with a common channel, and of the coordinator's links."""
    channels: list[tuple[Channel, Sequence[str]]] = [
        (c, directory.hosts(partition))
        for partition in directory.placement
        for c in plan.unit[partition.unit].channels_in(partition.partition)
    ]
    for client in directory.clients.values():
        read = [Channel(s, p) for s in client.reads for p in range(plan.partitions_of(s))]
        channels += [(channel, [f"client:{client.name}"]) for channel in read]
    pairs = [
        (str(p), h) for channel, hosts in channels for p in directory.producer_addresses(plan, channel) for h in hosts
    ]
    if directory.coordinated:
        pairs += [(COORDINATOR, host) for host in (*map(str, directory.nodes), *(f"source:{s}" for s in plan.sources))]
    return [pair for pair in dict.fromkeys(pairs) if pair[0] != pair[1]]


_Kind = Callable[[_Drawing, int], Iterable[Entry]]

_SYNCS: Final = ("5ms", "50ms", "300ms")
#: Kinds of faults of a run, by name.
KINDS: Final[dict[str, _Kind]] = {
    "cut": _Drawing._cut,
    "one way": _Drawing._one_way,
    "isolated": lambda d, at: d._one(at, "cut", d._hosts),
    "source": lambda d, at: d._one(at, "cut", d._sources),
    "late": _Drawing._late,
    "slow": _Drawing._slow,
    "lossy": _Drawing._lossy,
    "refused": _Drawing._refused,
    "reset": _Drawing._reset,
    "half open": _Drawing._half_open,
    "kill": lambda d, at: d._one(at, "kill", [*d._nodes, *d._servers, *d._sources]),
    "power": lambda d, at: d._one(at, "power", [*d._servers, *d._sources]),
    "restart": lambda d, at: d._once(at, "restart", d._servers),
    "what is read": _Drawing._kill_what_is_read,
    "freeze": lambda d, at: d._one(at, "freeze", d._hosts),
    "stall": lambda d, at: d._one(at, "stall", d._sources),
    "busy": lambda d, at: d._one(at, "busy", d._servers, times=d._random.choice([2.0, 8.0])),
    "lag": lambda d, at: d._one(at, "lag", d._clients, by=d._random.choice(["5ms", "100ms"])),
    "full": lambda d, at: d._one(at, "full", d._servers),
    # Only on nodes: the log of a source is the only copy of its input.
    "flip": lambda d, at: d._once(at, "flip", d._nodes),
    "skew": _Drawing._skew,
    "heal": lambda _, at: [{"at": at, "kind": "heal"}],
    "swizzle": _Drawing._swizzle,
    "starve": _Drawing._starve,
    "flap": _Drawing._flap,
    "one by one": _Drawing._one_by_one,
    "overlapping": _Drawing._overlapping,
    "kill in stabilization": _Drawing._kill_in_stabilization,
    "handed on": _Drawing._handed_on,
    "partner dies": _Drawing._partner_dies,
    "fail again": _Drawing._fail_again,
    "together": _Drawing._together,
}
#: Kinds for runs whose checkpoints are on unreliable disks.
DISK_KINDS: Final[dict[str, _Kind]] = {
    "slow disk": lambda d, at: d._one(at, "slow-disk", d._servers + d._sources, by=d._random.choice(_SYNCS)),
    "lie": _Drawing._lie,
    "wipe": lambda d, at: d._one(at, "wipe", d._nodes),
}
#: Kinds for runs in which replicas write checkpoint logs.
LOG_KINDS: Final[dict[str, _Kind]] = {
    "other checkpoints": _Drawing._other_checkpoints,
    "all die": _Drawing._all_die,
}
#: Kinds for runs whose sources delete the oldest part of their logs.
RETENTION_KINDS: Final[dict[str, _Kind]] = {
    "all below die": _Drawing._below_dies,
    "source dies": _Drawing._source_dies,
}
#: Kinds for runs whose clients record and have sinks.
CLIENT_KINDS: Final[dict[str, _Kind]] = {
    "client dies": _Drawing._client_dies,
    "client dies in a failure": _Drawing._client_dies_in_a_failure,
    "client loses its disk": _Drawing._client_loses_its_disk,
    "client with a slow disk": lambda d, at: d._one(at, "slow-disk", d._clients, by=d._random.choice(_SYNCS)),
}
#: Kinds that need standbys.
STANDBY_KINDS: Final[dict[str, _Kind]] = {
    "coordinator": _Drawing._coordinator,
    "coordinator cut off": _Drawing._coordinator_cut,
    "kill in install": _Drawing._kill_in_install,
    "kill the helper": _Drawing._kill_the_helper,
    "damaged": _Drawing._damaged,
    "damaged helper": _Drawing._damaged_helper,
}
