"""Base classes for user-defined operators and aggregates.

A query names both by import path, ``package.module:Class``; they must be importable on every machine that runs or
checks the query.  Their results must depend only on their input and its order: no clock, no randomness, no ``hash()``,
no iteration over sets.  Replicas run the same code on the same rows and must get the same bits.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from operators.operator import Operator
from spe.stream.batch import Rows
from spe.stream.schema import AttributeType, Schema
from spe.stream.times import BEFORE_TIME


class CustomOperator(Operator):
    """Base of user-defined operators; see ``operators.operator`` for the contract of ``step``.

    A subclass defines ``output_schema`` and ``step``.  One with state also defines ``snapshot`` and ``restore``: the
    snapshot must never change afterwards, so write to copies of objects in it; it consists of dict, list, tuple, int,
    float, str, bool, None, bytes, NumPy arrays, Column, Rows and StringDictionary.  Undo/redo stores that snapshot
    unless the subclass also defines ``oldest_needed`` and ``clear``, and ``recount`` if it has counters.  A
    checkpoint log stores it as one record; for a :class:`operators.keyed.KeyedOperator` as one record per key.

    Args:
      inputs: schema of each port.
      arguments: ``arguments`` of the query; defined by the subclass.
    """

    def __init__(self, inputs: Sequence[Schema], **arguments: Any) -> None:
        self.inputs = tuple(inputs)
        self.schema = self.output_schema(inputs, **arguments)

    @classmethod
    @abstractmethod
    def output_schema(cls, inputs: Sequence[Schema], **arguments: Any) -> Schema:
        """Returns the schema of the output.  Raises ValueError for wrong inputs or arguments."""

    @classmethod
    def keeps_state(cls) -> bool:
        """Does it have state?"""
        return cls.snapshot is not Operator.snapshot

    @classmethod
    def keeps_cells(cls) -> bool:
        """Does a checkpoint log store its state by key?  See :class:`operators.keyed.KeyedOperator`."""
        return False

    def oldest_needed(self) -> int | None:
        return BEFORE_TIME if self.keeps_state() else None


class CustomHost(Operator):
    """Runs a :class:`CustomOperator` and refuses output that breaks the contract (the caller adds the slice)."""

    def __init__(self, operator: CustomOperator) -> None:
        self._operator = operator
        self._previous = BEFORE_TIME
        self.schema = operator.schema

    @property
    def previous(self) -> int:
        """End of the previous slice."""
        return self._previous

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = self._operator.step(ports, boundary)
        if rows is not None:
            _check_kind(rows)
            if len(rows):
                self._check(rows, boundary)
            else:
                rows = None
        self._previous = boundary
        return rows

    def _check(self, rows: Rows, boundary: int) -> None:
        if len(rows.columns) != len(self.schema):
            raise ValueError(f"returned {len(rows.columns)} columns, the schema has {len(self.schema)}")
        for attribute, column in zip(self.schema, rows.columns):
            if len(column) != len(rows) or column.values.dtype != attribute.type.dtype:
                raise ValueError(
                    f"column {attribute.name!r} has {len(column)} values of {column.values.dtype}; expected "
                    f"{len(rows)} of {attribute.type.dtype}"
                )
            if attribute.type is AttributeType.STRING and column.dictionary is None:
                raise ValueError(f"column {attribute.name!r} has no dictionary")
            if not attribute.nullable and column.valid is not None and not column.valid.all():
                raise ValueError(f"column {attribute.name!r} holds nulls, but is declared not null")
        times = rows.time
        if (times[1:] < times[:-1]).any():
            raise ValueError("returned rows are not sorted by time")
        if times[-1] >= boundary or times[0] < self._previous:
            raise ValueError("returned rows lie outside the slice")

    def snapshot(self) -> Mapping[str, Any]:
        return {"previous": self._previous, "operator": self._operator.snapshot()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._previous = state["previous"]
        self._operator.restore(state["operator"])

    def counters(self) -> Mapping[str, int]:
        return {name: int(n) for name, n in self._operator.counters().items()}  # NumPy integers cannot be sent

    def oldest_needed(self) -> int | None:
        return self._operator.oldest_needed()

    def clear(self, boundary: int) -> None:
        self._previous = boundary
        self._operator.clear(boundary)

    def recount(self, counters: Mapping[str, int]) -> None:
        self._operator.recount(counters)


def _check_kind(rows: Rows) -> None:
    """Raises TypeError if the result of a user's operator, or a part of it, has another type."""
    if not isinstance(rows, Rows):
        raise TypeError(f"returned a {type(rows).__name__}; expected Rows or None")
    times: dict[str, object] = {"time": rows.time, "t_max": rows.t_max}
    for name, value in times.items():
        if not isinstance(value, np.ndarray) or value.dtype != np.int64 or value.ndim != 1:
            raise TypeError(f"Rows.{name} is {_shown(value)}; expected a one-dimensional array of int64")


def _shown(value: object) -> str:
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
