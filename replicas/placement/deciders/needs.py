"""The needs of partitions: cores, memory, and time to restore (rule O1).  Pure."""

from __future__ import annotations

from collections.abc import Mapping

from replicas.planning.recovery.schedule import MOVED, NOISE
from spe.plan.directory import Directory, ExpectedLoad
from spe.plan.plan import Plan
from spe.stream.ids import PartitionId
from spe.stream.times import SECOND


class PartitionNeeds:
    """Knows the cores, memory and time to restore that partitions need.

    Args:
      known: needs stored by the previous coordinator, shares of a core.
      memory: memory stored by the previous coordinator, bytes.

    Attributes:
      load: shares of a core, as far as known: the expected share, or the measured one if that is larger.
      memory: measured bytes of partitions.
      work: seconds that an install takes.
      sources: names of the sources that each partition reads, directly or through others.
      rates: last measured tuples per second of each source.
    """

    def __init__(
        self, plan: Plan, directory: Directory, known: Mapping[PartitionId, float], memory: Mapping[PartitionId, float]
    ) -> None:
        self.memory: dict[PartitionId, float] = {id: size for id, size in memory.items() if id in directory.roles}
        self._kept_memory: Mapping[PartitionId, float] = dict(self.memory)
        self._expected = directory.expected_cores
        expected = {id: directory.recovery.loads.get(id.unit, ExpectedLoad()) for id in directory.roles}
        self.load = dict(self._expected)
        self.work = {
            id: expectation.install_us[id.partition % len(expectation.install_us)] / SECOND
            for id, expectation in expected.items()
            if expectation.install_us
        }
        self._measured: dict[PartitionId, float] = {}
        self.rates: dict[str, float] = {}
        self.sources = {id: _sources_of(plan, id) for id in directory.roles}
        #: Total rate of the sources of each partition when its load was measured.
        self._fed: dict[PartitionId, float] = {}
        self._kept: Mapping[PartitionId, float] = {id: load for id, load in known.items() if id in directory.roles}
        self.measured(self._kept)

    def measured(self, loads: Mapping[PartitionId, float]) -> Mapping[PartitionId, float]:
        """Takes measured loads of some partitions, shares of a core; those of others stay.

        Returns:
          Their new needs, at least those that the configuration expects.
        """
        assert all(load >= 0 for load in loads.values()), "L1: a load is a share of a core"
        self._measured |= loads
        self._fed |= {id: fed for id in loads if (fed := self._input_of(id)) is not None}
        loads = {id: max(load, self._expected.get(id, 0.0)) for id, load in loads.items()}
        self.load |= loads
        return loads

    def fed(self, rates: Mapping[str, float]) -> Mapping[PartitionId, float]:
        """Takes tuples per second of sources; rates of others stay.

        Returns:
          Present needs of partitions.  Lost ones cannot be measured: their needs grow in proportion to their sources.
        """
        assert all(rate >= 0 for rate in rates.values()), "O6: sources give rows"
        self.rates |= rates
        loads = {}
        for id, fed in self._fed.items():
            if fed > 0 and (now := self._input_of(id)) is not None:
                times = now / fed if abs(now - fed) > MOVED * fed else 1.0
                loads[id] = max(self._measured[id] * times, self._expected.get(id, 0.0))
        self.load |= loads
        return loads

    def _input_of(self, id: PartitionId) -> float | None:
        """Returns tuples per second of all sources of a partition; None: not all are known."""
        sources = self.sources[id]
        return sum(self.rates[s] for s in sources) if sources <= self.rates.keys() else None

    def to_keep(self) -> tuple[Mapping[PartitionId, float], Mapping[PartitionId, float]] | None:
        """Returns loads and memory for the next coordinator; None: little has changed since the last call.

        It cannot measure partitions that are lost when it begins.
        """
        if not (_moved(self._measured, self._kept, NOISE) or _moved(self.memory, self._kept_memory, 0.0)):
            return None
        self._kept, self._kept_memory = dict(self._measured), dict(self.memory)
        return self._kept, self._kept_memory


def _moved(after: Mapping[PartitionId, float], before: Mapping[PartitionId, float], noise: float) -> bool:
    """Does a value differ much from before?"""
    return any(abs(now - before.get(id, 0.0)) > MOVED * max(before.get(id, 0.0), noise) for id, now in after.items())


def _sources_of(plan: Plan, id: PartitionId) -> frozenset[str]:
    """Returns the names of the sources that a partition reads, directly or through others."""
    sources: set[str] = set()
    waiting, known = [id], {id}
    while waiting:
        reader = waiting.pop()
        for channel in plan.unit[reader.unit].channels_in(reader.partition):
            if channel.stream in plan.sources:
                sources.add(str(channel.stream))
            elif (maker := plan.maker_of(channel)) not in known:
                known.add(maker)
                waiting.append(maker)
    return frozenset(sources)
