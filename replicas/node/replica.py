"""A partition replica: its input side, its unit replica and its output side, bound together.  Pure.

The node's shell moves bytes and time: it brings heartbeat answers, connection events and elements in, does the
connection work that comes out, and wakes the subscriptions when an output has news.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from consistency.dpc import events
from consistency.dpc.agreement import Agreement, Divergence, suspects
from consistency.dpc.instance import Checkpoint, Instance, LogReplay
from consistency.dpc.manager import DpcManager
from consistency.dpc.partners import Ask, Partners
from operators.sunion.sunion import SUnion
from replicas.checkpoint.state_log import LoggedState
from replicas.checkpoint.store import origins_of
from replicas.consumer import feed
from replicas.node.input_side import InputSide
from replicas.node.log_side import LogSide, exported
from replicas.node.output_side import Effects, OutputSide
from replicas.node.recovery import Own, ReplicaRecovery
from replicas.producer.log_entry import Entry
from spe.log.origin import combined
from spe.plan.directory import Directory
from spe.plan.nodes import Node
from spe.plan.plan import Plan
from spe.plan.settings import same_waits
from spe.plan.timing import ordinary_lead_us
from spe.runtime.spill import Spill
from spe.status import ReplicaStatus
from spe.stream.ids import Channel, ReplicaId
from spe.stream.names import Kind, NodeState
from spe.stream.schema import Schema
from spe.wire.messages import OutputStatus
from spe.wire.state_size import state_bytes

_ADVANCE: Final = events.Advance()


class Replica:
    """One partition replica on a node.

    Args:
      plan: the cluster.
      id: which replica this is.
      random: seeded source for the partner protocol.
      now: monotonic microseconds.
      effects: what it does to the world, beside what its methods return.
      shelf: makes a place in spill files for the batches of a schema; None: everything stays in memory.
      changes: numbers the changes of state of all replicas of this process (OutputLog).
    """

    def __init__(
        self,
        plan: Plan,
        directory: Directory,
        id: ReplicaId,
        *,
        random: Random,
        now: int,
        effects: Effects,
        shelf: Callable[[Schema], Spill] | None = None,
        changes: Iterator[int] | None = None,
    ) -> None:
        self.id = id
        self.plan = plan
        self.unit = plan.unit[id.unit]
        self.node = directory.share(plan, id.unit, id.node)
        self.agreement = Agreement()
        stream_index = {i.stream: at for at, i in enumerate(self.unit.inputs)}
        channels = self.unit.channels_in(id.partition)
        self.sunion = SUnion(
            inputs=[(stream_index[c.stream], c.stream not in plan.sources) for c in channels],
            streams=len(self.unit.inputs),
            bucket_us=plan.bucket_us,
            tentative_bytes=plan.limits.suffix_bytes,
            spills=None if shelf is None else [shelf(plan.query.schema_of(c.stream)) for c in channels],
            redo_bytes=plan.limits.input_bytes,
            old_us=_old_us(self.node),
            ahead_us=ordinary_lead_us(plan, self.unit),
        )
        self.reading = InputSide(plan, directory, id, self.sunion, now)
        self.serving = OutputSide(plan, directory, id, now, effects, shelf, changes)
        self.inputs, self.logs = self.reading.inputs, self.serving.logs
        self.partners = Partners(id.node, _others(directory, id), request_us=plan.timing.request_us, random=random)
        self.recovery = ReplicaRecovery(plan, directory, id, self.reading, self.sunion, self.partners)
        #: What its checkpoint log is written from; None: it writes none.
        self.logging = LogSide(self.logs, self.reading.origins, effects.log_waits) if id.of in directory.logs else None
        self.core = DpcManager(
            self.unit,
            self.sunion,
            self.node,
            outputs=self.serving,
            inputs=self.reading,
            partners=self.partners,
            redo_bytes=plan.limits.input_bytes,
            partition=id.partition,
            slice_rows=plan.limits.slice_rows,
            logs=self.logging is not None,
        )
        #: What operators held when they could be asked last.
        self._operators_bytes = 0
        self.serving.announce(NodeState.RECOVERING, False)

    def redirect(self, directory: Directory, now: int) -> list[tuple[int, feed.Action]]:
        """Another directory counts; the connection work that follows, per input index."""
        if not same_waits(node := directory.share(self.plan, self.id.unit, self.id.node), self.node):
            self._set_node(node, now)
        self.serving.redirect(directory, now)
        self.partners.set_partners(_others(directory, self.id))
        self.recovery.redirect(directory)
        return self.reading.redirect(directory)

    def _set_node(self, node: Node, now: int) -> None:
        """Another X, α or policy counts, in one step for all parts; how it reconciles stays as it began (X1)."""
        self.node = node = replace(node, reconcile=self.node.reconcile, checkpoints=self.node.checkpoints)
        self.sunion.waits.set_old(_old_us(node))
        self.reading.set_node(node)
        self.recovery.set_node(node)
        self.handle(events.Configure(node), now)

    @property
    def state(self) -> NodeState:
        return self.core.state

    def validate(self) -> None:
        """Asserts what holds between two steps, of all parts and between them; each names its rule.

        It looks at no rows: see ``validate_rows``.
        """
        self.core.validate()
        self.recovery.validate()
        for input in self.inputs:
            input.validate()
        for at, log in enumerate(self.logs):
            log.validate()
            assert (log.state, log.fresh) == (self.state, self.core.live_runs), "U1: outputs have the unit's state"
            made = self.core.stable_output(at).last_released_id
            assert log.last_id == made, f"U9: {log.channel} has ids up to {log.last_id}, {made} were made"

    def validate_rows(self) -> None:
        """The same of all that is held."""
        self.core.validate_rows()
        for log in self.logs:
            log.stable.validate()
            log.suffix.validate()

    # --- partners ---

    def partner_told(self, partner: str, outputs: Mapping[Channel, OutputStatus]) -> list[str]:
        """News of a partner; returns where it turns out to make other stable tuples than we do (invariant 4)."""
        first = outputs.get(self.logs[0].channel)
        self.partners.heard(
            partner,
            None if first is None else first.state,
            runs=first is not None or partner not in self.recovery.standbys,
            stands_in=first is not None and first.stands_in,
        )
        differences: list[Divergence] = []
        for at, log in enumerate(self.logs):
            if (theirs := outputs.get(log.channel)) is None:
                continue
            self.serving.made_elsewhere(log.channel, theirs.last_id)
            if self.reading.installed:
                output = self.core.stable_output(at)
                self.agreement.heard(at, partner, theirs.marked_id, theirs.digest)
                differences += self.agreement.compare(at, output.last_id, output.marks, ended=output.ended)
        return self._named(differences)

    def differs(self) -> list[str]:
        """Where partners make other stable tuples than we do."""
        return self._named(self.agreement.differences)

    def _named(self, differences: Sequence[Divergence]) -> list[str]:
        return [
            f"{(channel := self.logs[d.output].channel)} differs from {d.partner}'s by id {d.id}: "
            f"{suspects(self.unit, channel.stream)}"
            for d in differences
        ]

    # --- events of the shell ---

    def handle(self, event: events.Event, now: int) -> list[events.Action]:
        """Has the manager handle an event, and performs its actions; returns those that are left to the shell.

        Raises the error of an Interrupt, once all before it is done.
        """
        left: list[events.Action] = []
        for action in self.core.handle(event, now):
            if not self._perform(action):
                left.append(action)
        return left

    def _perform(self, action: events.Action) -> bool:
        match action:
            case events.Emit(Kind.STABLE, output, elements):
                self.serving.stable(output, elements)
            case events.Emit(_, output, elements):
                self.serving.tentative(output, elements)
            case events.Reject(rejections):
                self.serving.rejected(rejections)
            case events.ClearSuffix():
                self.serving.clear_suffix()
            case events.Announce(state, fresh):
                self.serving.announce(state, fresh)
            case events.SliceToLog() | events.Remade():
                assert self.logging is not None, "G1: only a log that was asked for is written"
                self.logging.perform(action)
            case events.Interrupt(error):
                raise error
            case _:
                return False
        return True

    def advance(self, now: int) -> tuple[bool, Ask | None]:
        """Advances by one step; returns (more is waiting: call again soon, a partner to ask)."""
        more, ask = False, None
        for action in self.handle(_ADVANCE, now):
            if isinstance(action, Ask):
                ask = action
            else:
                more = more or isinstance(action, events.Proceed)
        return more, ask

    def partner_asks(self, asker: str, now: int) -> bool:
        """Is a partner granted leave to reconcile (K2)?"""
        return events.Grant() in self.handle(events.PartnerAsks(asker), now)

    def partner_grants(self, number: int, now: int) -> None:
        self.handle(events.PartnerGrants(number), now)

    def step_too_large(self) -> bool:
        """Did a step take in more rows than it should, because too many have the same time (B8)?"""
        return self.core.largest_slice > self.plan.limits.slice_rows * len(self.inputs)

    def rests(self, now: int) -> int:
        """Microseconds in which the mere passing of time changes nothing, unless the state changes; 0: it does now.

        A periodic checkpoint is no reason to hurry: it comes when somebody looks and it is due.
        """
        if self.state is not NodeState.STABLE or self.core.checkpoint_due(now):
            return 0
        if self.sunion.waits.ahead and not all(self.reading.fresh(now)):
            return 0
        return max(0, self.node.alpha_x_us - self.sunion.clocks.waited(now))

    def watch_skew(self, now: int) -> list[str]:
        """See :meth:`InputSide.watch_skew`."""
        return [] if self.state is NodeState.RECOVERING else self.reading.watch_skew(now)

    def choose(self, now: int, peer: str | None = None) -> list[tuple[int, feed.Action]]:
        """Connection work, per input index: of those that may read ``peer``; None: of all."""
        if not self.reading.installed:
            return []
        # Asked after each greeting, before anything is taken: nothing stable was made of all inputs yet.
        if not self.serving.origin and (origin := combined(self.reading.origins())):
            self.serving.learn_origin(origin)
        return self.reading.choose(now, peer)

    def shift(self, gap_us: int, now: int) -> None:
        """We were frozen for the last ``gap_us`` (T1)."""
        self.reading.shift(gap_us, now)
        self.serving.shift(gap_us, now)

    def spill(self) -> None:
        """Spill files have room again: what had to stay in memory for lack of it may go now."""
        self.sunion.spill_redo_data()
        for log in self.logs:
            log.spill_oldest()

    def output_status(self, now: int) -> list[OutputStatus]:
        """What heartbeats announce of each output."""
        stands_in, lacking = self.core.stands_in(now), self.recovery.lacking()
        return [
            OutputStatus(
                *log.channel,
                log.state,
                log.fresh,
                log.last_id,
                *log.frontiers(),
                log.first,
                min(1.0, log.fill),
                *self.core.stable_output(at).newest_mark,
                lacking,
                log.sequence,
                stands_in,
                self.serving.origin,
            )
            for at, log in enumerate(self.logs)
        ]

    # --- snapshots (A3) ---

    def snapshot(self, ahead: Sequence[Sequence[Entry]] = ()) -> dict[str, Any] | None:
        """State, positions and stable logs for a restarting partner; None while we recover ourselves.

        Args:
          ahead: of each log what was read before (OutputLog.export).

        Raises:
          SpillNotLoaded: a piece of a log is on disk; load it and ask again.
        """
        taken = self.core.snapshot()
        if taken is None:
            return None
        checkpoint, positions = taken
        return {
            "restart": checkpoint.restart,
            "fragment": checkpoint.fragment,
            "outputs": list(checkpoint.outputs),
            "positions": positions,
            "origins": self.reading.origins(),
            "logs": [log.export(read) for log, read in zip(self.logs, ahead or [()] * len(self.logs), strict=True)],
        }

    def recover(self, now: int) -> str | Own | None:
        """The partner to ask for a snapshot (ReplicaRecovery.step), or what of our own to go on from.

        Nothing is gone on from here; what is stored is left to the caller.
        """
        step = self.recovery.step(now)
        if step is Own.NOTHING:
            self.reading.installed = True
        return step

    def install_stored(self, snapshot: Mapping[str, Any], now: int) -> None:
        """Goes on from our own checkpoint."""
        self.install(snapshot, now)
        self.recovery.went_on_from(snapshot)

    def install_logged(self, instance: Instance, logged: LoggedState, now: int, *, safe: bool) -> None:
        """Goes on from our log (G4): ``instance`` has its footprints, and what came since is read again.

        Args:
          safe: both copies hold it.
        """
        self.recovery.stored = None
        last_ids = []
        for at, (log, state) in enumerate(zip(self.logs, logged.outputs, strict=True)):
            released = state["released"]
            last_ids.append(int(released["last_id"]))
            log.install(exported(logged.released, at, last_ids[-1], int(released["boundary"])))
        positions = [int(p) for p in logged.positions[logged.begin]]
        replay = LogReplay(logged.begin, logged.end, logged.commit, logged.outputs, positions, logged.rows)
        self.handle(events.InstallLog(instance, replay), now)
        if self.logging is not None:
            self.logging.goes_on(logged.released, last_ids)
        self.recovery.replays_log(positions, safe=safe, ended=lambda: self.core.is_whole)
        self._follows(list(logged.origins), now)

    def _follows(self, origins: Sequence[str], now: int) -> None:
        self.reading.goes_on(origins)
        self.serving.origin = combined(origins)
        self.reading.installed, self.reading.started_at = True, now

    def install(self, snapshot: Mapping[str, Any], now: int) -> None:
        """Takes over a partner's snapshot, or our own; we stay RECOVERING until caught up."""
        self.recovery.stored = None
        checkpoint = Checkpoint(int(snapshot["restart"]), snapshot["fragment"], list(snapshot["outputs"]))
        for log, state in zip(self.logs, snapshot["logs"], strict=True):
            log.install(state)
        self.handle(events.InstallSnapshot(checkpoint, [int(p) for p in snapshot["positions"]]), now)
        self._follows(origins_of(snapshot), now)

    # --- what it takes (L1) ---

    def footprint(self) -> tuple[int, int]:
        """Bytes that it has in memory, and about those of a snapshot.

        Raises OperatorFailed: an operator does not say what it holds.
        """
        if self.core.between_slices:  # otherwise operators may not be asked
            self._operators_bytes = state_bytes(self.core.operator_states())
        inputs = self.sunion.stable_bytes + sum(input.tentative_bytes for input in self.sunion.inputs)
        outputs = sum(log.stable.nbytes + log.suffix.nbytes for log in self.logs)
        logged = sum(log.stable.stored_after(log.acknowledged) for log in self.logs)
        return self._operators_bytes + inputs + outputs, self._operators_bytes + logged

    # --- for people ---

    def counters(self) -> dict[str, int]:
        """What its operators and the SUnion counted.  Raises OperatorFailed."""
        return self.core.counters() | {"tentative_dropped": self.sunion.tentative_dropped}

    def status(self, counters: Mapping[str, int], error: str | None) -> ReplicaStatus:
        """What `spe status` and the live view show of this replica.

        Args:
          counters: as :meth:`counters` has them.
          error: why it has stopped; None while it runs.
        """
        frontier, tentative_frontier = self.logs[0].frontiers()
        return ReplicaStatus(
            unit=self.id.unit,
            partition=self.id.partition,
            state=self.state,
            fresh=self.core.live_runs,
            installed=self.reading.installed,
            missing=tuple(self.recovery.missing()),
            differs=tuple(self.differs()),
            skew=tuple(self.reading.skew()),
            stable=sum(log.last_id for log in self.logs),
            tentative=self.serving.tentative_count,
            suffix_bytes=sum(log.suffix.nbytes for log in self.logs),
            frontier=frontier,
            tentative_frontier=tentative_frontier,
            reconciliations=self.core.counts.reconciliations,
            redone_rows=self.core.counts.redone_rows,
            rebuilt_rows=self.core.counts.rebuilt_rows,
            largest_slice=self.core.largest_slice,
            inputs=tuple(input.status() for input in self.inputs),
            fill=max(log.fill for log in self.logs),
            held_bytes=self.sunion.stable_bytes,
            counters=counters,
            error=error,
            x_us=self.node.x_us,
            x_used=self.core.waits.x_used.status(),
            partners={n: s for n, s in self.partners.told.items() if not self.partners.stands_by(n)},
            asks=self.partners.pending,
        )


def _old_us(node: Node) -> int:
    return 2 * node.x_us


def _others(directory: Directory, id: ReplicaId) -> list[str]:
    """The other nodes that host its partition."""
    return [n for n in directory.hosts(id.of) if n != id.node]
