"""Records of a source's log: their state, and whether each continues the one before it."""

from __future__ import annotations

import struct

import pytest

from replicas.connectors.reader import CHUNK_BYTES
from replicas.source.writer import RECORD_ROWS_BYTES
from spe.errors import LogCorrupt
from spe.log.format import RECORD_BYTES_MAX
from spe.log.rejected_rows import TEXT_MAX, RejectedInput, rejected_batch
from spe.log.source_log import (
    SourceState,
    check_record,
    decode_rejected,
    decode_source_batch,
    decode_source_state,
    encode_source_record,
    source_record_parts,
)
from spe.stream.batch import Batch, Rows
from spe.stream.names import Kind
from spe.stream.schema import Schema
from spe.stream.strings import StringPool

SCHEMA = Schema.of(n="int64!")


def batch(after: int, count: int) -> Batch:
    rows = Rows.from_tuples(SCHEMA, list(range(count)), [(n,) for n in range(count)])
    return Batch(Kind.STABLE, after, after + count, None, rows)


@pytest.mark.parametrize("count", [0, 3])
def test_a_record_is_read_as_it_was_written(count: int) -> None:
    state = SourceState(5, 6, 7, 8, 9, 10, 11, left_out=4)
    body = encode_source_record(state, batch(2, count) if count else None, SCHEMA)
    assert decode_source_state(body) == state
    read = decode_source_batch(body, SCHEMA, StringPool())
    assert (read is None) == (count == 0)
    assert read is None or (read.from_id, read.upto_id) == (2, 5)


@pytest.mark.parametrize("count", [0, 1, 999, 1_000, 1_001, 5_000])
def test_the_parts_of_a_record_are_the_record(count: int) -> None:
    """Whatever its columns are: numbers, truth values, texts, with and without nulls."""
    schema = Schema.of(n="int64!", x="float64", yes="bool", text="string")
    made = [(n, None if n % 3 else n / 2, None if n % 7 == 1 else n % 2 == 0, f"text {n % 9}") for n in range(count)]
    given = Batch(Kind.STABLE, 2, 2 + count, None, Rows.from_tuples(schema, list(range(count)), made))
    state = SourceState(2 + count, 6, 7, 8, 9, 10, 11, left_out=4, cursor=b"c")
    parts = source_record_parts(state, given if count else None, schema)
    assert b"".join(parts) == encode_source_record(state, given if count else None, schema)
    assert (len(parts) > 1) is (count >= 1_000)
    assert sum(map(len, parts)) == len(b"".join(parts))


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("cursor", [b"\x00", b"0-1526919030474-55", bytes(range(256)) * 4])
def test_a_cursor_is_read_as_it_was_written(count: int, cursor: bytes) -> None:
    state = SourceState(5, 6, 7, 8, 9, 10, 11, left_out=4, cursor=cursor)
    body = encode_source_record(state, batch(2, count) if count else None, SCHEMA)
    assert decode_source_state(body) == state
    read = decode_source_batch(body, SCHEMA, StringPool())
    assert (read is None) == (count == 0)
    assert read is None or (read.from_id, read.upto_id) == (2, 5)


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("cursor", [b"", b"0-55"])
@pytest.mark.parametrize("rejected", [0, 1, 40])
def test_rejected_rows_are_read_as_they_were_written(count: int, cursor: bytes, rejected: int) -> None:
    rows = [RejectedInput(n, 7, f"e.csv, line {n}", "no JSON", "{") for n in range(rejected)]
    state = SourceState(5, 6, 7, 8, 9, 10, 11, left_out=4, cursor=cursor, rejected=60)
    aside = rejected_batch(rows, 60 - rejected) if rows else None
    body = encode_source_record(state, batch(2, count) if count else None, SCHEMA, aside)
    assert decode_source_state(body) == state
    read = decode_source_batch(body, SCHEMA, StringPool())
    assert (None if read is None else read.upto_id) == (5 if count else None)
    found = decode_rejected(body, StringPool())
    if found is None:
        assert not rejected
        return
    assert found.row_ids().tolist() == list(range(61 - rejected, 61))
    assert found.rows.time.tolist() == [7] * rejected
    assert found.rows.to_tuples() == [(f"e.csv, line {n}", "no JSON", "{") for n in range(rejected)]


def test_a_record_without_rejected_rows_says_so() -> None:
    for state in (SourceState(5), SourceState(5, cursor=b"c")):
        assert decode_rejected(encode_source_record(state, batch(2, 3), SCHEMA), StringPool()) is None


def test_texts_of_rejected_rows_are_cut_to_fit_a_record() -> None:
    """Of a few rows 8,000 characters each; of many, together what a record of the log takes."""
    long = "\udcff" + "x" * 100_000
    ((position, reason, text),) = rejected_batch([RejectedInput(0, 7, long, long, long)], 0).rows.to_tuples()
    assert (position, reason[:9], text[:9]) == ("x" * 500, "\\udcffxxx", "\\udcffxxx")
    assert len(text) == TEXT_MAX + 5
    texts = [str(n) + long[:2_000] for n in range(8192)]
    many = rejected_batch([RejectedInput(0, 7, text, text, text) for text in texts], 0)
    body = encode_source_record(SourceState(rejected=8192), None, SCHEMA, many)
    assert len(body) < RECORD_BYTES_MAX - RECORD_ROWS_BYTES - CHUNK_BYTES
    assert {len(row[-1]) for row in many.rows.to_tuples()} == {256 + 5}, "256 characters, one of them as an escape"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"short", "of 5 bytes; at least 88"),
        (struct.pack("<4I8q", 1, 0, 0, 0, *range(8)), "of 80 bytes; at least 88"),
        (struct.pack("<4I9q", 2, 0, 0, 0, *range(9)), "of format version 2; this release reads version 1"),
        (struct.pack("<4I9q", 1, 5, 0, 0, *range(9)) + b"four", "of 92 bytes; at least 93"),
        (struct.pack("<4I9q", 1, 1, 3, 0, *range(9)) + b"one", "of 91 bytes; at least 92"),
    ],
)
def test_other_bytes_are_refused(body: bytes, said: str) -> None:
    with pytest.raises(LogCorrupt, match=said):
        decode_source_state(body)


@pytest.mark.parametrize(
    ("before", "state", "one", "said"),
    [
        (2, SourceState(5, consumed=7, left_out=2), batch(2, 3), ""),
        (None, SourceState(5, consumed=5), batch(2, 3), ""),
        (5, SourceState(5, consumed=5), None, ""),
        (1, SourceState(5, consumed=5), batch(2, 3), "tuple 3 follows tuple 1"),
        (4, SourceState(5, consumed=5), None, "tuple 6 follows tuple 4"),
        (2, SourceState(6, consumed=6), batch(2, 3), "3 tuples take the ids 3 to 6"),
        (2, SourceState(5, consumed=6), batch(2, 3), "6 rows were read and 0 of them left out"),
        (2, SourceState(5, consumed=5, left_out=1), batch(2, 3), "5 rows were read and 1 of them left out"),
    ],
)
def test_record_continues_previous_and_accounts_for_each_row(
    before: int | None, state: SourceState, one: Batch | None, said: str
) -> None:
    if not said:
        check_record(before, state, one)
        return
    with pytest.raises(LogCorrupt, match=said):
        check_record(before, state, one)
