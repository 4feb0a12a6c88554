"""The logical query: sources, operators, outputs.  Plain data, made by the configuration or by hand.

Each operator defines one stream with the operator's name.  Inputs are names of sources or of other operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spe.query.declaration import OperatorSpec, Traits
from spe.stream.names import StreamId
from spe.stream.schema import Schema


@dataclass(frozen=True, slots=True)
class QueryOperator:
    """A named operator and the schema of the stream that it makes (derived when the query is typed)."""

    name: StreamId
    spec: OperatorSpec
    schema: Schema

    def described(self) -> list[Any]:
        """Everything that its rows depend on, for fingerprints."""
        return [self.name, repr(self.spec), self.schema.to_wire(), *(["skip"] if self.spec.skips else [])]

    def state_described(self) -> list[Any]:
        """Everything that its state depends on."""
        return [*self.described(), *(["reject late"] if self.spec.rejects_late else [])]


def streams_before(operators: Iterable[QueryOperator], stream: StreamId) -> set[StreamId]:
    """A stream, and the streams that it is made from by these operators."""
    made = {o.name: o.spec for o in operators}
    before: set[StreamId] = set()
    waiting = [stream]
    while waiting:
        name = waiting.pop()
        if name not in before:
            before.add(name)
            waiting += made[name].inputs if name in made else ()
    return before


@dataclass(frozen=True, slots=True)
class Query:
    """A typed DAG.

    Attributes:
      sources: schema per source stream, in configuration order.
      operators: in topological order.
      outputs: the streams that clients read.
    """

    sources: Mapping[StreamId, Schema]
    operators: tuple[QueryOperator, ...]
    outputs: tuple[StreamId, ...]

    def schema_of(self, stream: StreamId) -> Schema:
        if stream in self.sources:
            return self.sources[stream]
        for operator in self.operators:
            if operator.name == stream:
                return operator.schema
        raise KeyError(stream)

    def traits_of(self, stream: StreamId) -> Traits:
        """Known properties of a stream's tuples."""
        spec = next((o.spec for o in self.operators if o.name == stream), None)
        return Traits() if spec is None else spec.traits(self.traits_of(spec.inputs[0]))
