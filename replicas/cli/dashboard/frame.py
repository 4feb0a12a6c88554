"""The contents of the page at one moment: rows of figures in the order of a layout.  Pure.

It is made from the same statuses as ``spe status`` and ``spe top``.  Times are microseconds, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from consistency.explaining.model import Condition
from replicas.cli.dashboard.layout import ClusterLayout
from replicas.cli.dashboard.rates import Rates
from spe.figures.cluster_figures import ChannelRow, ClusterFigures, ReplicaRow, used_x, usual_lag_us
from spe.figures.sight import Sight
from spe.plan.delays import delay_bound_us
from spe.status import ChannelStatus, MoveStatus, ReplicaStatus
from spe.stream.ids import Channel, ReplicaId
from spe.stream.names import StreamId
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

    def bounds(self, layout: ClusterLayout, figures: ClusterFigures) -> Mapping[StreamId, int]:
        """Returns kX of each output, by the current X of the nodes."""
        statuses = map(figures.sight.node, layout.nodes)
        settings = [None if status is None else status.settings for status in statuses]
        streams = {stream for _, stream, _ in layout.channels}
        if self._bounds[0] != (settings, streams):
            now = figures.in_force
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
        self._figures = ClusterFigures(layout.plan, layout.directory, sight)
        self._words = {name: sight.word(name) for name in layout.processes}
        self._sources = {s: self._figures.source(s) for s in layout.sources}
        self._fronts = self._furthest()
        #: Streams that each unit waits for, in any of its replicas.
        self._late: dict[str, set[StreamId]] = {}
        self._late_of: dict[ReplicaId, set[StreamId]] = {}
        self._usual = {s: usual_lag_us(layout.plan, s) for s in layout.origins}

    def data(self) -> dict[str, Any]:
        layout, sight = self._layout, self._sight
        # Replicas before sources: a source row has the number of replicas that wait for it.
        replicas = [self._replica(self._figures.replica(id)) for id in layout.replicas]
        return {
            "at": sight.now_us,
            "begun": sight.begun_us,
            "processes": {name: word for name, word in self._words.items() if word},
            "errors": {
                name: sight.errors[name].why for name, word in self._words.items() if word and name in sight.errors
            },
            "disks": self._disks(),
            "sources": [self._source(s) for s in layout.sources],
            "replicas": replicas,
            "channels": self._channels(),
            "newest": {
                stream: [list(newest.columns), [[row.tentative, list(row.values)] for row in newest.rows]]
                for stream, newest in self._figures.newest.items()
            },
            "moves": self._moves(),
            "recovery": self._recovery(),
            "faults": [asdict(fault) for fault in sight.faults],
            "note": sight.note,
        }

    def _furthest(self) -> Mapping[StreamId, int]:
        """Returns for each stream the greatest progress of all sources that it is combined with."""
        reach = {
            s: row.log.frontier
            for s, row in self._sources.items()
            if row.log is not None and row.log.frontier < END_OF_TIME
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
            for name, status in self._sight.statuses.items()
            for what, why in status.disk_full.items()
        }

    # --- sources ---

    def _source(self, stream: StreamId) -> list[Any]:
        row, name = self._sources[stream], f"source:{stream}"
        if (log := row.log) is None:
            return [row.state, *(None for _ in SOURCE[1:-1]), ""]
        lag = self._lag(stream, log.frontier)
        return [
            row.state,
            log.last_id,
            self._rate(name, name, log.last_id),
            _time(log.frontier),
            lag,
            (lag or 0) > self._usual[stream],
            self._held_up_by(stream),
            log.late,
            log.malformed,
            log.refused_ahead,
            log.fault or log.note,
        ]

    def _rate(self, key: Hashable, process: str, count: int) -> float | None:
        answer = self._sight.seen[process]
        return self._rates.of(key, answer.status.incarnation, answer.at_us, count)

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

    def _replica(self, row: ReplicaRow) -> list[Any]:
        if (replica := row.status) is None:
            return [row.state, *(None for _ in REPLICA[1:-1]), ""]
        if not row.word:
            self._note_late(row.id, replica)
        node, used = row.node, used_x(replica.x_used)
        return [
            row.state,
            replica.x_us,
            None if node is None or node.settings is None else node.settings.alpha,
            replica.waiting_us,
            *((None, None) if used is None else (_share(used.p99), _share(used.largest))),
            replica.stable,
            replica.tentative,
            _time(replica.frontier),
            self._lag(self._layout.plan.unit[row.id.unit].outputs[0], replica.frontier),
            row.lead_us,
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
            next((text for _, text in row.troubles()), ""),
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
        bounds = self._memory.bounds(self._layout, self._figures)
        return [
            self._channel(self._figures.channel(client, Channel(stream, partition), bounds[stream]))
            for client, stream, partition in self._layout.channels
        ]

    def _channel(self, row: ChannelRow) -> list[Any]:
        name = f"client:{row.client}"
        if (status := row.status) is None:
            state = f"client {row.word}" if row.word not in ("", "starting") else "starting"
            return [state, *(None for _ in CHANNEL[1:])]
        return [
            f"client {row.word}" if row.word else self._condition(row, status),
            status.producer,
            self._rate((name, status.channel, "stable"), name, status.stable),
            self._rate((name, status.channel, "tentative"), name, status.tentative),
            status.stable,
            status.tentative,
            status.undone,
            status.held,
            row.delay_us,
            row.bound_us,
            status.delay_max_us,
            status.stable_gap_max_us,
            status.position,
            _time(status.frontier),
            self._lag(row.channel.stream, status.frontier),
            status.switches,
        ]

    def _condition(self, row: ChannelRow, status: ChannelStatus) -> str:
        condition = self._memory.conditions.get((row.client, row.channel), Condition.FINE)
        if status.ended:
            return Condition.ENDED
        if status.held:
            return Condition.TENTATIVE
        if status.last_arrival_us is None and self._begins(row.bound_us):
            return "starting"
        return condition if condition in (Condition.LATE, Condition.SILENT) else Condition.FINE

    def _begins(self, bound_us: int) -> bool:
        """Returns whether it is too early for a first result."""
        begun = self._sight.begun_us
        return begun is not None and self._sight.now_us - begun < bound_us + _FIRST_US

    # --- the coordinator ---

    def _moves(self) -> list[dict[str, Any]]:
        """Returns the newest moves, those under way first."""
        status = self._sight.coordinator()
        moves = () if status is None else status.moves
        chosen = sorted(moves, key=lambda move: (move.is_over, -move.number))[:_MOVES_SHOWN]
        return [_move(move, self._sight.now_us) for move in chosen]

    def _recovery(self) -> dict[str, Any] | None:
        status = self._sight.coordinator()
        return None if status is None or status.recovery is None else asdict(status.recovery)


def _move(move: MoveStatus, now_us: int) -> dict[str, Any]:
    same = ("number", "partition", "source", "target", "role", "reason", "phase", "why")
    return {
        **{name: getattr(move, name) for name in same},
        "over": move.is_over,
        "began": min(move.began_us.values(), default=None),
        "took": move.took_us(now_us) if move.began_us else None,
        "predicted": move.predicted_us,
    }


def _share(value: float) -> float:
    """Rounds to four digits: there are thousands of these figures in a frame."""
    return round(value, 4)


def _time(frontier: int) -> int | None:
    """Returns tuple time; None before the first tuple, -1 at the end."""
    return None if frontier <= BEFORE_TIME else -1 if frontier >= END_OF_TIME else frontier
