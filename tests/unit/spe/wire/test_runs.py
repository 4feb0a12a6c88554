"""All frames of one read are decoded together: the same rows and boundaries, in fewer pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spe.errors import RemoteProtocolError
from spe.stream.batch import AnyArray, Batch, Boundary, Column, Element, RecDone, Rows, Undo, concat_rows
from spe.stream.names import Kind, NodeState
from spe.stream.schema import Schema
from spe.stream.strings import StringDictionary, StringPool
from spe.stream.times import BEFORE_TIME
from spe.wire.codec import ElementDecoder, ElementEncoder
from spe.wire.framing import Buffer, Frame, FrameReader
from spe.wire.messages.feeds import StateChange

SCHEMA = Schema.of(n="int64!", x="float64!", on="bool!", name="string!", m="int64")


def batch(from_id: int, times: list[int], *, names: str = "abc", null: bool = False) -> Batch:
    n = len(times)
    time = np.array(times, np.int64)
    ids = np.arange(from_id, from_id + n)
    texts = [names[i % len(names)] * 3 for i in range(n)]
    columns = (
        Column(ids),
        Column(ids / 4),
        Column(ids % 2 == 0),
        Column.from_list(texts, SCHEMA["name"].type, StringDictionary()),
        Column(ids * 7, np.zeros(n, np.bool_) if null else None),
    )
    return Batch(Kind.STABLE, from_id, from_id + n, None, Rows(time, time, columns))


def frames(*elements: Element) -> list[Frame]:
    encoder = ElementEncoder(SCHEMA)
    return FrameReader(1 << 20).feed(encoder.encode_many(elements))


def decode(*elements: Element) -> list[Element | Frame]:
    return list(ElementDecoder(SCHEMA, StringPool()).decode_all(frames(*elements)))


def facts(elements: list[Element | Frame]) -> tuple[list[object], int, int]:
    """Rows with ids, the position and the last boundary, none of which may depend on cuts."""
    rows: list[object] = []
    position, bound = 0, BEFORE_TIME
    for element in elements:
        if isinstance(element, Batch):
            rows += zip(element.row_ids().tolist(), element.rows.time.tolist(), element.rows.to_tuples(), strict=True)
            position = element.upto_id
        elif isinstance(element, Boundary):
            position, bound = element.upto_id, max(bound, element.time)
    return rows, position, bound


def boundary(time: int, upto_id: int) -> Boundary:
    return Boundary(Kind.STABLE, time, upto_id)


def test_small_batches_become_one_with_the_last_boundary() -> None:
    a, b, c = batch(0, [1, 2], names="a"), batch(2, [5, 6, 7], names="a"), batch(5, [9], names="a")
    made = decode(a, boundary(5, 2), b, boundary(8, 5), c)
    assert [repr(e) for e in made] == ["<S (0, 6] 6 rows>", repr(boundary(8, 6))]


def test_a_batch_that_arrives_alone_is_not_joined() -> None:
    made = decode(batch(0, [1, 2]), boundary(5, 2))
    assert [repr(e) for e in made] == ["<S (0, 2] 2 rows>", repr(boundary(5, 2))]


def test_new_strings_inside_a_run_are_known() -> None:
    made = decode(
        batch(0, [1], names="a"), batch(1, [2], names="b"), batch(2, [3], names="ab"), batch(3, [4], names="b")
    )
    assert [row[2][3] for row in facts(made)[0]] == ["aaa", "bbb", "aaa", "bbb"]  # type: ignore[index]


@pytest.mark.parametrize(
    "other",
    [Undo(2), RecDone(NodeState.STABLE), Boundary(Kind.TENTATIVE, 9, 2), batch(2, [5], null=True)],
    ids=["undo", "rec_done", "tentative boundary", "nulls"],
)
def test_anything_else_ends_a_run(other: Element) -> None:
    made = decode(batch(0, [1]), batch(1, [2]), other, batch(3, [7]))
    assert [type(e) for e in made] == [Batch, type(other), Batch]


def test_control_frames_keep_their_place() -> None:
    state = FrameReader().feed(StateChange(NodeState.STABLE, False, 1).encode())
    come = [*frames(batch(0, [1]), batch(1, [2])), *state]
    made = list(ElementDecoder(SCHEMA, StringPool()).decode_all(come))
    assert isinstance(made[0], Batch)
    assert made[1:] == state


def test_invalid_batches_are_not_joined() -> None:
    """A gap of ids, a tuple below its boundary, a boundary that goes back: each arrives as it was sent."""
    gap = decode(batch(0, [1]), batch(5, [2]))
    assert [repr(e) for e in gap] == ["<S (0, 1] 1 rows>", "<S (5, 6] 1 rows>"]
    below = decode(batch(0, [1]), boundary(9, 1), batch(1, [8]))
    assert [repr(e) for e in below] == ["<S (0, 1] 1 rows>", repr(boundary(9, 1)), "<S (1, 2] 1 rows>"]
    back = decode(batch(0, [1]), batch(1, [1]), boundary(9, 2), boundary(8, 2))
    assert [repr(e) for e in back] == ["<S (0, 2] 2 rows>", repr(boundary(9, 2)), repr(boundary(8, 2))]


def test_an_invalid_batch_does_not_cause_repeated_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches before a tuple below its boundary are joined, and not joined again for each later batch."""
    count, calls = 300, 0
    joined = ElementDecoder._joined

    def counted(self: ElementDecoder, bodies: Sequence[Buffer], counts: Sequence[int]) -> Rows:
        nonlocal calls
        calls += 1
        return joined(self, bodies, counts)

    monkeypatch.setattr(ElementDecoder, "_joined", counted)
    elements: list[Element] = [batch(i, [i], names="a") for i in range(count)]
    made = decode(*elements, boundary(count, count), batch(count, [5], names="a"), batch(count + 1, [count], names="a"))
    assert [repr(e) for e in made] == [
        f"<S (0, {count}] {count} rows>",
        repr(boundary(count, count)),
        f"<S ({count}, {count + 2}] 2 rows>",
    ]
    assert calls <= 4


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 80), st.integers(1, 255)), max_size=3)
)
def test_a_damaged_stream_is_refused_as_when_decoded_one_by_one(seed: int, damage: list[tuple[int, int, int]]) -> None:
    """The same rows and boundaries, and an error at the same frame."""
    random = np.random.default_rng(seed)
    elements: list[Element] = []
    position = 0
    for _ in range(5):
        count = int(random.integers(1, 4))
        elements += [batch(position, [position + i for i in range(count)]), boundary(position, position + count)]
        position += count
    come = frames(*elements)
    for at, byte, change in damage:
        frame = come[at % len(come)]
        body = bytearray(frame.body)
        body[byte % len(body)] ^= change
        come[at % len(come)] = Frame(frame.type, bytes(body))

    def judged(together: bool) -> tuple[list[object], int, int] | None:
        decoder = ElementDecoder(SCHEMA, StringPool())
        try:
            if together:
                return facts(list(decoder.decode_all(come)))
            return facts([e for f in come if (e := decoder.decode(f)) is not None])
        except RemoteProtocolError:
            return None

    assert judged(together=True) == judged(together=False)


def test_nonsense_inside_a_run_is_refused() -> None:
    come = frames(batch(0, [1] * 100), batch(100, [2] * 100))
    data = bytearray(come[-1].body)
    data[32 + 8 * 300] = 7  # the first boolean
    decoder = ElementDecoder(SCHEMA, StringPool())
    with pytest.raises(RemoteProtocolError, match="boolean"):
        list(decoder.decode_all([*come[:-1], Frame(come[-1].type, bytes(data))]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.booleans()), max_size=12))
def test_joined_decoding_equals_decoding_one_by_one(shape: list[tuple[int, bool, bool]]) -> None:
    elements: list[Element] = []
    position = time = 0
    for count, null, bounded in shape:
        if count:
            elements.append(batch(position, [time + i for i in range(count)], null=null))
            position, time = position + count, time + count
        if bounded:
            elements.append(boundary(time, position))
    come = frames(*elements)
    single = ElementDecoder(SCHEMA, StringPool())
    alone: list[Element | Frame] = [e for f in come if (e := single.decode(f)) is not None]
    together = list(ElementDecoder(SCHEMA, StringPool()).decode_all(come))
    assert facts(together) == facts(alone)
    assert len(together) <= len(alone)
    if elements and position:
        rows = concat_rows([e.rows for e in together if isinstance(e, Batch)])
        assert rows.t_max is rows.time


def arrays(rows: Rows) -> list[AnyArray]:
    return [rows.time, *(c.values for c in rows.columns)]


@pytest.mark.parametrize("shift", [0, 5])
@pytest.mark.parametrize("count", [1, 3])
def test_columns_are_aligned_and_keep_no_larger_chunk_alive(count: int, shift: int) -> None:
    """Alone or joined, and at any alignment of the frames."""
    encoder, n = ElementEncoder(SCHEMA), 500
    batches = [batch(i * n, list(range(i * n, (i + 1) * n))) for i in range(count)]
    large, head = 100 * n, encoder.encode_many([Undo(0)])
    chunk = head[shift:] + encoder.encode_many([*batches, batch(count * n, list(range(large)), null=True)])
    reader, decoder = FrameReader(1 << 24), ElementDecoder(SCHEMA, StringPool())
    made = list(decoder.decode_all(reader.feed(head[:shift])))
    made += list(decoder.decode_all(reader.feed(chunk)))
    first, last = (e.rows for e in made if isinstance(e, Batch))
    assert first.to_tuples() == [row for one in batches for row in one.rows.to_tuples()]
    assert first.time.tolist() == list(range(count * n))
    assert len(last) == large
    received = np.frombuffer(chunk, np.uint8)
    for column in arrays(first):
        assert column.flags.aligned
        assert not np.shares_memory(column, received)
    for column in arrays(last)[:3]:
        assert column.flags.aligned
        assert np.shares_memory(column, received) == (shift == 0)
