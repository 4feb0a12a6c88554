"""The newest part of a source's log in memory is bounded also where texts are long."""

from __future__ import annotations

from typing import Any, cast

import pytest

from replicas.source.history import SourceHistory
from spe.log import Position, SegmentedLog
from spe.log.source_log import SourceState
from spe.stream.batch import Batch, Rows
from spe.stream.names import Kind
from spe.stream.schema import Schema
from spe.stream.strings import StringPool

SCHEMA = Schema.of(text="string")
LONG = 10_000


class Asked(Exception):
    """Memory does not have it."""


class NoLog:
    def read(self, position: Position, limit_bytes: int) -> Any:
        raise Asked


LOG = cast(SegmentedLog, NoLog())


def history(count: int, tail_bytes: int) -> SourceHistory:
    """``count`` rows of as many records."""
    one, pool = SourceHistory(SCHEMA, tail_bytes), StringPool()
    for at in range(1, count + 1):
        rows = Rows.from_tuples(SCHEMA, [at], [(f"{at:05}" * (LONG // 5),)], pool)
        batch = Batch(Kind.STABLE, at - 1, at, None, rows)
        one.add(SourceState(at, consumed=at), Position(1, at, 16 + at), batch)
    return one


def test_long_texts_leave_memory() -> None:
    one = history(300, 100 * LONG)
    assert one.read_from(LOG, 260, 0, 1 << 20)
    with pytest.raises(Asked):
        one.read_from(LOG, 199, 0, 1 << 20)


def test_a_read_of_long_texts_is_bounded() -> None:
    one = history(100, 1 << 30)
    got = [e for e in one.read_from(LOG, 0, 0, 3 * LONG) if isinstance(e, Batch)]
    assert 0 < len(got) <= 4
