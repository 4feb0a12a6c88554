"""Caps and pulls count the texts that rows hold, not only their codes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from replicas.producer.element_log import ENTRY_BYTES_MAX
from replicas.producer.output_log import OutputLog
from replicas.producer.subscription import OutputSubscription
from spe.plan.plan import Limits
from spe.stream.batch import Batch, Rows
from spe.stream.ids import Channel
from spe.stream.names import Kind, NodeState, StreamId
from spe.stream.schema import Schema
from spe.stream.strings import StringPool
from spe.stream.times import BEFORE_TIME
from spe.wire.codec import ElementEncoder
from tests.support.producing import pull
from tests.support.spilling import Spilling, loading

SCHEMA = Schema.of(text="string")
LONG = 10_000


def long_text(at: int) -> str:
    return f"{at} " * (LONG // len(f"{at} "))


class Writer:
    """An output whose rows have texts."""

    def __init__(self, consumers: Sequence[str] = ("c",), spilling: Spilling | None = None, **limits: int) -> None:
        shelf = None if spilling is None else spilling.shelf(SCHEMA)
        self.log = OutputLog(Channel(StreamId("s"), 0), SCHEMA, consumers, Limits(**limits), shelf)
        self.log.set_state(NodeState.STABLE)
        self._pool = StringPool()

    def write(self, texts: Sequence[str], kind: Kind = Kind.STABLE) -> None:
        stable = kind is Kind.STABLE
        last = (self.log.stable if stable else self.log.suffix).last_id
        times = range(last, last + len(texts))
        rows = Rows.from_tuples(SCHEMA, times, [(text,) for text in texts], self._pool)
        append = self.log.append_stable if stable else self.log.append_tentative
        append([Batch(kind, last, last + len(texts), None, rows)])

    def subscribe(self) -> OutputSubscription:
        one = self.log.subscribe("main", 0, BEFORE_TIME, False, BEFORE_TIME)
        assert isinstance(one, OutputSubscription)
        return one

    def pulls(self, max_bytes: int) -> list[list[str]]:
        """The texts of each pull, until there are no more."""
        one, found = self.subscribe(), []
        while elements := loading(lambda: one.pull(max_bytes)):
            found.append([text for e in elements if isinstance(e, Batch) for (text,) in e.rows.to_tuples()])
        return [texts for texts in found if texts]


def test_an_output_with_long_texts_is_full_at_its_cap() -> None:
    one, count = Writer(output_bytes=1 << 20), 0
    while not one.log.full and count < 1_000:
        one.write([long_text(count)])
        count += 1
    assert 90 < count < 110
    one.log.acknowledge("c", 1, count)
    assert one.log.stable.nbytes == 0


def test_unread_output_keeps_half_a_cap_of_long_texts() -> None:
    one = Writer(consumers=(), output_bytes=1 << 20)
    for at in range(300):
        one.write([long_text(at)])
    assert 40 < one.log.last_id - one.log.first < 60


def test_a_suffix_of_long_texts_is_capped() -> None:
    one = Writer(suffix_bytes=1 << 20)
    one.log.set_state(NodeState.UP_FAILURE)
    for at in range(300):
        one.write([long_text(at)], Kind.TENTATIVE)
    assert 190 < one.log.suffix_dropped < 210


def test_row_larger_than_the_cap_stays_in_the_suffix() -> None:
    one = Writer(suffix_bytes=1 << 10)
    one.log.set_state(NodeState.UP_FAILURE)
    one.write(["a", long_text(0)], Kind.TENTATIVE)
    one.write([long_text(1)], Kind.TENTATIVE)
    assert [texts[-1] for texts in one.pulls(1 << 20)] == [long_text(1)]


def test_slice_of_long_texts_does_not_exceed_the_cap() -> None:
    """It becomes several entries: else all of it would be kept, whatever the cap is."""
    one = Writer(suffix_bytes=2 * ENTRY_BYTES_MAX)
    one.log.set_state(NodeState.UP_FAILURE)
    one.write([long_text(at) for at in range(4 * ENTRY_BYTES_MAX // LONG)], Kind.TENTATIVE)
    assert one.log.suffix.nbytes <= 2 * ENTRY_BYTES_MAX
    assert one.log.suffix_dropped >= ENTRY_BYTES_MAX // LONG
    one.log.suffix.validate()


def test_long_texts_are_spilled() -> None:
    spilling = Spilling()
    one = Writer(spilling=spilling, output_bytes=1 << 20)
    for at in range(300):
        one.write([long_text(at)])
        spilling.settle()
    assert not one.log.full
    assert spilling.folder.used > 2_000_000
    assert [text for texts in one.pulls(1 << 18) for text in texts] == [long_text(at) for at in range(300)]


@pytest.mark.parametrize("batches", [1, 300])
def test_a_pull_of_long_texts_stays_near_its_limit(batches: int) -> None:
    one, texts = Writer(), [long_text(at) for at in range(300)]
    for at in range(0, 300, 300 // batches):
        one.write(texts[at : at + 300 // batches])
    got = one.pulls(100_000)
    assert [text for texts in got for text in texts] == texts
    assert max(map(len, got)) <= 10
    subscription, encoder = one.subscribe(), ElementEncoder(SCHEMA)
    while elements := pull(subscription, 100_000):
        assert len(encoder.encode_many(elements)) < 110_000


def test_long_texts_at_batch_start_are_split_over_pulls() -> None:
    """The rows behind them have little text: as many as fit on average would be too many."""
    one = Writer()
    one.write([long_text(at) for at in range(100)] + ["short"] * 20_000)
    got = one.pulls(100_000)
    assert max(sum(map(len, texts)) for texts in got if texts[0] != "short") < 110_000
    assert sum(map(len, got)) == 20_100


def test_rows_larger_than_a_pull_go_one_by_one() -> None:
    one = Writer()
    one.write([long_text(1), long_text(2), long_text(3)])
    assert one.pulls(1_000) == [[long_text(1)], [long_text(2)], [long_text(3)]]


def test_a_text_that_many_rows_have_counts_once() -> None:
    """It is sent once, and held once."""
    one = Writer()
    one.write([long_text(1), long_text(2)] * 2_000)
    assert one.log.stable.nbytes < 100_000
    assert list(map(len, one.pulls(100_000))) == [4_000]


def test_a_batch_of_one_very_long_text_is_not_divided() -> None:
    """Each part would count all of it."""
    one = Writer()
    one.write(["a" * (2 * ENTRY_BYTES_MAX)] * 100)
    assert one.log.stable.nbytes < 3 * ENTRY_BYTES_MAX


def held_by(log: OutputLog) -> int:
    """Characters of all texts that the rows of the log keep in memory."""
    columns = [c for e in log.entries_after(-1) for c in e.batch.rows.columns]
    texts = {id(c.dictionary): c.dictionary.strings for c in columns if c.dictionary is not None}
    return sum(map(len, [text for strings in texts.values() for text in strings]))


def test_few_rows_do_not_keep_the_texts_of_all_others() -> None:
    """One in a hundred passes the filter before the output; a dictionary of the input has the texts of all."""
    one, pool, expected = Writer(), StringPool(), list[str]()
    for at in range(0, 10_000, 100):
        rows = Rows.from_tuples(SCHEMA, range(at, at + 100), [(long_text(n),) for n in range(at, at + 100)], pool)
        expected.append(long_text(at + 7))
        one.log.append_stable([Batch(Kind.STABLE, at // 100, at // 100 + 1, None, rows.slice(7, 8))])
    assert [text for texts in one.pulls(1 << 20) for text in texts] == expected
    assert held_by(one.log) < 2 * one.log.stable.nbytes


def test_where_all_rows_pass_their_dictionary_stays() -> None:
    """To bring texts into another one takes longer than all else that is done to them."""
    one = Writer()
    for at in range(100):
        one.write([long_text(at)])
    (dictionary,) = {e.batch.rows.columns[0].dictionary for e in one.log.entries_after(-1)}
    assert dictionary is one._pool.current()


def test_short_texts_do_not_retain_long_ones_of_dictionary() -> None:
    schema = Schema.of(key="string", text="string")
    one, pool = Writer(), StringPool()
    for at in range(100):
        rows = Rows.from_tuples(schema, [at], [(f"key {at % 5}", long_text(at))], pool)
        one.log.append_stable([Batch(Kind.STABLE, at, at + 1, None, rows.with_columns(rows.columns[:1]))])
    assert [text for texts in one.pulls(1 << 20) for text in texts] == [f"key {at % 5}" for at in range(100)]
    assert held_by(one.log) < 100


def test_rows_that_share_a_text_larger_than_a_pull_go_together() -> None:
    writer = Writer()
    writer.write([long_text(1)] * 200)
    assert [len(texts) for texts in writer.pulls(LONG // 2)] != [1] * 200
    assert sum(len(texts) for texts in writer.pulls(LONG // 2)) == 200
    assert len(writer.pulls(LONG // 2)) < 10
