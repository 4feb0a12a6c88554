"""User-defined operators that tests put into queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from operators.custom import CustomOperator
from spe.batch import Rows
from spe.schema import Schema


class PassThrough(CustomOperator):
    """What comes in goes out."""

    @classmethod
    def output_schema(cls, inputs: Sequence[Schema], **arguments: Any) -> Schema:
        return inputs[0]

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        return ports[0]


class RaisesAt(PassThrough):
    """Passes rows on until one has ``n`` equal to ``at``; then raises, as a mistake in a user's code would."""

    def __init__(self, inputs: Sequence[Schema], **arguments: Any) -> None:
        super().__init__(inputs, **arguments)
        self._at = int(arguments["at"])
        self._column = inputs[0].index("n")

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        if rows is not None and (rows.columns[self._column].values == self._at).any():
            raise ZeroDivisionError(f"n is {self._at}")
        return rows
