"""Takes orders to move, from people and from the balancer, and keeps the moves on the coordinator's disk.

:class:`replicas.placement.deciders.moves.Moves` decides the steps of a move, and
:class:`replicas.placement.deciders.balance.Balance` which partitions to move.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import trio

from replicas.placement.deciders.balance import Balance
from replicas.placement.deciders.draining import targets
from replicas.placement.deciders.move import Move, MoveRefused, RoleChange, some
from replicas.placement.deciders.move_orders import MoveOrders
from replicas.placement.deciders.moves import Moves
from replicas.placement.store import CoordinatorStore
from replicas.placement.view import ClusterView
from replicas.planning.balancing.actions import Action, DrainNode, JoinSpare, MovePartition, StillFull
from replicas.planning.prediction import PredictedMove, RefusedMove
from replicas.planning.shares import SharesOfX
from spe.plan.directory import COORDINATOR, Directory, Role
from spe.runtime.env import Env
from spe.runtime.log_line import say
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import NodeId
from spe.stream.times import SECOND
from spe.wire.fields import MANY
from spe.wire.messages.commands import MoveAnswer, MoveOrder, ProposedMove, Remark

#: Advice where an order is opposite to one that is carried out.
_LATER: Final = "take that back first, or wait until it is over"
#: Messages for people about actions of the balancer other than moves.
TOLD: Final[Mapping[type, str]] = {
    JoinSpare: "{node} takes part from now on: {reason}",
    DrainNode: "{node} is drained: {reason}",
    StillFull: "{node} stays full: {reason}",
}


class MoveStep(NamedTuple):
    """Result of a step of the moves.

    Attributes:
      change: change of the directory; None: none is needed now.
      noted: the store has something new to write.
      entered: moves that entered another phase.
    """

    change: RoleChange | None
    noted: bool
    entered: Sequence[Move]


class Mover:
    """Takes orders to move and carries them out.

    Args:
      store: keeps moves.
    """

    def __init__(self, env: Env, view: ClusterView, store: CoordinatorStore) -> None:
        self._env = env
        self._view = view
        self._plan = view.plan
        self._store = store
        timing = view.plan.timing
        self.orders = MoveOrders(
            view,
            lambda partition, node, role: self._refusal(view.directory, partition, node, role),
            store.moves(view.plan.fingerprint),
        )
        self.moves = Moves(
            view,
            self.orders,
            pause_us=timing.heartbeat_us,
            patience_us=20 * max(timing.request_us, timing.connect_us, timing.heartbeat_us),
        )
        self.balance = Balance(view, env.clock.monotonic_us())
        self._balancing = trio.Lock()

    # --- moves under way ---

    def step(self, chosen: Mapping[PartitionId, Collection[NodeId]]) -> MoveStep:
        """Takes a step of the moves; call it when the result can be stored at once.

        Args:
          chosen: standbys that run by plan.
        """
        clock, under_way = self._env.clock, self.orders.open()
        before = [move.kept() for move in under_way]
        change = self.moves.step(clock.monotonic_us(), clock.wall_us(), chosen)
        if noted := before != [move.kept() for move in under_way]:
            self._store.note_moves(self._plan.fingerprint, self.orders.all())
        entered = [move for move, (phase, *_) in zip(under_way, before, strict=True) if move.phase is not phase]
        return MoveStep(change, noted, entered)

    def trace(self, step: MoveStep) -> None:
        """Records which moves entered another phase, once that is stored."""
        for move in step.entered:
            self._env.trace.event(
                "move",
                number=move.number,
                phase=move.phase.value,
                source=move.source,
                target=ReplicaId(*move.partition, move.target),
                why=move.why,
                began_us={phase.value: at for phase, at in move.began_us.items()},
            )

    # --- moves that follow from loads ---

    async def follow_loads(self) -> None:
        """Moves partitions as their loads require."""
        async with self._balancing:
            now = self._learn()
            if any(not self.balance.has_ordered(move) for move in self.orders.open()):
                return  # orders of people come first
            for action in await self._env.compute.run(partial(self.balance.tick, now)):
                await self._act(action)
            if not self.orders.open():
                await self._place_standby(await self._env.compute.run(partial(self.balance.relocation, now)))
            drained = self.balance.drained()
        for node in drained:
            await self.order(MoveOrder("drain", "", node, "", 0))

    async def _act(self, action: Action) -> None:
        """Carries out an action of the balancer."""
        if not isinstance(action, MovePartition):
            self._env.trace.event("balance", do=type(action).__name__, node=action.node, why=action.reason)
            say(
                f"{COORDINATOR}: {TOLD[type(action)].format(node=action.node, reason=action.reason)}",
                event="balance",
                target=action.node,
            )
            return
        try:
            (move,) = self.orders.ask_all([_asked(action)], action.reason, by_load=True)
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
            await self._keep_moves(self.orders.ask_all([(*relocation, None)], "its place by load", by_load=True))
        except MoveRefused as error:
            self._env.trace.event("balance_refused", why=str(error))

    def _learn(self) -> int:
        """Gives the balancer the present state; returns the time."""
        now = self._env.clock.monotonic_us()
        self.balance.learn(now, self.orders.all(), self._env.clock.wall_us())
        return now

    def _refusal(self, directory: Directory, partition: PartitionId, node: NodeId, role: Role) -> str | None:
        """Returns why a node cannot take a partition: its share of X would be too small, or the node full (M5)."""
        if (drain := self._drain_of(node)) is not None:
            return f"{node} is being drained by {drain}; {_LATER}"
        shares = SharesOfX(self._plan, directory)
        if (why := shares.refused(directory.placement, partition, node)) is not None:
            return f"on {node} {why}"
        if role is not Role.ACTIVE:
            return None
        return self.balance.full(directory, partition, node, self._env.clock.monotonic_us())

    def _drain_of(self, node: NodeId) -> Move | None:
        """Returns a move that drains a node."""
        return next((move for move in self.orders.open() if move.drain == node), None)

    # --- moves that people order ---

    async def order(self, message: MoveOrder) -> MoveAnswer:
        """Answers an order to move."""
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
            await self._store.keep_moves(self._plan.fingerprint, self.orders.all())
        except MoveRefused as error:
            return MoveAnswer(1, 0, str(error))
        except OSError as error:
            return MoveAnswer(1, 0, f"{move} is cancelled, but a coordinator that restarts goes on with it: {error}")
        return MoveAnswer(move.number, move.number, "")

    def _take_move(self, message: MoveOrder, now: int) -> list[Move]:
        """Makes the moves of an order.  Raises MoveRefused."""
        directory, source = self._view.directory, NodeId(message.source)
        if message.verb == "move":
            orders, reason, drain = [(self._partition(message.partition), NodeId(message.target))], "ordered", None
        else:
            if (begun := self._drain_of(source)) is not None:
                raise MoveRefused(f"{source} is being drained already: {begun} has not ended")
            if coming := [move for move in self.orders.open() if move.target == source]:
                raise MoveRefused(f"{source} cannot be drained: {coming[0]} has not ended; {_LATER}")
            orders = targets(directory, source, self._view.alive, self._refusal)
            reason, drain = f"{source} is drained", source
        asked = [(p, source, to, self._predicted(p, source, to, now)) for p, to in orders]
        return self.orders.ask_all(asked, reason, drain=drain)

    def _predicted(self, partition: PartitionId, source: NodeId, target: NodeId, now: int) -> PredictedMove | None:
        """Predicts the fastest way to move the state; None: unknown.  Raises MoveRefused."""
        directory = self._view.directory
        if target not in directory.nodes or directory.roles[partition].get(source) is not Role.ACTIVE:
            return None  # it will be refused, or needs no state
        predicted = self.balance.predicted(partition, target, now)
        if isinstance(predicted, RefusedMove):
            raise MoveRefused(f"{partition} cannot move from {source} to {target}: {predicted.reason}")
        return predicted

    async def _relieve(self, now: int, *, dry_run: bool) -> MoveAnswer:
        """Answers an order to relieve full nodes, or to say what would be moved."""
        orders, full = await self._env.compute.run(partial(self.balance.proposed, now))
        lines = [
            *self.balance.remarks(now),
            *(f"{still_full.node} stays full: {still_full.reason}" for still_full in full),
        ]
        remarks = [Remark(text) for text in lines[:MANY]]
        asked = [_asked(order) for order in orders[:MANY]]
        proposed = [
            ProposedMove(*p, source, target, self.orders.expected_us(round(move.seconds * SECOND), move.source))
            for p, source, target, move in asked
        ]
        if dry_run or not asked:
            return MoveAnswer(1, 0, "", proposed, remarks)
        try:
            return await self._keep_moves(self.orders.ask_all(asked, orders[0].reason, by_load=True), proposed, remarks)
        except MoveRefused as error:
            return MoveAnswer(1, 0, str(error))

    async def _keep_moves(
        self, moves: Sequence[Move], proposed: Sequence[ProposedMove] = (), remarks: Sequence[Remark] = ()
    ) -> MoveAnswer:
        """Stores ordered moves; they count once they are on our disk (M1)."""
        try:
            await self._store.keep_moves(self._plan.fingerprint, self.orders.all())
        except OSError as error:
            self.orders.forget(moves)
            self._store.note_moves(self._plan.fingerprint, self.orders.all())
            return MoveAnswer(1, 0, f"the order cannot be kept: {error}")
        self.orders.stored(moves)
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
        """Returns a partition by its name, or by its unit's name if that has only one.  Raises MoveRefused."""
        partitions = self._view.directory.roles
        for id in partitions:
            if name == str(id) or (name == id.unit and self._plan.unit[id.unit].partitions == 1):
                return id
        raise MoveRefused(f"there is no partition {name!r}; there are {some(map(str, partitions))}")


def _asked(order: MovePartition) -> tuple[PartitionId, NodeId, NodeId, PredictedMove]:
    return order.partition, order.source, order.target, PredictedMove(order.seconds, order.state)
