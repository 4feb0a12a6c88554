"""How long things may take: the allowances that the checkers grant."""

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
      settle_us: from a change until everybody has noticed, and has connected anew.
      correct_us: from the moment when a tree is whole again until all its replicas have corrected, in turn.
      resettle_us: from a change for the better, since a consumer may turn to another producer; beside X of each unit.
      processing_us: P, the time that a result takes besides waiting: networks, computing, noise.
      request_us: a question to a replica that may be gone: the connection, and the answer.
      rounds_per_second: rounds of the scheduler in a second of virtual time.
      turn_us: what each slice of a replica's work takes.
      in_turn: replicas that correct one after the other, those of one level behind those of the one before it.
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
        """What a plan's timing implies.

        A switch takes four heartbeats to notice, a connection, the stall of a feed that looks alive, and a second where
        a producer had refused before.  Correcting takes each replica of a level a round of requests.

        Args:
          noise_us: what the machine may add to everything.
        """
        timing = plan.timing
        channels = [c for of in directory.placement for c in plan.unit[of.unit].channels_in(of.partition)]
        stall = max((stall_us(plan, c) for c in channels), default=0)
        levels = max((depth(plan, u) for u in plan.units), default=0)
        replicas = max((len(directory.hosts(of)) for of in directory.placement), default=1)
        settle = 6 * timing.heartbeat_us + timing.connect_us + stall + 1_000_000
        correct = levels * replicas * 2 * timing.request_us
        resettle = 6 * timing.heartbeat_us
        processing = 150_000 + 50_000 * levels
        request = timing.request_us + timing.connect_us
        found = cls(*(us + noise_us for us in (settle, correct, resettle, processing, request)))
        return replace(found, in_turn=levels * replicas, bucket_us=plan.bucket_us)

    def recover_us(self, partners: int) -> int:
        """Until a replica that begins has a state to go on from, beside X: it asks its partners, and its disk."""
        return self.settle_us + (partners + 1) * self.request_us

    def work_us(self, came_us: int) -> int:
        """What a replica takes for so much tuple time: a turn for each bucket."""
        return self.turn_us * came_us // self.bucket_us

    def among(self, world: World) -> Bounds:
        """The same allowances where links are late and processes slow.

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


#: Buffers with less room than this, bytes, may be full before a failure ends.
_LITTLE_ROOM = 1 << 20


def has_room(plan: Plan) -> bool:
    """Whether buffers hold what a failure of a while leaves: one that is full blocks (A2), and P1 asks for room."""
    return min(plan.limits.output_bytes, plan.limits.input_bytes) >= _LITTLE_ROOM
