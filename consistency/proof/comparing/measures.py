"""The accuracy figures of an output's tentative tuples: the ``accuracy`` section, with defaults by operator.  Pure."""

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
    TimeEntry,
)
from spe.plan.plan import Plan
from spe.query.declaration import OperatorSpec
from spe.stream.names import StreamId
from spe.stream.schema import AttributeType


@dataclass(frozen=True)
class Measured:
    """The accuracy figures of an output.

    Attributes:
      key: attributes that make a tentative tuple and a true one the same result, besides their time.
      shares: names of the shares: see ``accuracy``.
      errors: numeric attributes whose relative error is measured.
      window_us: width of a result window in tuple time; 0: results of equal time, as windows emit them.
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
    """Returns the kind of the operator that makes a stream, as in the configuration; ``source`` for a source's."""
    spec = _spec(plan, output)
    return "source" if spec is None else spec.KEYWORD


def measured(plan: Plan, output: StreamId) -> Measured:
    """Returns the configured figures of an output; the rest follows from its operator."""
    section = plan.accuracy.get(output)
    default = _default(plan, output)
    if section is None:
        return default
    return Measured(
        key=default.key if section.key is None else section.key,
        shares=default.shares if section.measures is None else section.measures,
        errors=_numeric(plan, output, section.key or default.key) if section.errors is None else section.errors,
        window_us=default.window_us if section.window_us is None else section.window_us,
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
    """Does each result of a part of the input have, by its key, a counterpart among the results of all input?

    True for filters, maps, unions, inner joins, and time windows over them; not where the configuration has
    made what is computed from a window a part of the key.
    """
    if not set(measured(plan, output).key) <= set(_default(plan, output).key):
        return False
    made = reading.operators.get(output)
    if isinstance(made, AggregateEntry):
        return isinstance(made.window, TimeEntry) and _only_selects(reading, made.input)
    return _only_selects(reading, output)


def _only_selects(reading: Reading, stream: str) -> bool:
    made: OperatorEntry | None = reading.operators.get(stream)
    if made is None:
        return True
    kind = isinstance(made, FilterEntry | MapEntry | MergeEntry)
    kind |= isinstance(made, JoinEntry) and made.kind == "inner"
    return kind and all(_only_selects(reading, input_) for input_ in made.inputs)


def _numeric(plan: Plan, output: StreamId, key: tuple[str, ...]) -> tuple[str, ...]:
    wanted = (AttributeType.INT64, AttributeType.FLOAT64)
    return tuple(a.name for a in plan.query.schema_of(output) if a.type in wanted and a.name not in key)[:4]


def _spec(plan: Plan, stream: StreamId) -> OperatorSpec | None:
    return next((operator.spec for operator in plan.query.operators if operator.name == stream), None)
