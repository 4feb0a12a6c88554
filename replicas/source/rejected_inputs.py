"""Rows that a source rejects, for a sink of their own (rule E8).

They are in the log record that accounts for them, and it is synced before the reader is told: no crash loses or repeats
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from replicas.source.proxy import SourceProxy
from spe.log.rejected_rows import REJECTED
from spe.plan.plan import Source
from spe.stream.batch import Batch


class RejectedInputs:
    """Rejected rows by number in the log (``replicas.source.own_sink.RowsInLog``)."""

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
