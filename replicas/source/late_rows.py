"""Late rows of a source, for a sink of their own (rule E7): those of its log that S1 gave a later time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from replicas.source.proxy import SourceProxy
from spe.plan.plan import Source
from spe.stream.batch import Batch, Column, Rows
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.times import END_OF_TIME

#: The attribute by how much a row was late, microseconds.
LATE_US: Final = "_late_us"
_READ_BYTES: Final = 1 << 20


def late_schema(schema: Schema) -> Schema:
    """Of these rows: what the source has, and LATE_US."""
    return Schema((*schema, Attribute(LATE_US, AttributeType.INT64, nullable=False)))


def late_rows(batch: Batch, time: int) -> Batch:
    """The rows of a batch that S1 gave a later time than their own; it covers the same ids.

    Args:
      time: index of the attribute with the event time.
    """
    by_us = batch.rows.time - batch.rows.columns[time].values
    found = batch.select(by_us > 0)
    late_us = Column(np.ascontiguousarray(by_us[by_us > 0]))
    rows = Rows(found.rows.time, found.rows.t_max, (*found.rows.columns, late_us))
    return Batch(found.kind, found.from_id, found.upto_id, found.ids, rows)


class LateRows:
    """By id in the log (``replicas.source.own_sink.RowsInLog``)."""

    what = "late"

    def __init__(self, source: Source, proxy: SourceProxy) -> None:
        assert source.late is not None
        assert source.time is not None
        self._proxy = proxy
        self._time = source.schema.index(source.time)
        self.schema = late_schema(source.schema)
        self.spec: Mapping[str, Any] = source.late

    @property
    def base(self) -> int:
        return self._proxy.base_id

    async def after(self, position: int) -> Sequence[Batch]:
        found = self._proxy.read_from(position, END_OF_TIME, _READ_BYTES)
        return [late_rows(one, self._time) for one in found if isinstance(one, Batch)]

    def needed(self, position: int) -> int:
        return position
