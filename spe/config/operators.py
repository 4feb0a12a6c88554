"""The ``query`` section: one entry per operator, and what it says as an operator specification."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from spe.config.values import Count, Model, Names, PositiveDuration, duration_of, names_of
from spe.problems import Path, did_you_mean
from spe.query.query import (
    AggregateCall,
    AggregateSpec,
    CustomSpec,
    FilterSpec,
    JoinKind,
    JoinSpec,
    MapSpec,
    OnError,
    OperatorSpec,
    TopKSpec,
    UnionSpec,
    Window,
    WindowKind,
)
from spe.stream.names import StreamId

FUNCTIONS: Final = ("count", "count_distinct", "sum", "avg", "min", "max", "first", "last")
_CALL: Final = re.compile(r"\s*([A-Za-z_][\w.]*(?::[A-Za-z_]\w*)?)\s*\(", re.ASCII)
_DISTINCT: Final = re.compile(r"\s*distinct\b\s*", re.IGNORECASE)
_DIRECTION: Final = re.compile(r"(.*\S)\s+(asc|desc)\s*", re.IGNORECASE | re.DOTALL)


def expression_of(value: Any) -> str:
    """The text of an expression; YAML reads ``1`` and ``true`` as what they mean in SQL too."""
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    raise ValueError(f"expected an SQL expression, got {value!r}")


def call_of(value: Any) -> AggregateCall:
    """``count(*)``, ``sum(price * qty)``, ``count(distinct user)``, ``module:Class(latency)``.  Raises ValueError."""
    text = expression_of(value)
    found = _CALL.match(text)
    if found is None or not _closes_at_end(text, found.end()):
        raise ValueError(f"expected one aggregate call such as count(*) or sum(price * qty), got {text!r}")
    function, argument = found[1], text[found.end() : text.rstrip().rindex(")")].strip()
    if ":" not in function:
        function = function.lower()
        if function not in FUNCTIONS:
            hint = did_you_mean(function, FUNCTIONS)
            raise ValueError(f"no aggregate {function!r}{hint}; expected {', '.join(FUNCTIONS)} or module:Class")
    if function == "count" and (distinct := _DISTINCT.match(argument)):
        function, argument = "count_distinct", argument[distinct.end() :]
    if function == "count" and argument == "*":
        return AggregateCall("count")
    if not argument or argument == "*":
        raise ValueError(f"{function} needs an argument, as in {function}(price)")
    return AggregateCall(function, argument)


def _closes_at_end(text: str, start: int) -> bool:
    """Does the parenthesis opened before ``start`` close at the very end?  ``sum(a) + sum(b)`` is no single call."""
    depth, quote = 1, ""
    end = len(text.rstrip())
    for i in range(start, end):
        character = text[i]
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "()":
            depth += 1 if character == "(" else -1
            if depth == 0:
                return i == end - 1
    return False


def _grouping(value: Any) -> Any:
    """``[user, day]`` is short for ``{user: user, day: day}``."""
    return dict(zip(names_of(value), names_of(value))) if isinstance(value, str | list | tuple) else value


def _pairs(value: Any) -> tuple[tuple[str, str], ...]:
    """``user``, ``[user, day]``, ``{user: customer}`` or ``[[user, customer], day]``."""
    items: list[Any] = list(value.items()) if isinstance(value, dict) else [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not items:
        raise ValueError(f"expected the attributes to join on, such as user or {{user: customer}}, got {value!r}")
    pairs = [(i, i) if isinstance(i, str) else i for i in items]
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(a, str) for a in pair):
            raise ValueError(f"expected a name or a pair [left, right] of names, got {pair!r}")
    return tuple((str(left), str(right)) for left, right in pairs)


def _within(value: Any) -> tuple[int, int]:
    """``5s``: at most so far apart, either way; ``[0, 30s]``: right time − left time."""
    if isinstance(value, list | tuple):
        if len(value) != 2:
            raise ValueError(f"expected two durations [from, to], got {value!r}")
        lower, upper = duration_of(value[0]), duration_of(value[1])
    else:
        upper = duration_of(value)
        lower = -upper
    if lower > upper:
        raise ValueError(f"the interval is empty: it ends before it begins, {value!r}")
    return lower, upper


def _orders(value: Any) -> tuple[tuple[str, bool], ...]:
    """``n desc`` or ``[n desc, user]``: (expression, descending)."""
    items = value if isinstance(value, list | tuple) else [value]
    if not items:
        raise ValueError("expected at least one expression to order by, such as n desc")
    orders = []
    for item in items:
        text = expression_of(item)
        found = _DIRECTION.fullmatch(text)
        orders.append((found[1].strip(), found[2].lower() == "desc") if found else (text.strip(), False))
    return tuple(orders)


Expression = Annotated[str, BeforeValidator(expression_of)]
Call = Annotated[AggregateCall, BeforeValidator(lambda v: v if isinstance(v, AggregateCall) else call_of(v))]


def _window_shorthand(value: Any) -> Any:
    return {"tumbling": value} if isinstance(value, str) else value


class WindowModel(Model):
    """``{tumbling: 1s}``, ``{sliding: 10s, slide: 2s}``, ``{count: 100}``; ``1s`` is short for the first."""

    tumbling: PositiveDuration | None = None
    sliding: PositiveDuration | None = None
    slide: PositiveDuration | None = None
    offset: Annotated[int, BeforeValidator(duration_of)] = 0
    on: str | None = None
    count: Count | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> WindowModel:
        kinds = [k for k in ("tumbling", "sliding", "count") if getattr(self, k) is not None]
        if len(kinds) != 1:
            raise ValueError("expected exactly one of tumbling, sliding, count" + _got(kinds))
        if (self.sliding is None) != (self.slide is None):
            raise ValueError("sliding: LENGTH and slide: STEP go together")
        if self.count is not None and (self.on is not None or self.offset):
            raise ValueError("a count window takes neither on nor offset")
        return self

    def spec(self) -> Window:
        if self.count is not None:
            return Window(WindowKind.COUNT, count=self.count)
        if self.tumbling is not None:
            return Window(WindowKind.TUMBLING, self.tumbling, self.tumbling, self.offset, self.on)
        return Window(WindowKind.SLIDING, self.sliding or 0, self.slide or 0, self.offset, self.on)


def _got(kinds: list[str]) -> str:
    return f", got {' and '.join(kinds)}" if kinds else ", got none"


OnErrorField = Literal["stop", "skip"]
WindowField = Annotated[WindowModel, BeforeValidator(_window_shorthand)]


class FilterModel(Model):
    """Keeps the tuples for which ``where`` is true."""

    from_: str = Field(alias="from")
    where: Expression

    def spec(self) -> OperatorSpec:
        return FilterSpec(StreamId(self.from_), self.where)


class MapModel(Model):
    """Computes attributes; ``keep: true`` keeps the input's before them."""

    from_: str = Field(alias="from")
    compute: dict[str, Expression]
    keep: bool = False
    on_error: OnErrorField = "stop"

    def spec(self) -> OperatorSpec:
        return MapSpec(StreamId(self.from_), self.compute, self.keep, OnError(self.on_error))


class UnionModel(Model):
    """Merges streams of equal schema."""

    from_: Names = Field(alias="from", min_length=2)

    def spec(self) -> OperatorSpec:
        return UnionSpec(tuple(map(StreamId, self.from_)))


class AggregateModel(Model):
    """Per window and group."""

    from_: str = Field(alias="from")
    window: WindowField
    group_by: Annotated[dict[str, Expression], BeforeValidator(_grouping)] = Field(default_factory=dict)
    compute: dict[str, Call]
    on_error: OnErrorField = "stop"

    def spec(self) -> OperatorSpec:
        on_error = OnError(self.on_error)
        return AggregateSpec(StreamId(self.from_), self.window.spec(), self.group_by, self.compute, on_error)


class JoinModel(Model):
    """Pairs of equal keys, in the same window or within a time interval."""

    left: str
    right: str
    kind: Literal["inner", "left", "right", "full"] = "inner"
    on: Annotated[tuple[tuple[str, str], ...], BeforeValidator(_pairs)]
    window: WindowField | None = None
    within: Annotated[tuple[int, int], BeforeValidator(_within)] | None = None
    left_time: str | None = None
    right_time: str | None = None
    where: Expression | None = None
    prefix: tuple[str, str] = Field(default=("l_", "r_"), strict=False)
    on_error: OnErrorField = "stop"

    @model_validator(mode="after")
    def _bounded(self) -> JoinModel:
        if (self.window is None) == (self.within is None):
            raise ValueError("expected either window or within: without one the join's state would grow for ever")
        if self.window is not None and self.window.count is not None:
            raise ValueError("a join takes a tumbling or sliding window, not a count window")
        return self

    def spec(self) -> OperatorSpec:
        lower, upper = self.within if self.within is not None else (None, None)
        return JoinSpec(
            StreamId(self.left),
            StreamId(self.right),
            JoinKind(self.kind),
            self.on,
            self.window.spec() if self.window is not None else None,
            lower,
            upper,
            self.left_time,
            self.right_time,
            self.where,
            self.prefix,
            OnError(self.on_error),
        )


class TopKModel(Model):
    """The first k by ``order_by``, per window and group."""

    from_: str = Field(alias="from")
    k: Count
    order_by: Annotated[tuple[tuple[str, bool], ...], BeforeValidator(_orders)]
    partition_by: Names = ()
    window: WindowField | None = None
    with_ties: bool = False
    rank_as: str | None = None

    @model_validator(mode="after")
    def _time_window(self) -> TopKModel:
        if self.window is not None and self.window.count is not None:
            raise ValueError("topk takes a tumbling or sliding window, not a count window")
        return self

    def spec(self) -> OperatorSpec:
        window = self.window.spec() if self.window is not None else None
        return TopKSpec(
            StreamId(self.from_), self.k, self.order_by, self.partition_by, window, self.with_ties, self.rank_as
        )


class CustomModel(Model):
    """A user-defined operator, ``module:Class``."""

    class_: str = Field(alias="class", pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    from_: Names = Field(alias="from", min_length=1)
    arguments: dict[str, Any] = Field(default_factory=dict)
    on_error: OnErrorField = "stop"

    def spec(self) -> OperatorSpec:
        return CustomSpec(tuple(map(StreamId, self.from_)), self.class_, self.arguments, OnError(self.on_error))


OPERATORS: Final[dict[str, type[Model]]] = {
    "filter": FilterModel,
    "map": MapModel,
    "union": UnionModel,
    "aggregate": AggregateModel,
    "join": JoinModel,
    "topk": TopKModel,
    "custom": CustomModel,
}
#: Operators that cannot fail on a row: they make none that is larger than what they get, and run no code of a user's.
NEVER_FAIL: Final = ("filter", "union", "topk")
AnyOperator = FilterModel | MapModel | UnionModel | AggregateModel | JoinModel | TopKModel | CustomModel

#: Where a field of a specification is written in the configuration, below the operator's kind.
_WRITTEN_AS: Final = {
    "input": "from",
    "inputs": "from",
    "columns": "compute",
    "aggregates": "compute",
    "lower": "within",
    "upper": "within",
    "path": "class",
}


def written_path(field: str) -> Path:
    """Path below the operator's kind of a specification's field, e.g. ``aggregates.total.argument``."""
    if not field:
        return ()
    head, *rest = field.split(".")
    if head in ("columns", "aggregates", "group_by"):  # names may hold anything but are never followed by much
        return (_WRITTEN_AS.get(head, head), *rest[:1])
    return (_WRITTEN_AS.get(head, head), *[int(r) if r.isdecimal() else r for r in rest])
