"""A partition replica: its input side, its unit replica and its output side.  Pure.

The node's shell moves bytes and time: it brings in heartbeat answers, connection events and elements, does the
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
from spe.wire.messages.feeds import OutputStatus
from spe.wire.state_size import state_bytes

_ADVANCE: Final = events.Advance()


class Replica:
    """One partition replica on a node.

    Args:
      plan: the cluster.
      id: the replica.
      random: seeded source for the partner protocol.
      now: monotonic microseconds.
      effects: its effects on the shell, apart from the results of its methods.
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
        #: Feeds the checkpoint log; None: the replica has none.
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
        #: Bytes that operators held when last asked.
        self._operators_bytes = 0
        self.serving.announce(NodeState.RECOVERING, False)

    def redirect(self, directory: Directory, now: int) -> list[tuple[int, feed.Action]]:
        """Follows a changed directory; returns connection work with its input index."""
        if not same_waits(node := directory.share(self.plan, self.id.unit, self.id.node), self.node):
            self._set_node(node, now)
        self.serving.redirect(directory, now)
        self.partners.set_partners(_others(directory, self.id))
        self.recovery.redirect(directory)
        return self.reading.redirect(directory)

    def _set_node(self, node: Node, now: int) -> None:
        """Sets X, α and the policies of all parts in one step; how it reconciles stays as it began (X1)."""
        self.node = node = replace(node, reconcile=self.node.reconcile, checkpoints=self.node.checkpoints)
        self.sunion.waits.set_old(_old_us(node))
        self.reading.set_node(node)
        self.recovery.set_node(node)
        self.handle(events.Configure(node), now)

    @property
    def state(self) -> NodeState:
        return self.core.state

    def validate(self) -> None:
        """Asserts the invariants of all parts between two steps; each names its rule.

        Does not look at rows: see ``validate_rows``.
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
        """Asserts the invariants of all rows that are held."""
        self.core.validate_rows()
        for log in self.logs:
            log.stable.validate()
            log.suffix.validate()

    # --- partners ---

    def partner_told(self, partner: str, outputs: Mapping[Channel, OutputStatus]) -> list[str]:
        """Takes a partner's announced outputs; returns where its stable tuples differ from ours (invariant 4)."""
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
        """Describes where stable tuples of partners differ from ours."""
        return self._named(self.agreement.differences)

    def _named(self, differences: Sequence[Divergence]) -> list[str]:
        return [
            f"{(channel := self.logs[d.output].channel)} differs from {d.partner}'s by id {d.id}: "
            f"{suspects(self.unit, channel.stream)}"
            for d in differences
        ]

    # --- events of the shell ---

    def handle(self, event: events.Event, now: int) -> list[events.Action]:
        """Gives the manager an event and performs its actions; returns those that are left to the shell.

        Raises the error of an Interrupt after all actions before it.
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
        """Does this replica grant a partner leave to reconcile (K2)?"""
        return events.Grant() in self.handle(events.PartnerAsks(asker), now)

    def partner_grants(self, number: int, now: int) -> None:
        self.handle(events.PartnerGrants(number), now)

    def step_too_large(self) -> bool:
        """Did a step take in more rows than its limit, because too many have the same time (B8)?"""
        return self.core.largest_slice > self.plan.limits.slice_rows * len(self.inputs)

    def rests(self, now: int) -> int:
        """Returns how long, in microseconds, the passing of time changes nothing unless the state changes; 0: now.

        Periodic checkpoints do not count: they are taken at the next step after they are due.
        """
        if self.state is not NodeState.STABLE or self.core.checkpoint_due(now):
            return 0
        if self.sunion.waits.ahead and not all(self.reading.fresh(now)):
            return 0
        return max(0, self.node.alpha_x_us - self.sunion.clocks.waited(now))

    def watch_skew(self, now: int) -> list[str]:
        """Returns lagging inputs, see :meth:`InputSide.watch_skew`."""
        return [] if self.state is NodeState.RECOVERING else self.reading.watch_skew(now)

    def choose(self, now: int, peer: str | None = None) -> list[tuple[int, feed.Action]]:
        """Returns connection work with its input index, for inputs that may read ``peer``; None: for all inputs."""
        if not self.reading.installed:
            return []
        # Called after each greeting, before an element is taken: nothing stable was made yet.
        if not self.serving.origin and (origin := combined(self.reading.origins())):
            self.serving.learn_origin(origin)
        return self.reading.choose(now, peer)

    def shift(self, gap_us: int, now: int) -> None:
        """Discounts ``gap_us`` during which this process was frozen (T1)."""
        self.reading.shift(gap_us, now)
        self.serving.shift(gap_us, now)

    def spill(self) -> None:
        """Spills what had to stay in memory while spill files had no room."""
        self.sunion.spill_redo_data()
        for log in self.logs:
            log.spill_oldest()

    def output_status(self, now: int) -> list[OutputStatus]:
        """Returns the status of each output, as heartbeats announce it."""
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
        """Returns state, positions and stable logs for a restarting partner; None while this replica recovers.

        Args:
          ahead: entries of each log that were read before (OutputLog.export).

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
        """Returns the partner to ask for a snapshot, or the own state to start from (ReplicaRecovery.step).

        A start from nothing is done here; the caller installs a stored state.
        """
        step = self.recovery.step(now)
        if step is Own.NOTHING:
            self.reading.installed = True
        return step

    def install_stored(self, snapshot: Mapping[str, Any], now: int) -> None:
        """Starts from our own checkpoint."""
        self.install(snapshot, now)
        self.recovery.went_on_from(snapshot)

    def install_logged(self, instance: Instance, logged: LoggedState, now: int, *, safe: bool) -> None:
        """Starts from our log (G4): ``instance`` has its footprints, and later input is read again.

        Args:
          safe: both copies of the log hold it.
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
        assert not self.reading.installed, "A3: a replica gets its state once; later ones are made anew"
        self.reading.goes_on(origins)
        self.serving.origin = combined(origins)
        self.reading.installed, self.reading.started_at = True, now

    def install(self, snapshot: Mapping[str, Any], now: int) -> None:
        """Installs a snapshot of a partner or our own; the replica stays RECOVERING until caught up."""
        self.recovery.stored = None
        checkpoint = Checkpoint(int(snapshot["restart"]), snapshot["fragment"], list(snapshot["outputs"]))
        for log, state in zip(self.logs, snapshot["logs"], strict=True):
            log.install(state)
        self.handle(events.InstallSnapshot(checkpoint, [int(p) for p in snapshot["positions"]]), now)
        self._follows(origins_of(snapshot), now)

    # --- load (L1) ---

    def footprint(self) -> tuple[int, int]:
        """Returns bytes in memory, and about those of a snapshot.

        Raises OperatorFailed where an operator fails when asked for its size.
        """
        if self.core.between_slices:  # otherwise operators may not be asked
            self._operators_bytes = state_bytes(self.core.operator_states())
        inputs = self.sunion.stable_bytes + sum(input.tentative_bytes for input in self.sunion.inputs)
        outputs = sum(log.stable.nbytes + log.suffix.nbytes for log in self.logs)
        logged = sum(log.stable.stored_after(log.acknowledged) for log in self.logs)
        return self._operators_bytes + inputs + outputs, self._operators_bytes + logged

    # --- for people ---

    def counters(self) -> dict[str, int]:
        """Returns the counters of the operators and the SUnion.  Raises OperatorFailed."""
        return self.core.counters() | {"tentative_dropped": self.sunion.tentative_dropped}

    def status(self, counters: Mapping[str, int], error: str | None) -> ReplicaStatus:
        """Returns the status for `spe status` and the live view.

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
    """Returns the other nodes that host a replica's partition."""
    return [n for n in directory.hosts(id.of) if n != id.node]
