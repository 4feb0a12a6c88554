"""Top-k: the first k tuples of a window, or of equal time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final

from pydantic import BeforeValidator, Field, model_validator

from spe.errors import QueryError
from spe.expressions import compile_expression
from spe.query.declaration import (
    From,
    Guarantee,
    KeyNames,
    Keys,
    Logged,
    OneInput,
    OnLate,
    OnLateKey,
    OperatorSpec,
    Traits,
    attribute_of,
    expression_of,
    unique,
)
from spe.query.windows import (
    WINDOW_ATTRIBUTES,
    WINDOW_END,
    WINDOW_START,
    TimeWindow,
    WindowKey,
    check_by_time,
    check_on_late,
)
from spe.stream.names import StreamId
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.values import Count, Names

_DIRECTION: Final = re.compile(r"(.*\S)\s+(asc|desc)\s*", re.IGNORECASE | re.DOTALL)


def _orders(value: Any) -> tuple[tuple[str, bool], ...]:
    """Reads ``n desc`` or ``[n desc, user]``; returns (expression, descending)."""
    items = value if isinstance(value, list | tuple) else [value]
    if not items:
        raise ValueError("expected at least one expression to order by, such as n desc")
    orders = []
    for item in items:
        text = expression_of(item)
        match = _DIRECTION.fullmatch(text)
        orders.append((match[1].strip(), match[2].lower() == "desc") if match else (text.strip(), False))
    return tuple(orders)


class TopKKeys(Keys):
    """The first k by ``order_by``, per window and group."""

    from_: From
    k: Count = Field(description="how many of each group")
    order_by: Annotated[tuple[tuple[str, bool], ...], BeforeValidator(_orders)] = Field(
        description="expressions, each with `desc` or not"
    )
    partition_by: Names = Field(default=(), description="attributes: a ranking for each combination of them")
    window: WindowKey | None = Field(
        default=None, description="a [window](#windows); without it tuples of equal time are ranked"
    )
    with_ties: bool = Field(default=False, description="all that rank ≤ k; without it ties are settled by arrival")
    rank_as: str | None = Field(default=None, description="name of an added attribute: the rank, from 1")
    on_late: OnLateKey = "count"

    @model_validator(mode="after")
    def _time_window(self) -> TopKKeys:
        check_by_time("topk", self.window)
        return self


@dataclass(frozen=True, slots=True)
class TopKSpec(OneInput):
    """The first k per group in each window, by ``order_by``; ties beyond k by arrival order, or all kept.

    Attributes:
      order_by: pairs (expression, descending).  Nulls are smaller than everything.
      window: rank within each window over tuple time or a timestamp attribute; the result then carries
        window_start and window_end after the input's attributes (unless the input has them already), and time =
        end − 1.  None: tuples with the same tuple time are ranked together, as needed for window results (all
        results of one window have time = end − 1); there is no state then.
    """

    KEYWORD = "topk"
    KEYS = TopKKeys
    GUARANTEES = (
        Guarantee("window", "window end − 1 µs", "groups by the first of their released tuples, then rank"),
        Guarantee("instant", "the tuples'", "the same"),
    )
    ENTRIES: ClassVar = {"order_by": "order_by"}
    SELECTS = True
    shares = ("topk", "exact")

    input: StreamId
    k: int
    order_by: tuple[tuple[str, bool], ...]
    partition_by: tuple[str, ...] = ()
    window: TimeWindow | None = None
    with_ties: bool = False
    rank_as: str | None = None
    on_late: OnLate = field(default=OnLate.COUNT, repr=False)

    def output_schema(self, inputs: Sequence[Schema]) -> Schema:
        schema = inputs[0]
        if self.k < 1:
            raise QueryError("k", f"expected at least 1, got {self.k}")
        if not self.order_by:
            raise QueryError("order_by", "expected at least one expression")
        for text, _ in self.order_by:
            compile_expression(text, schema)
        for i, name in enumerate(self.partition_by):
            attribute_of(schema, name, f"partition_by.{i}")
        check_on_late(self, None if self.window is None else self.window.on)
        added = []
        if self.window is not None:
            self.window.check([schema])
            added += self.window_attributes(schema)
        if self.rank_as is not None:
            added.append(Attribute(self.rank_as, AttributeType.INT64, nullable=False))
        return unique([*schema, *added], "choose another name")

    @staticmethod
    def window_attributes(schema: Schema) -> list[Attribute]:
        """Returns the window's attributes, except those whose names the input has."""
        return [a for a in WINDOW_ATTRIBUTES if a.name not in schema]

    def described(self) -> str:
        order = ", ".join(f"{text} desc" if descending else text for text, descending in self.order_by)
        text = f"first {self.k} of {self.input} by {order}"
        if self.partition_by:
            text += f" per {', '.join(self.partition_by)}"
        if self.window is not None:
            text += f" in {self.window.describe()}"
        return f"{text}, ties kept" if self.with_ties else text

    @property
    def logged(self) -> Logged:
        return Logged.NOTHING if self.window is None else Logged.ROWS

    def key_names(self, inputs: Sequence[KeyNames]) -> KeyNames:
        return inputs[0]

    def divided(self, inputs: Sequence[KeyNames]) -> str:
        by_key = inputs[0] and all(k & set(self.partition_by) for k in inputs[0])
        return "" if by_key else f"ranks by ({', '.join(self.partition_by) or 'nothing'})"

    def completed_by(self, reader: OperatorSpec) -> bool:
        """Is ``reader`` the same ranking with no larger k?  The first of all tuples are among the first of each
        partition."""
        return (
            isinstance(reader, TopKSpec)
            and self.rank_as is None
            and (reader.order_by, reader.partition_by, reader.window) == (self.order_by, self.partition_by, self.window)
            and reader.k <= self.k
            and (self.with_ties or not reader.with_ties)
        )

    def tied(self, key: frozenset[str] | None) -> str:
        ranked = {text.strip() for text, _ in self.order_by} | set(self.partition_by)
        total = (
            key is not None and key <= ranked
        )  # the order uses the whole key of the window results: there are no ties
        return "" if self.with_ties or total else "ties of a top-k"

    @property
    def reach_us(self) -> int | None:
        return 0 if self.window is None else self.window.reach_us

    def traits(self, inner: Traits) -> Traits:
        key = inner.key | frozenset((*self.partition_by, WINDOW_START, WINDOW_END))  # the ranked tuple, not its rank
        return Traits(key, True, inner.cadence_us if self.window is None else self.window.cadence_us)
