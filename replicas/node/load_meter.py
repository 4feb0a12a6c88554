"""What the replicas of a node need: a sample of each per 10 s (rule L1).  Pure.

Each replica's meter adds up how long its steps took: decoding its input, advancing, encoding its output and snapshots.
A step's time is no CPU time, for others may have had the CPU meanwhile, and some work is in no step: the kernel's, for
sockets, and that of waking tasks.  So once per sample the CPU time of the process is shared out in proportion to the
steps: the loads of a node's replicas are together what the node needs, and a step costs two looks at a cheap clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from replicas.planning.load import SAMPLE_US, LoadSample
from spe.stream.names import NodeState
from spe.stream.times import SECOND


class ReplicaMeasure(NamedTuple):
    """A replica to be sampled.

    Attributes:
      memory: bytes that it has in memory.
      state: bytes of a snapshot.
    """

    meter: ReplicaMeter
    memory: int
    state: int


class ReplicaMeter:
    """Of one replica; it begins as RECOVERING.

    Attributes:
      latest: the newest sample; None: there was none.
      taken_at: when, monotonic microseconds.
    """

    def __init__(self) -> None:
        self.latest: LoadSample | None = None
        self.taken_at = 0
        self._told = True
        #: STABLE now, and all the time since the last look.
        self._stable = self._was_stable = False
        self._step_ns = self._rows = self._nbytes = 0

    # --- what happens; nanoseconds, bytes, rows ---

    def became(self, state: NodeState) -> None:
        """The replica's state from now on."""
        self._stable = state is NodeState.STABLE
        self._was_stable = self._was_stable and self._stable

    def received(self, rows: int, nbytes: int, step_ns: int) -> None:
        """Input was read, decoded and taken in."""
        self._rows += rows
        self._nbytes += nbytes
        self._step_ns += step_ns

    def worked(self, step_ns: int) -> None:
        """It has advanced, or a snapshot of it was encoded."""
        self._step_ns += step_ns

    def sent(self, nbytes: int, step_ns: int) -> None:
        """Output was encoded for a reader."""
        self._nbytes += nbytes
        self._step_ns += step_ns

    # --- samples ---

    def step_ns(self) -> int:
        """How long its steps took since the last look."""
        return self._step_ns

    def look(self, now: int, span_us: int | None, cpu: float, memory: int, state: int) -> None:
        """Takes a sample, if it was STABLE all the time, and begins anew.

        Args:
          span_us: the sample's time, which ends now; None: none is to be taken.
          cpu: how much of one core it has needed.
          memory, state: see :class:`ReplicaMeasure`.
        """
        if self._was_stable and span_us is not None:
            seconds = span_us / SECOND
            self.latest = LoadSample(
                cpu=cpu,
                memory=float(memory),
                network=self._nbytes / seconds,
                rows=self._rows / seconds,
                state=float(state),
            )
            self.taken_at, self._told = now, False
        self._step_ns = self._rows = self._nbytes = 0
        self._was_stable = self._stable

    def news(self, now: int) -> LoadSample | None:
        """The newest sample, once, and while it is news."""
        if self._told or now - self.taken_at >= SAMPLE_US:
            return None
        self._told = True
        return self.latest


class NodeMeter:
    """Of all replicas of a node.

    Args:
      now: monotonic microseconds.
      cpu_ns: CPU time of the process, nanoseconds.
    """

    def __init__(self, now: int, cpu_ns: int) -> None:
        self._begun = now
        self._cpu_ns = cpu_ns

    def due(self, now: int) -> bool:
        """Is a sample's time over?  It ends at a multiple of it: a late look makes no later one late."""
        return now // SAMPLE_US != self._begun // SAMPLE_US

    def look(self, now: int, cpu_ns: int, replicas: Sequence[ReplicaMeasure]) -> None:
        """Takes a sample of each replica.

        None is taken of a time that is much longer than a sample's, or much shorter: the process did not run all the
        time, or has just begun.
        """
        span_us = now - self._begun
        steps_ns = sum(one.meter.step_ns() for one in replicas)
        share = (cpu_ns - self._cpu_ns) / (1_000 * span_us) / steps_ns if steps_ns else 0.0
        whole = SAMPLE_US // 2 <= span_us <= SAMPLE_US + SAMPLE_US // 2
        for meter, memory, state in replicas:
            meter.look(now, span_us if whole else None, meter.step_ns() * share, memory, state)
        self._begun, self._cpu_ns = now, cpu_ns
