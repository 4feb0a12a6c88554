"""Changes in portions: whatever is asked for again, and wherever a session ends, what they add up to is right."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from replicas.client.buffer import QUIET_US, ChangeBuffer
from spe.stream.batch import Batch, Boundary, Element, RecDone, Rows, Undo
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, NodeState, StreamId
from spe.stream.schema import Schema

OUT = tuple(Channel(StreamId("out"), p) for p in range(2))
SCHEMA = Schema.of(n="int64")
START = {0: 0, 1: 0}


def batch(kind: Kind, after: int, count: int) -> Batch:
    ids = range(after + 1, after + count + 1)
    return Batch(kind, after, after + count, None, Rows.from_tuples(SCHEMA, list(ids), [(i,) for i in ids]))


def stable(after: int, count: int) -> Batch:
    return batch(Kind.STABLE, after, count)


def tentative(after: int, count: int) -> Batch:
    return batch(Kind.TENTATIVE, after, count)


def boundary(time: int, upto: int = 0, kind: Kind = Kind.STABLE) -> Boundary:
    return Boundary(kind, time, upto)


def buffer_of(*elements: Element, rows_max: int = 1000, ids: dict[int, int] | None = None) -> ChangeBuffer:
    made = ChangeBuffer(OUT, START if ids is None else ids, 0, rows_max, 0)
    for element in elements:
        made.add(Change(OUT[0], element, 5))
    return made


def kinds(buffer: ChangeBuffer, after: int, upto: int) -> list[Any]:
    return [type(c.element).__name__ for _, c in buffer.changes(after, upto)]


def test_a_session_begins_with_an_undo_of_each_partition() -> None:
    buffer = buffer_of(stable(7, 3), ids={0: 7, 1: 9})
    portion = buffer.portion(0, None, 1)
    assert portion is not None
    first, second, *_ = (change for _, change in buffer.changes(0, portion.number))
    assert (first.channel.partition, repr(first.element)) == (0, repr(Undo(7)))
    assert (second.channel.partition, repr(second.element)) == (1, repr(Undo(9)))
    assert portion.ids == {0: 10, 1: 9}


def test_portions_are_bounded_but_never_empty() -> None:
    buffer = buffer_of(stable(0, 5), tentative(5, 30), Undo(5), stable(5, 3))
    first = buffer.portion(0, 20, 1)
    assert first is not None
    assert kinds(buffer, 0, first.number) == ["Undo", "Undo", "Batch"]
    assert buffer.backlog() == 33
    second = buffer.portion(first.number, 20, 1)
    assert second is not None
    assert kinds(buffer, first.number, second.number) == ["Batch", "Undo"]
    third = buffer.portion(second.number, 20, 1)
    assert third is not None
    assert third.ids == {0: 8, 1: 0}
    assert buffer.portion(third.number, 20, 1) is None
    assert (buffer.backlog(), buffer.tentative, buffer.undone) == (0, 30, 30)


def test_portion_can_be_requested_again_until_dropped() -> None:
    buffer = buffer_of(stable(0, 5), stable(5, 5), rows_max=10)
    assert buffer.full
    one = buffer.portion(0, 5, 1)
    assert one is not None
    assert buffer.portion(0, 5, 1) == one
    assert kinds(buffer, 0, one.number) == kinds(buffer, 0, one.number) == ["Undo", "Undo", "Batch"]
    assert not buffer.full
    buffer.drop(one.number)
    assert kinds(buffer, 0, one.number) == []
    two = buffer.portion(one.number, None, 1)
    assert two is not None
    assert two.ids == {0: 10, 1: 0}


def test_boundaries_alone_form_a_portion_only_now_and_then() -> None:
    buffer = buffer_of()
    first = buffer.portion(0, None, 10)
    assert first is not None
    for time in (1, 2, 3):
        buffer.add(Change(OUT[0], boundary(time), 5))
    assert buffer.portion(first.number, None, 10 + QUIET_US - 1) is None
    later = buffer.portion(first.number, None, 10 + QUIET_US)
    assert later is not None
    assert [repr(c.element) for _, c in buffer.changes(first.number, later.number)] == [repr(boundary(3))]
    buffer.add(Change(OUT[0], boundary(4), 5))  # the one before it is in a portion, and stays as it was
    assert [repr(c.element) for _, c in buffer.changes(first.number, later.number)] == [repr(boundary(3))]
    buffer.add(Change(OUT[0], RecDone(NodeState.STABLE), 5))
    assert buffer.portion(later.number, None, 10 + QUIET_US + 1) is not None


def test_boundaries_of_partitions_and_kinds_in_turn_are_one_each() -> None:
    buffer = buffer_of()
    first = buffer.portion(0, None, 1)
    assert first is not None
    for time in range(1000):
        for channel in OUT:
            for kind in (Kind.STABLE, Kind.TENTATIVE):
                buffer.add(Change(channel, boundary(time, 0, kind), 5))
    later = buffer.portion(first.number, None, 1 + QUIET_US)
    assert later is not None
    assert later.number == first.number + 4
    assert [(c.channel.partition, repr(c.element)) for _, c in buffer.changes(first.number, later.number)] == [
        (channel.partition, repr(boundary(999, 0, kind))) for channel in OUT for kind in (Kind.STABLE, Kind.TENTATIVE)
    ]


def test_boundary_does_not_precede_change_of_its_partition() -> None:
    buffer = buffer_of(boundary(1), stable(0, 2), boundary(2, 2))
    assert kinds(buffer, 2, 9) == ["Boundary", "Batch", "Boundary"]
    first, _, second = buffer.changes(2, 9)
    assert (repr(first.change.element), repr(second.change.element)) == (repr(boundary(1)), repr(boundary(2, 2)))


def test_changes_without_rows_fill_buffer_until_given() -> None:
    buffer = buffer_of(rows_max=10)
    for _ in range(4):
        assert not buffer.full
        buffer.add(Change(OUT[0], Undo(0), 5))
        buffer.add(Change(OUT[0], RecDone(NodeState.STABLE), 5))
    assert buffer.full
    assert buffer.portion(0, None, 1) is not None
    assert not buffer.full  # Spark drops it when it has asked for the next portion


#: What a client receives of one partition: stable tuples, tentative ones, and their withdrawal before the next stable.
EVENTS = st.lists(
    st.sampled_from(["stable", "tentative", "boundary", "portion", "commit", "again", "crash"]), max_size=60
)


@given(EVENTS)
def test_however_sessions_end_the_portions_add_up(events: list[str]) -> None:
    """A sink that applies portions, and replaces one that comes again, holds each stable tuple once, and no tentative
    one that a session before has given."""
    position, tentatives, session = 0, 0, 0
    buffer = ChangeBuffer(OUT[:1], {0: 0}, 0, 1 << 30, 0)
    done, given_upto = 0, 0
    kept: list[tuple[str, int]] = []
    last: tuple[int, int, list[tuple[str, int]]] | None = None

    def applied(onto: list[tuple[str, int]], after: int, upto: int) -> list[tuple[str, int]]:
        rows = list(onto)
        for _, change in buffer.changes(after, upto):
            element = change.element
            if isinstance(element, Undo):
                rows = [r for r in rows if r[1] <= element.upto_id and r[0] == "stable"]
            elif isinstance(element, Batch):
                rows += [
                    ("stable" if element.kind is Kind.STABLE else f"t{session}", int(i)) for i in element.row_ids()
                ]
        return rows

    committed_ids = {0: 0}
    for event in events:
        if event == "stable":
            if tentatives:
                buffer.add(Change(OUT[0], Undo(position), 5))
                tentatives = 0
            buffer.add(Change(OUT[0], stable(position, 2), 5))
            position += 2
        elif event == "tentative":
            buffer.add(Change(OUT[0], tentative(position + tentatives, 3), 5))
            tentatives += 3
        elif event == "boundary":
            buffer.add(Change(OUT[0], boundary(position, position), 5))
        elif event == "portion" and last is None and (found := buffer.portion(done, 4, 0)) is not None:
            last = (found.number, found.ids[0], applied(kept, done, found.number))
            given_upto = max(given_upto, found.number)
        elif event == "again" and last is not None:
            assert applied(kept, done, last[0]) == last[2]
        elif event == "commit" and last is not None:
            done, kept, committed_ids = last[0], last[2], {0: last[1]}
            buffer.drop(done)
            last = None
        elif event == "crash":  # what was not committed is read again from the nodes
            if last is not None:
                again = [r for r in kept if r[0] == "stable"]
                again += [("stable", i) for i in range(committed_ids[0] + 1, last[1] + 1)]
                done, kept, committed_ids, last = last[0], again, {0: last[1]}, None
            session += 1
            position, tentatives = committed_ids[0], 0
            buffer = ChangeBuffer(OUT[:1], committed_ids, done, 1 << 30, 0)
        ids = [i for kind, i in kept if kind == "stable"]
        assert ids == list(range(1, committed_ids[0] + 1))
        assert len({kind for kind, _ in kept} - {"stable"}) <= 1
