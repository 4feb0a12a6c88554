"""An operator with state by key, and an aggregate function, for random queries: both depend on the order of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from operators.aggregate.custom import Aggregator
from operators.keyed import KeyedOperator
from spe.stream.batch import Column, Rows
from spe.stream.schema import Schema

#: Numbers are kept modulo this prime.
_MODULUS: Final = (1 << 31) - 1


class KeyedGaps(KeyedOperator):
    """Passes ``key`` and ``p`` on; ``v`` becomes its difference to the previous ``v`` of the key.

    It is 0 at first and after each ``forget`` rows of the key.
    """

    @classmethod
    def output_schema(cls, inputs: Sequence[Schema], **arguments: Any) -> Schema:
        if not {"key", "v", "p"} <= set(inputs[0].names):
            raise ValueError(f"expected the attributes key, v and p, got {', '.join(inputs[0].names)}")
        return Schema.of(key="int64", v="int64!", p="float64")

    def __init__(self, inputs: Sequence[Schema], **arguments: Any) -> None:
        super().__init__(inputs, **arguments)
        self._forget = int(arguments["forget"])

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        if (rows := ports[0]) is None:
            return None
        key, v, p = (rows.columns[self.inputs[0].index(name)] for name in ("key", "v", "p"))
        gaps = []
        for key_value, value in zip(key.to_list(), v.to_list(), strict=True):
            now = (value or 0) % _MODULUS
            count, before = self.state.get(key_value, (0, now))
            gaps.append(now - before)
            if count + 1 < self._forget:
                self.state[key_value] = (count + 1, now)
            else:
                self.state.pop(key_value, None)
        return Rows(rows.time, rows.t_max, (key, Column(np.array(gaps, np.int64)), p))


class Chained(Aggregator):
    """A number that depends on all values and their order."""

    returns = "int64"

    def create(self) -> tuple[int, int]:
        return 0, 1

    def add(self, state: tuple[int, int], values: Any) -> tuple[int, int]:
        for value in values.tolist():
            state = (state[0] * 31 + value % _MODULUS) % _MODULUS, state[1] * 31 % _MODULUS
        return state

    def merge(self, state: tuple[int, int], later: tuple[int, int]) -> tuple[int, int]:
        return (state[0] * later[1] + later[0]) % _MODULUS, state[1] * later[1] % _MODULUS

    def result(self, state: tuple[int, int]) -> int:
        return state[0]
