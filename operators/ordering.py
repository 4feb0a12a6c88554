"""Sort keys of any type, and the best k rows of each group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from operators.ids import IndexArray, Int64Array
from spe.stream.batch import Column, canonical


def text_ranks(column: Column) -> Int64Array:
    """Returns ranks in the code point order of the texts; compares only texts that occur."""
    assert column.dictionary is not None
    strings = column.dictionary.strings
    codes, which = np.unique(column.values, return_inverse=True)
    # The code under a null may be out of range.
    texts = [strings[c] if 0 <= c < len(strings) else "" for c in codes.tolist()]
    ranks = np.empty(len(texts), np.int64)
    ranks[sorted(range(len(texts)), key=texts.__getitem__)] = np.arange(len(texts))
    out: Int64Array = ranks.take(which)
    return out


def sort_keys(column: Column, descending: bool) -> list[npt.NDArray[Any]]:
    """Returns arrays to sort by, the most significant first.  Null is the smallest, NaN larger than every number."""
    if column.dictionary is not None:
        values: npt.NDArray[Any] = text_ranks(column)
    elif column.values.dtype == np.float64:
        values = column.values
        if len(values) and np.isnan(values.max()):
            bits = canonical(values).view(np.int64)
            values = bits ^ ((bits >> 63) & np.int64(2**63 - 1))  # the order of the numbers, as integers
    else:
        values = column.values
    if descending:
        values = -values if values.dtype == np.float64 else ~values
    if column.valid is None:
        return [values]
    valid = ~column.valid if descending else column.valid
    return [valid, np.where(column.valid, values, values.dtype.type(0))]


def in_reach(key: npt.NDArray[Any], k: int) -> IndexArray:
    """Returns rows that can be among the first k by their most significant key; in O(n)."""
    if len(key) <= k:
        return np.arange(len(key))
    out: IndexArray = (key <= np.partition(key, k - 1)[k - 1]).nonzero()[0]
    return out


def best(
    groups: Int64Array | None, keys: Sequence[npt.NDArray[Any]], k: int, with_ties: bool
) -> tuple[IndexArray, Int64Array, IndexArray]:
    """Returns the first k rows of each group, their ranks from 1, and the first selected row of their group.

    Args:
      groups: shape (n,), n > 0; None: a single group.
      keys: arrays to order by, the most significant first; rows with equal keys keep their order.
      with_ties: rows with equal keys share a rank, and all of rank ≤ k are selected.

    Returns:
      Rows by group and rank; groups in the order of their first selected row.
    """
    if groups is None:
        return _best_of_all(keys, k, with_ties)
    order: IndexArray = np.lexsort((*reversed(keys), groups))
    position = np.arange(len(order))
    of_group = groups[order]
    starts = np.append(True, of_group[1:] != of_group[:-1])
    group_start = np.maximum.accumulate(np.where(starts, position, 0))
    if with_ties:
        for key in keys:
            ordered = key[order]
            starts[1:] |= ordered[1:] != ordered[:-1]
        rank = np.maximum.accumulate(np.where(starts, position, 0)) - group_start + 1
    else:
        rank = position - group_start + 1
    taken = rank <= k
    order, rank, group_start = order[taken], rank[taken], group_start[taken]
    first_taken = np.full(len(groups), len(groups), np.int64)
    np.minimum.at(first_taken, group_start, order)
    first = first_taken.take(group_start)
    by_group = first.argsort(kind="stable")
    return order[by_group], rank[by_group], first[by_group]


def _best_of_all(
    keys: Sequence[npt.NDArray[Any]], k: int, with_ties: bool
) -> tuple[IndexArray, Int64Array, IndexArray]:
    """Selects the first k rows of a single group."""
    order: IndexArray = keys[0].argsort(kind="stable") if len(keys) == 1 else np.lexsort(keys[::-1])
    rank = np.arange(1, len(order) + 1)
    if with_ties:
        tied = np.ones(len(order) - 1, np.bool_)
        for key in keys:
            ordered = key.take(order)
            tied &= ordered[1:] == ordered[:-1]
        rank[1:][tied] = 0
        rank = np.maximum.accumulate(rank)
    count = int(rank.searchsorted(k, side="right"))
    order = order[:count]
    return order, rank[:count], np.full(count, order.min())
