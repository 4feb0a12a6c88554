"""Compares two stable streams bit for bit: ids, times, t_max, values, nulls; strings by their text.

The division into batches, and the places of boundaries, are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from spe.stream.batch import BoolArray, Column, Int64Array, Rows
from spe.stream.ids import Channel
from spe.stream.times import format_timestamp

#: Ids and rows of one channel, in the order received.
ChannelRows = tuple[Int64Array, Rows]


@dataclass(frozen=True, slots=True)
class Difference:
    """Differences of one channel.

    Attributes:
      missing: number of ids that only the reference has.
      extra: number of ids that only the recording has.
      repeated: number of repeated tuples, not counting the first of each id.
      reordered: number of places where an id is followed by a smaller one.
      different: number of ids that both have with other contents.
      first: the lowest id with a difference, and its description.
    """

    channel: Channel
    missing: int
    extra: int
    repeated: int
    reordered: int
    different: int
    first: str

    def __str__(self) -> str:
        names = ("missing", "extra", "repeated", "reordered", "different")
        counts = ", ".join(f"{n} {name}" for name in names if (n := getattr(self, name)))
        return f"{self.channel}: {counts}; first {self.first}"


def compare(
    recorded: Mapping[Channel, ChannelRows],
    reference: Mapping[Channel, ChannelRows],
    *,
    complete: bool = True,
    names: Mapping[str, tuple[str, ...]] | None = None,
    other: str = "reference",
) -> list[Difference]:
    """Returns the differences of each channel, in channel order; empty if all are equal.

    Args:
      complete: False for a recording of a run that was broken off: tuples of the reference after the last recorded id
        of a channel are not missing.
      names: attribute names per stream, for the text.
      other: name of ``reference``, for the text.
    """
    differences = []
    for channel in sorted({*recorded, *reference}):
        columns = (names or {}).get(channel.stream, ())
        pair = recorded.get(channel), reference.get(channel)
        difference = _compare_channel(channel, *pair, complete, columns, other)
        if difference is not None:
            differences.append(difference)
    return differences


_NO_IDS = np.empty(0, np.int64)


def _compare_channel(
    channel: Channel,
    ours: ChannelRows | None,
    theirs: ChannelRows | None,
    complete: bool,
    names: tuple[str, ...],
    reference: str,
) -> Difference | None:
    our_ids = ours[0] if ours is not None else _NO_IDS
    their_ids = theirs[0] if theirs is not None else _NO_IDS
    if not complete:
        their_ids = their_ids[their_ids <= our_ids.max(initial=0)]
    if ours is not None and theirs is not None and _same_ids(our_ids, their_ids):  # fast path: sets are slow
        our_rows, their_rows = ours[1], theirs[1].slice(0, len(their_ids))
        unique = common = our_ids
        missing = extra = places = _NO_IDS
        differs = rows_differ(our_rows, their_rows)
    else:
        unique, first_at = np.unique(our_ids, return_index=True)
        missing = np.setdiff1d(their_ids, unique)
        extra = np.setdiff1d(unique, their_ids)
        places = np.flatnonzero(our_ids[1:] < our_ids[:-1])
        common, at_ours, at_theirs = np.intersect1d(unique, their_ids, assume_unique=True, return_indices=True)
        differs = np.zeros(len(common), np.bool_)
        if ours is not None and theirs is not None and len(common):
            our_rows, their_rows = ours[1].take(first_at.take(at_ours)), theirs[1].take(at_theirs)
            differs = rows_differ(our_rows, their_rows)
    repeated = len(our_ids) - len(unique)
    if not (len(missing) or len(extra) or repeated or len(places) or differs.any()):
        return None
    faults: list[tuple[int, str]] = []
    if len(missing):
        faults.append((int(missing[0]), "is missing"))
    if len(extra):
        faults.append((int(extra[0]), f"is not in the {reference}"))
    if repeated:
        counted, counts = np.unique(our_ids, return_counts=True)
        faults.append((int(counted[counts > 1][0]), "is there more than once"))
    if len(places):
        faults.append((int(our_ids[1:].take(places).min()), "came after a larger one"))
    if differs.any():
        at = int(differs.argmax())
        faults.append((int(common[at]), _describe(our_rows.slice(at, at + 1), their_rows.slice(at, at + 1), names)))
    first = min(faults, key=lambda fault: fault[0])
    return Difference(
        channel, len(missing), len(extra), repeated, len(places), int(differs.sum()), f"id {first[0]} {first[1]}"
    )


def _same_ids(ours: Int64Array, theirs: Int64Array) -> bool:
    """Do both have the same ids, each once and in order, as without differences?"""
    return np.array_equal(ours, theirs) and bool((ours[1:] > ours[:-1]).all())


def rows_differ(left: Rows, right: Rows) -> BoolArray:
    """Returns a mask of shape (n,): True where two rows at the same place differ in any bit.

    Raises:
      ValueError: the numbers of rows or of columns differ.
    """
    if len(left) != len(right) or len(left.columns) != len(right.columns):
        sizes = f"{len(left)} × {len(left.columns)} and {len(right)} × {len(right.columns)}"
        raise ValueError(f"rows of one schema and one length are compared, got {sizes}")
    result: BoolArray = (left.time != right.time) | (left.t_max != right.t_max)
    for a, b in zip(left.columns, right.columns):
        result |= columns_differ(a, b)
    return result


def columns_differ(left: Column, right: Column) -> BoolArray:
    """Returns a mask of shape (n,): True where null meets value, or the bits of the values differ."""
    n = len(left)
    valid = np.ones(n, np.bool_) if left.valid is None else left.valid
    other_valid = np.ones(n, np.bool_) if right.valid is None else right.valid
    if left.values.dtype != right.values.dtype or (left.dictionary is None) != (right.dictionary is None):
        return valid | other_valid
    if right.dictionary is not None:
        left = left.in_dictionary(right.dictionary)
    a, b = left.values, right.values
    if a.dtype == np.float64:  # NaN equals NaN, and -0.0 is not 0.0
        a, b = np.ascontiguousarray(a).view(np.int64), np.ascontiguousarray(b).view(np.int64)
    result: BoolArray = (valid != other_valid) | (valid & other_valid & (a != b))
    return result


def _describe(recorded: Rows, expected_row: Rows, names: tuple[str, ...]) -> str:
    """Describes the differences of two rows of length 1: recorded, then reference."""
    parts = []
    for name, a, b in (("time", recorded.time, expected_row.time), ("t_max", recorded.t_max, expected_row.t_max)):
        if a[0] != b[0]:
            parts.append(f"{name} {format_timestamp(int(a[0]))} instead of {format_timestamp(int(b[0]))}")
    for at, (column, expected) in enumerate(zip(recorded.columns, expected_row.columns)):
        if columns_differ(column, expected)[0]:
            name = names[at] if at < len(names) else f"attribute {at}"
            parts.append(f"{name} {column.to_list()[0]!r} instead of {expected.to_list()[0]!r}")
    return "has " + ", ".join(parts)
