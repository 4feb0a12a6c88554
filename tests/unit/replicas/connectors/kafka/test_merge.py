"""Rows of several partitions come in one order in which none is late for another partition's sake, each once."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from replicas.connectors.kafka import merge as kafka_merge
from replicas.connectors.kafka.merge import Arrived, Merged, PartitionMerge
from replicas.connectors.reader import Malformed
from replicas.source.stamping import Stamper
from spe.stream.batch import Column
from spe.stream.schema import AttributeType

#: (partition, offset, event time or None where it is malformed)
Message = tuple[int, int, int | None]


def arrived(messages: list[Message]) -> Arrived:
    good = [m for m in messages if m[2] is not None]
    ts = Column.from_list([m[2] for m in good], AttributeType.TIMESTAMP)
    text = Column.from_list([f"{m[0]}/{m[1]}" for m in good], AttributeType.STRING)
    row = np.full(len(messages), -1, np.int64)
    row[[i for i, m in enumerate(messages) if m[2] is not None]] = np.arange(len(good))
    return Arrived(
        np.array([m[0] for m in messages], np.int64),
        np.array([m[1] for m in messages], np.int64),
        np.full(len(messages), 10, np.int64),
        row,
        (ts, text),
        ts.values,
        {i: Malformed(m[1], "bad", "", f"{m[0]}/{m[1]}") for i, m in enumerate(messages) if m[2] is None},
    )


def names(merged: list[Merged]) -> list[str]:
    return [name for one in merged for name in one.chunk.columns[1].to_list()]


def merge(partitions: int) -> PartitionMerge:
    return PartitionMerge(np.zeros(partitions, np.int64))


def ended(*flags: bool) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.array(flags, np.bool_)


def test_later_rows_wait_while_another_partition_has_more() -> None:
    one = merge(2)
    one.add(arrived([(0, 0, 10), (0, 1, 20), (0, 2, 90)]))
    assert names(one.give(ended(True, False))) == []
    one.add(arrived([(1, 0, 15), (1, 1, 30)]))
    assert names(one.give(ended(True, False))) == ["0/0", "1/0", "0/1", "1/1"]
    assert one.next_offset.tolist() == [2, 2]
    assert names(one.give(ended(True, True))) == ["0/2"]
    assert (one.count, one.size) == (0, 0)


def test_partitions_at_their_end_delay_no_others() -> None:
    one = merge(3)
    one.add(arrived([(1, 0, 50), (0, 0, 10)]))
    assert names(one.give(ended(True, True, True))) == ["0/0", "1/0"]


def test_partition_without_messages_so_far_is_awaited() -> None:
    one = merge(2)
    one.add(arrived([(0, 0, 10)]))
    assert names(one.give(ended(False, False))) == []


def test_malformed_messages_have_places_below_the_cursor() -> None:
    one = merge(2)
    one.add(arrived([(0, 0, None), (0, 1, 10), (0, 2, None), (1, 0, 5), (1, 1, None)]))
    (found,) = one.give(ended(True, True))
    assert names([found]) == ["1/0", "0/1"]
    assert found.chunk.taken == 5
    assert sorted(m.where for m in found.chunk.malformed) == ["0/0", "0/2", "1/1"]
    assert found.next_offset.tolist() == [3, 2]
    assert found.chunk.places is not None
    assert len(found.chunk.places) == 2


def test_a_row_that_is_refused_holds_up_none_behind_it() -> None:
    one = merge(2)
    one.add(arrived([(0, 0, 10), (0, 1, 9_000), (0, 2, 20)]), refused_us=8_999)
    one.add(arrived([(1, 0, 15), (1, 1, 30)]), refused_us=8_999)
    assert one.newest.tolist() == [20, 30]
    assert names(one.give(ended(True, False))) == ["0/0", "0/1", "1/0", "0/2", "1/1"]


def test_messages_have_places_and_malformed_ones_are_in_order() -> None:
    """Of several batches as well."""
    one = merge(2)
    one.add(arrived([(0, 7, 10), (0, 8, None), (0, 9, 30)]))
    one.add(arrived([(1, 3, None), (1, 4, 20), (1, 5, None)]))
    (found,) = one.give(ended(True, True))
    assert [found.origin(n) for n in range(6)] == [(1, 3), (0, 7), (0, 8), (1, 4), (1, 5), (0, 9)]
    assert [m.where for m in found.chunk.malformed] == ["1/3", "0/8", "1/5"]


def test_chunks_are_neither_too_many_rows_nor_too_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_merge, "CHUNK_ROWS", 4)
    one = merge(1)
    one.add(arrived([(0, n, n) for n in range(10)]))
    assert [len(m.chunk) for m in one.give(ended(True))] == [4, 4, 2]
    monkeypatch.setattr(kafka_merge, "CHUNK_BYTES", 25)
    one.add(arrived([(0, n, n) for n in range(10, 15)]))
    found = one.give(ended(True))
    assert [len(m.chunk) for m in found] == [2, 2, 1]
    assert [m.chunk.first for m in found] == [10, 12, 14]
    monkeypatch.setattr(kafka_merge, "CHUNK_BYTES", 5)  # a message that is too large goes alone
    one.add(arrived([(0, n, n) for n in range(15, 17)]))
    assert [len(m.chunk) for m in one.give(ended(True))] == [1, 1]


def test_without_event_times_rows_go_as_they_come() -> None:
    one = merge(2)
    one.add(arrived([(1, 0, 9), (0, 0, 1)])._replace(events=None))
    (found,) = one.give(ended(False, False))
    assert names([found]) == ["1/0", "0/0"]
    assert found.chunk.events is None


@pytest.mark.parametrize("seed", range(60))
def test_each_row_comes_once_in_partition_order_and_not_late(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions have a history each, out of order by at most the disorder; batches are cut and mixed at random."""
    monkeypatch.setattr(kafka_merge, "CHUNK_ROWS", 7)
    random = Random(seed)
    count, disorder = random.randint(2, 5), random.choice([0, 3, 20])
    queues: list[list[Message]] = []
    for p in range(count):
        at = random.randint(0, 50)
        queue: list[Message] = []
        for offset in range(random.randint(0, 40)):
            at += random.randint(0, 9)
            queue.append((p, offset, None if random.random() < 0.1 else at - random.randint(0, disorder)))
        queues.append(queue)
    expected = [[f"{m[0]}/{m[1]}" for m in q if m[2] is not None] for q in queues]
    one, stamper = merge(count), Stamper(disorder_us=disorder, boundary_us=1)
    got: list[str] = []
    malformed: list[str] = []
    left = [list(q) for q in queues]
    while any(left) or one.count:
        batch: list[Message] = []
        for p in random.sample(range(count), count):
            take = random.randint(0, 12)
            batch += left[p][:take]
            del left[p][:take]
        one.add(arrived(batch))
        for merged in one.give(np.array([not q for q in left], np.bool_)):
            got += names([merged])
            malformed += [m.where for m in merged.chunk.malformed]
            done = {*got, *malformed}
            for p, offset in enumerate(merged.next_offset.tolist()):  # what the cursor covers, and nothing more
                assert all((f"{p}/{m[1]}" in done) == (m[1] < offset) for m in queues[p])
            if len(merged.chunk):
                assert merged.chunk.events is not None
                stamper.stamp(merged.chunk.events, merged.chunk.columns)
    assert [[n for n in got if n.startswith(f"{p}/")] for p in range(count)] == expected
    assert len(malformed) == sum(m[2] is None for q in queues for m in q)
    assert stamper.late_count == 0
