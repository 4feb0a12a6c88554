"""Tentative tuples and the true ones that they met, counted by window within a task, by NumPy.  No Spark here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spe.stream.batch import AnyArray

#: The columns of MET (consistency.proof.comparing.matching) that are read, beside the two of tuples.
TALLIED: Final = ("episode", "window_us", "arrived_us", "undone_at_us", "right")
_LONG: Final = pa.int64()
_SUMS: Final = ("tentative", "truth", "both", "right")
_MOST: Final = np.iinfo(np.int64).max


@dataclass(frozen=True)
class WindowTally:
    """What a task makes of MET (consistency.proof.comparing.matching); Spark carries it there.

    Attributes:
      errors: numeric attributes whose relative error is measured.
    """

    errors: tuple[str, ...]

    @property
    def made(self) -> pa.Schema:
        """The schema of that.

        A row for some rows of a window, of which a window has several: ``episode, window_us``, the least arrival as
        ``at_us``, how many there are of each kind, and of each error its sum and how many were summed.  And one,
        without an episode, for tentative tuples that stood for ``stood_us`` although they were wrong: how many, as
        ``stood``.
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
                    arrays = [columns.get(one.name, pa.nulls(count, one.type)) for one in made]
                    yield pa.RecordBatch.from_arrays(arrays, schema=made)

    def _windows(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """A row for each run of rows of one window."""
        episode, window = (np.asarray(batch.column(name)) for name in ("episode", "window_us"))
        begins = np.flatnonzero(np.append(True, (np.diff(episode) != 0) | (np.diff(window) != 0)))
        given, stood, right = (
            _given(batch),
            np.asarray(batch.column("true").is_valid()),
            np.asarray(batch.column("right")),
        )
        at = np.minimum.reduceat(np.where(given, _numbers(batch.column("arrived_us")), _MOST), begins)
        kinds = zip(_SUMS, (given, stood, given & stood, right))
        found = {
            "episode": pa.array(episode[begins]),
            "window_us": pa.array(window[begins]),
            "at_us": pa.array(at, mask=at == _MOST),
            **{name: pa.array(np.add.reduceat(which, begins, dtype=np.int64)) for name, which in kinds},
        }
        for name in self.errors:
            one, other = (batch.column(side).field(name) for side in ("tentative", "true"))
            known, off = np.zeros(len(batch), bool), np.zeros(len(batch))
            if pa.types.is_integer(one.type) or pa.types.is_floating(one.type):  # else it was received as another type
                known = given & stood & np.asarray(one.is_valid()) & np.asarray(other.is_valid())
                off = np.where(known, _relative(*(_numbers(side).astype(np.float64) for side in (one, other))), 0.0)
            found[f"sum {name}"] = pa.array(np.add.reduceat(off, begins))
            found[f"count {name}"] = pa.array(np.add.reduceat(known, begins, dtype=np.int64))
        return found


def _stood(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    wrong = _given(batch) & ~np.asarray(batch.column("right")) & np.asarray(batch.column("undone_at_us").is_valid())
    until, since = (_numbers(batch.column(name)) for name in ("undone_at_us", "arrived_us"))
    stood, counts = np.unique(until[wrong] - since[wrong], return_counts=True)
    return {"stood_us": pa.array(stood), "stood": pa.array(counts)}


def _given(batch: pa.RecordBatch) -> AnyArray:
    found: AnyArray = np.asarray(batch.column("arrived_us").is_valid())
    return found


def _numbers(column: pa.Array) -> Any:
    return np.asarray(column.fill_null(0))


def _relative(one: Any, other: Any) -> Any:
    """How far off a value is, as a share of the true one; where that is 0, 0 or 1."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        off = np.abs(one - other)
        return np.where(other == 0, np.where(off == 0, 0.0, 1.0), off / np.abs(other))
