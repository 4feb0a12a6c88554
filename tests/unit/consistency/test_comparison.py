"""Two stable streams are equal iff they are equal bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from consistency.comparison import ChannelRows, compare, rows_differ
from spe.stream.batch import Batch, Column, Rows
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from spe.stream.strings import StringDictionary
from tests.support.streams import parse

SCHEMA = Schema.of(n="int64", x="float64", s="string", ok="bool")
CHANNEL = Channel(StreamId("out"), 0)
NAMES = {"out": SCHEMA.names}


def rows(text: str) -> ChannelRows:
    (batch,) = parse(text, SCHEMA)
    assert isinstance(batch, Batch)
    return batch.row_ids(), batch.rows


def first(recorded: str, reference: str) -> str:
    """The text of the one difference."""
    (difference,) = compare({CHANNEL: rows(recorded)}, {CHANNEL: rows(reference)}, names=NAMES)
    return str(difference)


def test_equal_streams_with_other_dictionaries_compare_equal() -> None:
    text = "S1/5:1,0.5,a,true S2/6:null,null,null,null S3/7:3,nan,b,false"
    ids, one = rows(text)
    shuffled = StringDictionary(["b", "other", "a"])
    columns = tuple(c.in_dictionary(shuffled) if c.dictionary is not None else c for c in one.columns)
    assert compare({CHANNEL: (ids, one.with_columns(columns))}, {CHANNEL: rows(text)}) == []


def test_a_null_differs_from_the_value_under_its_mask() -> None:
    assert first("S1/5:null,0.5,a,true", "S1/5:0,0.5,a,true") == (
        "out/0: 1 different; first id 1 has n None instead of 0"
    )


def test_values_under_a_null_are_ignored() -> None:
    mask = np.array([False])
    one, other = (Rows(np.zeros(1, np.int64), np.zeros(1, np.int64), (Column(np.array([v]), mask),)) for v in (1, 2))
    assert not rows_differ(one, other).any()


def test_floats_are_compared_by_their_bits() -> None:
    zero, minus = (Rows(np.zeros(1, np.int64), np.zeros(1, np.int64), (Column(np.array([v])),)) for v in (0.0, -0.0))
    assert rows_differ(zero, minus).all()
    assert first("S1/5:1,0.30000000000000004,a,true", "S1/5:1,0.3,a,true").endswith(
        "has x 0.30000000000000004 instead of 0.3"
    )


def test_the_first_differing_part_of_a_tuple_is_named() -> None:
    same = "S1/5:1,0.5,a,true"
    assert first(f"{same} S2/6:2,0.5,b,true S3/7:3,0.5,c,true", f"{same} S2/6:2,0.5,B,false S3/7:4,0.5,c,true") == (
        "out/0: 2 different; first id 2 has s 'b' instead of 'B', ok True instead of False"
    )
    assert "has time 1970-01-01T00:00:00.000005 instead of 1970-01-01T00:00:00.000006, t_max" in first(
        same, "S1/6:1,0.5,a,true"
    )
    assert first("S1/5^4:1,0.5,a,true", same).endswith(
        "has t_max 1970-01-01T00:00:00.000004 instead of 1970-01-01T00:00:00.000005"
    )


def test_missing_extra_repeated_and_reordered_tuples_are_counted() -> None:
    reference = "S1/1:1,0,a,true S2/2:2,0,a,true S3/3:3,0,a,true"
    assert first("S1/1:1,0,a,true S3/3:3,0,a,true", reference) == "out/0: 1 missing; first id 2 is missing"
    ids, three = rows(reference)
    found = compare(
        {CHANNEL: (np.array([1, 3, 3, 2, 9]), three.take(np.array([0, 2, 2, 1, 1])))}, {CHANNEL: (ids, three)}
    )
    assert [str(d) for d in found] == [
        "out/0: 1 extra, 1 repeated, 1 reordered; first id 2 came after a larger one",
    ]


def test_channel_on_one_side_only_is_missing_or_extra() -> None:
    other = Channel(StreamId("out"), 1)
    one = rows("S1/1:1,0,a,true S2/2:2,0,a,true")
    found = compare({CHANNEL: one}, {other: one})
    assert [str(d) for d in found] == [
        "out/0: 2 extra; first id 1 is not in the reference",
        "out/1: 2 missing; first id 1 is missing",
    ]


def test_an_unfinished_run_lacks_nothing_after_its_last_tuple() -> None:
    reference = {CHANNEL: rows("S1/1:1,0,a,true S2/2:2,0,a,true S3/3:3,0,a,true")}
    assert compare({CHANNEL: rows("S1/1:1,0,a,true")}, reference, complete=False) == []
    assert compare({}, reference, complete=False) == []
    (difference,) = compare({CHANNEL: rows("S1/1:1,0,a,true S3/3:3,0,a,true")}, reference, complete=False)
    assert str(difference) == "out/0: 1 missing; first id 2 is missing"


def test_rows_of_different_shape_cannot_be_compared() -> None:
    one = rows("S1/1:1,0,a,true")[1]
    with pytest.raises(ValueError, match="rows of one schema and one length"):
        rows_differ(one, one.with_columns(one.columns[:2]))


def test_columns_of_different_types_differ_where_not_null() -> None:
    _, one = rows("S1/1:1,0,a,true S2/2:null,0,a,true")
    floats = one.with_columns(
        (Column(one.columns[0].values.astype(np.float64), one.columns[0].valid), *one.columns[1:])
    )
    assert rows_differ(one, floats).tolist() == [True, False]
