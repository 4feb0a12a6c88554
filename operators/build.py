"""From an operator of the query to one that runs."""

from __future__ import annotations

from collections.abc import Sequence

from operators.aggregate.count_windows import CountAggregate
from operators.aggregate.time_windows import WindowAggregate
from operators.custom import CustomHost
from operators.filter import Filter
from operators.join.join import Join
from operators.map import Map
from operators.operator import Operator
from operators.skipping import Skipping
from operators.topk import InstantTopK, WindowTopK
from operators.trials import Trials
from operators.union import Union
from spe.errors import QueryError
from spe.query import query
from spe.query.typing import derive_schema, load_class
from spe.stream.schema import Schema


def build_operator(operator: query.Operator, inputs: Sequence[Schema]) -> Operator:
    """A running operator in its initial state; one that skips is :class:`Skipping`.

    Args:
      operator: name, specification and output schema.
      inputs: schema of each port.

    Raises:
      QueryError, ExpressionError: the specification does not fit its inputs.
    """
    spec, schema = operator.spec, derive_schema(operator.spec, inputs)
    if schema != operator.schema:
        raise QueryError("", f"operator {operator.name!r} makes ({schema}), but was declared as ({operator.schema})")
    made = _built(spec, inputs, schema)
    return Skipping(made, inputs) if query.skips(spec) else made


def _built(spec: query.OperatorSpec, inputs: Sequence[Schema], schema: Schema) -> Operator:
    if isinstance(spec, query.FilterSpec):
        return Filter(spec, schema)
    if isinstance(spec, query.MapSpec):
        return Map(spec, inputs[0], schema)
    if isinstance(spec, query.UnionSpec):
        return Union(schema)
    if isinstance(spec, query.AggregateSpec):
        aggregate = CountAggregate if spec.window.kind is query.WindowKind.COUNT else WindowAggregate
        return aggregate(spec, inputs[0], schema)
    if isinstance(spec, query.JoinSpec):
        return Join(spec, inputs[0], inputs[1], schema)
    if isinstance(spec, query.TopKSpec):
        topk = InstantTopK if spec.window is None else WindowTopK
        return topk(spec, inputs[0], schema)
    return _custom(spec, inputs)


def _custom(spec: query.CustomSpec, inputs: Sequence[Schema]) -> Operator:
    found = load_class(spec.path, "path")
    try:
        made = CustomHost(found(tuple(inputs), **spec.arguments))
    except Exception as error:  # a user's code
        raise QueryError("arguments", f"{spec.path} cannot be made: {type(error).__name__}: {error}") from error
    return Trials(made) if query.skips(spec) else made
