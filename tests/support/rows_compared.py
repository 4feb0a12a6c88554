"""Compares results of the engine with those of :mod:`tests.support.row_reference`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from replicas.comparison import ChannelRows
from spe.plan.plan import Plan
from spe.stream.batch import Batch, Element
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from tests.support.row_operators import Row, plain
from tests.support.row_reference import Results, Stream, row_results


def source_rows(plan: Plan, elements: Mapping[StreamId, Iterable[Element]]) -> dict[str, Stream]:
    """Rows of sources as plain data, in order of their ids."""
    found = {}
    for stream, each in elements.items():
        rows: list[Row] = []
        for batch in (e for e in each if isinstance(e, Batch)):
            rows += zip(batch.rows.time.tolist(), batch.rows.to_tuples(), strict=True)
        found[str(stream)] = Stream(tuple(plan.sources[stream].schema.names), rows)
    return found


def differences(reference: Mapping[Channel, ChannelRows], results: Results) -> list[str]:
    """The first row of each channel in which the two differ: ids, times, values bit for bit."""
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
            if len(engine) != len(wanted):
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
    return differences(reference, row_results(config, source_rows(plan, elements)))


def _plain(values: Iterable[Any]) -> tuple[Any, ...]:
    """Floats by their type, too: 1 is not 1.0."""
    return tuple((type(v).__name__, plain(v)) for v in values)
