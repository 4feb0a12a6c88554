"""Keeps the tuples for which a predicate is true."""

from __future__ import annotations

from collections.abc import Sequence

from operators.operator import Operator
from spe.expressions import compile_predicate
from spe.query.operators.filter import FilterSpec
from spe.stream.batch import Rows
from spe.stream.schema import Schema


class Filter(Operator):
    """Passes tuples for which ``where`` is true, neither false nor null."""

    takes_portions = True

    def __init__(self, spec: FilterSpec, schema: Schema) -> None:
        self.schema = schema
        self._where = compile_predicate(spec.where, schema)

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        if rows is None or not len(rows):
            return None
        mask = self._where.mask(rows)
        if mask.all():
            return rows
        selected = rows.select(mask)
        return selected if len(selected) else None
