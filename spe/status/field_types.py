"""Types of the fields of a status, by which it is checked."""

from __future__ import annotations

from typing import Annotated, TypeAlias, TypeVar

from pydantic import FailFast, Field, PlainSerializer, PlainValidator, StrictBool, StrictInt, StrictStr

from spe.stream.names import NodeState

T = TypeVar("T")
Flag: TypeAlias = StrictBool
Integer: TypeAlias = StrictInt
Text: TypeAlias = StrictStr


def _state(value: object) -> NodeState:
    if isinstance(value, NodeState):
        return value
    if isinstance(value, str) and value in NodeState.__members__:
        return NodeState[value]
    raise ValueError(f"expected one of {', '.join(NodeState.__members__)}")


#: A state, by its name.
State: TypeAlias = Annotated[NodeState, PlainValidator(_state), PlainSerializer(lambda state: state.name, str)]
Number: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False)]
#: Validation stops at the first bad entry: a peer may send thousands.
Many: TypeAlias = Annotated[tuple[T, ...], FailFast()]
