"""What is measured of an output's tentative tuples: the ``accuracy`` section, with defaults by operator.  Pure."""

from __future__ import annotations

from dataclasses import dataclass

from consistency.proof.recorded.query_file import (
    AggregateEntry,
    FilterEntry,
    JoinEntry,
    MapEntry,
    MergeEntry,
    OperatorEntry,
    Reading,
)
from spe.plan.plan import Plan
from spe.query.declaration import OperatorSpec
from spe.stream.names import StreamId
from spe.stream.schema import AttributeType


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
        """Names of all measures, as the report has them."""
        return [*self.shares, *(f"error {name}" for name in self.errors)]


def operator_of(plan: Plan, output: StreamId) -> str:
    """Kind of the operator that makes a stream, in the words of the configuration; ``source`` for a source's."""
    spec = _spec(plan, output)
    return "source" if spec is None else spec.KEYWORD


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
    spec = _spec(plan, output)
    schema = plan.query.schema_of(output)
    traits = plan.query.traits_of(output)
    if spec is not None and (shares := spec.shares) is not None:
        known = tuple(name for name in schema.names if name in traits.key)
        return Measured(known, shares, _numeric(plan, output, known), 0)
    return Measured(schema.names, ("precision", "recall"), (), 0 if traits.in_step else plan.bucket_us)


def keys_from_logs(plan: Plan, reading: Reading, output: StreamId) -> bool:
    """Has every result of a part of the input, by its key, its like among those of all input?

    So it is of filters, maps, unions, inner joins, and of windows of time over them; not where the configuration has
    made what is computed from a window a part of the key.
    """
    if not set(measured(plan, output).key) <= set(_default(plan, output).key):
        return False
    made = reading.operators.get(output)
    if isinstance(made, AggregateEntry):
        return not made.window.count and _only_selects(reading, made.input)
    return _only_selects(reading, output)


def _only_selects(reading: Reading, stream: str) -> bool:
    made: OperatorEntry | None = reading.operators.get(stream)
    if made is None:
        return True
    kind = isinstance(made, FilterEntry | MapEntry | MergeEntry)
    kind |= isinstance(made, JoinEntry) and made.kind == "inner"
    return kind and all(_only_selects(reading, one) for one in made.inputs)


def _numeric(plan: Plan, output: StreamId, key: tuple[str, ...]) -> tuple[str, ...]:
    wanted = (AttributeType.INT64, AttributeType.FLOAT64)
    return tuple(a.name for a in plan.query.schema_of(output) if a.type in wanted and a.name not in key)[:4]


def _spec(plan: Plan, stream: StreamId) -> OperatorSpec | None:
    return next((one.spec for one in plan.query.operators if one.name == stream), None)
