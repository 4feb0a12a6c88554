"""A partition replica: its inputs, its unit replica and its output logs, bound together.  Pure.

The node's shell moves bytes and time: it brings heartbeat answers, connection events and elements in, does the
connection work that comes out, and wakes the subscriptions when an output has news.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

from consistency.dpc.agreement import Agreement, Difference, suspects
from consistency.dpc.instance import Checkpoint
from consistency.dpc.manager import UnitReplica
from consistency.dpc.partners import Ask, Partners
from consistency.dpc.skew import InputSkew
from operators.rejections import Rejection
from operators.sunion.sunion import SUnion
from replicas.checkpoint.store import origins_of
from replicas.checkpoint.turns import SnapshotTurns
from replicas.consumer.feed import Action
from replicas.consumer.input import Input, choose_among
from replicas.producer.entry import Entry
from replicas.producer.output_log import OutputLog
from spe.log.origin import combined
from spe.plan.describe import show_duration
from spe.plan.plan import Plan, Reconcile
from spe.plan.review import stall_us
from spe.runtime.spill import Spill
from spe.stream.batch import Batch, Element
from spe.stream.ids import Channel, ReplicaId
from spe.stream.names import NodeState
from spe.stream.schema import Schema
from spe.stream.times import BEFORE_TIME
from spe.wire.messages import OutputStatus


class Replica:
    """One partition replica on a node.

    Args:
      plan: the cluster.
      id: which replica this is.
      random: seeded source for the partner protocol.
      now: monotonic microseconds.
      wake: called with an output's index when its subscriptions have something to send.
      told: called with each new state, for the trace.
      shelf: makes a place in spill files for the batches of a schema; None: everything stays in memory.
      changes: numbers the changes of state of all replicas of this process (OutputLog).
    """

    def __init__(
        self,
        plan: Plan,
        id: ReplicaId,
        *,
        random: Random,
        now: int,
        wake: Callable[[int], None],
        told: Callable[[NodeState, bool], None],
        shelf: Callable[[Schema], Spill] | None = None,
        changes: Iterator[int] | None = None,
    ) -> None:
        self.id = id
        self.plan = plan
        self.unit = plan.unit[id.unit]
        self.node = plan.share(id.unit, id.node)
        self.wake = wake
        self._told = told
        self._started_at = now
        #: Nothing is read before a snapshot is installed, or it is sure that everything is still upstream (A3).
        self.installed = False
        #: Our newest checkpoint on disk, while it may still be needed (A3).
        self.stored: Mapping[str, Any] | None = None
        #: Input positions that the newest checkpoint on disk holds (A8); None: there are to be none.
        self._durable: list[int] | None = None
        #: Of our outputs (S6); "" until every input was greeted.
        self.origin = ""
        self.tentative_count = 0
        #: What operators went on without, for good, until somebody takes it (U15).
        self.rejections: list[Rejection] = []
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
            old_us=2 * self.node.x_us,
        )
        self.inputs = [
            Input(
                channel,
                list(plan.producer_addresses(channel)),
                port,
                consumer=str(id),
                stall_us=stall_us(plan, channel),
                useless_us=self.node.alpha_x_us // 2,
                x_us=self.node.x_us,
            )
            for channel, port in zip(channels, self.sunion.inputs, strict=True)
        ]
        self.logs = [
            OutputLog(
                Channel(stream, id.partition),
                plan.query.schema_of(stream),
                plan.consumers_of(Channel(stream, id.partition)),
                plan.limits,
                None if shelf is None else shelf(plan.query.schema_of(stream)),
                plan.standbys_of(Channel(stream, id.partition)),
                changes,
            )
            for stream in self.unit.outputs
        ]
        self._log_of = {log.channel: log for log in self.logs}
        if plan.disk_us(id) is not None:
            self._durable = [0 for _ in self.inputs]
            self._newest = self._durable
        standbys = plan.standbys.get(id.of)
        self._standbys = () if standbys is None else standbys.nodes
        self._backs = id.node in self._standbys
        self.partners: dict[str, NodeState | None] = {n: None for n in plan.hosts(id.of) if n != id.node}
        #: Those that run and have fresh results for our consumers while we reconcile (K6).
        self._stand_ins: set[str] = set()
        #: The largest stable id of each output that a partner has told of.
        self._made_elsewhere: dict[Channel, int] = {}
        self._turns = SnapshotTurns(pause_us=plan.timing.heartbeat_us, longest_us=self.node.x_us)
        #: It begins from nothing whatever others hold: somebody further down lacks the beginning (H8).
        self.replays = False
        #: Whoever is not heard now has not been for long: we stood by, and listened (H3).
        self.partners_are_known = False
        self.core = UnitReplica(
            self.unit,
            self.sunion,
            self.node,
            outputs=self,
            inputs=self,
            partners=Partners(id.node, list(self.partners), request_us=plan.timing.request_us, random=random),
            redo_bytes=plan.limits.input_bytes,
            slice_rows=plan.limits.slice_rows,
        )
        self._skew = InputSkew(
            self.sunion, bucket_us=plan.bucket_us, alpha_x_us=self.node.alpha_x_us, x_us=self.node.x_us
        )
        self.announce(NodeState.RECOVERING, False)

    @property
    def state(self) -> NodeState:
        return self.core.state

    def log(self, channel: Channel) -> OutputLog:
        return self._log_of[channel]

    def made(self, channel: Channel) -> int:
        """The largest stable id of an output that this replica or a partner is known to have made."""
        return max(self.log(channel).last_id, self._made_elsewhere.get(channel, 0))

    # --- outputs: what the unit replica makes ---

    def stable(self, output: int, elements: Sequence[Element]) -> None:
        self.logs[output].append_stable(elements)
        self.wake(output)

    def tentative(self, output: int, elements: Sequence[Element]) -> None:
        self.tentative_count += sum(len(e) for e in elements if isinstance(e, Batch))
        self.logs[output].append_tentative(elements)
        self.wake(output)

    def rejected(self, rejections: Sequence[Rejection]) -> None:
        self.rejections += rejections

    def clear_suffix(self) -> None:
        for log in self.logs:
            log.clear_suffix()

    def announce(self, state: NodeState, fresh: bool) -> None:
        self._told(state, fresh)
        for at, log in enumerate(self.logs):
            log.set_state(state, fresh)
            self.wake(at)

    def full(self) -> bool:
        return True in [log.full for log in self.logs]  # any(…) makes a generator, and this is asked at every step

    def spill(self) -> None:
        """Spill files have room again: what had to stay in memory for lack of it may go now."""
        self.sunion.spill_redo_data()
        for log in self.logs:
            log.spill_oldest()

    # --- inputs: what the unit replica asks ---

    def fresh(self, now: int) -> Sequence[bool]:
        return [i.fresh(now) for i in self.inputs]

    def arriving(self, now: int) -> bool:
        return all(i.arriving(now) for i in self.inputs)

    def caught_up(self) -> bool:
        return all(i.caught_up() for i in self.inputs)

    def started(self, now: int) -> bool:
        if not self.installed:
            return False
        return now - self._started_at >= self.node.x_us or all(i.port.frontier > BEFORE_TIME for i in self.inputs)

    def upstream_full(self) -> bool:
        return any(p.full for i in self.inputs for p in i.producers.values() if p.alive)

    def partner_states(self, now: int) -> Mapping[str, NodeState | None]:
        runs = (NodeState.STABLE, NodeState.UP_FAILURE)
        return {n: None if s in runs and n not in self._stand_ins else s for n, s in self.partners.items()}

    def partner_told(self, partner: str, outputs: Mapping[Channel, OutputStatus]) -> list[str]:
        """News of a partner; returns where it turns out to make other stable tuples than we do (invariant 4)."""
        first = outputs.get(self.logs[0].channel)
        self.partners[partner] = None if first is None else first.state
        (self._stand_ins.add if first is not None and first.stands_in else self._stand_ins.discard)(partner)
        self.core.partners.heard(partner, runs=first is not None or partner not in self._standbys)
        found: list[Difference] = []
        for at, log in enumerate(self.logs):
            if (told := outputs.get(log.channel)) is None:
                continue
            self._made_elsewhere[log.channel] = max(self._made_elsewhere.get(log.channel, 0), told.last_id)
            if self.installed:
                output = self.core.stable_output(at)
                self.agreement.heard(at, partner, told.marked_id, told.digest)
                found += self.agreement.compare(at, output.last_id, output.marks)
        return self._named(found)

    def partner_lost(self, partner: str) -> None:
        """It is not heard any more: it stands in for nobody, whatever it was last (K5)."""
        if partner in self.partners:
            self.partners[partner] = None

    def _named(self, differences: Sequence[Difference]) -> list[str]:
        return [
            f"{(channel := self.logs[d.output].channel)} differs from {d.partner}'s by id {d.id}: "
            f"{suspects(self.unit, channel.stream)}"
            for d in differences
        ]

    # --- events of the shell ---

    def advance(self, now: int) -> tuple[bool, Ask | None]:
        """See :meth:`UnitReplica.advance`."""
        return self.core.advance(now)

    def step_too_large(self) -> bool:
        """Has a step taken in more than it should, for so many rows have one time (B8)?"""
        return self.core.largest_slice > self.plan.limits.slice_rows * len(self.inputs)

    def rests(self, now: int) -> int:
        """Microseconds in which the mere passing of time changes nothing, unless the state changes; 0: it does now.

        A periodic checkpoint is no reason to hurry: it comes when somebody looks and it is due.
        """
        if self.state is not NodeState.STABLE or self.core.checkpoint_due(now):
            return 0
        return max(0, self.node.alpha_x_us - self.sunion.clocks.waited(now))

    def watch_skew(self, now: int) -> list[str]:
        """Inputs that begin to lag the others though nothing has failed (S5), once per episode; call it at ticks."""
        if self.state is NodeState.RECOVERING:
            return []
        if not self._skew.lagging and self.sunion.clocks.waited(now) <= self.node.alpha_x_us:
            return []  # the ordinary day
        return [self._lag(at) for at in self._skew.watch(now, [i.live(now) for i in self.inputs])]

    def _lag(self, at: int) -> str:
        behind, ahead = show_duration(self._skew.behind_us(at)), self.inputs[self._skew.foremost()].channel
        return f"{self.inputs[at].channel} lags {ahead} by {behind} of tuple time"

    def choose(self, now: int, peer: str | None = None) -> list[tuple[int, Action]]:
        """Connection work, per input index: of those that may read ``peer``; None: of all."""
        if not self.installed:
            return []
        if not self.origin:
            self._learn_origin()
        return choose_among(self.inputs, now, peer)

    def _learn_origin(self) -> None:
        """Asked after each greeting, before anything is taken: nothing stable was made of all inputs yet.

        Whoever subscribed before was greeted without an origin, so it is cut off, and subscribes anew.
        """
        self.origin = combined([i.origin for i in self.inputs])
        if self.origin:
            for at, log in enumerate(self.logs):
                log.close()
                self.wake(at)

    def other_origin(self, consumer: str, theirs: str) -> str:
        """Why our outputs do not continue what a consumer has read; "" where they do (S6)."""
        if not (theirs and self.origin) or theirs == self.origin:
            return ""
        return (
            f"{self.id} has read other source logs ({self.origin}) than what {consumer} holds follows from ({theirs})"
        )

    def shift(self, gap_us: int, now: int) -> None:
        """We were frozen for the last ``gap_us``: nothing that lies in our sockets is late (T1)."""
        self.sunion.clocks.shift(gap_us, now)
        self._skew.shift(gap_us, now)
        self._started_at = min(self._started_at + gap_us, now)
        for one in self.inputs:
            one.shift(gap_us, now)

    def acks(self) -> list[tuple[Channel, int]]:
        """What upstream may forget, per input (A1); nothing before the install."""
        if not self.installed:
            return []
        acks = self.sunion.acknowledged()
        if self._durable is not None:
            acks = list(map(min, acks, self._durable))
        return list(zip((i.channel for i in self.inputs), acks, strict=True))

    # --- recovery (A3, A4) ---

    def recovery_wish(self, now: int) -> str | None:
        """The partner to ask for a snapshot, if one can give it: each in its turn (A3).

        Where there is none, or none has given one for X, this installs our own checkpoint from disk, or decides to
        start from nothing, if upstream has what follows.
        """
        if self.installed:
            return None
        waited = now - self._started_at
        if self.replays:
            self.installed = self._upstream_has_what_follows(patient=waited < self.node.x_us)
            return None
        able = [name for name, state in self.partners.items() if state not in (None, NodeState.RECOVERING)]
        if (partner := self._turns.next(able, now)) is not None:
            return partner
        if able and self._turns.asking_for(now) < self.node.x_us:
            return None
        stands_by = self.core.partners.stands_by
        unknown = not self.partners_are_known and any(
            state is None and not stands_by(name) for name, state in self.partners.items()
        )
        if unknown and waited < self.plan.timing.request_us:
            return None
        helpers = () if self._backs else self._standbys
        helped = any(self.partners.get(n) is NodeState.RECOVERING for n in helpers)
        if helped and self.stored is None and waited < 4 * self.node.x_us:
            return None  # a standby makes its state again from a checkpoint; from nothing it would take us longer
        patience = self.node.x_us if self.stored is None else self.plan.timing.request_us
        if self._upstream_has_what_follows(patient=waited < patience):
            if (stored := self.stored) is not None:
                self.install(stored, now)
                self._stored_is_durable(stored)
            self.installed = True
        return None

    def no_snapshot_from(self, partner: str, now: int) -> None:
        """It was asked for a snapshot and gave none that could be installed."""
        self._turns.failed(partner, now)

    def _upstream_has_what_follows(self, *, patient: bool) -> bool:
        """Has every input's upstream still what follows our checkpoint on disk, or id 1 if we have none?

        Unreachable ones are waited for while ``patient``, then believed.
        """
        if patient and not all(one.serving() for one in self.inputs):
            return False
        return not self._begins_too_late()

    def _begins_too_late(self) -> bool:
        """Has every producer of some input that we reach forgotten what follows our checkpoint, or id 1?"""
        positions = self._stored_positions()
        return any(one.forgotten(position) for one, position in zip(self.inputs, positions, strict=True))

    def lacking(self) -> bool:
        """Nothing that we could go on from is left: neither a state nor what would follow from it (H8)."""
        return not self.installed and self._begins_too_late()

    def _stored_positions(self) -> list[int]:
        return [0 for _ in self.inputs] if self.stored is None else [int(p) for p in self.stored["positions"]]

    def missing(self) -> list[str]:
        """Which inputs lack what, while recovery cannot go on."""
        if self.installed:
            return []
        return [
            f"{one.channel}: {p.name} begins at id {p.first}"
            for one, position in zip(self.inputs, self._stored_positions(), strict=True)
            for p in one.producers.values()
            if p.alive and p.first > position + 1
        ]

    def must_reinstall(self) -> bool:
        """Upstream has forgotten what we need: only a partner's snapshot helps now."""
        return self.installed and any(i.truncated() for i in self.inputs)

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
            "origins": [i.origin for i in self.inputs],
            "logs": [log.export(read) for log, read in zip(self.logs, ahead or [()] * len(self.logs), strict=True)],
        }

    def install_newest(self, snapshot: Mapping[str, Any], now: int) -> bool:
        """Installs a partner's snapshot, or our own from disk where that has gone at least as far in every input.

        A partner may have been given up as a dead one, with us further on: upstream has forgotten what it needs,
        and only what lies on our disk can still help the two of us (A3).

        Returns:
          Whether it was our own.
        """
        stored = self.stored
        own = (
            stored is not None
            and origins_of(stored) == origins_of(snapshot)
            and all(int(a) >= int(b) for a, b in zip(stored["positions"], snapshot["positions"], strict=True))
        )
        self.install(stored if own and stored is not None else snapshot, now)
        if own and stored is not None:
            self._stored_is_durable(stored)
        return own

    def install(self, snapshot: Mapping[str, Any], now: int) -> None:
        """Takes over a partner's snapshot, or our own; we stay RECOVERING until caught up."""
        self.stored = None
        checkpoint = Checkpoint(int(snapshot["restart"]), snapshot["fragment"], list(snapshot["outputs"]))
        for log, state in zip(self.logs, snapshot["logs"], strict=True):
            log.install(state)
        self.core.install(checkpoint, [int(p) for p in snapshot["positions"]])
        for one, origin in zip(self.inputs, origins_of(snapshot), strict=True):
            one.origin = origin
        self.origin = combined(origins_of(snapshot))
        self.installed = True
        self._started_at = now

    # --- checkpoints on disk (A8) ---

    def worth_storing(self) -> bool:
        """Is there anything new to write, and may it be made now?

        With undo/redo there is no state to be had while tainted, short of making it again: that is done only where
        upstream is full, or a failure further on and ours would hold each other for ever (R2).
        """
        if self.sunion.tainted and self.node.reconcile is Reconcile.UNDO and not self.upstream_full():
            return False
        # With a standby's node: both of its checkpoints hold it.
        return self.installed and self.sunion.acknowledged() != self._durable

    def written(self, snapshot: Mapping[str, Any]) -> None:
        """A checkpoint is safely on disk: upstream may forget what it holds.

        Where we back a partition, what the one before it holds: it may be all that there is (H2).
        """
        if self._durable is not None:
            positions = [int(p) for p in snapshot["positions"]]
            self._durable, self._newest = (self._newest if self._backs else positions), positions

    def _stored_is_durable(self, snapshot: Mapping[str, Any]) -> None:
        """It came from our disk.  Of the one before it we know nothing any more, so where two must hold it, we wait."""
        if not self._backs:
            self.written(snapshot)

    # --- for people ---

    def counters(self) -> dict[str, int]:
        """What its operators and the SUnion counted.  Raises OperatorFailed."""
        return self.core.counters() | {"tentative_dropped": self.sunion.tentative_dropped}

    def status(self) -> dict[str, Any]:
        """What `spe status` and the live view show of this replica."""
        log = self.logs[0]
        frontier, tentative_frontier = log.frontiers()
        return {
            "unit": self.id.unit,
            "partition": self.id.partition,
            "state": self.state.name,
            "fresh": self.core.live_runs,
            "installed": self.installed,
            "missing": self.missing(),
            "differs": self._named(self.agreement.differences),
            "skew": [self._lag(at) for at in sorted(self._skew.lagging)],
            "stable": sum(log.last_id for log in self.logs),
            "tentative": self.tentative_count,
            "suffix_bytes": sum(log.suffix.nbytes for log in self.logs),
            "frontier": frontier,
            "tentative_frontier": tentative_frontier,
            "reconciliations": self.core.reconciliations,
            "redone_rows": self.core.redone_rows,
            "rebuilt_rows": self.core.rebuilt_rows,
            "largest_slice": self.core.largest_slice,
            "inputs": [
                {
                    "channel": str(i.channel),
                    "main": i.main.producer if i.main is not None else None,
                    "corrections": i.corr.producer if i.corr is not None else None,
                    "position": i.port.position,
                    "frontier": i.port.frontier,
                    "switches": i.switches,
                    "other_logs": i.other_logs(),
                }
                for i in self.inputs
            ],
            "fill": max(log.fill for log in self.logs),
            "held_bytes": self.sunion.stable_bytes,
        }
