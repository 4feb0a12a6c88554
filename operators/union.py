"""Merges streams with the same attributes."""

from __future__ import annotations

from collections.abc import Sequence

from operators.ids import StringIds
from operators.operator import Operator
from spe.stream.batch import Column, Rows, merge_rows
from spe.stream.schema import AttributeType, Schema
from spe.stream.strings import DICTIONARY_LIMIT


class Union(Operator):
    """Merges its ports by (time, port, order within the port)."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        #: Per string attribute, the common dictionary for ports with different ones.  Not state: codes have no
        #: meaning.
        self._strings = {i: StringIds() for i, a in enumerate(schema) if a.type is AttributeType.STRING}

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        return self.merge([rows for rows in ports if rows is not None])

    def merge(self, parts: Sequence[Rows]) -> Rows | None:
        """Merges ports that may be in several parts each, as :meth:`step` does: port after port, each in its order."""
        parts = [rows for rows in parts if len(rows)]
        if not parts:
            return None
        if len(parts) > 1:
            for i in self._strings:
                if any(p.columns[i].dictionary is not parts[0].columns[i].dictionary for p in parts):
                    parts = self._in_one_dictionary(parts, i)
        return merge_rows(parts)

    def _in_one_dictionary(self, parts: Sequence[Rows], position: int) -> list[Rows]:
        strings = self._strings[position]
        if len(strings.dictionary) >= DICTIONARY_LIMIT or strings.dictionary.crowded:
            strings = self._strings[position] = StringIds()

        def adopted(columns: tuple[Column, ...]) -> tuple[Column, ...]:
            return (*columns[:position], strings.adopt(columns[position]), *columns[position + 1 :])

        return [p.with_columns(adopted(p.columns)) for p in parts]
