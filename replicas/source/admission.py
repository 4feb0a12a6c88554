"""Which rows a source takes; the others are counted, told of and kept aside, never dropped in silence."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Final

from replicas.connectors import Chunk, Malformed
from replicas.source.stamping import admitted
from spe.errors import SpeError
from spe.plan.plan import Source
from spe.runtime.env import Env

#: Malformed rows kept aside per start; all are counted.
_MALFORMED_KEPT: Final = 10_000


class Admission:
    """The door of one source.

    Attributes:
      malformed_count: rows that could not be understood.
      refused_count: rows whose event time is too far ahead of the clock, or near the ends of time.
      stopped: the malformed row that ends the intake (``on_malformed: stop``), once all before it have been taken.
    """

    def __init__(self, env: Env, source: Source) -> None:
        self._env = env
        self._source = source
        self.malformed_count = 0
        self.refused_count = 0
        self.stopped: SpeError | None = None

    def check(self, chunk: Chunk, now_us: int, ahead_us: int | None) -> Chunk:
        """The rows that may be taken; where a malformed one is to stop us, those before it."""
        if chunk.malformed:
            if self._source.on_malformed == "stop":
                chunk = chunk.before_malformed()
                self.stopped = malformed_error(self._source, chunk.malformed[0])
            self._set_aside(chunk.malformed)
        if chunk.events is None or not len(chunk):
            return chunk
        mask = admitted(chunk.events, now_us, ahead_us)
        if mask is None:
            return chunk
        count = int((~mask).sum())
        self.refused_count += count
        furthest = int(chunk.events.max())
        self._env.trace.event("rows_refused", stream=self._source.stream, count=count, event_us=furthest)
        return chunk.select(mask)

    def _set_aside(self, rows: list[Malformed]) -> None:
        stream = self._source.stream
        kept = rows[: max(0, _MALFORMED_KEPT - self.malformed_count)]
        self.malformed_count += len(rows)
        self._env.trace.event(
            "rows_malformed", stream=stream, count=len(rows), line=rows[0].line, reason=rows[0].reason
        )
        if not kept:
            return
        text = "".join(json.dumps(row._asdict()) + "\n" for row in kept)
        try:
            file = self._env.storage.open(PurePosixPath("malformed", f"{stream}.jsonl"))
            try:
                file.append(text.encode())
            finally:
                file.close()
        except OSError as error:  # they are counted and told of all the same
            self._env.trace.event("malformed_not_kept", stream=stream, error=str(error))


def malformed_error(source: Source, row: Malformed) -> SpeError:
    return SpeError(f"source {source.stream}: line {row.line}: {row.reason}")
