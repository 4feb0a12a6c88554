"""Clusters whose coordinator moves partitions as loads shift (rules L1 to L8), with the loads as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

from consistency.checking.counters import Counters
from replicas.simulation.features.ordered_moves import with_spares
from replicas.simulation.world.clock import sleep_until_us
from spe.config import load_data
from spe.stream.history import History, Note
from spe.stream.ids import PartitionId
from spe.stream.names import UnitId
from spe.stream.times import SECOND

#: Length of a run, seconds: a load is known after 10 to 20 seconds, and must be too high twice.
SECONDS: Final = 44
#: Time of the first fault, seconds: at once, or when loads are known; None: as in other runs.
_FIRST_S: Final = (None, 12, 19, 23)
#: Intervals of checking loads; the load below which a node is to be emptied.
_PERIODS: Final = ("2s", "5s", "10s")
_IDLE: Final = (0.0, 0.1, 0.3)
#: Loads of partitions, cores.
_CORES: Final = (0.02, 0.1, 0.2, 0.4, 0.6)
#: Number of load shifts, and the times within which they occur.
_SHIFTS: Final = (0, 1, 2, 4)
_SHIFT_S: Final = (8, 36)

RowNs = dict[PartitionId, int]


def with_balancing(random: Random, config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with a coordinator that balances and, perhaps, spare nodes."""
    config = with_spares(random, config, "reserve")
    own = {"balance": random.choice(_PERIODS), "idle": random.choice(_IDLE)}
    if random.random() < 0.5:
        own["placement"] = "correlated"
    return {**config, "coordinator": {**(config["coordinator"] or {}), **own}}


def random_start(random: Random) -> int | None:
    """Returns when faults begin, microseconds; None: as in other runs."""
    seconds = random.choice(_FIRST_S)
    return None if seconds is None else seconds * SECOND


def random_loads(random: Random, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the cost of a row on each partition over time, nanoseconds; see :func:`shift_loads`."""
    plan = load_data(config).plan
    rows = sum(float(s["from"]["generator"]["rate"]) for s in config["sources"].values())
    partitions = [(PartitionId(unit.id, at), unit.partitions) for unit in plan.units for at in range(unit.partitions)]

    def one(at_us: int, partition: PartitionId, count: int) -> dict[str, Any]:
        """Returns a load; a partition gets about its share of the rows of all sources, wherever it runs."""
        return {
            "at_us": at_us,
            "partition": str(partition),
            "row_ns": round(random.choice(_CORES) * 1e9 * count / rows),
        }

    loads = [one(0, *each) for each in partitions]
    for _ in range(random.choice(_SHIFTS)):
        at_us = random.randint(*_SHIFT_S) * SECOND
        loads += [one(at_us, *each) for each in random.sample(partitions, min(len(partitions), random.choice([1, 3])))]
    return sorted(loads, key=lambda entry: entry["at_us"])


async def shift_loads(row_ns: RowNs, entries: Sequence[Mapping[str, Any]]) -> None:
    """Applies each entry at its time, in place of the earlier cost of rows on its partition."""
    for entry in entries:
        await sleep_until_us(entry["at_us"])
        unit, _, number = entry["partition"].rpartition("/")
        row_ns[PartitionId(UnitId(unit), int(number))] = entry["row_ns"]


def count_balancing(history: History, counters: Counters) -> None:
    """Counts the moves that the coordinator decided by itself."""
    for event in history:
        if not isinstance(event, Note):
            continue
        if event.name == "balance":
            counters.add(f"balance: {event.text.partition(' ')[0].partition('=')[2]}")
        elif event.name == "balance_refused":
            counters.add("balance: refused")
        elif event.name == "move_ordered" and event.text.endswith(" by_load=True"):
            counters.add("balance: moves")
