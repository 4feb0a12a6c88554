"""Union: merges streams with the same attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from spe.errors import QueryError
from spe.query.declaration import Guarantee, KeyNames, Keys, Logged, OperatorSpec
from spe.stream.names import StreamId
from spe.stream.schema import Attribute, Schema
from spe.values import Names


class UnionKeys(Keys):
    """Merges streams of equal schema."""

    from_: Names = Field(
        alias="from", min_length=2, description="the streams; `union: [a, b]` is short for `union: {from: [a, b]}`"
    )


@dataclass(frozen=True, slots=True)
class UnionSpec(OperatorSpec):
    """Merges all inputs into one stream, by (time, input order).  Attribute names and types must be equal."""

    KEYWORD = "union"
    KEYS = UnionKeys
    GUARANTEES = (Guarantee("", "the tuple's", "input, then the tuples'"),)
    SHORTHAND = "from"
    only_adds = True
    reach_us = 0

    inputs: tuple[StreamId, ...]

    def output_schema(self, inputs: Sequence[Schema]) -> Schema:
        if len(inputs) < 2:
            raise QueryError("inputs", "a union needs at least two inputs")
        first = inputs[0]
        for name, other in zip(self.inputs[1:], inputs[1:]):
            if [(a.name, a.type) for a in other] != [(a.name, a.type) for a in first]:
                raise QueryError(
                    "inputs",
                    f"{name!r} is ({other}), but {self.inputs[0]!r} is ({first}); "
                    "expected the same names and types in the same order",
                )
        return Schema(
            tuple(Attribute(a.name, a.type, any(s.attributes[i].nullable for s in inputs)) for i, a in enumerate(first))
        )

    def described(self) -> str:
        return " + ".join(self.inputs)

    @property
    def logged(self) -> Logged:
        return Logged.NOTHING

    def key_names(self, inputs: Sequence[KeyNames]) -> KeyNames:
        return tuple(frozenset.intersection(*ks) for ks in zip(*inputs)) if all(inputs) else ()
