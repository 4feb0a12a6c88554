"""Allowances of the checkers: how long each step of a recovery may take."""

from __future__ import annotations

from dataclasses import dataclass, replace

from consistency.checking.schedule import World
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.plan.timing import depth, stall_us


@dataclass(frozen=True, slots=True)
class Bounds:
    """Allowances, microseconds.

    Attributes:
      settle_us: from a change until all processes have noticed and connected anew.
      correct_us: from the moment when a tree is whole again until all its replicas have corrected, in turn.
      resettle_us: from a change for the better, since a consumer may turn to another producer; plus X of each unit.
      processing_us: P, the time that a result takes besides waiting: networks, computing, noise.
      request_us: a request to a replica that may be gone: the connection, and the answer.
      rounds_per_second: rounds of the scheduler in a second of virtual time.
      turn_us: duration of a slice of a replica's work.
      in_turn: number of replicas that correct one after the other, level by level.
      bucket_us: of the plan.
    """

    settle_us: int
    correct_us: int
    resettle_us: int
    processing_us: int
    request_us: int
    rounds_per_second: int = 20_000
    turn_us: int = 0
    in_turn: int = 1
    bucket_us: int = 1

    @classmethod
    def of(cls, plan: Plan, directory: Directory, *, noise_us: int = 0) -> Bounds:
        """Derives the allowances from a plan's timing.

        A switch takes four heartbeats to notice, a connection, the stall of a feed that looks alive, and a second where
        a producer had refused before.  Correcting takes each replica of a level a round of requests.

        Args:
          noise_us: added to everything, for the machine.
        """
        timing = plan.timing
        channels = [
            c for partition in directory.placement for c in plan.unit[partition.unit].channels_in(partition.partition)
        ]
        stall = max((stall_us(plan, c) for c in channels), default=0)
        levels = max((depth(plan, u) for u in plan.units), default=0)
        replicas = max((len(directory.hosts(partition)) for partition in directory.placement), default=1)
        settle = 6 * timing.heartbeat_us + timing.connect_us + stall + 1_000_000
        correct = levels * replicas * 2 * timing.request_us
        resettle = 6 * timing.heartbeat_us
        processing = 150_000 + 50_000 * levels
        request = timing.request_us + timing.connect_us
        bounds = cls(*(us + noise_us for us in (settle, correct, resettle, processing, request)))
        return replace(bounds, in_turn=levels * replicas, bucket_us=plan.bucket_us)

    def recover_us(self, partners: int) -> int:
        """Returns the time until a starting replica has a state, besides X: requests to its partners, and its disk."""
        return self.settle_us + (partners + 1) * self.request_us

    def work_us(self, came_us: int) -> int:
        """Returns a replica's time for so much tuple time: a turn for each bucket."""
        return self.turn_us * came_us // self.bucket_us

    def among(self, world: World) -> Bounds:
        """Returns the allowances in a world with late links and slow processes.

        To notice and to connect anew takes a question and an answer each for the heartbeat, the connection, the
        greeting and the subscription.
        """
        if not world.late and not world.busy:
            return self
        turns_us = round(8 * world.late_us)

        def slower(us: int) -> int:
            return round(us * world.times_slower)

        return replace(
            self,
            settle_us=slower(self.settle_us) + turns_us,
            correct_us=slower(self.correct_us) + turns_us,
            resettle_us=slower(self.resettle_us) + turns_us,
            processing_us=slower(self.processing_us),
            request_us=slower(self.request_us) + turns_us,
            turn_us=slower(self.turn_us),
        )


#: Buffers smaller than this, in bytes, may be full before a failure ends.
_LITTLE_ROOM = 1 << 20


def has_room(plan: Plan) -> bool:
    """Do buffers hold the output of a failure of some length?  A full one blocks (A2), and P1 requires room."""
    return min(plan.limits.output_bytes, plan.limits.input_bytes) >= _LITTLE_ROOM
