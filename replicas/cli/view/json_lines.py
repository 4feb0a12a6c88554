"""Prints rows as JSON lines, as a client's sinks write them, with the name of the stream first."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterable

from replicas.connectors.sink import SinkCursor, named_lines
from spe.connectors.declaration import CORRECTIONS, STABLE
from spe.plan.plan import Plan
from spe.stream.batch import Batch
from spe.stream.change import Change
from spe.stream.ids import Channel


def write_out(texts: Iterable[bytes]) -> None:
    """Writes to standard output, after earlier output.

    A signal may interrupt an unbuffered write (``PYTHONUNBUFFERED``), so the remainder is written again.

    Raises:
      OSError: standard output cannot be written, or would block.
    """
    sys.stdout.flush()
    out = getattr(sys.stdout, "buffer", None)
    for text in texts:
        if out is None:  # a program of the user has replaced standard output
            sys.stdout.write(text.decode())
            continue
        rest = memoryview(text)
        while rest:
            written = out.write(rest)
            if written is None:
                raise BlockingIOError(errno.EAGAIN, "standard output takes nothing now")
            rest = rest[written:]
    sys.stdout.flush()


def printer(plan: Plan, *, corrections: bool) -> Callable[[Change], None]:
    """Returns a function that prints changes: final tuples only, or all with their undos."""
    cursors: dict[Channel, SinkCursor] = {}

    def show(change: Change) -> None:
        cursor = cursors.get(change.channel)
        if cursor is None:
            begin = change.element.from_id if isinstance(change.element, Batch) else 0
            cursor = cursors[change.channel] = SinkCursor(change.channel, CORRECTIONS if corrections else STABLE, begin)
        entry = cursor.take(change)
        if entry is not None:
            write_out(named_lines(entry, plan.query.schema_of(entry.channel.stream), corrections))

    return show
