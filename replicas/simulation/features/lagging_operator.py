"""An operator that adds a second time to rows, which is earlier than the tuple time for some, or missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from operators.custom import CustomOperator
from spe.stream.batch import Column, Rows
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.times import MILLISECOND


class Lagging(CustomOperator):
    """Adds ``seen``: the tuple time, but an earlier time for one row in ``late``, and null for one row in ``null``.

    With ``bad`` it raises at one row in so many.  The rows are chosen by their time, in milliseconds, plus their ``v``.
    """

    def __init__(self, inputs: Sequence[Schema], **arguments: Any) -> None:
        super().__init__(inputs, **arguments)
        self._late, self._by_us, self._null = (int(arguments[name]) for name in ("late", "by_us", "null"))
        self._bad = arguments.get("bad")

    @classmethod
    def output_schema(cls, inputs: Sequence[Schema], **arguments: Any) -> Schema:
        if "v" not in inputs[0].names:
            raise ValueError(f"expected the attribute v, got {', '.join(inputs[0].names)}")
        return Schema((*inputs[0], Attribute("seen", AttributeType.TIMESTAMP)))

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        if rows is None:
            return None
        v = rows.columns[self.inputs[0].index("v")]
        numbers = rows.time // MILLISECOND + (v.values if v.valid is None else np.where(v.valid, v.values, 0))
        if self._bad is not None and (bad := numbers % self._bad == 0).any():
            raise ValueError(f"the number {numbers[bad][0]} is bad")
        times = np.where(numbers % self._late == 0, rows.time - self._by_us, rows.time)
        present = numbers % self._null != 0
        return rows.with_columns((*rows.columns, Column(np.where(present, times, 0), present)))
