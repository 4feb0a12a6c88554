"""Writes the checkpoint log of a replica, off the event loop (docs/internals/checkpoint-log.md)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from consistency.dpc.events import LogLost, LogRequest
from operators import steps
from replicas.checkpoint.extent import Extent, Pacing
from replicas.checkpoint.log import COPIES, SEGMENT_BYTES, CheckpointLog
from replicas.checkpoint.pauses import Pauses
from replicas.checkpoint.replica_log import ReplicaLog
from replicas.checkpoint.state_log import StableSlice, StateLog
from replicas.checkpoint.targets import to_rewrite
from replicas.node.hosting import Hosting
from replicas.node.log_side import LogSide, UnwrittenSlice, logged_output
from replicas.node.replica_host import ReplicaHost
from replicas.producer.log_entry import Entry
from spe.errors import LocalProtocolError, LogCorrupt, LogError, LogFull
from spe.plan.log_targets import Continuous
from spe.runtime.log_line import Level, say
from spe.runtime.spill import SpillNotLoaded
from spe.status import LogStatus
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.times import BEFORE_TIME, END_OF_TIME, MILLISECOND

#: Time between two checks for changes; a slice or a full producer wakes the task earlier.
LOOKS_US: Final = 300 * MILLISECOND
#: A failed copy is restored after this time.
RESTORE_US: Final = 5_000 * MILLISECOND


#: Stored output is rewritten once this many times its size, and this many bytes, were written since.
OUTPUT_AGAIN: Final = 2
OUTPUT_BYTES: Final = SEGMENT_BYTES


class LogTask:
    """Runs the log writers of one node."""

    def __init__(self, hosting: Hosting) -> None:
        self._hosting = hosting

    async def run(self, partition: PartitionId, settings: Continuous) -> None:
        """Runs while the partition has a replica."""
        hosting = self._hosting
        stored = hosting.log(ReplicaId(*partition, hosting.node))
        async with stored.writing:
            await stored.open()
            while (host := hosting.running.get(partition)) is not None:
                side = host.replica.logging
                assert side is not None, "G1: it writes a log"
                await _Writer(hosting, host, side, stored, settings).run()


def log_status(hosting: Hosting, host: ReplicaHost) -> LogStatus | None:
    """Returns the status of a replica's log; None: it has no log."""
    id = host.replica.id
    settings = hosting.directory.logs.get(id.of)
    if settings is None:
        return None
    stored = hosting.log(id)
    extent = Extent() if stored.state is None or stored.state.lacks else stored.state.extent
    return host.log_meter.status(settings, extent, stored.log, stored.trouble, hosting.now())


class _Writer:
    """Writes the log of one replica."""

    def __init__(
        self, hosting: Hosting, host: ReplicaHost, side: LogSide, stored: ReplicaLog, settings: Continuous
    ) -> None:
        self._hosting = hosting
        self._host = host
        self._side = side
        self._kept = stored
        self._settings = settings
        self._clock = hosting.env.clock
        self._meter = host.log_meter
        now = hosting.now()
        self._pacing = Pacing(settings.share, now, settings.period_us)
        self._synced_at = self._restored_at = now
        #: The previous replica may have left unsynced records.
        self._unsynced = True
        #: Bytes of the log when all output was written last.
        self._output_bytes = 0
        self._pauses = Pauses()
        #: Longest time from one slice to the next.
        self._longest_us = END_OF_TIME
        #: Rows up to the newest slice.
        self._rows: int | None = None
        #: The log that the next slice was requested for, and whether that may end where the newest one in the log does.
        self._asked: tuple[StateLog, bool] | None = None

    def _is_current(self) -> bool:
        return self._hosting.running.get(self._host.replica.id.of) is self._host

    async def run(self) -> None:
        """Runs until the replica is replaced or removed."""
        side, host, hosting = self._side, self._host, self._hosting
        if self._kept.state is not None:
            self._kept.state.lacks = True  # it holds the state of the previous replica
        while self._is_current():
            token = host.log_work.token()
            if side.remade is not None:
                await self._go_on()
            elif side.unwritten is not None:
                begun = hosting.now()
                await self._write(side.unwritten)
                side.unwritten = None
                await self._look_after()
                await self._rest(begun)
            else:
                await self._look_after()
                self._ask()
                await self._clock.wait(host.log_work, token, LOOKS_US / 1e6)

    async def _rest(self, begun: int) -> None:
        """Waits until the next slice is due, after one that began at ``begun``."""
        core, pauses = self._host.replica.core, self._pauses
        while self._is_current():
            token = self._host.log_work.token()
            if (least_us := begun + pauses.least_us - self._hosting.now()) > 0:
                await self._clock.wait(self._host.log_work, token, least_us / 1e6)
                continue
            state, rows = self._kept.state, core.stable_rows - (self._rows or 0)
            ended = core.sunion.cursors.released == END_OF_TIME
            if state is None or state.lacks or ended:
                return
            if pauses.is_over(self._hosting.now() - begun, rows, hurries=self._upstream_waits(state)):
                return
            await self._look_after()
            left_us = begun + pauses.rest_us - self._hosting.now()
            await self._clock.wait(self._host.log_work, token, (left_us if left_us > 0 else LOOKS_US) / 1e6)

    # --- what is asked for ---

    def _ask(self) -> None:
        """Requests the next slice, and decides which footprints it rewrites."""
        state, log, hosting = self._kept.state, self._kept.log, self._hosting
        replica = self._host.replica
        hurries = self._upstream_waits(state)
        if state is None or log is None or len(log.faults) == len(COPIES):
            return  # there is nowhere to write it
        again = hurries or self._has_another_state(state, log)
        if replica.core.log.is_busy or (
            replica.core.log.request is not None and self._asked == (state, again) and not hurries
        ):
            return  # if the log was refused since, the slice in work lies behind its end
        self._asked = state, again
        below, most = BEFORE_TIME, 0
        if state.lacks or (hurries and state.extent.held is not None):
            replica.handle(LogLost(), hosting.now())
        elif hurries:
            below, most = END_OF_TIME, 0
        else:
            below, most = self._rewrites(state)
        if self._side.unwritten is None:  # else it is requested after that slice is written
            after = log.commits[-1].time if log.commits else BEFORE_TIME
            replica.handle(LogRequest(below, most, after, again), hosting.now())
        self._host.work.wake()

    def _has_another_state(self, state: StateLog, log: CheckpointLog) -> bool:
        """Does the log hold a state that the replica did not start from?  At the end of input no slice replaces it."""
        goes_on = self._host.remaking is not None or self._side.remade is not None
        return state.lacks and bool(log.commits) and self._host.replica.reading.installed and not goes_on

    def _upstream_waits(self, state: StateLog | None) -> bool:
        """Is a producer full because this log does not acknowledge more?"""
        replica = self._host.replica
        if state is None or not replica.reading.installed or not replica.reading.upstream_full():
            return False
        sunion = replica.sunion
        return sunion.needed_from(sunion.cursors.released) != state.acknowledged()

    def _rewrites(self, state: StateLog) -> tuple[int, int]:
        """Returns the time before which footprints are rewritten, and how many of those at that time (G7)."""
        choices, speeds = state.extent.choices(), self._meter.speeds
        chosen = to_rewrite(choices, self._settings, speeds)
        self._longest_us = END_OF_TIME
        if not chosen:
            return BEFORE_TIME, 0
        most = int(self._pacing.allowed_us(self._hosting.now()) / speeds.write_us)
        if choices.cells[chosen] > most:
            self._longest_us = self._settings.period_us  # rewriting is spread over the period
        return choices.within(chosen, most)

    # --- what comes ---

    async def _go_on(self) -> None:
        """Continues the log, once the replica has its state."""
        remade, self._side.remade = self._side.remade, None
        loaded_state, self._host.remaking = self._host.remaking, None
        state = self._kept.state
        if state is None or loaded_state is None or remade is None:
            return
        if not await state.goes_on(loaded_state, remade):  # the next slice has a complete state
            return
        self._rows = loaded_state.rows
        choices = state.extent.choices()
        records, rows = int(choices.records[0]), int(choices.rows[0])
        self._meter.recovered(records, self._host.load_ns // 1000, rows, self._host.replay_ns // 1000)
        self._hosting.env.trace.event(
            "recovered", replica=self._host.name, records=records, rows=rows, took_us=self._meter.recovered_us
        )
        self._acknowledge(state)

    async def _write(self, waiting: UnwrittenSlice) -> None:
        side, stored, hosting = self._side, self._kept, self._hosting
        self._pauses.left_out()
        if (state := stored.state) is None or (state.lacks and not waiting.slice.made.complete):
            return
        anew = self._output_holds(state, waiting)
        after = side.outputs_to_log(waiting, all_anew=anew)
        if (entries := await self._entries(after)) is None:
            return
        slice, output = waiting.slice, partial(logged_output, entries, after, waiting.last_ids)
        # All unacknowledged output may be large, and so may be that since the last slice.
        rows = sum(last - first for first, last in zip(after, waiting.last_ids, strict=True))
        is_much = anew or slice.made.complete or rows > steps.RELEASED
        released = await hosting.env.compute.run(output) if is_much else output()
        new = StableSlice(
            slice.end,
            slice.made,
            slice.live,
            slice.positions,
            slice.rows,
            slice.outputs,
            released,
            END_OF_TIME if anew else side.released_from(slice.end),
            waiting.origins,
            self._meter.learnt,
        )
        if not await self._is_written(new, state):
            return
        side.written(waiting, has_output=released is not None, all_anew=anew)
        if stored.log is not None and (anew or slice.made.complete):
            self._output_bytes = stored.log.written_bytes
        self._unsynced = True
        self._measure(waiting, state)

    async def _is_written(self, new: StableSlice, state: StateLog) -> bool:
        """Writes a slice; False: it was refused, which is reported."""
        host = self._host
        try:
            written, why = await state.write(new), self._kept.trouble
        except LocalProtocolError as error:  # of a user's operator
            written, why = False, str(error)
            if host.say_once("log_slice_refused"):
                say(
                    f"{host.name}: its state cannot be written to its checkpoint log: {error}; upstream keeps more",
                    Level.ERROR,
                    event="log_slice_refused",
                    replica=host.name,
                )
        if not written:
            self._pauses.refused()
            self._hosting.env.trace.event("log_slice_refused", replica=host.name, end=new.end, why=why)
        return written

    def _output_holds(self, state: StateLog, waiting: UnwrittenSlice) -> bool:
        """Is much of the log kept only for output that an absent consumer has not acknowledged?

        Then all output is rewritten, except where some was spilled, which has no room in memory.
        """
        log, outputs = self._kept.log, [output_log.stable for output_log in self._host.replica.logs]
        if log is None or waiting.slice.made.complete or any(o.nbytes > o.memory_bytes for o in outputs):
            return False
        since = log.written_bytes - self._output_bytes
        if since <= OUTPUT_AGAIN * sum(o.nbytes for o in outputs) + OUTPUT_BYTES:
            return False
        return self._side.released_from(waiting.slice.end) < state.extent.needs()

    def _measure(self, waiting: UnwrittenSlice, state: StateLog) -> None:
        """Measures the writing of a slice; its time is shared among its footprints."""
        slice, host, now = waiting.slice, self._host, self._hosting.now()
        took_us, host.log_ns = (host.log_ns + state.written_ns) / 1e3, 0
        self._pauses.wrote(state.extent, slice.end, took_us, self._longest_us)
        assert slice.made.rewritten <= slice.made.written, "G7: what is rewritten is written"
        if again := slice.made.rewritten:
            share = again / slice.made.written
            self._pacing.spent(share * took_us)
            self._meter.rewrote(again, round(share * state.written_bytes), share * took_us)
        rows = 0 if self._rows is None else slice.rows - self._rows
        self._rows = slice.rows
        self._meter.committed(now, slice.made.written - again, rows)

    async def _entries(self, after: Sequence[int]) -> list[list[Entry]] | None:
        """Returns the entries of each output after an id; None: the replica has ended."""
        entries: list[list[Entry]] = []
        loaded: list[SpillNotLoaded] = []
        try:
            for log, first in zip(self._host.replica.logs, after, strict=True):
                read: list[Entry] = []
                while self._is_current():
                    last_id = read[-1].batch.upto_id if read else first
                    try:
                        if not (more := log.spilled_after(last_id)):
                            entries.append(read + log.entries_after(last_id))
                            break
                    except SpillNotLoaded as piece:
                        await piece.load()
                        loaded.append(piece)
                        continue
                    read += more
                    while loaded:
                        loaded.pop().release()
                    await self._hosting.env.compute.turn()
        finally:
            for spilled in loaded:
                spilled.release()
        return entries if self._is_current() else None

    # --- the disk ---

    async def _look_after(self) -> None:
        """Syncs, acknowledges and repairs, each when it is due."""
        stored, now = self._kept, self._hosting.now()
        if stored.log is None and now - self._restored_at >= RESTORE_US:
            self._restored_at = now
            await stored.open()
        if (state := stored.state) is None or stored.log is None:
            stored.tell()
            return
        if stored.log.faults and now - self._restored_at >= RESTORE_US:
            self._restored_at = now
            try:
                await stored.log.restore()
                self._unsynced = True
            except LogCorrupt as error:  # one copy is behind and the other damaged: the next log is complete
                await stored.refuse(str(error))
                stored.tell()
                return
            except (LogFull, LogError) as error:
                self._hosting.env.trace.event("log_not_restored", replica=self._host.name, why=str(error))
        log = stored.log
        due = self._unsynced and (self._pauses.syncs(now - self._synced_at) or self._upstream_waits(state))
        if due and log is not None:
            self._synced_at = now
            try:
                await state.sync()
                self._unsynced = not log.is_synced  # there may have been no room for a mark
                if stored.log is log and log.held_by_both is not None:
                    await stored.forget_refused()
            except (LogError, OSError) as error:
                self._hosting.env.trace.event("log_not_synced", replica=self._host.name, why=str(error))
        if stored.state is state:  # else it was refused since
            self._acknowledge(state)
        stored.tell()

    def _acknowledge(self, state: StateLog) -> None:
        """Acknowledges what both copies hold; during a replay, only what lies before it."""
        durable, loaded_state = state.acknowledged(), self._host.remaking
        if loaded_state is not None and self._kept.is_safe:
            durable = list(loaded_state.positions[loaded_state.begin])
        if self._is_current() and durable is not None:
            self._host.replica.recovery.logged(durable)
