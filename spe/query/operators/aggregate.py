"""Aggregate: one tuple per window and group."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final

from pydantic import BeforeValidator, Field

from spe.errors import QueryError
from spe.problems import did_you_mean
from spe.query.aggregates import AGGREGATES
from spe.query.declaration import (
    Expression,
    From,
    Guarantee,
    KeyNames,
    Keys,
    Logged,
    OneInput,
    OnError,
    OnErrorKey,
    OnLate,
    OnLateKey,
    Traits,
    check_concrete,
    computed,
    expression_of,
    load_class,
    named,
    renamed,
    unique,
    written,
)
from spe.query.windows import WINDOW_END, WINDOW_START, Window, WindowKey, check_on_late
from spe.stream.names import StreamId
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.values import is_select, names_of

_CALL: Final = re.compile(r"\s*([A-Za-z_][\w.]*(?::[A-Za-z_]\w*)?)\s*\(", re.ASCII)
_DISTINCT: Final = re.compile(r"\s*distinct\b\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """One aggregate: ``function(argument)``, e.g. count(*), sum(price * qty), my.module:P99(latency).

    Attributes:
      function: a name in AGGREGATES, or an import path ``module:Class`` of a user-defined aggregate
        (docs/how-to/own-operators.md).
      argument: SQL expression; None for count(*).
    """

    function: str
    argument: str | None = None

    def output_attribute(self, schema: Schema, name: str) -> Attribute:
        """Returns the attribute that it makes.  Raises QueryError, ExpressionError."""
        at, function = f"aggregates.{name}", AGGREGATES.get(self.function)
        if function is None and ":" not in self.function:
            known = ", ".join(AGGREGATES)
            raise QueryError(at, f"no aggregate {self.function!r}; there are: {known}, and module:Class for your own")
        if self.argument is None:
            if self.function != "count":
                raise QueryError(at, f"{self.function} needs an argument")
            return Attribute(name, AttributeType.INT64, nullable=False)
        argument = computed(self.argument, schema, name)
        if function is None:
            return Attribute(name, _user_aggregate(self.function, argument.type, at), nullable=True)
        if function.numeric and not argument.type.is_numeric:
            raise QueryError(at, f"{function.name} needs int64 or float64, got {argument.type}")
        return Attribute(name, function.returns or argument.type, argument.nullable and not function.is_count)


def _user_aggregate(path: str, argument: AttributeType, field: str) -> AttributeType:
    user_class = load_class(path, field)
    missing = [m for m in ("check", "create", "add", "merge", "result", "returns") if not hasattr(user_class, m)]
    if missing:
        raise QueryError(field, f"{path!r} is no aggregate: it lacks {', '.join(missing)} (see operators.custom)")
    check_concrete(user_class, path, field)
    try:
        user_class.check(argument)
        return AttributeType(user_class.returns)
    except Exception as error:  # user code
        raise QueryError(field, f"{path} refuses {argument}: {error}") from error


def call_of(value: Any) -> AggregateCall:
    """Reads ``count(*)``, ``sum(price * qty)``, ``count(distinct user)``, ``module:P99(n)``.  Raises ValueError."""
    text = expression_of(value)
    match = _CALL.match(text)
    if match is None or not _closes_at_end(text, match.end()):
        what = "SELECT is not expected here" if is_select(text) else ""
        what = what or ("a parenthesis is not closed" if text.count("(") > text.count(")") else "")
        expected = f"expected one aggregate call such as count(*) or sum(price * qty), got {text!r}"
        raise ValueError(f"{what}; {expected}" if what else expected)
    function, argument = match[1], text[match.end() : text.rstrip().rindex(")")].strip()
    if ":" not in function:
        function = function.lower()
        if function not in AGGREGATES:
            hint = did_you_mean(function, AGGREGATES)
            raise ValueError(f"no aggregate {function!r}{hint}; expected {', '.join(AGGREGATES)} or module:Class")
    if function == "count" and (distinct := _DISTINCT.match(argument)):
        function, argument = "count_distinct", argument[distinct.end() :]
    if function == "count" and argument == "*":
        return AggregateCall("count")
    if not argument or argument == "*":
        raise ValueError(f"{function} needs an argument, as in {function}(price)")
    return AggregateCall(function, argument)


def _closes_at_end(text: str, start: int) -> bool:
    """Does the parenthesis opened before ``start`` close at the end?  ``sum(a) + sum(b)`` is no single call."""
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
    """Expands ``[user, day]`` to ``{user: user, day: day}``."""
    return dict(zip(names_of(value), names_of(value))) if isinstance(value, str | list | tuple) else value


Call = Annotated[AggregateCall, BeforeValidator(lambda v: v if isinstance(v, AggregateCall) else call_of(v))]


class AggregateKeys(Keys):
    """Per window and group."""

    from_: From
    window: WindowKey
    group_by: Annotated[dict[str, Expression], BeforeValidator(_grouping)] = Field(
        default_factory=dict, description="expression by name; a name or a list of names for attributes"
    )
    compute: dict[str, Call] = Field(description="aggregate by the attribute that it makes")
    on_error: OnErrorKey = "stop"
    on_late: OnLateKey = "count"


@dataclass(frozen=True, slots=True)
class AggregateSpec(OneInput):
    """Per window and group: ``group_by`` attributes, window_start, window_end, then the aggregates.

    Output: group attributes; window_start, window_end (timestamps, end exclusive; not for count windows); then one
    attribute per entry of ``aggregates``.  ``group_by`` maps output name to expression.
    A window has a result for each group with at least one tuple; without group_by, if it has at least one tuple.
    """

    KEYWORD = "aggregate"
    KEYS = AggregateKeys
    GUARANTEES = (
        Guarantee("time window", "window end − 1 µs", "first arrival of the group in the window"),
        Guarantee("count window", "the closing tuple's", "the closing tuples'"),
    )
    ENTRIES: ClassVar = {"aggregates": "compute", "group_by": "group_by"}

    input: StreamId
    window: Window
    group_by: Mapping[str, str]
    aggregates: Mapping[str, AggregateCall]
    on_error: OnError = field(default=OnError.STOP, repr=False)
    on_late: OnLate = field(default=OnLate.COUNT, repr=False)

    def output_schema(self, inputs: Sequence[Schema]) -> Schema:
        schema = inputs[0]
        self.window.check([schema])
        check_on_late(self, self.window.on)
        groups = [computed(text, schema, name) for name, text in self.group_by.items()]
        if not groups and not self.aggregates:
            raise QueryError("aggregates", "expected at least one aggregate, or a group_by")
        results = [call.output_attribute(schema, name) for name, call in self.aggregates.items()]
        return unique(
            [*groups, *self.window.attributes, *results], "rename it (a window adds window_start and window_end)"
        )

    def described(self) -> str:
        by = f" by {', '.join(named(name, text) for name, text in self.group_by.items())}" if self.group_by else ""
        shown = {n: f"{c.function}({'*' if c.argument is None else c.argument})" for n, c in self.aggregates.items()}
        calls = ", ".join(named(name, call) for name, call in shown.items())
        return f"{self.input} in {self.window.describe()}{by}: {calls}"

    def key_names(self, inputs: Sequence[KeyNames]) -> KeyNames:
        return tuple(renamed(k, self.group_by, False) for k in inputs[0])

    def divided(self, inputs: Sequence[KeyNames]) -> str:
        grouped = {written(e) for e in self.group_by.values()}
        by_key = inputs[0] and all(k & grouped for k in inputs[0])
        return "" if by_key else f"groups by ({', '.join(self.group_by) or 'nothing'})"

    def tied(self, key: frozenset[str] | None) -> str:
        if self.window.by_arrival:
            return f"a {self.window.KEYWORD} window"
        functions = [AGGREGATES[c.function] for c in self.aggregates.values() if c.function in AGGREGATES]
        return ", ".join(sorted({function.name for function in functions if function.by_arrival}))

    @property
    def logged(self) -> Logged:
        return Logged.CELLS

    @property
    def is_grouped(self) -> bool:
        return bool(self.group_by)

    @property
    def cells_per_group(self) -> int:
        return self.window.panes

    @property
    def lifetime_us(self) -> int | None:
        return self.window.reach_us

    @property
    def lifetime_rows(self) -> int | None:
        return self.window.lifetime_rows

    @property
    def own_code(self) -> bool:
        return any(":" in call.function for call in self.aggregates.values())

    @property
    def reach_us(self) -> int | None:
        return self.window.reach_us

    @property
    def result_key(self) -> tuple[str, ...] | None:
        # Without bounds a result does not tell its window, and many windows may close at one time.
        return (*self.group_by, WINDOW_START, WINDOW_END) if self.window.attributes else None

    @property
    def shares(self) -> tuple[str, ...] | None:
        return ("overlap", "exact") if self.window.attributes else None

    def traits(self, inner: Traits) -> Traits:
        return Traits(frozenset((*self.group_by, WINDOW_START, WINDOW_END)), True, self.window.cadence_us)
