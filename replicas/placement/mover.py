"""Carries out moves: those that people order, and those that follow from loads.  A thin shell.

:class:`replicas.placement.moves.Moves` says how a move goes on, :class:`replicas.placement.balance.Balance` what is to
move; here both meet the coordinator's disk, its directory and the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import trio

from replicas.placement.balance import Balance
from replicas.placement.draining import targets
from replicas.placement.issuing import DirectoryIssuer
from replicas.placement.moves import Move, MoveRefused, Moves, RoleChange, some
from replicas.placement.store import CoordinatorStore
from replicas.planning.balancing.actions import Action, DrainNode, JoinSpare, MovePartition, StillFull
from replicas.planning.prediction import PredictedMove, RefusedMove
from replicas.planning.shares import SharesOfX
from spe.plan.directory import COORDINATOR, Directory, Role, Version
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.runtime.log_line import say
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import NodeId, UnitId
from spe.stream.times import SECOND
from spe.wire.fields import MANY
from spe.wire.messages import HeartbeatAnswer, MoveAnswer, MoveOrder, ProposedMove, Remark

#: How often the balancer is told what is so, seconds.
_LEARN_S: Final = 1.0
#: What to do about an order that is opposite to one that is carried out.
_LATER: Final = "take that back first, or wait until it is over"
#: What people are told of what the balancer does beside moves.
TOLD: Final[Mapping[type, str]] = {
    JoinSpare: "{node} takes part from now on: {reason}",
    DrainNode: "{node} is drained: {reason}",
    StillFull: "{node} stays full: {reason}",
}


class Mover:
    """See the module.

    Args:
      directories: says who runs what; moves change it.
      store: keeps moves.
      versions: which version of the directory each process goes by.
    """

    def __init__(
        self,
        env: Env,
        plan: Plan,
        directories: DirectoryIssuer,
        store: CoordinatorStore,
        versions: Callable[[], Mapping[str, Version]],
    ) -> None:
        self._env = env
        self._plan = plan
        self._directories = directories
        self._store = store
        self._theirs = versions
        timing = plan.timing
        self.moves = Moves(
            plan,
            directories.current,
            pause_us=timing.heartbeat_us,
            patience_us=20 * max(timing.request_us, timing.connect_us, timing.heartbeat_us),
            refusal=lambda partition, node, role: self._refusal(directories.current, partition, node, role),
            known=store.moves(plan.fingerprint),
        )
        self.balance = Balance(plan, directories.current, env.clock.monotonic_us())
        self._balancing = trio.Lock()

    # --- news ---

    def redirect(self, directory: Directory) -> None:
        """Another directory counts."""
        self.moves.redirect(directory)

    def heard(self, peer: str, answer: HeartbeatAnswer) -> None:
        held = {PartitionId(UnitId(h.unit), h.partition): h.checkpoints for h in answer.held}
        self.moves.heard(peer, answer.outputs, held)

    def lost(self, peer: str) -> None:
        self.moves.lost(peer)

    # --- tasks ---

    async def run(self) -> None:
        """In tasks of their own: whoever must take over does not wait for our disk."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._go_on)
            if self.balance.automatic:
                nursery.start_soon(self._balance)

    async def _go_on(self) -> None:
        clock, moves = self._env.clock, self.moves
        while True:
            await clock.sleep(self._plan.timing.heartbeat_us / 1e6)
            for peer, version in self._theirs().items():
                moves.knows(peer, version)
            under_way = moves.open()
            before = [move.kept() for move in under_way]
            change = moves.step(clock.monotonic_us(), clock.wall_us())
            try:
                if before != [move.kept() for move in under_way]:
                    await self._store.keep_moves(self._plan.fingerprint, moves.all())
                if change is not None:
                    if_still_wanted = partial(self._changed, change)
                    await self._directories.publish(if_still_wanted, f"{change}: {moves.reason(change.partition)}")
            except (OSError, ValueError) as error:  # it comes again
                self._env.trace.event("move_not_kept", why=str(error))
            for move, (phase, *_) in zip(under_way, before, strict=True):
                if move.phase is not phase:
                    target = ReplicaId(*move.partition, move.target)
                    self._env.trace.event(
                        "move",
                        number=move.number,
                        phase=move.phase.value,
                        source=move.source,
                        target=target,
                        why=move.why,
                        began_us={phase.value: at for phase, at in move.began_us.items()},
                    )

    def _changed(self, change: RoleChange, directory: Directory) -> Directory:
        """What a change makes of the directory.  Raises ValueError: while it waited for our disk, other things came."""
        if not self.moves.wants(change, self._env.clock.monotonic_us()):
            raise ValueError(f"{change}: not any more")
        return change(directory)

    async def _balance(self) -> None:
        """Moves what should run elsewhere by its load."""
        while True:
            await self._env.clock.sleep(_LEARN_S)
            async with self._balancing:
                now = self._learn()
                if any(not self.balance.has_ordered(move) for move in self.moves.open()):
                    continue  # what people want goes first
                for action in await self._env.compute.run(partial(self.balance.tick, now)):
                    await self._act(action)
                if not self.moves.open():
                    await self._place_standby(await self._env.compute.run(partial(self.balance.relocation, now)))
                drained = self.balance.drained()
            for node in drained:
                await self.order(MoveOrder("drain", "", node, "", 0))

    async def _act(self, action: Action) -> None:
        """Does what the balancer wants."""
        if not isinstance(action, MovePartition):
            self._env.trace.event("balance", do=type(action).__name__, node=action.node, why=action.reason)
            say(
                f"{COORDINATOR}: {TOLD[type(action)].format(node=action.node, reason=action.reason)}",
                event="balance",
                target=action.node,
            )
            return
        try:
            (move,) = self.moves.ask_all([_asked(action)], action.reason, by_load=True)
        except MoveRefused as error:
            self._env.trace.event("balance_refused", why=str(error))
            self.balance.refused(action, self._env.clock.monotonic_us())
            return
        answer = await self._keep_moves([move])
        if answer.error:
            self.balance.refused(action, self._env.clock.monotonic_us())
        else:
            self.balance.ordered(action, move)

    async def _place_standby(self, relocation: tuple[PartitionId, NodeId, NodeId] | None) -> None:
        if relocation is None:
            return
        try:
            await self._keep_moves(self.moves.ask_all([(*relocation, None)], "its place by load", by_load=True))
        except MoveRefused as error:
            self._env.trace.event("balance_refused", why=str(error))

    def _learn(self) -> int:
        """Tells the balancer what is so now; returns the time."""
        now, wall_us = self._env.clock.monotonic_us(), self._env.clock.wall_us()
        moves = self.moves
        self.balance.learn(
            now, self._directories.current, moves.running(), moves.alive(), moves.held(), moves.all(), wall_us
        )
        return now

    def _refusal(self, directory: Directory, partition: PartitionId, node: NodeId, role: Role) -> str | None:
        """Why a node cannot have a partition too: its share of X would be too small, or the node full (M5)."""
        if (drain := self._drain_of(node)) is not None:
            return f"{node} is being drained by {drain}; {_LATER}"
        shares = SharesOfX(self._plan, directory)
        if (why := shares.refused(directory.placement, partition, node)) is not None:
            return f"on {node} {why}"
        if role is not Role.ACTIVE:
            return None
        return self.balance.full(directory, partition, node, self._env.clock.monotonic_us())

    def _drain_of(self, node: NodeId) -> Move | None:
        """A move that empties a node."""
        return next((move for move in self.moves.open() if move.drain == node), None)

    # --- moves that somebody orders ---

    async def order(self, message: MoveOrder) -> MoveAnswer:
        """What somebody wants moved."""
        if message.verb == "cancel":
            return await self._cancel(message.number)
        async with self._balancing:
            now = self._learn()
            if message.verb in ("balance", "propose"):
                return await self._relieve(now, dry_run=message.verb == "propose")
            try:
                return await self._keep_moves(self._take_move(message, now))
            except MoveRefused as error:
                return MoveAnswer(1, 0, str(error))

    async def _cancel(self, number: int) -> MoveAnswer:
        try:
            move = self.moves.cancel(number)
            await self._store.keep_moves(self._plan.fingerprint, self.moves.all())
        except MoveRefused as error:
            return MoveAnswer(1, 0, str(error))
        except OSError as error:
            return MoveAnswer(1, 0, f"{move} is cancelled, but a coordinator that restarts goes on with it: {error}")
        return MoveAnswer(move.number, move.number, "")

    def _take_move(self, message: MoveOrder, now: int) -> list[Move]:
        """Raises MoveRefused."""
        directory, source = self._directories.current, NodeId(message.source)
        if message.verb == "move":
            orders, reason, drain = [(self._partition(message.partition), NodeId(message.target))], "ordered", None
        else:
            if (begun := self._drain_of(source)) is not None:
                raise MoveRefused(f"{source} is being drained already: {begun} has not ended")
            if coming := [move for move in self.moves.open() if move.target == source]:
                raise MoveRefused(f"{source} cannot be drained: {coming[0]} has not ended; {_LATER}")
            orders = targets(directory, source, self.moves.alive(), self._refusal)
            reason, drain = f"{source} is drained", source
        asked = [(p, source, to, self._predicted(p, source, to, now)) for p, to in orders]
        return self.moves.ask_all(asked, reason, drain=drain)

    def _predicted(self, partition: PartitionId, source: NodeId, target: NodeId, now: int) -> PredictedMove | None:
        """How the state of a move comes soonest; None: nobody knows.  Raises MoveRefused."""
        directory = self._directories.current
        if target not in directory.nodes or directory.roles[partition].get(source) is not Role.ACTIVE:
            return None  # it is refused, or has nothing to catch up with
        predicted = self.balance.predicted(partition, target, now)
        if isinstance(predicted, RefusedMove):
            raise MoveRefused(f"{partition} cannot move from {source} to {target}: {predicted.reason}")
        return predicted

    async def _relieve(self, now: int, *, dry_run: bool) -> MoveAnswer:
        """What somebody wants to know, or have moved, about full nodes."""
        orders, full = await self._env.compute.run(partial(self.balance.proposed, now))
        told = [*self.balance.remarks(now), *(f"{one.node} stays full: {one.reason}" for one in full)]
        remarks = [Remark(text) for text in told[:MANY]]
        asked = [_asked(order) for order in orders[:MANY]]
        proposed = [
            ProposedMove(*p, source, target, self.moves.expected_us(round(move.seconds * SECOND), move.source))
            for p, source, target, move in asked
        ]
        if dry_run or not asked:
            return MoveAnswer(1, 0, "", proposed, remarks)
        try:
            return await self._keep_moves(self.moves.ask_all(asked, orders[0].reason, by_load=True), proposed, remarks)
        except MoveRefused as error:
            return MoveAnswer(1, 0, str(error))

    async def _keep_moves(
        self, moves: Sequence[Move], proposed: Sequence[ProposedMove] = (), remarks: Sequence[Remark] = ()
    ) -> MoveAnswer:
        """Orders count once they are on our disk (M1)."""
        try:
            await self._store.keep_moves(self._plan.fingerprint, self.moves.all())
        except OSError as error:
            self.moves.forget(moves)
            self._store.note_moves(self._plan.fingerprint, self.moves.all())
            return MoveAnswer(1, 0, f"the order cannot be kept: {error}")
        self.moves.stored(moves)
        for move in moves:
            self._env.trace.event(
                "move_ordered",
                number=move.number,
                predicted_us=move.predicted_us,
                move=str(move),
                reason=move.reason,
                by_load=move.by_load,
            )
        return MoveAnswer(moves[0].number, moves[-1].number, "", proposed, remarks) if moves else MoveAnswer(1, 0, "")

    def _partition(self, name: str) -> PartitionId:
        """By its name; that of the unit is enough where it has one.  Raises MoveRefused."""
        partitions = self._directories.current.roles
        for id in partitions:
            if name == str(id) or (name == id.unit and self._plan.unit[id.unit].partitions == 1):
                return id
        raise MoveRefused(f"there is no partition {name!r}; there are {some(map(str, partitions))}")


def _asked(order: MovePartition) -> tuple[PartitionId, NodeId, NodeId, PredictedMove]:
    return order.partition, order.source, order.target, PredictedMove(order.seconds, order.state)
