"""Histories as text, a line per event: ``SECONDS what whose …``.  Elements: tests/support/streams.py.

    1.0 up HOST            1.0 down HOST           1.0 state REPLICA STABLE         (STABILIZATION fresh, …)
                                                   1.0 state REPLICA RECOVERING gone
    1.0 open WHO PRODUCER #1 main 0 T*             (position, and T* where there is one)
    1.0 recv WHO PRODUCER #1 main: S1/3a B10       1.0 give CLIENT: S1/3a
    1.0 promote WHO #2     1.0 close WHO #1
    1.0 sent SOURCE UPTO HIGH FRONTIER
    1.0 fault 1 cut a>b b>a                        1.0 fault 2 freeze n1       1.0 end 1
    1.0 fault 3 busy=8 n1                          (with its amount)
    1.0 buffers REPLICA held tentative entries count:digest
    1.0 rounds 400         1.0 note HOST NAME text

WHO is ``client:c`` (reads ``s1``) or ``u1/0@n1a<a`` (a replica, and the stream that it reads).
"""

from __future__ import annotations

from collections.abc import Iterator

from spe.stream.history import (
    Buffers,
    Closed,
    Delivered,
    Event,
    FaultBegan,
    FaultEnded,
    FeedMode,
    History,
    Note,
    Opened,
    ProcessDown,
    ProcessUp,
    Promoted,
    Received,
    SchedulerRounds,
    Sent,
    StateChanged,
)
from spe.stream.ids import Channel
from spe.stream.names import NodeState, StreamId
from spe.stream.schema import Schema
from spe.stream.strings import StringPool
from spe.stream.times import BEFORE_TIME
from tests.support.streams import PAYLOAD, parse


def told(text: str, schema: Schema = PAYLOAD) -> History:
    """The history that a text describes.  Raises ValueError for a line that cannot be read."""
    history, pool = History(), StringPool()
    for line in text.strip().splitlines():
        for event in _events(line, schema, pool):
            history(event)
    return history


def _events(line: str, schema: Schema, pool: StringPool) -> Iterator[Event]:
    head, _, elements = line.partition(": ")
    seconds, what, *words = head.split()
    at = round(float(seconds) * 1e6)
    match what, words:
        case "up", [host]:
            yield ProcessUp(at, host, at)
        case "down", [host]:
            yield ProcessDown(at, host)
        case "state", [replica, state, *rest]:
            yield StateChanged(at, replica, NodeState[state], rest == ["fresh"], rest != ["gone"])
        case "open", [who, producer, number, mode, position, *rest]:
            t_star = int(rest[0]) if rest else BEFORE_TIME
            generation, held = int(number[1:]), bool(rest)
            frontier = BEFORE_TIME
            yield Opened(at, *_who(who), producer, generation, _mode(mode), int(position), frontier, held, t_star)
        case "promote", [who, number]:
            yield Promoted(at, *_who(who), int(number[1:]), "main")
        case "close", [who, number]:
            yield Closed(at, *_who(who), int(number[1:]), "told")
        case "recv", [who, producer, number, mode]:
            for element in parse(elements, schema, pool=pool):
                yield Received(at, *_who(who), producer, int(number[1:]), _mode(mode), element)
        case "give", [who]:
            for element in parse(elements, schema, pool=pool):
                yield Delivered(at, *_who(who), element)
        case "sent", [source, upto, high, frontier]:
            yield Sent(at, Channel(StreamId(source), 0), int(upto), int(high), int(frontier))
        case "fault", [number, what, *targets]:
            kind, _, amount = what.partition("=")
            links = tuple((a, b) for a, b in (t.split(">") for t in targets if ">" in t))
            yield FaultBegan(
                at, int(number), kind, tuple(t for t in targets if ">" not in t), links, float(amount or 0)
            )
        case "end", [number]:
            yield FaultEnded(at, int(number))
        case "buffers", [replica, held, tentative, entries, digest]:
            count, value = digest.split(":")
            digests = ((Channel(StreamId("s1"), 0), int(count), int(value)),)
            yield Buffers(at, replica, int(held), tentative == "yes", int(entries), digests)
        case "rounds", [count]:
            yield SchedulerRounds(at, int(count))
        case "note", [host, name, *rest]:
            yield Note(at, host, name, " ".join(rest))
        case _:
            raise ValueError(f"{line!r} is no event")


def _who(text: str) -> tuple[str, Channel]:
    consumer, _, stream = text.partition("<")
    return consumer, Channel(StreamId(stream or "s1"), 0)


def _mode(text: str) -> FeedMode:
    if text not in ("main", "corrections", "closed"):
        raise ValueError(f"{text!r} is no mode")
    return "main" if text == "main" else "corrections" if text == "corrections" else ""
