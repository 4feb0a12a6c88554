"""Compiled expressions: SQL text and a schema in, columns out."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from spe.errors import ExpressionError
from spe.expressions.check import check
from spe.expressions.generate import generate
from spe.expressions.parse import parse
from spe.expressions.tree import Apply, Attr, Const, Special, TypedExpression
from spe.stream.batch import AnyArray, BoolArray, Column, Rows, canonical
from spe.stream.schema import AttributeType, Schema
from spe.stream.strings import StringDictionary

#: Number of cached expressions: replicas in one process compile the same ones at each start.
EXPRESSIONS_KEPT: Final = 1_024


class Expression:
    """A compiled SQL expression over tuples of a schema.  Pure: the same tuple gives the same bits on every machine.

    Attributes:
      text: as the user wrote it.
      type: type of its result.
      nullable: whether the result may be null.
      references: names of the attributes in it, in the order of the text.
    """

    __slots__ = ("_canonical", "_masked", "_nullable", "_plain", "_whole", "nullable", "references", "text", "type")

    def __init__(self, text: str, node: TypedExpression) -> None:
        self.text = text
        self.type = node.type
        self.nullable = node.nullable
        attributes = sorted(_attributes(node), key=lambda a: a.position)
        self.references = tuple(dict.fromkeys(a.name for a in attributes))
        #: Index of the attribute if the expression is an attribute alone.
        self._whole = node.index if isinstance(node, Attr) else None
        #: Columns that may have masks.
        self._nullable = sorted({a.index for a in attributes if a.nullable})
        self._plain = generate(node, nulls=False)
        self._masked = generate(node, nulls=True) if self._nullable else self._plain
        #: Attributes are canonical already (spe.stream.batch.canonical); a computed value may be −0.0 or another NaN.
        self._canonical = node.type is AttributeType.FLOAT64 and not isinstance(node, Attr)

    def evaluate(self, rows: Rows) -> Column:
        """Computes one value per row."""
        if self._whole is not None:
            return rows.columns[self._whole]
        values, valid, dictionary = self._run(rows)
        if valid is not None and valid.all():
            valid = None
        return Column(canonical(values) if self._canonical else values, valid, dictionary)

    def mask(self, rows: Rows) -> BoolArray:
        """Selects the rows for which it is true (not false, not null); for expressions of type bool."""
        assert self.type is AttributeType.BOOL
        values: BoolArray
        values, valid, _ = self._run(rows)
        return values if valid is None else values & valid

    def _run(self, rows: Rows) -> tuple[AnyArray, BoolArray | None, StringDictionary | None]:
        columns = rows.columns
        program = self._plain
        for index in self._nullable:
            if columns[index].valid is not None:
                program = self._masked
                break
        if not program.warns:
            return program.run(columns, len(rows.time))
        with np.errstate(all="ignore"):
            return program.run(columns, len(rows.time))

    def __repr__(self) -> str:
        return f"<{self.text} : {self.type}{'' if self.nullable else ' not null'}>"


@lru_cache(EXPRESSIONS_KEPT)
def compile_expression(text: str, schema: Schema) -> Expression:
    """Compiles an expression over tuples of ``schema``.

    Raises:
      ExpressionError: it is outside the supported subset or does not type-check; the error has the place and advice.
    """
    return Expression(text, check(parse(text), text, schema))


@lru_cache(EXPRESSIONS_KEPT)
def compile_predicate(text: str, schema: Schema) -> Expression:
    """Compiles an expression that must be a bool, as :func:`compile_expression` does."""
    syntax = parse(text)
    node = check(syntax, text, schema)
    if node.type is not AttributeType.BOOL:
        raise ExpressionError(text, 0, f"expected a condition, got {node.type}", "compare it with something")
    return Expression(text, node)


def _attributes(node: TypedExpression) -> list[Attr]:
    if isinstance(node, Attr):
        return [node]
    if isinstance(node, Const):
        return []
    assert isinstance(node, Apply | Special)
    return [a for argument in node.arguments for a in _attributes(argument)]
