"""The schema of what an operator makes, and every mistake in its specification that can be known beforehand.

User-defined classes are found by import path and used by their methods only, so that this floor imports nothing from
the floors above it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from spe.errors import ExpressionError, QueryError
from spe.expressions import compile_expression, compile_predicate
from spe.problems import did_you_mean
from spe.query.query import (
    AggregateCall,
    AggregateSpec,
    CustomSpec,
    FilterSpec,
    JoinKind,
    JoinSpec,
    MapSpec,
    OperatorSpec,
    TopKSpec,
    UnionSpec,
    Window,
    WindowKind,
)
from spe.stream.schema import Attribute, AttributeType, Schema

WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"
#: Names that a window adds.
WINDOW_ATTRIBUTES: Final = (
    Attribute(WINDOW_START, AttributeType.TIMESTAMP, nullable=False),
    Attribute(WINDOW_END, AttributeType.TIMESTAMP, nullable=False),
)
AGGREGATE_FUNCTIONS: Final = ("count", "count_distinct", "sum", "avg", "min", "max", "first", "last")
_KEYS_OF_A_JOIN: Final = "; expected a name that both sides have, or {LEFT: RIGHT}"
#: Overlapping windows that one tuple may be in.  Each costs a result per group and slide.
MAX_OVERLAP: Final = 10_000


def derive_schema(spec: OperatorSpec, inputs: Sequence[Schema]) -> Schema:
    """The schema of the operator's output.

    Args:
      spec: any operator.
      inputs: schema of each port, in the order of ``spe.query.query.inputs_of``.

    Raises:
      QueryError: the specification does not fit its inputs; ``field`` says where.
      ExpressionError: an expression in it is refused.
    """
    if isinstance(spec, FilterSpec):
        compile_predicate(spec.where, inputs[0])
        return inputs[0]
    if isinstance(spec, MapSpec):
        return _map(spec, inputs[0])
    if isinstance(spec, UnionSpec):
        return _union(spec, inputs)
    if isinstance(spec, AggregateSpec):
        return _aggregate(spec, inputs[0])
    if isinstance(spec, JoinSpec):
        return _join(spec, inputs[0], inputs[1])
    if isinstance(spec, TopKSpec):
        return _topk(spec, inputs[0])
    return _custom(spec, inputs)


def load_class(path: str, field: str) -> Any:
    """The class that ``module:Class`` names.  Raises QueryError."""
    module, separator, name = path.partition(":")
    if not (module and separator and name):
        raise QueryError(field, f"expected an import path such as package.module:Class, got {path!r}")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever a user's module raises when it is imported
        raise QueryError(
            field,
            f"cannot load {path!r}: {type(error).__name__}: {error}; looked in the current directory and on PYTHONPATH",
        ) from error
    if not isinstance(found, type):
        raise QueryError(field, f"{path!r} is no class")
    return found


def _unique(attributes: Iterable[Attribute], hint: str) -> Schema:
    """A schema; a name that is there twice is an error that says what to do."""
    seen: set[str] = set()
    listed = tuple(attributes)
    for attribute in listed:
        if attribute.name in seen:
            raise QueryError("", f"attribute {attribute.name!r} would be in the output twice; {hint}")
        seen.add(attribute.name)
    return Schema(listed)


def _attribute(schema: Schema, name: str, field: str, *, where: str = "", expected: str = "") -> Attribute:
    """The attribute, or an error that says ``where`` it was looked for, and what was ``expected`` instead."""
    if name not in schema:
        known = ", ".join(schema.names) or "(none)"
        hint = did_you_mean(name, schema.names)
        raise QueryError(field, f"no attribute {name!r}{where}{hint}; there are: {known}{expected}")
    return schema[name]


def _timestamp(schema: Schema, name: str, field: str) -> None:
    attribute = _attribute(schema, name, field)
    if attribute.type is not AttributeType.TIMESTAMP:
        raise QueryError(field, f"{name!r} is {attribute.type}; expected a timestamp")


def _expression(text: str, schema: Schema, name: str) -> Attribute:
    expression = compile_expression(text, schema)
    return Attribute(name, expression.type, expression.nullable)


def _map(spec: MapSpec, schema: Schema) -> Schema:
    if not spec.columns and not spec.keep:
        raise QueryError("columns", "expected at least one attribute")
    kept = schema.attributes if spec.keep else ()
    made = [_expression(text, schema, name) for name, text in spec.columns.items()]
    return _unique([*kept, *made], "give the new one another name")


def _union(spec: UnionSpec, inputs: Sequence[Schema]) -> Schema:
    if len(inputs) < 2:
        raise QueryError("inputs", "a union needs at least two inputs")
    first = inputs[0]
    for name, other in zip(spec.inputs[1:], inputs[1:]):
        if [(a.name, a.type) for a in other] != [(a.name, a.type) for a in first]:
            raise QueryError(
                "inputs",
                f"{name!r} is ({other}), but {spec.inputs[0]!r} is ({first}); "
                "expected the same names and types in the same order",
            )
    return Schema(
        tuple(Attribute(a.name, a.type, any(s.attributes[i].nullable for s in inputs)) for i, a in enumerate(first))
    )


def check_window(window: Window, schemas: Sequence[Schema], *, count_allowed: bool) -> None:
    """Raises QueryError when a window makes no sense over these inputs."""
    if window.kind is WindowKind.COUNT:
        if not count_allowed:
            raise QueryError("window", "count windows belong to aggregates; expected tumbling or sliding")
        if window.count < 1:
            raise QueryError("window.count", f"expected at least 1, got {window.count}")
        for name, value in (("size", window.size_us), ("slide", window.slide_us), ("offset", window.offset_us)):
            if value:
                raise QueryError(f"window.{name}", f"a count window has no {name}")
        if window.on is not None:
            raise QueryError("window.on", "a count window goes by arrival, not by an attribute")
        return
    if window.count:
        raise QueryError("window.count", f"a {window.kind} window has no count")
    if window.size_us <= 0:
        raise QueryError("window.size", f"expected more than 0, got {window.size_us} us")
    if window.slide_us <= 0:
        raise QueryError("window.slide", f"expected more than 0, got {window.slide_us} us")
    if window.kind is WindowKind.TUMBLING and window.slide_us != window.size_us:
        raise QueryError("window.slide", "a tumbling window slides by its size; use a sliding window")
    if window.size_us > MAX_OVERLAP * window.slide_us:
        raise QueryError("window.slide", f"each tuple would be in more than {MAX_OVERLAP} windows")
    if window.on is not None:
        for schema in schemas:
            _timestamp(schema, window.on, "window.on")


def _aggregate(spec: AggregateSpec, schema: Schema) -> Schema:
    check_window(spec.window, [schema], count_allowed=True)
    groups = [_expression(text, schema, name) for name, text in spec.group_by.items()]
    window = () if spec.window.kind is WindowKind.COUNT else WINDOW_ATTRIBUTES
    if not groups and not spec.aggregates:
        raise QueryError("aggregates", "expected at least one aggregate, or a group_by")
    results = [_call(call, schema, name) for name, call in spec.aggregates.items()]
    return _unique([*groups, *window, *results], "rename it (a window adds window_start and window_end)")


def _call(call: AggregateCall, schema: Schema, name: str) -> Attribute:
    field, function = f"aggregates.{name}", call.function
    if ":" not in function and function not in AGGREGATE_FUNCTIONS:
        known = ", ".join(AGGREGATE_FUNCTIONS)
        raise QueryError(field, f"no aggregate {function!r}; there are: {known}, and module:Class for your own")
    if call.argument is None:
        if function != "count":
            raise QueryError(field, f"{function} needs an argument")
        return Attribute(name, AttributeType.INT64, nullable=False)
    argument = _expression(call.argument, schema, name)
    if function in ("count", "count_distinct"):
        return Attribute(name, AttributeType.INT64, nullable=False)
    if function in ("sum", "avg"):
        if not argument.type.is_numeric:
            raise QueryError(field, f"{function} needs int64 or float64, got {argument.type}")
        return Attribute(name, AttributeType.FLOAT64 if function == "avg" else argument.type, argument.nullable)
    if ":" in function:
        return Attribute(name, _user_aggregate(function, argument.type, field), nullable=True)
    return argument


def _user_aggregate(path: str, argument: AttributeType, field: str) -> AttributeType:
    found = load_class(path, field)
    missing = [m for m in ("check", "create", "add", "merge", "result", "returns") if not hasattr(found, m)]
    if missing:
        raise QueryError(field, f"{path!r} is no aggregate: it lacks {', '.join(missing)} (see operators.custom)")
    _concrete(found, path, field)
    try:
        found.check(argument)
        return AttributeType(found.returns)
    except Exception as error:  # a user's code
        raise QueryError(field, f"{path} refuses {argument}: {error}") from error


def _concrete(found: Any, path: str, field: str) -> None:
    abstract = sorted(getattr(found, "__abstractmethods__", ()))
    if abstract:
        raise QueryError(field, f"{path!r} does not define {', '.join(abstract)}")


def _join(spec: JoinSpec, left: Schema, right: Schema) -> Schema:
    for i, (l_name, r_name) in enumerate(spec.on):
        l_type = _attribute(left, l_name, f"on.{i}", where=" on the left", expected=_KEYS_OF_A_JOIN).type
        r_type = _attribute(right, r_name, f"on.{i}", where=" on the right", expected=_KEYS_OF_A_JOIN).type
        if l_type is not r_type:
            raise QueryError(f"on.{i}", f"{l_name!r} is {l_type}, but {r_name!r} is {r_type}; expected equal types")
    bounded = spec.lower_us is not None or spec.upper_us is not None
    if (spec.window is None) == (not bounded):
        raise QueryError("window", "a join needs a window, or an interval (lower and upper), and not both")
    if spec.left_time is not None:
        _timestamp(left, spec.left_time, "left_time")
    if spec.right_time is not None:
        _timestamp(right, spec.right_time, "right_time")
    if spec.window is not None:
        uses_on = [s for s, name in ((left, spec.left_time), (right, spec.right_time)) if name is None]
        check_window(spec.window, uses_on, count_allowed=False)
    else:
        if spec.lower_us is None or spec.upper_us is None:
            raise QueryError("upper" if spec.upper_us is None else "lower", "an interval needs both ends")
        if spec.lower_us > spec.upper_us:
            raise QueryError("lower", f"lower ({spec.lower_us} us) is more than upper ({spec.upper_us} us)")
        if (spec.left_time is None) != (spec.right_time is None):
            raise QueryError("left_time", "give left_time and right_time, or neither")
    joined = join_schema(spec, left, right)
    if spec.where is not None:
        compile_predicate(spec.where, joined)
    return joined


def join_schema(spec: JoinSpec, left: Schema, right: Schema) -> Schema:
    """Attributes of both sides, and the window's."""
    l_null, r_null = spec.kind in (JoinKind.RIGHT, JoinKind.FULL), spec.kind in (JoinKind.LEFT, JoinKind.FULL)
    attributes = [Attribute(spec.prefix[0] + a.name, a.type, a.nullable or l_null) for a in left]
    attributes += [Attribute(spec.prefix[1] + a.name, a.type, a.nullable or r_null) for a in right]
    attributes += WINDOW_ATTRIBUTES if spec.window is not None else ()
    return _unique(attributes, "set prefixes, or rename it before the join")


def _topk(spec: TopKSpec, schema: Schema) -> Schema:
    if spec.k < 1:
        raise QueryError("k", f"expected at least 1, got {spec.k}")
    if not spec.order_by:
        raise QueryError("order_by", "expected at least one expression")
    for text, _ in spec.order_by:
        compile_expression(text, schema)
    for i, name in enumerate(spec.partition_by):
        _attribute(schema, name, f"partition_by.{i}")
    added = []
    if spec.window is not None:
        check_window(spec.window, [schema], count_allowed=False)
        added += topk_window_attributes(schema)
    if spec.rank_as is not None:
        added.append(Attribute(spec.rank_as, AttributeType.INT64, nullable=False))
    return _unique([*schema, *added], "choose another name")


def topk_window_attributes(schema: Schema) -> list[Attribute]:
    """What a windowed top-k adds: the window's attributes, as far as the input has none of that name."""
    return [a for a in WINDOW_ATTRIBUTES if a.name not in schema]


def _custom(spec: CustomSpec, inputs: Sequence[Schema]) -> Schema:
    found = load_class(spec.path, "path")
    output_schema: Callable[..., Any] | None = getattr(found, "output_schema", None)
    if output_schema is None or not hasattr(found, "step"):
        raise QueryError("path", f"{spec.path!r} is no operator: it lacks output_schema or step (see operators.custom)")
    _concrete(found, spec.path, "path")
    try:
        schema = output_schema(tuple(inputs), **spec.arguments)
    except (QueryError, ExpressionError):
        raise
    except Exception as error:  # a user's code
        raise QueryError("arguments", f"{spec.path} refuses its inputs or arguments: {error}") from error
    if not isinstance(schema, Schema):
        raise QueryError("path", f"{spec.path}.output_schema returned {type(schema).__name__}; expected a Schema")
    return schema
