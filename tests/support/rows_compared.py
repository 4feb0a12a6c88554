"""Compares results of the engine with those of :mod:`tests.support.row_reference`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from consistency.checking.finding import Finding
from consistency.comparison import ChannelRows
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.world.cluster import SimCluster
from spe.plan.plan import Plan
from spe.stream.batch import Batch, Boundary, Element
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from tests.support.row_operators import END_OF_TIME, Row, plain
from tests.support.row_reference import Results, Stream, row_results


def source_rows(plan: Plan, elements: Mapping[StreamId, Iterable[Element]]) -> tuple[dict[str, Stream], bool]:
    """Rows of sources as plain data, in order of their ids; and whether all sources have ended."""
    found, ended = {}, True
    for stream, each in elements.items():
        rows: list[Row] = []
        frontier = 0
        for element in each:
            if isinstance(element, Batch):
                rows += zip(element.rows.time.tolist(), element.rows.to_tuples(), strict=True)
            elif isinstance(element, Boundary):
                frontier = element.time
        ended &= frontier >= END_OF_TIME
        found[str(stream)] = Stream(tuple(plan.sources[stream].schema.names), rows)
    return found, ended


def differences(reference: Mapping[Channel, ChannelRows], results: Results, ended: bool) -> list[str]:
    """The first row of each channel in which the two differ: ids, times, values bit for bit.

    Args:
      ended: all sources have; else the engine holds back what more of them may change.
    """
    found = []
    for channel, (ids, rows) in reference.items():
        engine = list(zip(ids.tolist(), rows.time.tolist(), map(_plain, rows.to_tuples()), strict=True))
        wanted = [
            (id, time, _plain(values))
            for id, (time, values) in enumerate(results[channel.stream, channel.partition], 1)
        ]
        for one, other in zip(engine, wanted, strict=False):
            if one != other:
                found.append(f"{channel}: the engine has {one}, row by row it is {other}")
                break
        else:
            if len(engine) > len(wanted) or (ended and len(engine) < len(wanted)):
                longer = max(engine, wanted, key=len)[min(len(engine), len(wanted))]
                found.append(
                    f"{channel}: the engine has {len(engine)} rows, row by row {len(wanted)}; the next is {longer}"
                )
    return found


def row_differences(
    config: Mapping[str, Any],
    plan: Plan,
    elements: Mapping[StreamId, Iterable[Element]],
    reference: Mapping[Channel, ChannelRows],
) -> list[str]:
    sources, ended = source_rows(plan, elements)
    made = {c: rows for c, rows in reference.items() if "rejected" not in config["query"].get(c.stream, {})}
    return differences(made, row_results(config, sources), ended)


def _plain(values: Iterable[Any]) -> tuple[Any, ...]:
    """Floats by their type, too: 1 is not 1.0."""
    return tuple((type(v).__name__, plain(v)) for v in values)


def judge_rows(scenario: Scenario, cluster: SimCluster, reference: Mapping[Channel, ChannelRows]) -> Iterator[Finding]:
    """The reference by which a simulated run is judged is right."""
    for what in row_differences(scenario.config, cluster.plan, cluster.logged(), reference):
        yield Finding("reference", "it is the same row by row", cluster.history.end_us, "the run", what)
