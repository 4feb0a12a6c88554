"""Parts and the ledger of pushed batches: what is cut or damaged anywhere is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spe.errors import LogCorrupt
from spe.log import pushed_batches as pushed
from spe.log.pushed_batches import (
    LastPushed,
    Part,
    PushedBatch,
    PushLedger,
    decode_part,
    digest_of,
    encode_part,
    read_ledger,
    read_trailer,
    trailer_of,
)
from spe.stream.batch import Rows
from spe.stream.schema import Schema
from spe.stream.strings import StringPool

SCHEMA = Schema.of(n="int64!", word="string")
ROWS = [Rows.from_tuples(SCHEMA, [0] * 5, [(n, None if n == 3 else f"w{n % 2}") for n in range(5)])]
LEDGER = PushLedger(
    9,
    {"writer:etl": LastPushed("query", 4, {"before": 7}), "writer:x": LastPushed("other", 0)},
    (PushedBatch(4, 2, 80, (("a" * 32, "d1"),)), PushedBatch(6, 3, 90, (("b" * 32, "d2"), ("c" * 32, "d3")))),
    frozenset(["writer:x"]),
)


def test_a_part_is_decoded_as_it_was_encoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushed, "PIECE_ROWS", 2)
    found = decode_part(encode_part(ROWS, SCHEMA), SCHEMA, StringPool())
    assert [len(rows) for rows in found] == [2, 2, 1]
    assert [row for rows in found for row in rows.to_tuples()] == ROWS[0].to_tuples()
    assert decode_part(encode_part([], SCHEMA), SCHEMA, StringPool()) == []


def test_part_with_damaged_trailer_is_incomplete() -> None:
    data = encode_part(ROWS, SCHEMA)
    part = Part("writer:etl", "query", 4, 5, len(data), digest_of(data))
    whole = data + trailer_of(part)
    assert read_trailer(whole, len(whole)) == read_trailer(whole[-200:], len(whole)) == part
    assert all(read_trailer(whole[:end], end) is None for end in range(len(whole)))
    assert all(
        read_trailer(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], len(whole)) is None
        for at in range(len(data), len(whole))
    )
    assert read_trailer(whole[1:], len(whole) - 1) is None  # a byte of the rows is missing


def test_ledger_is_read_as_written_and_damage_is_noticed() -> None:
    data = LEDGER.encode()
    assert read_ledger(data) == LEDGER
    for at in range(len(data)):
        try:
            assert read_ledger(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) == LEDGER
        except LogCorrupt:
            continue
    for end in range(len(data)):
        with pytest.raises(LogCorrupt):
            read_ledger(data[:end])


@given(st.lists(st.integers(0, 3), max_size=12), st.data())
def test_pending_batches_cover_rows_missing_in_log(sizes: list[int], data: st.DataObject) -> None:
    ledger, consumed = PushLedger(), 0
    for batch, rows in enumerate(sizes):
        part = Part("writer:etl", "query", batch, rows, 10 * rows, "d")
        ledger = ledger.committed("writer:etl", "query", batch, [(f"{batch:032x}", part)], consumed)
        consumed = data.draw(st.integers(consumed, ledger.rows))
        left = ledger.without(consumed).pending
        assert ledger.fault(consumed) == ledger.without(consumed).fault(consumed) == ""
        assert sum(one.rows for one in left) >= ledger.rows - consumed
        assert all(one.upto > consumed for one in left)
        assert [one.after for one in left[1:]] == [one.upto for one in left[:-1]]
        assert ledger.has("writer:etl", "query", batch)
        assert not ledger.has("writer:etl", "query", batch + 1)
    assert ledger.fault(ledger.rows + 1).startswith(f"the log has {ledger.rows + 1} pushed rows")


def ledger_after(*batches: tuple[str, int]) -> PushLedger:
    ledger = PushLedger()
    for query, batch in batches:
        ledger = ledger.committed("writer:etl", query, batch, [], 0)
    return read_ledger(ledger.encode())


def test_older_checkpoint_is_refused_whatever_query_replaces() -> None:
    """Else batches that are other rows would be taken for those that are committed, and lost."""
    ledger = ledger_after(("q", 7))
    for replaces in ("", "q", "p"):
        assert "the checkpoint is an older copy" in ledger.refuse("writer:etl", "q", 5, replaces)
        assert ledger.refuse("writer:etl", "q", 7, replaces) == ledger.refuse("writer:etl", "q", 8, replaces) == ""


def test_returning_query_continues_after_its_last_batch() -> None:
    ledger = ledger_after(("q", 7), ("q2", 3))
    assert "of query q2, and this is query q" in ledger.refuse("writer:etl", "q", 7, "")
    assert "the checkpoint is an older copy" in ledger.refuse("writer:etl", "q", 6, "q2")
    assert ledger.refuse("writer:etl", "q", 7, "q2") == ""
    assert ledger.has("writer:etl", "q", 7)  # not taken a second time
    assert not ledger.has("writer:etl", "q", 8)
    back = ledger_after(("q", 7), ("q2", 3), ("q", 8))
    assert back.writers == {"writer:etl": LastPushed("q", 8, {"q2": 3})}
    assert back.has("writer:etl", "q2", 3)
    assert "of query q, and this is query q2" in back.refuse("writer:etl", "q2", 4, "q3")
