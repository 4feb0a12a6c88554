"""The input side of a replica: which producers its inputs read, and in which condition these are.  Pure."""

from __future__ import annotations

from collections.abc import Sequence

from consistency.dpc.skew import InputSkew
from operators.sunion.sunion import SUnion
from replicas.consumer.feed import Action
from replicas.consumer.input import Input, choose_among
from spe.plan.describe import show_duration
from spe.plan.directory import Directory
from spe.plan.nodes import Node
from spe.plan.plan import Plan
from spe.plan.timing import stall_us
from spe.stream.ids import ReplicaId
from spe.stream.times import BEFORE_TIME


class InputSide:
    """Implements consistency.dpc.events.InputsView.

    Args:
      plan: the cluster.
      id: the replica that has the inputs.
      sunion: takes the elements.
      now: monotonic microseconds.

    Attributes:
      installed: the replica has its state, so inputs may be read (A3).
      started_at: when the replica was made, or got its state.
    """

    def __init__(self, plan: Plan, directory: Directory, id: ReplicaId, sunion: SUnion, now: int) -> None:
        node = self._node = directory.share(plan, id.unit, id.node)
        self._plan = plan
        self._sunion = sunion
        self.inputs = [
            Input(
                channel,
                list(directory.producer_addresses(plan, channel)),
                port,
                consumer=str(id),
                stall_us=stall_us(plan, channel),
                useless_us=node.alpha_x_us // 2,
                x_us=node.x_us,
            )
            for channel, port in zip(plan.unit[id.unit].channels_in(id.partition), sunion.inputs, strict=True)
        ]
        self.installed = False
        self.started_at = now
        self._skew = InputSkew(sunion, bucket_us=plan.bucket_us, alpha_x_us=node.alpha_x_us, x_us=node.x_us)

    # --- what the unit replica asks ---

    def fresh(self, now: int) -> Sequence[bool]:
        return [i.fresh(now) for i in self.inputs]

    def arriving(self, now: int) -> bool:
        return all(i.arriving(now) for i in self.inputs)

    def caught_up(self) -> bool:
        return all(i.caught_up() for i in self.inputs)

    def started(self, now: int) -> bool:
        if not self.installed:
            return False
        return now - self.started_at >= self._node.x_us or all(i.port.frontier > BEFORE_TIME for i in self.inputs)

    def upstream_full(self) -> bool:
        return any(p.full for i in self.inputs for p in i.producers.values() if p.alive)

    # --- what the shell asks ---

    def choose(self, now: int, peer: str | None = None) -> list[tuple[int, Action]]:
        """Returns connection work with its input index, for inputs that may read ``peer``; None: for all inputs."""
        return choose_among(self.inputs, now, peer)

    def set_node(self, node: Node) -> None:
        """Sets X and α (X1)."""
        self._node = node
        self._skew.alpha_x_us, self._skew.x_us = node.alpha_x_us, node.x_us
        for input in self.inputs:
            input.set_waits(useless_us=node.alpha_x_us // 2, x_us=node.x_us)

    def redirect(self, directory: Directory) -> list[tuple[int, Action]]:
        """Follows a changed directory; returns connection work with its input index."""
        return [
            (at, action)
            for at, input in enumerate(self.inputs)
            for action in input.set_producers(directory.producer_addresses(self._plan, input.channel))
        ]

    def origins(self) -> list[str]:
        """Returns the origin of the log that each input has read (S6); "" before the first greeting."""
        return [i.origin for i in self.inputs]

    def goes_on(self, origins: Sequence[str]) -> None:
        """Restricts the inputs to logs of these origins (S6)."""
        for input, origin in zip(self.inputs, origins, strict=True):
            assert input.main is None, "S6: the log that an input continues is known before it reads"
            input.origin = origin

    def watch_skew(self, now: int) -> list[str]:
        """Returns inputs that begin to lag though nothing has failed (S5), once per episode; call it at ticks."""
        if not self._skew.lagging and self._sunion.clocks.waited(now) <= self._node.alpha_x_us:
            return []  # the usual case
        return [self._lag(at) for at in self._skew.watch(now, [i.live(now) for i in self.inputs])]

    def skew(self) -> list[str]:
        """Describes the inputs that lag now."""
        return [self._lag(at) for at in sorted(self._skew.lagging)]

    def _lag(self, at: int) -> str:
        behind, ahead = show_duration(self._skew.behind_us(at)), self.inputs[self._skew.foremost()].channel
        return f"{self.inputs[at].channel} lags {ahead} by {behind} of tuple time"

    def shift(self, gap_us: int, now: int) -> None:
        """Discounts ``gap_us`` during which this process was frozen: data in its sockets are not late (T1)."""
        assert gap_us >= 0, "T1: a freeze puts deadlines off, never forward"
        self._sunion.waits.shift(gap_us, now)
        self._skew.shift(gap_us, now)
        self.started_at = min(self.started_at + gap_us, now)
        for input in self.inputs:
            input.shift(gap_us, now)
