"""What is measured of an output's tentative tuples: the ``accuracy`` section, with defaults by operator.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spe.plan.plan import Plan
from spe.query.declaration import OperatorSpec
from spe.query.operators.aggregate import AggregateSpec
from spe.query.operators.filter import FilterSpec
from spe.query.operators.join import JoinSpec
from spe.query.operators.map import MapSpec
from spe.query.operators.topk import TopKSpec
from spe.query.operators.union import UnionSpec
from spe.query.windows import WindowKind
from spe.stream.names import StreamId
from spe.stream.schema import AttributeType

_WINDOW = ("window_start", "window_end")


@dataclass(frozen=True)
class Measured:
    """What is measured of an output.

    Attributes:
      key: attributes that make a tentative tuple and a true one the same result, beside their time.
      shares: names of the shares: see ``accuracy``.
      errors: numeric attributes whose relative error is measured.
      window_us: results are taken together by so much tuple time; 0: by equal times, as windows give them.
    """

    key: tuple[str, ...]
    shares: tuple[str, ...]
    errors: tuple[str, ...]
    window_us: int

    @property
    def names(self) -> list[str]:
        """As the report has them."""
        return [*self.shares, *(f"error {name}" for name in self.errors)]


def operator_of(plan: Plan, output: StreamId) -> str:
    """Kind of the operator that makes a stream, in the words of the configuration; ``source`` for a source's."""
    spec = _specs(plan).get(output)
    kinds = {FilterSpec: "filter", MapSpec: "map", UnionSpec: "union", AggregateSpec: "aggregate", JoinSpec: "join"}
    return "source" if spec is None else {**kinds, TopKSpec: "topk"}.get(type(spec), "custom")


def measured(plan: Plan, output: StreamId) -> Measured:
    """What the configuration says of an output, and what follows from its operator for the rest."""
    said = plan.accuracy.get(output)
    default = _default(plan, output)
    if said is None:
        return default
    return Measured(
        key=default.key if said.key is None else said.key,
        shares=default.shares if said.measures is None else said.measures,
        errors=_numeric(plan, output, said.key or default.key) if said.errors is None else said.errors,
        window_us=default.window_us if said.window_us is None else said.window_us,
    )


def _default(plan: Plan, output: StreamId) -> Measured:
    spec = _specs(plan).get(output)
    schema = plan.query.schema_of(output)
    key = _key(_specs(plan), output, spec)
    known = tuple(name for name in schema.names if name in key)
    if isinstance(spec, TopKSpec):
        return Measured(known, ("topk", "exact"), _numeric(plan, output, known), 0)
    if isinstance(spec, AggregateSpec) and spec.window.kind is not WindowKind.COUNT:
        return Measured(known, ("overlap", "exact"), _numeric(plan, output, known), 0)
    return Measured(schema.names, ("precision", "recall"), (), 0 if _windowed(plan, output) else plan.bucket_us)


def _key(specs: Mapping[StreamId, OperatorSpec], stream: StreamId, spec: OperatorSpec | None) -> frozenset[str]:
    """Attributes that tell results of one time apart; a ranking is told apart by what is ranked, not by its rank."""
    if isinstance(spec, AggregateSpec):
        return frozenset((*spec.group_by, *_WINDOW))
    if isinstance(spec, TopKSpec):
        inner = _key(specs, spec.input, specs.get(spec.input))
        return inner | frozenset((*spec.partition_by, *_WINDOW))
    if isinstance(spec, FilterSpec):
        return _key(specs, spec.input, specs.get(spec.input))
    return frozenset()


def _windowed(plan: Plan, output: StreamId) -> bool:
    """Do all results of a window carry one time?"""
    specs = _specs(plan)
    spec = specs.get(output)
    while isinstance(spec, FilterSpec | MapSpec):
        spec = specs.get(spec.input)
    return isinstance(spec, AggregateSpec | TopKSpec)


def _numeric(plan: Plan, output: StreamId, key: tuple[str, ...]) -> tuple[str, ...]:
    wanted = (AttributeType.INT64, AttributeType.FLOAT64)
    return tuple(a.name for a in plan.query.schema_of(output) if a.type in wanted and a.name not in key)[:4]


def _specs(plan: Plan) -> dict[StreamId, OperatorSpec]:
    return {one.name: one.spec for one in plan.query.operators}
