"""Computes attributes from those of the same tuple."""

from __future__ import annotations

from collections.abc import Sequence

from operators.operator import Operator
from spe.expressions import compile_expression
from spe.query.operators.map import MapSpec
from spe.stream.batch import Rows
from spe.stream.schema import Schema


class Map(Operator):
    """Makes one output tuple per input tuple, with the same time."""

    takes_portions = True

    def __init__(self, spec: MapSpec, input_schema: Schema, schema: Schema) -> None:
        self.schema = schema
        self._keep = spec.keep
        self._expressions = [compile_expression(text, input_schema) for text in spec.columns.values()]

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        if rows is None or not len(rows):
            return None
        made = [e.evaluate(rows) for e in self._expressions]
        return rows.with_columns((*rows.columns, *made) if self._keep else tuple(made))
