"""Filter: the tuples for which a predicate is true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from spe.expressions import compile_predicate
from spe.query.declaration import Expression, From, Guarantee, KeyNames, Keys, Logged, OneInput, Traits
from spe.stream.names import StreamId
from spe.stream.schema import Schema


class FilterKeys(Keys):
    """Keeps the tuples for which ``where`` is true."""

    from_: From
    where: Expression = Field(description="passes a tuple if it is true, neither false nor null")


@dataclass(frozen=True, slots=True)
class FilterSpec(OneInput):
    """Tuples for which ``where`` is true (not false, not null)."""

    KEYWORD = "filter"
    KEYS = FilterKeys
    GUARANTEES = (Guarantee("", "the tuple's", "the tuples'"),)
    SELECTS = True
    only_adds = True
    reach_us = 0

    input: StreamId
    where: str

    def output_schema(self, inputs: Sequence[Schema]) -> Schema:
        compile_predicate(self.where, inputs[0])
        return inputs[0]

    def described(self) -> str:
        return f"{self.input} where {self.where}"

    @property
    def logged(self) -> Logged:
        return Logged.NOTHING

    def key_names(self, inputs: Sequence[KeyNames]) -> KeyNames:
        return inputs[0]

    def traits(self, inner: Traits) -> Traits:
        return inner._replace(cadence_us=0)
