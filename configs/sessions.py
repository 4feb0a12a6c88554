"""Session windows as an operator of one's own (docs/how-to/own-operators.md):

{custom: {from: orders, class: "sessions:Sessions", arguments: {key: customer, gap: 30}}}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from operators.keyed import KeyedOperator
from spe.stream.batch import Rows
from spe.stream.schema import Schema


class Sessions(KeyedOperator):
    """One tuple per session of ``key``: it ends when ``gap`` seconds have passed without a tuple, and has that time.

    The state of a key is (first time, last time, tuples).  The session that ends first stands first.
    """

    def __init__(self, inputs: Sequence[Schema], key: str, gap: float) -> None:
        super().__init__(inputs, key=key, gap=gap)
        self._key, self._gap = inputs[0].index(key), round(gap * 1e6)
        self._schema = self.output_schema(inputs, key, gap)

    @classmethod
    def output_schema(cls, inputs: Sequence[Schema], key: str, gap: float) -> Schema:
        if gap <= 0:
            raise ValueError("gap: expected seconds, above 0")
        return Schema((inputs[0][key], *Schema.of(started="timestamp!", ended="timestamp!", n="int64!")))

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows, over = ports[0], list[tuple[int, tuple[Any, ...]]]()
        if rows is not None:
            for time, key in zip(rows.time.tolist(), rows.columns[self._key].to_list(), strict=True):
                self._close(time + 1, over)  # what ends at this time ends before this tuple
                first, _, n = self.state.pop(key, (time, time, 0))
                self.state[key] = (first, time, n + 1)
        self._close(boundary, over)
        return Rows.from_tuples(self._schema, [t for t, _ in over], [row for _, row in over]) if over else None

    def _close(self, before: int, over: list[tuple[int, tuple[Any, ...]]]) -> None:
        while self.state:
            key, (first, last, n) = next(iter(self.state.items()))
            if last + self._gap >= before:
                return
            del self.state[key]
            over.append((last + self._gap, (key, first, last, n)))
