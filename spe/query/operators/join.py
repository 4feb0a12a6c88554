"""Join: pairs of equal keys, bounded in time."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from spe.errors import QueryError
from spe.expressions import compile_predicate
from spe.problems import Path
from spe.query.declaration import (
    Expression,
    Guarantee,
    KeyNames,
    Keys,
    Logged,
    OnError,
    OnErrorKey,
    OnLate,
    OnLateKey,
    OperatorSpec,
    attribute_of,
    check_timestamp,
    unique,
)
from spe.query.windows import WINDOW_ATTRIBUTES, TimeWindow, WindowKey, check_by_time, check_on_late, describe_signed
from spe.stream.names import StreamId
from spe.stream.schema import Attribute, Schema
from spe.values import duration_of

_KEYS_OF_A_JOIN: Final = "; expected a name that both sides have, or {LEFT: RIGHT}"


class JoinKind(enum.StrEnum):
    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"


def _pairs(value: Any) -> tuple[tuple[str, str], ...]:
    """Reads ``user``, ``[user, day]``, ``{user: customer}`` or ``[[user, customer], day]``."""
    items: list[Any] = list(value.items()) if isinstance(value, dict) else [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not items:
        raise ValueError(f"expected the attributes to join on, such as user or {{user: customer}}, got {value!r}")
    pairs = [(i, i) if isinstance(i, str) else i for i in items]
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(a, str) for a in pair):
            raise ValueError(f"expected a name or a pair [left, right] of names, got {pair!r}")
    return tuple((str(left), str(right)) for left, right in pairs)


def _within(value: Any) -> tuple[int, int]:
    """Reads ``5s``: the largest distance, either way; or ``[0, 30s]``: right time − left time."""
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


class JoinKeys(Keys):
    """Pairs of equal keys, in the same window or within a time interval."""

    left: str = Field(description="the stream on the left; it goes first at equal times")
    right: str = Field(description="the stream on the right")
    kind: Literal["inner", "left", "right", "full"] = Field(
        default="inner", description="`left`, `right` or `full`: its tuples come without a partner, too"
    )
    on: Annotated[tuple[tuple[str, str], ...], BeforeValidator(_pairs)] = Field(
        description="attributes that are equal: `id`, `[id, day]`, `{LEFT: RIGHT}`, `[[LEFT, RIGHT], day]`"
    )
    window: WindowKey | None = Field(
        default=None, description="both are in the same [window](#windows); this or `within`"
    )
    within: Annotated[tuple[int, int], BeforeValidator(_within)] | None = Field(
        default=None, description="right time − left time: `[from, to]`, or `5s` for `[-5s, 5s]`"
    )
    left_time: str | None = Field(default=None, description="a timestamp attribute instead of tuple time")
    right_time: str | None = Field(default=None, description="the same on the right")
    where: Expression | None = Field(default=None, description="a further condition, part of the join's")
    prefix: tuple[str, str] = Field(
        default=("l_", "r_"), strict=False, description="what the names of each side begin with"
    )
    on_error: OnErrorKey = "stop"
    on_late: OnLateKey = "count"

    @model_validator(mode="after")
    def _bounded(self) -> JoinKeys:
        if (self.window is None) == (self.within is None):
            raise ValueError("expected either window or within: without one the join's state would grow for ever")
        check_by_time("a join", self.window)
        return self

    def values(self) -> dict[str, Any]:
        values = super().values()
        values["lower_us"], values["upper_us"] = values.pop("within") or (None, None)
        return {**values, "kind": JoinKind(self.kind)}


@dataclass(frozen=True, slots=True)
class JoinSpec(OperatorSpec):
    """Equi-join by key attributes, in the same window or within a time interval, with an optional predicate.

    Attributes:
      on: pairs (left attribute, right attribute); null keys do not match.
      window: a pair is released once per window that both are in, at the larger of the two times, with window_start
        and window_end as last attributes; an unmatched outer row at end − 1; or
      lower_us, upper_us: right time − left time in [lower, upper], ends included, over tuple time or over the
        timestamp attributes ``left_time`` / ``right_time``.  0 and 0 join window results of the same window.
    """

    KEYWORD = "join"
    KEYS = JoinKeys
    GUARANTEES = (
        Guarantee(
            "pair", "the later tuple's", "later tuple, earlier tuple, window; the left input goes first at equal times"
        ),
        Guarantee(
            "outer row without partner",
            "the last time at which it could have found one",
            "after the pairs, in order of arrival",
        ),
    )
    WRITTEN: ClassVar = {"lower": "within", "upper": "within"}
    CORRELATES = True

    left: StreamId
    right: StreamId
    kind: JoinKind
    on: tuple[tuple[str, str], ...]
    window: TimeWindow | None = None
    lower_us: int | None = None
    upper_us: int | None = None
    left_time: str | None = None
    right_time: str | None = None
    where: str | None = None
    prefix: tuple[str, str] = ("l_", "r_")
    on_error: OnError = field(default=OnError.STOP, repr=False)
    on_late: OnLate = field(default=OnLate.COUNT, repr=False)

    @property
    def inputs(self) -> tuple[StreamId, ...]:
        return (self.left, self.right)

    @classmethod
    def input_path(cls, body: Any, port: int) -> Path:
        return (("left", "right")[port],)

    def output_schema(self, inputs: Sequence[Schema]) -> Schema:
        left, right = inputs
        for i, (l_name, r_name) in enumerate(self.on):
            l_type = attribute_of(left, l_name, f"on.{i}", where=" on the left", expected=_KEYS_OF_A_JOIN).type
            r_type = attribute_of(right, r_name, f"on.{i}", where=" on the right", expected=_KEYS_OF_A_JOIN).type
            if l_type is not r_type:
                raise QueryError(f"on.{i}", f"{l_name!r} is {l_type}, but {r_name!r} is {r_type}; expected equal types")
        bounded = self.lower_us is not None or self.upper_us is not None
        if (self.window is None) == (not bounded):
            raise QueryError("window", "a join needs a window, or an interval (lower and upper), and not both")
        if self.left_time is not None:
            check_timestamp(left, self.left_time, "left_time")
        if self.right_time is not None:
            check_timestamp(right, self.right_time, "right_time")
        if self.window is not None:
            self.window.check([s for s, name in ((left, self.left_time), (right, self.right_time)) if name is None])
        else:
            if self.lower_us is None or self.upper_us is None:
                raise QueryError("upper" if self.upper_us is None else "lower", "an interval needs both ends")
            if self.lower_us > self.upper_us:
                raise QueryError("lower", f"lower ({self.lower_us} us) is more than upper ({self.upper_us} us)")
            if (self.left_time is None) != (self.right_time is None):
                raise QueryError("left_time", "give left_time and right_time, or neither")
        by_attribute = None if self.window is None else self.left_time or self.right_time or self.window.on
        check_on_late(self, by_attribute)
        joined = self.joined_schema(left, right)
        if self.where is not None:
            compile_predicate(self.where, joined)
        return joined

    def joined_schema(self, left: Schema, right: Schema) -> Schema:
        """Returns the attributes of both sides, and those of the window."""
        l_null, r_null = self.kind in (JoinKind.RIGHT, JoinKind.FULL), self.kind in (JoinKind.LEFT, JoinKind.FULL)
        attributes = [Attribute(self.prefix[0] + a.name, a.type, a.nullable or l_null) for a in left]
        attributes += [Attribute(self.prefix[1] + a.name, a.type, a.nullable or r_null) for a in right]
        attributes += WINDOW_ATTRIBUTES if self.window is not None else ()
        return unique(attributes, "set prefixes, or rename it before the join")

    @property
    def _shown_on(self) -> str:
        return ", ".join(a if a == b else f"{a} = {b}" for a, b in self.on)

    def described(self) -> str:
        kind = "" if self.kind is JoinKind.INNER else f"{self.kind} "
        text = f"{kind}{self.left} with {self.right} on {self._shown_on}"
        if self.window is not None:
            text += f" in {self.window.describe()}"
        else:
            bounds = f"[{describe_signed(self.lower_us or 0)}, {describe_signed(self.upper_us or 0)}]"
            times = f"{self.right}.{self.right_time or 'time'} - {self.left}.{self.left_time or 'time'}"
            text += f" within {bounds} of {times}"
        return text if self.where is None else f"{text} where {self.where}"

    @property
    def logged(self) -> Logged:
        return Logged.ROWS

    def key_names(self, inputs: Sequence[KeyNames]) -> KeyNames:
        """Only sides that are always present carry the key: an outer row has null on its other side.

        Each side has the values of its own rows.  Names of both sides may be mixed if the join makes the values equal.
        """
        if self.kind is JoinKind.FULL:
            return self._coalesced(inputs)
        sides = []
        if self.kind in (JoinKind.INNER, JoinKind.LEFT):
            sides.append((self.prefix[0], inputs[0]))
        if self.kind in (JoinKind.INNER, JoinKind.RIGHT):
            sides.append((self.prefix[1], inputs[1]))
        if not all(names for _, names in sides):
            return ()
        if len(sides[0][1]) > 1 and not self._equated(inputs):
            sides = sides[:1]
        return tuple(
            frozenset(prefix + n for (prefix, _), ks in zip(sides, per_key) for n in ks)
            for per_key in zip(*[names for _, names in sides])
        )

    def _coalesced(self, inputs: Sequence[KeyNames]) -> KeyNames:
        """Key names of a full join: one side of a row may be null, and the first that is not null has the key."""
        if not all(inputs) or not self._equated(inputs):
            return ()
        left, right = self.prefix
        both = [[(left + a, right + b) for a in x for b in y] for x, y in zip(*inputs)]
        return tuple(frozenset(f"coalesce({a},{b})" for pair in pairs for a, b in (pair, pair[::-1])) for pairs in both)

    def _equated(self, inputs: Sequence[KeyNames]) -> bool:
        """Does the join condition require each key attribute to be equal on both sides?"""
        return all(any(a in x and b in y for a, b in self.on) for x, y in zip(*inputs))

    def divided(self, inputs: Sequence[KeyNames]) -> str:
        return "" if all(inputs) and self._equated(inputs) else f"joins on ({self._shown_on})"

    @property
    def only_adds(self) -> bool:
        return self.kind is JoinKind.INNER

    @property
    def reach_us(self) -> int | None:
        if self.left_time is not None or self.right_time is not None:
            return None
        if self.window is not None:
            return self.window.reach_us
        return max(abs(self.lower_us or 0), abs(self.upper_us or 0))
