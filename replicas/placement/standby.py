"""A passive replica, which holds the newest checkpoint of a partition and runs nothing.  Pure.

It acknowledges the positions of the older of the two checkpoints on its disk, because the newer one may turn out to be
damaged; before the second one it acknowledges nothing.  It acknowledges at once what both copies of a checkpoint log
hold.  So it can always start from its disk (rules H1-H8, G9).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from replicas.checkpoint.store import origins_of
from replicas.checkpoint.turns import SnapshotTurns
from replicas.consumer.feed import Action
from replicas.consumer.input import Input
from spe.errors import OtherOrigin
from spe.plan.directory import Directory
from spe.plan.nodes import Reconcile
from spe.plan.plan import Plan
from spe.status import StandbyStatus
from spe.stream.ids import Channel, ReplicaId
from spe.stream.names import NodeId, NodeState
from spe.wire.messages.feeds import OutputStatus

#: A checkpoint is requested early where an upstream log has reached this fill and is kept for us:
FULL = 0.5
#: our acknowledgement lies within this oldest share of it.
_AT_THE_LINE = 0.25


#: A log counts as two checkpoints, for it is held twice (H2).
COPIES_HELD: Final = 2


class Standby:
    """An owner of acknowledgements (replicas.consumer.upstream) that reads nothing.

    Args:
      plan: the cluster.
      id: id of the replica that the standby would run.
      now: monotonic microseconds.
    """

    def __init__(self, plan: Plan, directory: Directory, id: ReplicaId, now: int) -> None:
        self.id = id
        self.name = str(id)
        self.inputs: Sequence[Input] = ()
        self._plan = plan
        self._directory = directory
        self._channels = plan.unit[id.unit].channels_in(id.partition)
        self._output = Channel(plan.unit[id.unit].outputs[0], id.partition)
        self._every_us = directory.standbys[id.of].every_us
        #: Input positions of the newest checkpoint, and of the one before it, which we acknowledge.
        self._newest = self._acknowledged = [0 for _ in self._channels]
        #: Where the inputs of the newest checkpoint come from (S6).
        self._origins: list[str] = []
        self._told: dict[str, OutputStatus] = {}
        #: The node whose log we follow; "": none.
        self._maker = ""
        #: Position of the furthest maker when we asked last.
        self._furthest: tuple[int, int] | None = None
        #: Progress of the newest checkpoint, as its maker's heartbeats tell: (last id, frontier).
        self._made_from: tuple[int, int] | None = None
        self._looked_at = now
        #: Progress of the maker when we asked: its checkpoint is no older.
        self._asked_at: tuple[int, int] | None = None
        self._crowded: set[str] = set()
        #: Failed requests since the last checkpoint that came.
        self._failures = 0
        self._turns = SnapshotTurns(pause_us=self._every_us // 4, longest_us=4 * self._every_us)
        self.checkpoints = 0
        #: Reason why no checkpoint could be taken last time; "" if one was.
        self.trouble = ""

    # --- an owner ---

    def choose(self, now: int, peer: str | None) -> list[tuple[int, Action]]:
        return []

    def redirect(self, directory: Directory, now: int) -> list[tuple[int, Action]]:
        self._directory = directory
        known = directory.hosts(self.id.of)
        for peer in [p for p in self._told if p not in known]:
            self.lost(peer)
        return []

    def acks(self) -> list[tuple[Channel, int]]:
        return list(zip(self._channels, self._acknowledged, strict=True))

    def substream(self, channel: Channel) -> tuple[int, int]:
        raise AssertionError(f"{self.name} reads nothing")

    def delivered(self, rows: int, nbytes: int, step_ns: int) -> None:
        raise AssertionError(f"{self.name} reads nothing")

    async def room(self, index: int) -> None:
        raise AssertionError(f"{self.name} reads nothing")

    def partners(self) -> dict[str, NodeState]:
        """Returns the nodes known to run the partition, with their states."""
        return {peer: NodeState(output.state) for peer, output in self._told.items()}

    # --- news ---

    def heard(self, peer: str, outputs: Mapping[Channel, OutputStatus]) -> None:
        """Takes a heartbeat answer of a node or a source."""
        output = outputs.get(self._output)
        if output is None:
            self._told.pop(peer, None)
        else:
            self._told[peer] = output
        acks = zip(self._channels, self._acknowledged, strict=True)
        crowded = any(_holds_up(outputs[channel], ack) for channel, ack in acks if channel in outputs)
        (self._crowded.add if crowded else self._crowded.discard)(peer)

    def lost(self, peer: str) -> None:
        self._told.pop(peer, None)
        self._crowded.discard(peer)

    def wish(self, now: int) -> str | None:
        """Returns the node to ask for a checkpoint now: the furthest one, but nodes that failed to give one come last.

        The node whose log we follow is asked again, unless it is behind by more than an interval: another log would
        have to be fetched as a whole.  None: it is not time, or there is nothing new.
        """
        if now - self._looked_at < (self._every_us // 4 if self._crowded or self._failures else self._every_us):
            return None
        able = {p: (o.last_id, o.frontier) for p, o in self._told.items() if o.state in self._giving(p)}
        in_turn = sorted(able, key=lambda p: (able[p], p), reverse=True)
        if self._maker in able and (self._furthest is None or able[self._maker] >= self._furthest):
            in_turn.remove(self._maker)
            in_turn.insert(0, self._maker)
        best = self._turns.next(in_turn, now)
        if best is None:
            return None
        # Two checkpoints are held even of a partition without input.
        held = self._acknowledged == self._newest and self.checkpoints >= COPIES_HELD
        may_move = bool(self._crowded) and best == self._maker  # its rewriting advances acknowledgements without output
        if held and able[best] == self._made_from and not may_move:
            return None
        assert best in self._told, "H2: a standby asks a node that has told what it runs"
        self._looked_at = now
        self._asked_at, self._furthest = able[best], max(able.values())
        return best

    def _giving(self, maker: str) -> Collection[NodeState]:
        """Returns the states in which a maker gives a checkpoint.

        With undo/redo a tainted maker would have to remake a consistent state: only where a producer is full because
        of us.
        """
        if (
            self.id.of not in self._directory.logs
            and self._directory.share(self._plan, self.id.unit, NodeId(maker)).reconcile is Reconcile.UNDO
            and not self._crowded
        ):
            return (NodeState.STABLE,)
        return (NodeState.STABLE, NodeState.UP_FAILURE, NodeState.STABILIZATION)

    def failed(self, maker: str, now: int) -> int:
        """Notes a failed request for a checkpoint; returns the number of failures in a row."""
        self._turns.failed(maker, now)
        self._failures += 1
        return self._failures

    def is_behind(self, maker: str, now: int) -> None:
        """Notes that the checkpoint of a maker is older than ours: others are asked first."""
        self._turns.failed(maker, now)

    def came(self, maker: str) -> None:
        """Notes that the requested checkpoint has come, usable or not."""
        self._turns.came(maker)
        self._failures = 0

    def useful(self, snapshot: Mapping[str, Any]) -> bool:
        """Is a checkpoint no older than ours?  Upstream may have truncated what an older one needs.

        Raises:
          OtherOrigin: it was made from other source logs.
        """
        return self.continues(snapshot["positions"], origins_of(snapshot))

    def continues(self, positions: Sequence[Any], origins: Sequence[str]) -> bool:
        """Are these input positions and origins no older than ours?  Raises OtherOrigin."""
        if any(a and b and a != b for a, b in zip(self._origins, origins)):
            raise OtherOrigin(f"{self.name} holds results of the source logs {self._origins}, these are of {origins}")
        return all(int(p) >= held for p, held in zip(positions, self._newest, strict=True))

    def holds(self, snapshot: Mapping[str, Any]) -> None:
        """Notes that a checkpoint is on disk: a requested one, or one from before the start."""
        self._acknowledged, self._newest = self._newest, [int(p) for p in snapshot["positions"]]
        self._origins = origins_of(snapshot)
        self._made_from = self._asked_at
        self.checkpoints += 1

    def holds_if_newer(self, checkpoint: Mapping[str, Any] | None) -> None:
        """Takes a checkpoint that was on disk at the start, perhaps together with a log."""
        try:
            if checkpoint is not None and self.useful(checkpoint):
                self.holds(checkpoint)
        except OtherOrigin as error:  # a start from it reports the same error
            self.trouble = str(error)

    @property
    def crowded(self) -> bool:
        """Is a producer's log filling up because of us?"""
        return bool(self._crowded)

    def follows(self, positions: Sequence[int], origins: Sequence[str], made: tuple[int, int], maker: str = "") -> None:
        """Notes that both copies of the log hold the state up to these positions (G9).

        Args:
          made: progress of the log's replica, as a heartbeat told it before.
          maker: the node whose log it is; "": it was on disk at the start.
        """
        self._maker = maker
        self._acknowledged = self._newest = list(positions)
        self._origins = list(origins)
        self._made_from = made
        # A log on the disk may be of other source logs; a maker's is not (S6).
        self.checkpoints = max(self.checkpoints + 1, COPIES_HELD if maker else 0)

    def status(self) -> StandbyStatus:
        return StandbyStatus(
            unit=self.id.unit,
            partition=self.id.partition,
            checkpoints=self.checkpoints,
            trouble=self.trouble,
            positions={str(c): p for c, p in zip(self._channels, self._newest, strict=True)},
            makers=tuple(sorted(p for p, o in self._told.items() if o.state is not NodeState.RECOVERING)),
        )


def _holds_up(output: OutputStatus, ack: int) -> bool:
    """Is a producer's log filling up because we do not acknowledge more?"""
    before = output.first - 1
    return output.fill >= FULL and ack - before <= _AT_THE_LINE * (output.last_id - before)
