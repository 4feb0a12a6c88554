"""Elements are decoded as they were encoded, in any pieces."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from spe.stream.batch import Batch, Column, Element, Rows
from spe.stream.schema import AttributeType, Schema
from spe.stream.strings import StringPool
from spe.wire.codec import ElementDecoder, ElementEncoder, decode_standalone, encode_standalone
from spe.wire.framing import FrameReader
from spe.wire.string_table import TABLE_ENTRIES, SendTable
from tests.support.distribution import Situations
from tests.support.wire import SCHEMA, TEXTS, batches, decoded, elements, plain

TEXT_ONLY = Schema.of(a="string", b="string")


CUT = Situations({"a cut in the middle": 0.15, "two elements": 0.28, "a batch with rows": 0.1})


def has_rows(sent: list[Element]) -> bool:
    return any(isinstance(e, Batch) and len(e) > 0 for e in sent)


@CUT.required
@settings(max_examples=60, deadline=None)
@given(sent=st.lists(elements(), max_size=5), data=st.data())
def test_elements_are_decoded_as_encoded_for_any_pieces(sent: list[Element], data: st.DataObject) -> None:
    stream = ElementEncoder(SCHEMA).encode_many(sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    reader, decoder = FrameReader(1 << 24), ElementDecoder(SCHEMA, StringPool())
    received: list[Element] = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)]):
        received += decoded(stream[start:stop], decoder, reader)
    reader.finish()
    CUT.example(
        {
            "a cut in the middle": any(0 < cut < len(stream) for cut in cuts),
            "two elements": len(sent) >= 2,
            "a batch with rows": has_rows(sent),
        }
    )
    assert plain(received) == plain(sent)


DICTIONARIES = Situations({"the table begins anew after strings": 0.15, "more strings than the pool holds": 0.08})


@DICTIONARIES.required
@settings(max_examples=60, deadline=None)
@given(
    sent=st.lists(elements(TEXT_ONLY), min_size=2, max_size=12),
    resets=st.lists(st.booleans(), min_size=12, max_size=12),
    limit=st.integers(1, 6),
)
def test_strings_survive_changing_dictionaries_on_both_ends(
    sent: list[Element], resets: list[bool], limit: int
) -> None:
    """Each batch has its own dictionaries, the receiver's pool begins a new one every few strings, and the
    sender's table is reset inside the stream."""
    encoder, decoder = ElementEncoder(TEXT_ONLY), ElementDecoder(TEXT_ONLY, StringPool(limit))
    received: list[Element] = []
    for element, reset in zip(sent, resets):
        if reset:
            encoder._table.reset()
        received += decoded(encoder.encode_many([element]), decoder)
    texts = [{x for row in e.rows.to_tuples() for x in row if x} if isinstance(e, Batch) else set() for e in sent]
    DICTIONARIES.example(
        {
            "the table begins anew after strings": any(
                r and any(texts[:at]) for at, r in enumerate(resets[: len(sent)])
            ),
            "more strings than the pool holds": len(set().union(*texts)) > limit,
        }
    )
    assert plain(received) == plain(sent)


STANDALONE = Situations({"a batch with rows": 0.1, "no batch": 0.1})


@STANDALONE.required
@settings(max_examples=60, deadline=None)
@given(element=elements())
def test_standalone_bytes_hold_the_whole_element(element: Element) -> None:
    data = encode_standalone(element, SCHEMA)
    STANDALONE.example({"a batch with rows": has_rows([element]), "no batch": not isinstance(element, Batch)})
    assert plain(decode_standalone(data, SCHEMA, StringPool())) == plain(element)


LARGE = Situations({"more than one frame": 0.05, "a batch with rows": 0.1, "a string in pieces": 0.02})


def repeated(batch: Batch, times: int) -> Batch:
    """Each text that many times over."""
    texts = [tuple(x if x is None else x * times for x in row) for row in batch.rows.to_tuples()]
    made = Rows.from_tuples(TEXT_ONLY, batch.rows.time.tolist(), texts)
    return replace(batch, rows=Rows(batch.rows.time, batch.rows.t_max, made.columns))


@LARGE.required
@settings(max_examples=40, deadline=None)
@given(
    element=st.one_of(elements(TEXT_ONLY), batches(TEXT_ONLY)),
    frame_bytes=st.integers(130, 600),
    times=st.sampled_from([1, 200]),
)
def test_no_frame_is_larger_than_the_peer_accepts(element: Element, frame_bytes: int, times: int) -> None:
    if isinstance(element, Batch):
        element = repeated(element, times)
    stream = ElementEncoder(TEXT_ONLY, frame_bytes).encode_many([element])
    received = decoded(stream, ElementDecoder(TEXT_ONLY, StringPool()), FrameReader(frame_bytes))
    LARGE.example(
        {
            "more than one frame": len(stream) > frame_bytes,
            "a batch with rows": has_rows([element]),
            "a string in pieces": isinstance(element, Batch)
            and any(len(x or "") > frame_bytes for row in element.rows.to_tuples() for x in row),
        }
    )
    rows = [r for e in received if isinstance(e, Batch) for r in e.rows.to_tuples()]
    assert rows == (element.rows.to_tuples() if isinstance(element, Batch) else [])


TABLES = Situations({"a string twice": 0.1, "the empty string": 0.07})


@TABLES.required
@settings(max_examples=40, deadline=None)
@given(texts=st.lists(TEXTS, max_size=30))
def test_a_senders_table_holds_each_string_once(texts: list[str]) -> None:
    TABLES.example({"a string twice": len(set(texts)) < len(texts), "the empty string": "" in texts})
    table = SendTable()
    column = Column.from_list(texts, AttributeType.STRING)
    assert column.dictionary is not None
    table.codes(column.values, None, column.dictionary)
    new = table.texts()
    assert new is not None
    assert len(new) < TABLE_ENTRIES
    assert sorted(new) == sorted({t.encode("utf-8", "surrogatepass") for t in texts} - {b""})
