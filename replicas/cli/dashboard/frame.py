"""The contents of the page at one moment: rows of figures in the order of a layout.  Pure.

It is made from the same statuses as ``spe status`` and ``spe top``.  Times are microseconds, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from consistency.explaining.explain import usual_lag_us
from consistency.explaining.model import Condition
from replicas.cli.dashboard.layout import ClusterLayout
from replicas.cli.dashboard.rates import Rates
from replicas.cli.move import OVER
from replicas.cli.view.view import Sight, in_force_now, newest_rows, process_word
from replicas.local.polling import last_of
from spe.metrics.histogram import at_most
from spe.plan.delays import delay_bound_us
from spe.plan.directory import COORDINATOR
from spe.status import (
    ChannelStatus,
    ClientStatus,
    CoordinatorStatus,
    HistogramStatus,
    MoveStatus,
    NodeStatus,
    ReplicaStatus,
    SourceStatus,
)
from spe.stream.ids import Channel, ReplicaId
from spe.stream.names import NodeState, StreamId
from spe.stream.times import BEFORE_TIME, END_OF_TIME

#: Names of the figures in each row.  ``state`` is a word; the process's where it does not answer.
SOURCE: Final = (
    "state", "rows", "rate", "frontier", "lag", "behind", "holds", "late", "malformed", "refused", "trouble",
)  # fmt: skip
REPLICA: Final = (
    "state", "x", "alpha", "waiting", "x99", "xmax", "stable", "tentative", "frontier", "lag", "lead", "fill", "held",
    "suffix", "cpu", "rows", "corrections", "redone", "expected", "reads", "lost", "correcting", "trouble",
)  # fmt: skip
CHANNEL: Final = (
    "state", "reads", "stable_rate", "tentative_rate", "stable", "tentative", "undone", "held", "delay", "bound",
    "delay_max", "gap", "position", "frontier", "lag", "switches",
)  # fmt: skip
COLUMNS: Final[Mapping[str, Sequence[str]]] = {"sources": SOURCE, "replicas": REPLICA, "channels": CHANNEL}

STOPPED: Final = "STOPPED"
STANDS_BY: Final = "stands by"
#: With more replicas, only inputs without a producer, or with two, are named.
_READS_SHOWN: Final = 200
_MOVES_SHOWN: Final = 30
#: The first result of a run may take so long beyond X.
_FIRST_US: Final = 1_000_000


class Memory:
    """State kept from frame to frame.

    Attributes:
      rates: rates of counters.
      conditions: the last known condition of each output; missing: not yet known.
    """

    def __init__(self) -> None:
        self.rates = Rates()
        self.conditions: Mapping[tuple[str, Channel], Condition] = {}
        self._bounds: tuple[Any, Mapping[StreamId, int]] = ((), {})

    def bounds(self, layout: ClusterLayout, sight: Sight) -> Mapping[StreamId, int]:
        """Returns kX of each output, by the current X of the nodes."""
        statuses = (last_of(sight.seen, node, NodeStatus) for node in layout.nodes)
        settings = [None if status is None else status.settings for status in statuses]
        streams = {stream for _, stream, _ in layout.channels}
        if self._bounds[0] != (settings, streams):
            now = in_force_now(layout.directory, sight)
            self._bounds = (settings, streams), {s: delay_bound_us(layout.plan, now, s) for s in streams}
        return self._bounds[1]


def frame(layout: ClusterLayout, sight: Sight, memory: Memory) -> dict[str, Any]:
    """Makes a frame: all rows, and the lists of the page."""
    return _Frame(layout, sight, memory).data()


class _Frame:
    def __init__(self, layout: ClusterLayout, sight: Sight, memory: Memory) -> None:
        self._layout = layout
        self._sight = sight
        self._memory = memory
        self._rates = memory.rates
        self._words = {name: process_word(sight, name) for name in layout.processes}
        self._sources = {s: last_of(sight.seen, f"source:{s}", SourceStatus) for s in layout.sources}
        self._fronts = self._furthest()
        #: Streams that each unit waits for, in any of its replicas.
        self._late: dict[str, set[StreamId]] = {}
        self._late_of: dict[ReplicaId, set[StreamId]] = {}
        self._usual = {s: usual_lag_us(layout.plan, s) for s in layout.origins}

    def data(self) -> dict[str, Any]:
        layout, sight = self._layout, self._sight
        # Replicas before sources: a source row has the number of replicas that wait for it.
        placed = [pair for node in self._by_node() for pair in node]
        return {
            "at": sight.now_us,
            "begun": sight.begun_us,
            "processes": {name: word for name, word in self._words.items() if word},
            "errors": {
                name: sight.errors[name].why for name, word in self._words.items() if word and name in sight.errors
            },
            "disks": self._disks(),
            "sources": [self._source(s) for s in layout.sources],
            "replicas": [row for _, row in sorted(placed, key=lambda pair: pair[0])],
            "channels": self._channels(),
            "newest": {
                stream: [list(newest.columns), [[row.tentative, list(row.values)] for row in newest.rows]]
                for stream, newest in newest_rows(layout.directory, sight).items()
            },
            "moves": self._moves(),
            "recovery": self._recovery(),
            "faults": [asdict(fault) for fault in sight.faults],
            "note": sight.note,
        }

    def _furthest(self) -> Mapping[StreamId, int]:
        """Returns for each stream the greatest progress of all sources that it is combined with."""
        reach = {
            s: status.log.frontier
            for s, status in self._sources.items()
            if status is not None and status.log is not None and status.log.frontier < END_OF_TIME
        }
        origins = self._layout.origins
        return {
            stream: max(
                (reach[s] for its in origins.values() if its & origins[stream] for s in its if s in reach),
                default=BEFORE_TIME,
            )
            for stream in origins
        }

    def _lag(self, stream: StreamId, frontier: int) -> int | None:
        """Returns how far a frontier is behind the furthest source; None before the first and after the last tuple."""
        if not BEFORE_TIME < frontier < END_OF_TIME:
            return None
        return max(0, self._fronts[stream] - frontier)

    def _disks(self) -> dict[str, str]:
        """Returns the files that cannot be written, as ``process: file``, with the reason."""
        return {
            f"{name}: {what}": why
            for name, answer in self._sight.seen.items()
            for what, why in answer.status.disk_full.items()
        }

    # --- sources ---

    def _source(self, stream: StreamId) -> list[Any]:
        name, status = f"source:{stream}", self._sources[stream]
        log = None if status is None else status.log
        if status is None or log is None:
            return [self._words[name] or "starting", *(None for _ in SOURCE[1:-1]), ""]
        state = self._words[name] or ("failed" if log.fault else "ended" if log.ended else "running")
        answer = self._sight.seen[name]
        return [
            state,
            log.last_id,
            self._rates.of(name, status.incarnation, answer.at_us, log.last_id),
            _time(log.frontier),
            self._lag(stream, log.frontier),
            (self._lag(stream, log.frontier) or 0) > self._usual[stream],
            self._held_up_by(stream),
            log.late,
            log.malformed,
            log.refused_ahead,
            log.fault or log.note,
        ]

    def _held_up_by(self, source: StreamId) -> int:
        """Counts the replicas that wait for a source, directly or through a unit that waits for it."""
        return sum(1 for streams in self._late_of.values() if any(source in self._blamed(s, set()) for s in streams))

    def _blamed(self, stream: StreamId, known: set[StreamId]) -> set[StreamId]:
        """Returns the sources that delay a stream."""
        if stream in self._layout.plan.sources:
            return {stream}
        if stream in known:
            return set()
        known.add(stream)
        late = self._late.get(self._layout.plan.producer[stream].id, set())
        return {s for stream_in in late for s in self._blamed(stream_in, known)}

    # --- replicas ---

    def _by_node(self) -> Iterable[list[tuple[int, list[Any]]]]:
        """Yields the rows of each node's replicas, each with its place in the layout."""
        hosted: dict[str, list[tuple[int, ReplicaId]]] = {}
        for at, replica in enumerate(self._layout.replicas):
            hosted.setdefault(replica.node, []).append((at, replica))
        for node, replicas in hosted.items():
            status = last_of(self._sight.seen, node, NodeStatus)
            running = {} if status is None else {(r.unit, r.partition): r for r in status.replicas}
            passive = set() if status is None else {(s.unit, s.partition) for s in status.standbys}
            yield [
                (at, self._replica(replica, status, running.get(replica.of), replica.of in passive))
                for at, replica in replicas
            ]

    def _replica(
        self, id: ReplicaId, node: NodeStatus | None, replica: ReplicaStatus | None, stands_by: bool
    ) -> list[Any]:
        word = self._words[id.node]
        if replica is None:
            return [word or (STANDS_BY if stands_by else "starting"), *(None for _ in REPLICA[1:-1]), ""]
        if not word:
            self._note_late(id, replica)
        lead = (
            replica.tentative_frontier - max(replica.frontier, BEFORE_TIME)
            if replica.state is not NodeState.STABLE
            else 0
        )
        return [
            word or (STOPPED if replica.error else replica.state.name),
            replica.x_us,
            None if node is None or node.settings is None else node.settings.alpha,
            replica.waiting_us,
            *_used(replica.x_used),
            replica.stable,
            replica.tentative,
            _time(replica.frontier),
            self._lag(self._layout.plan.unit[id.unit].outputs[0], replica.frontier),
            max(0, lead) if replica.tentative_frontier < END_OF_TIME else 0,
            _share(replica.fill),
            replica.held_bytes,
            replica.suffix_bytes,
            None if replica.load is None else _share(replica.load.cpu),
            None if replica.load is None else round(replica.load.rows, 1),
            replica.reconciliations,
            replica.redone_rows,
            None if replica.log is None else replica.log.expected_us,
            self._reads(replica),
            [i.channel for i in replica.inputs if i.main is None and i.frontier < END_OF_TIME],
            [[i.channel, i.corrections] for i in replica.inputs if i.corrections],
            _trouble(replica),
        ]

    def _reads(self, replica: ReplicaStatus) -> list[list[str]]:
        if len(self._layout.replicas) > _READS_SHOWN:
            return []
        return [[i.channel, i.main] for i in replica.inputs if i.main]

    def _note_late(self, id: ReplicaId, replica: ReplicaStatus) -> None:
        """Notes streams with an input that is behind the others, or has no producer."""
        if replica.error is not None:
            return
        reach = [i.frontier for i in replica.inputs if i.frontier < END_OF_TIME]
        ahead = max(reach, default=BEFORE_TIME)
        for each in replica.inputs:
            stream = StreamId(each.channel.rpartition("/")[0])
            behind = ahead - max(each.frontier, BEFORE_TIME)
            if each.frontier < END_OF_TIME and behind > self._usual[stream]:
                self._late_of.setdefault(id, set()).add(stream)
                self._late.setdefault(id.unit, set()).add(stream)

    # --- clients ---

    def _channels(self) -> list[list[Any]]:
        bounds = self._memory.bounds(self._layout, self._sight)
        known: dict[str, Mapping[str, ChannelStatus]] = {}
        rows = []
        for client, stream, partition in self._layout.channels:
            name = f"client:{client}"
            status = last_of(self._sight.seen, name, ClientStatus)
            if name not in known:
                known[name] = {} if status is None else {c.channel: c for c in status.channels}
            channel = Channel(stream, partition)
            status_of_channel = known[name].get(str(channel))
            if status_of_channel is None or status is None:
                word = self._words[name]
                rows.append(
                    [f"client {word}" if word and word != "starting" else "starting", *(None for _ in CHANNEL[1:])]
                )
            else:
                rows.append(self._channel(name, status.incarnation, channel, status_of_channel, bounds[stream]))
        return rows

    def _channel(
        self, client: str, incarnation: int, channel: Channel, status: ChannelStatus, bound_us: int
    ) -> list[Any]:
        at_us = self._sight.seen[client].at_us
        condition = self._memory.conditions.get((client.partition(":")[2], channel), Condition.FINE)
        if status.ended:
            state: str = Condition.ENDED
        elif status.held:
            state = Condition.TENTATIVE
        elif status.last_arrival_us is None and self._begins(bound_us):
            state = "starting"
        else:
            state = condition if condition in (Condition.LATE, Condition.SILENT) else Condition.FINE
        delay = None
        if status.delay_us is not None and not status.ended:
            silent = 0 if status.last_arrival_us is None else self._sight.now_us - status.last_arrival_us
            delay = max(status.delay_us, silent)
        return [
            f"client {self._words[client]}" if self._words[client] else state,
            status.producer,
            self._rates.of((client, status.channel, "stable"), incarnation, at_us, status.stable),
            self._rates.of((client, status.channel, "tentative"), incarnation, at_us, status.tentative),
            status.stable,
            status.tentative,
            status.undone,
            status.held,
            delay,
            bound_us,
            status.delay_max_us,
            status.stable_gap_max_us,
            status.position,
            _time(status.frontier),
            self._lag(channel.stream, status.frontier),
            status.switches,
        ]

    def _begins(self, bound_us: int) -> bool:
        """Returns whether it is too early for a first result."""
        begun = self._sight.begun_us
        return begun is not None and self._sight.now_us - begun < bound_us + _FIRST_US

    # --- the coordinator ---

    def _moves(self) -> list[dict[str, Any]]:
        """Returns the newest moves, those under way first."""
        status = last_of(self._sight.seen, COORDINATOR, CoordinatorStatus)
        moves = () if status is None else status.moves
        chosen = sorted(moves, key=lambda move: (move.phase in OVER, -move.number))[:_MOVES_SHOWN]
        return [self._move(move) for move in chosen]

    def _move(self, move: MoveStatus) -> dict[str, Any]:
        times = sorted(move.began_us.values())
        until = times[-1] if move.phase in OVER and times else self._sight.now_us
        return {
            "number": move.number,
            "partition": move.partition,
            "source": move.source,
            "target": move.target,
            "role": move.role,
            "reason": move.reason,
            "phase": move.phase,
            "why": move.why,
            "over": move.phase in OVER,
            "began": times[0] if times else None,
            "took": until - times[0] if times else None,
            "predicted": move.predicted_us,
        }

    def _recovery(self) -> dict[str, Any] | None:
        status = last_of(self._sight.seen, COORDINATOR, CoordinatorStatus)
        return None if status is None or status.recovery is None else asdict(status.recovery)


def _share(value: float) -> float:
    """Rounds to four digits: there are thousands of these figures in a frame."""
    return round(value, 4)


def _time(frontier: int) -> int | None:
    """Returns tuple time; None before the first tuple, -1 at the end."""
    return None if frontier <= BEFORE_TIME else -1 if frontier >= END_OF_TIME else frontier


def _used(histogram: HistogramStatus | None) -> tuple[float | None, float | None]:
    """Returns the share of X that 99 % of the releases used at most, and the largest share."""
    return (
        (None, None)
        if histogram is None or not sum(histogram.counts)
        else (_share(at_most(histogram, 0.99)), _share(histogram.largest))
    )


def _trouble(replica: ReplicaStatus) -> str:
    """Returns the worst problem of a replica; "" if there is none."""
    others = [why for each in replica.inputs for why in each.other_logs.values()]
    problems = [*([replica.error] if replica.error else []), *replica.differs, *replica.missing, *others, *replica.skew]
    return problems[0] if problems else ""
