"""Rows that a source cannot take, for a sink of their own (rule E8).

They are in the record of the log after which they are done with, which is synced before a reader is told so: no crash
loses one, or has it twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from replicas.source.proxy import SourceProxy
from spe.log.rejected_rows import REJECTED
from spe.plan.plan import Source
from spe.stream.batch import Batch


class RejectedInputs:
    """By number among the rejected rows of the log (``replicas.source.own_sink.RowsInLog``)."""

    what = "rejected"
    schema = REJECTED
    base = 0

    def __init__(self, source: Source, proxy: SourceProxy) -> None:
        assert source.rejected is not None
        self._proxy = proxy
        self.spec: Mapping[str, Any] = source.rejected

    async def after(self, position: int) -> Sequence[Batch]:
        return await self._proxy.rejected_after(position)

    def needed(self, position: int) -> int:
        return self._proxy.needed_for_rejected(position)
