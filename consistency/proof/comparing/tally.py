"""Tentative tuples and the true ones that they met, counted by window within a task, by NumPy.  No Spark here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spe.stream.batch import AnyArray

#: The columns of MET (consistency.proof.comparing.matching) that are read, besides the two of tuples.
TALLIED: Final = ("episode", "window_us", "arrived_us", "undone_at_us", "right")
_LONG: Final = pa.int64()
_SUMS: Final = ("tentative", "truth", "both", "right")
_MOST: Final = np.iinfo(np.int64).max


@dataclass(frozen=True)
class WindowTally:
    """Counts MET (consistency.proof.comparing.matching) by window; runs within a Spark task.

    Attributes:
      errors: numeric attributes whose relative error is measured.
    """

    errors: tuple[str, ...]

    @property
    def made(self) -> pa.Schema:
        """Schema of the result.

        A row counts some rows of one window; a window may have several.  Columns: ``episode, window_us``, the least
        arrival as ``at_us``, the count of each kind, and for each error its sum and count.  One more row, without an
        episode, counts as ``stood`` the tentative tuples that stood for ``stood_us`` although they were wrong.
        """
        errors = [
            (f"{what} {name}", type_)
            for name in self.errors
            for what, type_ in (("sum", pa.float64()), ("count", _LONG))
        ]
        longs = ("episode", "window_us", "at_us", *_SUMS, "stood_us", "stood")
        return pa.schema([*[(name, _LONG) for name in longs], *errors])

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        made = self.made
        for batch in batches:
            if len(batch):
                for columns in (self._windows(batch), _stood(batch)):
                    count = len(next(iter(columns.values())))
                    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in made]
                    yield pa.RecordBatch.from_arrays(arrays, schema=made)

    def _windows(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Returns a row for each run of rows of one window."""
        episode, window = (np.asarray(batch.column(name)) for name in ("episode", "window_us"))
        begins = np.flatnonzero(np.append(True, (np.diff(episode) != 0) | (np.diff(window) != 0)))
        tentative, stood, right = (
            _is_tentative(batch),
            np.asarray(batch.column("true").is_valid()),
            np.asarray(batch.column("right")),
        )
        at = np.minimum.reduceat(np.where(tentative, _numbers(batch.column("arrived_us")), _MOST), begins)
        kinds = zip(_SUMS, (tentative, stood, tentative & stood, right))
        columns = {
            "episode": pa.array(episode[begins]),
            "window_us": pa.array(window[begins]),
            "at_us": pa.array(at, mask=at == _MOST),
            **{name: pa.array(np.add.reduceat(which, begins, dtype=np.int64)) for name, which in kinds},
        }
        for name in self.errors:
            ours, theirs = (batch.column(side).field(name) for side in ("tentative", "true"))
            known, off = np.zeros(len(batch), bool), np.zeros(len(batch))
            if pa.types.is_integer(ours.type) or pa.types.is_floating(ours.type):  # else received as another type
                known = tentative & stood & np.asarray(ours.is_valid()) & np.asarray(theirs.is_valid())
                off = np.where(known, _relative(*(_numbers(side).astype(np.float64) for side in (ours, theirs))), 0.0)
            columns[f"sum {name}"] = pa.array(np.add.reduceat(off, begins))
            columns[f"count {name}"] = pa.array(np.add.reduceat(known, begins, dtype=np.int64))
        return columns


def _stood(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    undone = np.asarray(batch.column("undone_at_us").is_valid())
    wrong = _is_tentative(batch) & ~np.asarray(batch.column("right")) & undone
    until, since = (_numbers(batch.column(name)) for name in ("undone_at_us", "arrived_us"))
    stood, counts = np.unique(until[wrong] - since[wrong], return_counts=True)
    return {"stood_us": pa.array(stood), "stood": pa.array(counts)}


def _is_tentative(batch: pa.RecordBatch) -> AnyArray:
    present: AnyArray = np.asarray(batch.column("arrived_us").is_valid())
    return present


def _numbers(column: pa.Array) -> Any:
    return np.asarray(column.fill_null(0))


def _relative(values: Any, truth: Any) -> Any:
    """Returns the relative error of a value; where the true value is 0, 0 or 1."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        off = np.abs(values - truth)
        return np.where(truth == 0, np.where(off == 0, 0.0, 1.0), off / np.abs(truth))
