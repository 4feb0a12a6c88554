"""Digests of tuples, so that many can be compared at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from spe.plan.plan import Plan
from spe.stream.batch import Batch, Column, Int64Array, Rows, concat_rows
from spe.stream.hashing import hash_column
from spe.stream.ids import Channel
from spe.stream.names import StreamId

#: Ids and tuples of a run without failures, in order, per output channel.
Reference = Mapping[Channel, tuple[Int64Array, Rows]]
Digests = npt.NDArray[np.uint64]

_STEP = 0x9E3779B97F4A7C15


def row_digests(rows: Rows, columns: Sequence[int] | None = None) -> Digests:
    """Returns a 64-bit digest per tuple, by value: of time, t_max and all attributes, or of some attributes only."""
    chosen = [rows.columns[at] for at in columns] if columns is not None else list(rows.columns)
    if columns is None:
        chosen += [Column(rows.time), Column(rows.t_max)]
    total = np.zeros(len(rows), np.uint64)
    factor = 1
    for column in chosen:
        factor = factor * _STEP & 0xFFFF_FFFF_FFFF_FFFF
        total += hash_column(column) * np.uint64(factor)  # arrays of uint64 wrap, as intended
    return total


def among(digests: Digests, others: Digests) -> npt.NDArray[np.bool_]:
    """Returns a mask of the first that are also in the second.

    For a million, nearly all distinct, ``np.isin`` takes ten times as long: it hashes them.
    """
    ordered, order = np.sort(others), np.argsort(digests)
    asked = digests[order]  # sorted: each search begins where the last one ended
    present = np.zeros(len(digests), np.bool_)
    if len(ordered):
        present[order] = ordered.take(np.searchsorted(ordered, asked), mode="clip") == asked
    return present


def joined(batches: Sequence[Batch]) -> tuple[Int64Array, Rows]:
    """Returns ids and tuples of many batches (at least one), in order."""
    return np.concatenate([b.row_ids() for b in batches]), concat_rows([b.rows for b in batches])


def only_adds(plan: Plan, stream: StreamId) -> bool:
    """Does more input only add results to a stream and take none back?  So filters, maps, unions and inner joins.

    A run that lacks some input then gives part of the right answer, each result as often as that at most.
    An aggregate or a top-k of part of the input can give copies of a right result that the whole answer lacks.
    """
    made_by = {o.name: o.spec for o in plan.query.operators}
    spec = made_by.get(stream)
    if spec is None:
        return True  # a source
    return spec.only_adds and all(only_adds(plan, s) for s in spec.inputs)


def lineage_columns(plan: Plan, channel: Channel) -> tuple[int, ...] | None:
    """Returns attributes that identify a result's input, if the query tells: group and window of an aggregate.

    Two results of one group and window are two versions of one answer, whatever their values.
    """
    for operator in plan.query.operators:
        if operator.name == channel.stream and (key := operator.spec.result_key) is not None:
            return tuple(operator.schema.index(n) for n in key)
    return None
