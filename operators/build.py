"""Builds running operators: one line for each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from operators.aggregate.count_windows import CountAggregate
from operators.aggregate.time_windows import WindowAggregate
from operators.filter import Filter
from operators.join.join import Join
from operators.keyed import hosted
from operators.map import Map
from operators.operator import Operator
from operators.rejected import RejectedStream
from operators.skipping import Skipping
from operators.topk import InstantTopK, WindowTopK
from operators.trials import Trials
from operators.union import Union
from spe.errors import QueryError
from spe.query import query
from spe.query.declaration import OperatorSpec, load_class
from spe.query.operators import OPERATORS
from spe.query.operators.aggregate import AggregateSpec
from spe.query.operators.custom import CustomSpec
from spe.query.operators.filter import FilterSpec
from spe.query.operators.join import JoinSpec
from spe.query.operators.map import MapSpec
from spe.query.operators.rejected import RejectedSpec
from spe.query.operators.topk import TopKSpec
from spe.query.operators.union import UnionSpec
from spe.query.windows import CountWindow, TimeWindow
from spe.stream.schema import Schema

#: (specification, schema of each port, schema of the output) -> the operator in its initial state.
Construction = Callable[[Any, Sequence[Schema], Schema], Operator]

_AGGREGATES: Final[Mapping[Any, Callable[[AggregateSpec, Schema, Schema], Operator]]] = {
    TimeWindow: WindowAggregate,
    CountWindow: CountAggregate,
}


def _aggregate(spec: AggregateSpec, inputs: Sequence[Schema], schema: Schema) -> Operator:
    aggregate = next(made for kind, made in _AGGREGATES.items() if isinstance(spec.window, kind))
    return aggregate(spec, inputs[0], schema)


def _topk(spec: TopKSpec, inputs: Sequence[Schema], schema: Schema) -> Operator:
    topk = InstantTopK if spec.window is None else WindowTopK
    return topk(spec, inputs[0], schema)


def _custom(spec: CustomSpec, inputs: Sequence[Schema], _: Schema) -> Operator:
    user_class = load_class(spec.path, "path")
    try:
        made = hosted(user_class(tuple(inputs), **spec.arguments))
    except Exception as error:  # user code
        raise QueryError("arguments", f"{spec.path} cannot be made: {type(error).__name__}: {error}") from error
    return Trials(made) if spec.skips else made


_CONSTRUCTIONS: Final[dict[type[OperatorSpec], Construction]] = {
    FilterSpec: lambda spec, inputs, schema: Filter(spec, schema),
    MapSpec: lambda spec, inputs, schema: Map(spec, inputs[0], schema),
    UnionSpec: lambda spec, inputs, schema: Union(schema),
    AggregateSpec: _aggregate,
    JoinSpec: lambda spec, inputs, schema: Join(spec, inputs[0], inputs[1], schema),
    TopKSpec: _topk,
    CustomSpec: _custom,
    RejectedSpec: lambda spec, inputs, schema: RejectedStream(schema),
}


def register(declared: type[OperatorSpec], construction: Construction) -> None:
    """Adds an operator that is declared elsewhere, for queries that are read afterwards."""
    OPERATORS[declared.KEYWORD] = declared
    _CONSTRUCTIONS[declared] = construction


def build_operator(operator: query.QueryOperator, inputs: Sequence[Schema]) -> Operator:
    """Builds an operator in its initial state; wraps one that rejects in :class:`Skipping`.

    Args:
      operator: name, specification and output schema.
      inputs: schema of each port.

    Raises:
      QueryError, ExpressionError: the specification does not fit its inputs.
    """
    spec, schema = operator.spec, operator.spec.output_schema(inputs)
    if schema != operator.schema:
        raise QueryError("", f"operator {operator.name!r} makes ({schema}), but was declared as ({operator.schema})")
    made = _CONSTRUCTIONS[type(spec)](spec, inputs, schema)
    return Skipping(made, inputs, skips=spec.skips) if spec.rejects else made
