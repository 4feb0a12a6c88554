"""The element codec: columns as raw bytes, strings once per connection, and all input validated."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest

from spe.errors import LocalProtocolError, RemoteProtocolError
from spe.stream.batch import Batch, Boundary, Column, Element, RecDone, Rows, Undo
from spe.stream.names import Kind, NodeState
from spe.stream.schema import Schema
from spe.stream.strings import StringDictionary, StringPool
from spe.stream.times import BEFORE_TIME, END_OF_TIME
from spe.wire import string_table
from spe.wire.codec import ElementDecoder, ElementEncoder, decode_standalone, encode_standalone
from spe.wire.framing import HEADER_BYTES, Frame, FrameReader, FrameType
from tests.support.wire import SCHEMA, decoded, plain

WORDS = Schema.of(word="string", n="int64!")
ROW = (5, 1, 0.5, "a", True, None, None, None, None)


def words(*texts: str | None, first: int = 1, pool: StringPool | None = None) -> Batch:
    """A stable batch of WORDS, ids from ``first`` on."""
    rows = Rows.from_tuples(WORDS, range(len(texts)), [(t, i) for i, t in enumerate(texts)], pool)
    return Batch(Kind.STABLE, first - 1, first - 1 + len(texts), None, rows)


def texts_of(element: Element) -> list[str | None]:
    assert isinstance(element, Batch)
    return element.rows.columns[0].to_list()


def types_of(data: bytes) -> list[str]:
    return [f.type.name for f in FrameReader(1 << 24).feed(data)]


def test_every_type_and_every_null_is_decoded() -> None:
    rows = Rows.from_tuples(
        SCHEMA, [1, 1, 7], [ROW, (0, -(2**63), -1.5, "", False, 2**63 - 1, float("inf"), "ä\ud800", True), ROW]
    )
    batch = Batch(Kind.TENTATIVE, 3, 9, np.array([4, 5, 9]), rows)
    elements: list[Element] = [
        batch,
        Boundary(Kind.STABLE, END_OF_TIME, 9),
        Boundary(Kind.TENTATIVE, BEFORE_TIME, 0),
        Undo(3),
        *[RecDone(s) for s in NodeState],
        batch,
    ]
    data = ElementEncoder(SCHEMA).encode_many(elements)
    assert plain(decoded(data, ElementDecoder(SCHEMA, StringPool()))) == plain(elements)


def test_encoding_in_pieces_gives_the_same_bytes() -> None:
    batch = words("a", "b")
    assert b"".join(ElementEncoder(WORDS).encode(batch)) == ElementEncoder(WORDS).encode_many([batch])


def test_t_max_is_sent_only_where_it_differs_from_time() -> None:
    same = words("a")
    other = Batch(Kind.STABLE, 0, 1, None, Rows(same.rows.time, same.rows.time + 5, same.rows.columns))
    for batch in (same, other):
        (back,) = decoded(ElementEncoder(WORDS).encode_many([batch]), ElementDecoder(WORDS, StringPool()))
        assert isinstance(back, Batch)
        assert (back.rows.t_max is back.rows.time) == (batch is same)
        assert back.rows.t_max.tolist() == batch.rows.t_max.tolist()


def test_an_empty_batch_still_covers_its_ids() -> None:
    """So that a substream without tuples can still acknowledge (U10: elements cover ranges of ids)."""
    empty = Batch(Kind.STABLE, 5, 9, np.empty(0, np.int64), Rows.empty(WORDS))
    (back,) = decoded(ElementEncoder(WORDS).encode_many([empty]), ElementDecoder(WORDS, StringPool()))
    assert plain(back) == plain(empty)


def test_received_columns_are_read_only_views_of_the_frame() -> None:
    (back,) = decoded(ElementEncoder(WORDS).encode_many([words("a")]), ElementDecoder(WORDS, StringPool()))
    assert isinstance(back, Batch)
    for array in (back.rows.time, back.rows.columns[1].values):
        assert not array.flags.owndata
        assert not array.flags.writeable


def test_non_contiguous_and_big_endian_columns_can_be_sent() -> None:
    rows = words("a", "b", "c", "d").rows
    numbers = np.arange(8)[::2].astype(">i8")
    text = rows.columns[0]
    column = Column(np.repeat(text.values, 2)[::2], None, text.dictionary)
    batch = Batch(Kind.STABLE, 0, 4, None, Rows(rows.time, rows.time, (column, Column(numbers))))
    (back,) = decoded(ElementEncoder(WORDS).encode_many([batch]), ElementDecoder(WORDS, StringPool()))
    assert isinstance(back, Batch)
    assert back.rows.to_tuples() == [("a", 0), ("b", 2), ("c", 4), ("d", 6)]


# -- strings -------------------------------------------------------------------------------------------------------


def test_a_used_string_is_sent_once_per_connection() -> None:
    pool = StringPool()
    pool.current().encode([f"unused {i}" for i in range(1000)])
    encoder = ElementEncoder(WORDS)

    first = encoder.encode_many([words("a", "b", "a", pool=pool)])
    assert types_of(first) == ["STRINGS", "BATCH"]
    assert b"unused" not in first
    assert types_of(encoder.encode_many([words("b", None, "a", pool=pool)])) == ["BATCH"]
    # another dictionary, the same texts: nothing is sent again
    assert types_of(encoder.encode_many([words("a", "b")])) == ["BATCH"]
    assert types_of(encoder.encode_many([words("c")])) == ["STRINGS", "BATCH"]


def test_strings_enter_the_current_dictionary_of_the_pool() -> None:
    """After the pool has begun a new dictionary, only strings used from then on enter it."""
    pool = StringPool(limit=5)
    encoder, decoder = ElementEncoder(WORDS), ElementDecoder(WORDS, pool)

    (first,) = decoded(encoder.encode_many([words("a", "b", "c", "d", "e")]), decoder)
    (second,) = decoded(encoder.encode_many([words("e", "f")]), decoder)
    assert isinstance(first, Batch)
    assert isinstance(second, Batch)
    assert texts_of(first) == ["a", "b", "c", "d", "e"]
    assert texts_of(second) == ["e", "f"]
    assert first.rows.columns[0].dictionary is not second.rows.columns[0].dictionary
    assert second.rows.columns[0].dictionary is pool.current()
    assert pool.current().strings == ["", "e", "f"]


@pytest.mark.parametrize("times", [1, 40])
def test_a_null_may_have_any_code(times: int) -> None:
    """A column of nulls only may have an empty dictionary; an outer join makes such columns."""
    nothing = np.zeros(3, np.bool_)
    some = np.array([True, False, True])
    time = np.arange(3 * times)
    for codes, valid, known, expected in (
        ([0, 7, -3], nothing, (), [None, None, None]),
        ([0, 9, 0], some, ("x",), ["x", None, "x"]),
        ([0, -3, 1], some, ("", "x"), ["", None, "x"]),
    ):
        column = Column(np.tile(np.array(codes, np.int32), times), np.tile(valid, times), StringDictionary(known))
        batch = Batch(Kind.STABLE, 0, 3 * times, None, Rows(time, time, (column, Column(time))))
        encoder, decoder = ElementEncoder(WORDS), ElementDecoder(WORDS, StringPool())
        for _ in range(2):  # a string used once is known
            (back,) = decoded(encoder.encode_many([batch]), decoder)
            assert texts_of(back) == expected * times


def test_the_string_table_is_reset_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends keep at most TABLE_ENTRIES strings."""
    monkeypatch.setattr(string_table, "TABLE_ENTRIES", 8)
    encoder, decoder = ElementEncoder(WORDS), ElementDecoder(WORDS, StringPool())
    for round_ in range(20):
        batch = words(*[f"{round_}.{i}" for i in range(3)], "always")
        (back,) = decoded(encoder.encode_many([batch]), decoder)
        assert plain(back) == plain(batch)


def test_a_batch_with_too_many_strings_is_sent_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(string_table, "TABLE_ENTRIES", 8)
    batch = words(*[f"w{i}" for i in range(50)])
    parts = decoded(ElementEncoder(WORDS).encode_many([batch]), ElementDecoder(WORDS, StringPool()))
    assert len(parts) > 1
    assert [t for p in parts for t in texts_of(p)] == [f"w{i}" for i in range(50)]
    # joined again where it must be one element
    assert plain(decode_standalone(encode_standalone(batch, WORDS), WORDS, StringPool())) == plain(batch)


def test_text_beyond_the_bytes_of_a_table_is_split_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(string_table, "TABLE_BYTES", 100)
    batch = words("a" * 60, "b" * 60)
    parts = decoded(ElementEncoder(WORDS).encode_many([batch]), ElementDecoder(WORDS, StringPool()))
    assert [len(p) for p in parts if isinstance(p, Batch)] == [1, 1]
    with pytest.raises(LocalProtocolError, match="the strings of one row"):
        ElementEncoder(WORDS).encode(words("c" * 101))


# -- frames and their bound ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_ids", [False, True])
def test_a_batch_beyond_the_frame_limit_is_sent_as_several(with_ids: bool) -> None:
    batch = words(*[f"w{i % 50}" for i in range(200)])
    if with_ids:
        ids = np.arange(3, 603, 3)
        batch = Batch(Kind.STABLE, 0, 700, ids, batch.rows)
    data = ElementEncoder(WORDS, frame_bytes=512).encode_many([batch])
    reader = FrameReader(512)
    parts = decoded(data, ElementDecoder(WORDS, StringPool()), reader)
    batches = [p for p in parts if isinstance(p, Batch)]
    assert len(batches) > 1
    assert [b.from_id for b in batches[1:]] == [b.upto_id for b in batches[:-1]]
    assert (batches[0].from_id, batches[-1].upto_id) == (batch.from_id, batch.upto_id)
    assert [i for b in batches for i in b.row_ids().tolist()] == batch.row_ids().tolist()
    assert [t for b in batches for t in b.rows.to_tuples()] == batch.rows.to_tuples()


@pytest.mark.parametrize("length", [487, 488, 489, 600, 976, 977, 5_000])
def test_a_string_larger_than_a_frame_is_sent_in_pieces(length: int) -> None:
    batches = [words("a", "é" * (length // 2), "b"), words("ü" * (length // 2), "a", first=4)]
    encoder, decoder = ElementEncoder(WORDS, frame_bytes=512), ElementDecoder(WORDS, StringPool())
    reader = FrameReader(512)
    parts = [p for b in batches for p in decoded(encoder.encode_many([b]), decoder, reader)]
    assert [t for p in parts for t in texts_of(p)] == [t for b in batches for t in texts_of(b)]


def test_frame_limit_without_room_for_a_row_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="frames of 50 bytes cannot hold a row"):
        ElementEncoder(SCHEMA, frame_bytes=50)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda r: Rows(r.time, r.time, r.columns[:1]), "1 columns do not fit the schema"),
        (
            lambda r: Rows(r.time, r.time, (r.columns[1], r.columns[1])),
            "a column of int64 where the schema needs int32",
        ),
        (
            lambda r: Rows(r.time, r.time, (r.columns[0], r.columns[1].slice(0, 1))),
            "a column of 1 rows in a batch of 2",
        ),
        (lambda r: Rows(r.time, r.time, (Column(r.columns[0].values), r.columns[1])), "without a dictionary"),
        (
            lambda r: Rows(r.time, r.time, (Column(r.columns[0].values + 7, None, StringDictionary()), r.columns[1])),
            "codes outside its dictionary",
        ),
        (
            lambda r: Rows(
                r.time, r.time, (Column(r.columns[0].values * 0 - 1, None, r.columns[0].dictionary), r.columns[1])
            ),
            "codes outside its dictionary",
        ),
        (
            lambda r: Rows(r.time, r.time, (r.columns[0], Column(r.columns[1].values, np.ones(2, np.bool_)))),
            "must not be null",
        ),
    ],
)
def test_a_batch_that_does_not_fit_the_schema_is_not_sent(change: Callable[[Rows], Rows], what: str) -> None:
    rows = change(words("a", "b").rows)
    with pytest.raises(LocalProtocolError, match=what):
        ElementEncoder(WORDS).encode(Batch(Kind.STABLE, 0, 2, None, rows))


# -- what must not arrive ------------------------------------------------------------------------------------------

#: Offsets inside a BATCH body of WORDS without masks: the header is 24 + 8 bytes.
KIND, FLAGS, ZERO, ROW_COUNT, FROM, UPTO, NULLS, TIME = 0, 1, 2, 4, 8, 16, 24, 32


def received(batch: Batch, at: int, form: str, value: int, schema: Schema = WORDS) -> Element | None:
    """Decodes a batch whose body was overwritten at ``at``."""
    frames = FrameReader(1 << 24).feed(ElementEncoder(schema).encode_many([batch]))
    decoder = ElementDecoder(schema, StringPool())
    for f in frames[:-1]:
        decoder.decode(f)
    body = bytearray(frames[-1].body)
    struct.pack_into("<" + form, body, at, value)
    return decoder.decode(Frame(FrameType.BATCH, bytes(body)))


@pytest.mark.parametrize("n", [2, 200])  # few rows and many rows are checked by different code
@pytest.mark.parametrize(
    ("at", "form", "value", "what"),
    [
        (KIND, "B", 2, "kind 2"),
        (FLAGS, "B", 4, "flags 4"),
        (FLAGS, "B", 1, "rows need"),
        (ZERO, "H", 1, "out of range"),
        (ROW_COUNT, "I", 2**32 - 1, "4294967295 rows need"),
        (ROW_COUNT, "I", 0, "0 rows need"),
        (FROM, "q", -1, "ids \\(-1"),
        (UPTO, "q", 1, "rows cover the ids \\(0, 1\\]"),
        (FROM, "q", 2**62, "out of range"),
        (NULLS, "Q", 2, "masks 0x2 for columns that cannot be null"),
        (NULLS, "Q", 1, "rows need"),
        (TIME, "q", END_OF_TIME + 1, "a time outside"),
        (TIME, "q", -(2**63), "a time outside"),
    ],
)
def test_a_batch_with_a_wrong_header_or_time_is_refused(n: int, at: int, form: str, value: int, what: str) -> None:
    with pytest.raises(RemoteProtocolError, match=what):
        received(words(*["a"] * n), at, form, value)


@pytest.mark.parametrize("n", [2, 200])
@pytest.mark.parametrize("code", [2, 2**31, 2**32 - 1])
def test_a_code_outside_the_connections_table_is_refused(n: int, code: int) -> None:
    with pytest.raises(RemoteProtocolError, match="a string code is outside the table of 2"):
        received(words(*["a"] * n), TIME + 8 * n, "I", code)


@pytest.mark.parametrize("n", [3, 201])
@pytest.mark.parametrize(("row", "by"), [(0, -1), (0, +1), (-1, +1), (-1, -1), (1, +1)])
def test_row_ids_must_increase_within_their_range(n: int, row: int, by: int) -> None:
    """Ids 1 … n of (0, n], one of them wrong by one: outside the range, or equal to its neighbour."""
    row %= n
    batch = Batch(Kind.STABLE, 0, n, np.arange(1, n + 1), words(*["a"] * n).rows)
    with pytest.raises(RemoteProtocolError, match="row ids do not increase"):
        received(batch, TIME + 8 * (n + row), "q", row + 1 + by)


@pytest.mark.parametrize("n", [3, 201])
def test_a_boolean_that_is_neither_true_nor_false_is_refused(n: int) -> None:
    """NumPy would count it as true here and as unequal to true there."""
    flags = Schema.of(on="bool")
    rows = Rows.from_tuples(flags, range(n), [(True,)] * n)
    column = Column(rows.columns[0].values, np.ones(n, np.bool_))
    batch = Batch(Kind.STABLE, 0, n, None, Rows(rows.time, rows.time, (column,)))
    for at in (TIME + 8 * n, TIME + 8 * n + (n + 7) // 8 * 8):  # the mask, the values
        with pytest.raises(RemoteProtocolError, match="a boolean that is neither"):
            received(batch, at, "B", 2, flags)


@pytest.mark.parametrize(
    ("type_", "body"),
    [
        (FrameType.CONTROL, b""),
        (FrameType.BATCH, b""),
        (FrameType.BATCH, bytes(31)),
        (FrameType.BOUNDARY, bytes(23)),
        (FrameType.BOUNDARY, struct.pack("<Qqq", 2, 0, 0)),
        (FrameType.BOUNDARY, struct.pack("<Qqq", 0, END_OF_TIME + 1, 0)),
        (FrameType.BOUNDARY, struct.pack("<Qqq", 0, 0, -1)),
        (FrameType.UNDO, b""),
        (FrameType.UNDO, struct.pack("<q", -1)),
        (FrameType.REC_DONE, struct.pack("<Q", 4)),
        (FrameType.STRINGS, b""),
        (FrameType.STRINGS, struct.pack("<IIII", 1, 1, 2**32 - 1, 0)),
        (FrameType.STRINGS, struct.pack("<IIII", 2, 1, 0, 0)),
        (FrameType.STRINGS, struct.pack("<IIII", 0, 7, 0, 0)),
        (FrameType.STRINGS, struct.pack("<IIIIII", 1, 1, 1, 0, 5, 0) + b"four"),
        (FrameType.STRINGS, struct.pack("<IIIIII", 1, 1, 1, 0, 3, 0) + b"four"),
        (FrameType.STRINGS, struct.pack("<IIIIII", 1, 1, 1, 0, 1, 0) + b"\xff"),
        (FrameType.STRINGS, struct.pack("<IIIIII", 1, 1, 2, 0, 2**31, 2**31)),
    ],
)
def test_a_body_that_its_type_does_not_allow_is_refused(type_: FrameType, body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        ElementDecoder(WORDS, StringPool()).decode(Frame(type_, body))


# -- bytes that stand alone ----------------------------------------------------------------------------------------


def test_standalone_bytes_contain_their_strings() -> None:
    pool = StringPool()
    for element in (words("a", None, "b"), Boundary(Kind.STABLE, 7, 3), Undo(2), RecDone(NodeState.STABLE)):
        assert plain(decode_standalone(encode_standalone(element, WORDS), WORDS, pool)) == plain(element)


def test_standalone_bytes_hold_exactly_one_element() -> None:
    one = encode_standalone(words("a"), WORDS)
    for data in (b"", one[:-1], one[: HEADER_BYTES - 1], one + one, encode_standalone(Undo(1), WORDS) * 2):
        with pytest.raises(RemoteProtocolError):
            decode_standalone(data, WORDS, StringPool())
