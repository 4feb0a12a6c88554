"""The operators of queries: one line each."""

from __future__ import annotations

from typing import Final

from spe.query.declaration import OperatorSpec
from spe.query.operators.aggregate import AggregateSpec
from spe.query.operators.custom import CustomSpec
from spe.query.operators.filter import FilterSpec
from spe.query.operators.join import JoinSpec
from spe.query.operators.map import MapSpec
from spe.query.operators.rejected import RejectedSpec
from spe.query.operators.topk import TopKSpec
from spe.query.operators.union import UnionSpec

#: Operators by their keyword in the configuration.
OPERATORS: Final[dict[str, type[OperatorSpec]]] = {
    declared.KEYWORD: declared
    for declared in (FilterSpec, MapSpec, UnionSpec, AggregateSpec, JoinSpec, TopKSpec, CustomSpec, RejectedSpec)
}
