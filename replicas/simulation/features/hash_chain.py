"""An operator whose state is a hash of all its input, in order: replicas that differ in one tuple differ from then
on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from operators.custom import CustomOperator
from spe.stream.batch import Column, Rows
from spe.stream.schema import Schema

#: A prime below 2^61; the chain is h · 31 + the new value, modulo this.
_MODULUS: Final = (1 << 61) - 1


class HashChain(CustomOperator):
    """Passes ``key`` and ``p`` on; ``v`` becomes the hash of all rows up to this one.

    With ``bad`` it raises at a row whose ``v`` is a multiple of it, after its state has changed.
    """

    def __init__(self, inputs: Sequence[Schema], **arguments: Any) -> None:
        super().__init__(inputs, **arguments)
        self._hash = 0
        self._bad = arguments.get("bad")

    @classmethod
    def output_schema(cls, inputs: Sequence[Schema], **arguments: Any) -> Schema:
        if not {"key", "v", "p"} <= set(inputs[0].names):
            raise ValueError(f"expected the attributes key, v and p, got {', '.join(inputs[0].names)}")
        return Schema.of(key="int64", v="int64!", p="float64")

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        if rows is None:
            return None
        key, v, p = (rows.columns[self.inputs[0].index(name)] for name in ("key", "v", "p"))
        chain = np.empty(len(rows), np.int64)
        h = self._hash
        bits = Column(p.values.view(np.int64), p.valid).to_list()  # of floats, so that no bit of them may differ
        for at, parts in enumerate(zip(rows.time.tolist(), key.to_list(), v.to_list(), bits, strict=True)):
            for part in parts:
                h = (h * 31 + (0 if part is None else part)) % _MODULUS
            chain[at] = self._hash = h
            if self._bad is not None and parts[2] % self._bad == 0:
                raise ValueError(f"v is {parts[2]}")
        return Rows(rows.time, rows.t_max, (key, Column(chain), p))

    def snapshot(self) -> Mapping[str, Any]:
        return {"hash": self._hash}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._hash = int(state["hash"])
