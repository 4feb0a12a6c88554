"""Custom: a user-defined operator, loaded by import path; its class gives the schema of its output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import Field

from spe.errors import ExpressionError, QueryError
from spe.query.declaration import Guarantee, Keys, Logged, OnError, OnErrorKey, OperatorSpec, check_concrete, load_class
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from spe.values import Names


class CustomKeys(Keys):
    """A user-defined operator, ``module:Class``."""

    class_: str = Field(
        alias="class",
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="`module:Class`, of [your own](../how-to/own-operators.md)",
    )
    from_: Names = Field(alias="from", min_length=1, description="the stream or streams that it reads")
    arguments: dict[str, Any] = Field(default_factory=dict, description="what the class is made with")
    on_error: OnErrorKey = "stop"


@dataclass(frozen=True, slots=True)
class CustomSpec(OperatorSpec):
    """A user-defined operator: ``path`` is ``module:Class`` of an operators.custom.CustomOperator."""

    KEYWORD = "custom"
    KEYS = CustomKeys
    GUARANTEES = (Guarantee("", "its own, within the slice", "its own"),)
    WRITTEN: ClassVar = {**OperatorSpec.WRITTEN, "path": "class"}

    inputs: tuple[StreamId, ...]
    path: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    on_error: OnError = field(default=OnError.STOP, repr=False)

    def output_schema(self, inputs: Sequence[Schema]) -> Schema:
        user_class = load_class(self.path, "path")
        output_schema: Callable[..., Any] | None = getattr(user_class, "output_schema", None)
        if output_schema is None or not hasattr(user_class, "step"):
            raise QueryError(
                "path", f"{self.path!r} is no operator: it lacks output_schema or step (see operators.custom)"
            )
        check_concrete(user_class, self.path, "path")
        try:
            schema = output_schema(tuple(inputs), **self.arguments)
        except (QueryError, ExpressionError):
            raise
        except Exception as error:  # user code
            raise QueryError("arguments", f"{self.path} refuses its inputs or arguments: {error}") from error
        if not isinstance(schema, Schema):
            raise QueryError("path", f"{self.path}.output_schema returned {type(schema).__name__}; expected a Schema")
        return schema

    def described(self) -> str:
        arguments = ", ".join(f"{k}={v!r}" for k, v in self.arguments.items())
        return f"{self.path}({arguments}) of {', '.join(self.inputs)}"

    @property
    def own_class(self) -> str:
        return self.path

    @property
    def logged(self) -> Logged:
        if self._keeps_cells:
            return Logged.CELLS
        return Logged.WHOLE if self._says("keeps_state", True) else Logged.NOTHING

    @property
    def lifetime_rows(self) -> int | None:
        """1 for a key's record, since each change is written."""
        return 1 if self._keeps_cells else None

    @property
    def is_replayed(self) -> bool:
        return not self._keeps_cells

    @property
    def _keeps_cells(self) -> bool:
        return self._says("keeps_cells", False)

    def _says(self, method: str, otherwise: bool) -> bool:
        """Result of a class method, if the class has it: it need not be a subclass of ours."""
        asked: Callable[[], bool] | None = getattr(load_class(self.path, "path"), method, None)
        return otherwise if asked is None else asked()
