"""Late rows of a source, for a sink of their own (rule E8): rows of its log that S1 gave a later time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from replicas.source.proxy import SourceProxy
from spe.plan.plan import Source
from spe.stream.batch import Batch, Column, Rows
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.times import END_OF_TIME

#: The attribute with the lateness of a row, microseconds.
LATE_US: Final = "_late_us"
_READ_BYTES: Final = 1 << 20


def late_schema(schema: Schema) -> Schema:
    """Returns the schema of late rows: the source's attributes, and LATE_US."""
    return Schema((*schema, Attribute(LATE_US, AttributeType.INT64, nullable=False)))


def late_rows(batch: Batch, time: int) -> Batch:
    """Returns the rows of a batch that S1 gave a later time than their own; the result covers the same ids.

    Args:
      time: index of the attribute with the event time.
    """
    by_us = batch.rows.time - batch.rows.columns[time].values
    late = batch.select(by_us > 0)
    late_us = Column(np.ascontiguousarray(by_us[by_us > 0]))
    rows = Rows(late.rows.time, late.rows.t_max, (*late.rows.columns, late_us))
    return Batch(late.kind, late.from_id, late.upto_id, late.ids, rows)


class LateRows:
    """Late rows by id in the log (``replicas.source.own_sink.RowsInLog``)."""

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
        elements = self._proxy.read_from(position, END_OF_TIME, _READ_BYTES)
        return [late_rows(element, self._time) for element in elements if isinstance(element, Batch)]

    def needed(self, position: int) -> int:
        return position
