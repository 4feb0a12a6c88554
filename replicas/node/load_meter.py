"""Measures the load of a node's replicas, one sample of each per 10 s (rule L1).  Pure.

Each replica's meter adds up how long its steps took: decoding its input, advancing, encoding its output and snapshots.
A step's time is no CPU time, for others may have had the CPU meanwhile, and some work is in no step: the kernel's, for
sockets, and that of waking tasks.  So once per sample the CPU time of the process is shared out in proportion to the
steps: the loads of a node's replicas are together what the node needs, and a step costs two looks at a cheap clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from replicas.planning.load import SAMPLE_US, LoadSample
from spe.stream.names import NodeState
from spe.stream.times import SECOND

#: Time between two looks at what replicas hold, microseconds.
LOOK_US: Final = SAMPLE_US // 4


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
    """Measures one replica, which begins as RECOVERING.

    Attributes:
      latest: the newest sample; None: there was none.
      taken_at: time of the newest sample, monotonic microseconds.
    """

    def __init__(self) -> None:
        self.latest: LoadSample | None = None
        self.taken_at = 0
        self._told = True
        #: STABLE now, and all the time since the last look.
        self._stable = self._was_stable = False
        self._step_ns = self._rows = self._nbytes = 0
        self._memory = self._state = 0

    # --- what happens; nanoseconds, bytes, rows ---

    def became(self, state: NodeState) -> None:
        """Sets the replica's state."""
        self._stable = state is NodeState.STABLE
        self._was_stable = self._was_stable and self._stable

    def received(self, rows: int, nbytes: int, step_ns: int) -> None:
        """Counts input that was read, decoded and taken in."""
        self._rows += rows
        self._nbytes += nbytes
        self._step_ns += step_ns

    def worked(self, step_ns: int) -> None:
        """Counts a step that advanced the replica or encoded a snapshot of it."""
        self._step_ns += step_ns

    def sent(self, nbytes: int, step_ns: int) -> None:
        """Counts output that was encoded for a reader."""
        self._nbytes += nbytes
        self._step_ns += step_ns

    # --- samples ---

    def step_ns(self) -> int:
        """Returns how long the steps took since the last look."""
        return self._step_ns

    def holds(self, memory: int, state: int) -> None:
        """Notes memory and state, see :class:`ReplicaMeasure`.  The largest counts, since windows fill and empty."""
        self._memory, self._state = max(self._memory, memory), max(self._state, state)

    def take(self, now: int, span_us: int | None, cpu: float) -> None:
        """Takes a sample, if the replica was STABLE all the time, and starts the next one.

        Args:
          span_us: length of the sample, which ends now; None: take no sample.
          cpu: share of one core that the replica used.
        """
        if self._was_stable and span_us is not None:
            seconds = span_us / SECOND
            self.latest = LoadSample(
                cpu=cpu,
                memory=float(self._memory),
                network=self._nbytes / seconds,
                rows=self._rows / seconds,
                state=float(self._state),
            )
            self.taken_at, self._told = now, False
        self._step_ns = self._rows = self._nbytes = self._memory = self._state = 0
        self._was_stable = self._stable

    def news(self, now: int) -> LoadSample | None:
        """Returns the newest sample once, unless it is too old."""
        if self._told or now - self.taken_at >= SAMPLE_US:
            return None
        self._told = True
        return self.latest


class NodeMeter:
    """Measures all replicas of a node.

    Args:
      now: monotonic microseconds.
      cpu_ns: CPU time of the process, nanoseconds.
    """

    def __init__(self, now: int, cpu_ns: int) -> None:
        self._begun = self._looked = now
        self._cpu_ns = cpu_ns

    def due(self, now: int) -> bool:
        """Is it time to look?  At multiples of LOOK_US, so that a late look does not delay the next."""
        return now // LOOK_US != self._looked // LOOK_US

    def look(self, now: int, cpu_ns: int, replicas: Sequence[ReplicaMeasure]) -> None:
        """Notes what each replica holds, and takes a sample of each where the time of one is over.

        None is taken of a time that is much longer than a sample's, or much shorter: the process did not run all the
        time, or has just begun.
        """
        assert now >= self._looked, "L1: samples follow each other"
        assert cpu_ns >= self._cpu_ns, "L1: a load is never negative"
        self._looked = now
        for meter, memory, state in replicas:
            meter.holds(memory, state)
        span_us = now - self._begun
        if now // SAMPLE_US == self._begun // SAMPLE_US:
            return
        steps_ns = sum(replica.meter.step_ns() for replica in replicas)
        share = (cpu_ns - self._cpu_ns) / (1_000 * span_us) / steps_ns if steps_ns else 0.0
        whole = SAMPLE_US // 2 <= span_us <= SAMPLE_US + SAMPLE_US // 2
        for meter, *_ in replicas:
            meter.take(now, span_us if whole else None, meter.step_ns() * share)
        self._begun, self._cpu_ns = now, cpu_ns
