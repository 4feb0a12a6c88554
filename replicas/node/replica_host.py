"""A replica with the resources of the shell: signals, spilled pieces that are loaded, room for input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import trio

from replicas.checkpoint.meter import LogMeter
from replicas.checkpoint.state_log import LoggedState
from replicas.consumer.feed import Action
from replicas.link.signal import Signal
from replicas.node.load_meter import ReplicaMeasure, ReplicaMeter
from replicas.node.replica import Replica
from replicas.node.validation import ReplicaValidation
from replicas.producer.feed import Accepted
from replicas.producer.output_log import LogNotReady, LogTruncated
from replicas.producer.substream import substream
from spe.errors import OperatorFailed
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.runtime.spill import Handle, Shelf, Spill, SpillFolder, SpillNotLoaded
from spe.stream.ids import Channel, ReplicaId
from spe.stream.names import NodeState, StreamId
from spe.stream.schema import Schema
from spe.wire.messages.feeds import NotReady, OtherLog, Subscribe, Subscribed, Truncated


class ReplicaHost:
    """An owner of inputs (replicas.consumer.upstream); implements replicas.node.output_side.Effects.

    Args:
      plan: the cluster.
      id: the replica, which is made empty and RECOVERING.
      random: seeded source for the partner protocol.
      now: monotonic microseconds.
      on_state: called with each new state of the replica.
      spill: takes batches that do not fit into memory; None: all stay in memory.
      changes: numbers the changes of state of all replicas of this process (OutputLog).

    Attributes:
      error: why the replica has stopped; None while it runs.
      meter: measures the load of the replica (L1).
      said: messages that were reported once for this replica.

    Raises:
      OperatorFailed: an operator cannot be made.
    """

    def __init__(
        self,
        plan: Plan,
        directory: Directory,
        id: ReplicaId,
        *,
        random: Random,
        now: int,
        on_state: Callable[[NodeState, bool], None],
        spill: SpillFolder | None = None,
        changes: Iterator[int] | None = None,
    ) -> None:
        self.name = str(id)
        self.work = Signal()
        #: Set when there is work for the checkpoint log.
        self.log_work = Signal()
        #: Nanoseconds of steps for the log since its last slice.
        self.log_ns = 0
        self.log_meter = LogMeter()
        #: Content of the log while the state is remade from it, and nanoseconds that loading took.
        self.remaking: LoggedState | None = None
        self.load_ns = 0
        #: Nanoseconds of replaying; and of work on slices since rows were last counted.
        self.replay_ns = self._slice_ns = 0
        self._rows = 0
        self.meter = ReplicaMeter()
        self._told = on_state
        self.error: str | None = None
        self.said: set[str] = set()
        self._spill = spill
        self._shelves: list[Shelf] = []
        self._signals = [Signal() for _ in plan.unit[id.unit].outputs]
        self._room = Signal()
        #: Spilled pieces that the replica needs: those being loaded, and those that are loaded, oldest first.
        self._loading: dict[Handle, SpillNotLoaded] = {}
        self._loaded: dict[Handle, SpillNotLoaded] = {}
        shelf = None if spill is None else self._shelf
        self.replica = Replica(plan, directory, id, random=random, now=now, effects=self, shelf=shelf, changes=changes)
        self.inputs = self.replica.inputs
        self.validation = ReplicaValidation(self.replica)

    def _shelf(self, schema: Schema) -> Spill:
        assert self._spill is not None
        self._shelves.append(self._spill.shelf(schema))
        return self._shelves[-1]

    def wake(self, output: int) -> None:
        self._signals[output].wake()

    def told(self, state: NodeState, fresh: bool) -> None:
        self.meter.became(state)
        self._told(state, fresh)

    def stepped(self, took_ns: int, *, replays: bool) -> None:
        """Counts a step of work.

        Args:
          replays: the step replayed the log after a restart.
        """
        self.meter.worked(took_ns)
        core = self.replica.core
        if replays:
            self.replay_ns += took_ns
            self._rows, self._slice_ns = core.stable_rows, 0  # rows of before the restart are not counted again
        elif core.step_was_for_log:
            self.log_ns += took_ns
        elif self.replica.logging is not None:
            self._slice_ns += took_ns
            if (rows := core.stable_rows - self._rows) > 0:
                self.log_meter.processed(rows, self._slice_ns / 1e3)
            if rows:
                self._rows, self._slice_ns = core.stable_rows, 0

    def log_waits(self) -> None:
        self.log_work.wake()

    def measure(self) -> ReplicaMeasure:
        """Returns the measure for a load sample."""
        try:
            return ReplicaMeasure(self.meter, *self.replica.footprint())
        except OperatorFailed:  # reported elsewhere; a stopped replica has no samples
            return ReplicaMeasure(self.meter, 0, 0)

    def say_once(self, what: str) -> bool:
        """Is ``what`` to be reported for the first time?"""
        first = what not in self.said
        self.said.add(what)
        return first

    # --- an owner of inputs ---

    def choose(self, now: int, peer: str | None) -> list[tuple[int, Action]]:
        return [] if self.error else self.replica.choose(now, peer)

    def redirect(self, directory: Directory, now: int) -> list[tuple[int, Action]]:
        actions = self.replica.redirect(directory, now)
        self.work.wake()  # consumers that left may have filled an output
        return actions

    def acks(self) -> list[tuple[Channel, int]]:
        return self.replica.recovery.acks()

    def substream(self, channel: Channel) -> tuple[int, int]:
        unit = self.replica.unit
        keyed = any(i.stream == channel.stream and i.key is not None for i in unit.inputs)
        return (self.replica.id.partition, unit.partitions) if keyed else (0, 1)

    def delivered(self, rows: int, nbytes: int, step_ns: int) -> None:
        self.meter.received(rows, nbytes, step_ns)
        self.work.wake()

    async def room(self, index: int) -> None:
        """Stops reading while the SUnion holds as much as it may; TCP then holds the producer back.

        The input that all others wait for is still read: only its data can make room.
        """
        limit = self.replica.plan.limits.input_bytes
        sunion = self.replica.sunion
        while sunion.stable_bytes > limit and not sunion.needs(index) and self.error is None:
            token = self._room.token()
            await self._room.wait(token)

    # --- work ---

    def load(self, piece: SpillNotLoaded, nursery: trio.Nursery) -> None:
        """Loads a piece that the replica needs, and wakes the replica then."""
        if piece.handle not in self._loading:
            self._loading[piece.handle] = piece
            nursery.start_soon(self._load, piece)

    async def _load(self, piece: SpillNotLoaded) -> None:
        await piece.load()
        del self._loading[piece.handle]
        self._loaded[piece.handle] = piece
        self.work.wake()

    def release_loaded(self, keep: int) -> None:
        """Releases loaded pieces except the last ``keep``, after the replica has advanced."""
        while len(self._loaded) > keep:
            self._loaded.pop(next(iter(self._loaded))).release()

    def advanced(self) -> None:
        self._room.wake()

    def spill_more(self) -> None:
        """Spills more, when spill files have room again."""
        self.replica.spill()
        self._room.wake()
        self.work.wake()

    # --- its outputs ---

    def subscribe(self, message: Subscribe) -> Accepted | Truncated | NotReady | OtherLog:
        """Subscribes a consumer to one of the outputs, if it can be served."""
        if self.error is not None:
            return NotReady(self.error)
        replica, channel = self.replica, Channel(StreamId(message.stream), message.partition)
        log = replica.serving.log(channel)
        try:
            key = substream(replica.plan, message)
        except KeyError as error:
            return NotReady(f"no such substream: {error}")
        if why := replica.serving.other_origin(message.consumer, message.origin):
            return OtherLog(why)
        held = message.position, message.frontier, message.held, message.t_star
        opened = log.subscribe(message.mode, *held, key, message.start, message.consumer)
        if isinstance(opened, LogNotReady):
            return NotReady(f"{self.name} is recovering")
        if isinstance(opened, LogTruncated):
            return Truncated(opened.first)
        greeting = Subscribed(
            log.state,
            log.fresh,
            log.last_id,
            *log.frontiers(),
            log.first,
            log.sequence,
            replica.serving.origin,
            opened.position,
        )
        return Accepted(greeting, opened, log.schema, self._signals[replica.logs.index(log)], self.meter.sent)

    def close(self) -> None:
        """Ends the replica: disconnects its readers, and wakes its worker, which turns to its successor."""
        self.replica.serving.close()
        for shelf in self._shelves:
            shelf.close()
        self.work.wake()
        self.log_work.wake()
        for signal in self._signals:
            signal.wake()
