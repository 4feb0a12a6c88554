"""Windows of a query: their specification, their form in a configuration, and their checks."""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from spe.errors import QueryError
from spe.query.declaration import OperatorSpec, check_timestamp
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.times import format_duration
from spe.values import Count, Model, PositiveDuration, duration_of

WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"
#: Attributes that a window adds.
WINDOW_ATTRIBUTES: Final = (
    Attribute(WINDOW_START, AttributeType.TIMESTAMP, nullable=False),
    Attribute(WINDOW_END, AttributeType.TIMESTAMP, nullable=False),
)
#: Most overlapping windows per tuple.  Each costs a result per group and slide.
MAX_OVERLAP: Final = 10_000


class WindowKind(enum.StrEnum):
    TUMBLING = "tumbling"
    SLIDING = "sliding"
    COUNT = "count"


TIME_WINDOWS: Final = (WindowKind.TUMBLING, WindowKind.SLIDING)


@dataclass(frozen=True, slots=True)
class Window:
    """Half-open [start, end) windows aligned to the epoch plus an offset, or count windows per group.

    Attributes:
      kind: tumbling has slide_us == size_us.
      size_us: length in microseconds of tuple time (time windows).
      slide_us: distance between starts; size_us need not be a multiple of it.
      offset_us: shifts the alignment.
      on: the timestamp attribute that decides membership; None: tuple time itself.
      count: tuples per window (count windows; per group; a partly filled one is never released).
    """

    kind: WindowKind
    size_us: int = 0
    slide_us: int = 0
    offset_us: int = 0
    on: str | None = None
    count: int = 0

    @property
    def reach_us(self) -> int | None:
        """Distance in tuple time from a result back to its earliest row; None: unknown."""
        return None if self.kind is WindowKind.COUNT or self.on is not None else self.size_us

    @property
    def panes(self) -> int:
        """Most panes of a group's windows that are open at a time."""
        return 1 if self.kind is WindowKind.COUNT else self.size_us // math.gcd(self.size_us, self.slide_us)

    def describe(self) -> str:
        """Describes a window: ``tumbling 1s``, ``sliding 10s every 2s over ts``, ``windows of 100 tuples``."""
        if self.kind is WindowKind.COUNT:
            return f"windows of {self.count} tuples"
        text = f"{self.kind} {format_duration(self.size_us)}"
        if self.kind is WindowKind.SLIDING:
            text += f" every {format_duration(self.slide_us)}"
        if self.offset_us:
            text += f" offset {describe_signed(self.offset_us)}"
        return text if self.on is None else f"{text} over {self.on}"

    def check(self, schemas: Sequence[Schema], kinds: Collection[WindowKind] = TIME_WINDOWS) -> None:
        """Raises QueryError if a window does not fit these inputs, or is of none of these kinds."""
        if self.kind not in kinds:
            raise QueryError("window", f"{self.kind} windows belong to aggregates; expected tumbling or sliding")
        if self.kind is WindowKind.COUNT:
            if self.count < 1:
                raise QueryError("window.count", f"expected at least 1, got {self.count}")
            for name, value in (("size", self.size_us), ("slide", self.slide_us), ("offset", self.offset_us)):
                if value:
                    raise QueryError(f"window.{name}", f"a count window has no {name}")
            if self.on is not None:
                raise QueryError("window.on", "a count window goes by arrival, not by an attribute")
            return
        if self.count:
            raise QueryError("window.count", f"a {self.kind} window has no count")
        if self.size_us <= 0:
            raise QueryError("window.size", f"expected more than 0, got {self.size_us} us")
        if self.slide_us <= 0:
            raise QueryError("window.slide", f"expected more than 0, got {self.slide_us} us")
        if self.kind is WindowKind.TUMBLING and self.slide_us != self.size_us:
            raise QueryError("window.slide", "a tumbling window slides by its size; use a sliding window")
        if self.size_us > MAX_OVERLAP * self.slide_us:
            raise QueryError("window.slide", f"each tuple would be in more than {MAX_OVERLAP} windows")
        if self.on is not None:
            for schema in schemas:
                check_timestamp(schema, self.on, "window.on")


def check_on_late(spec: OperatorSpec, on: str | None) -> None:
    """Raises QueryError if late rows are to be rejected and windows are not by an attribute."""
    if spec.rejects_late and on is None:
        raise QueryError("on_late", "nothing is late without windows by an attribute, such as {tumbling: 10s, on: ts}")


def describe_signed(us: int) -> str:
    return f"-{format_duration(-us)}" if us < 0 else format_duration(us)


def _shorthand(value: Any) -> Any:
    return {"tumbling": value} if isinstance(value, str) else value


class WindowKeys(Model):
    """``{tumbling: 1s}``, ``{sliding: 10s, slide: 2s}``, ``{count: 100}``; ``1s`` is short for the first."""

    tumbling: PositiveDuration | None = None
    sliding: PositiveDuration | None = None
    slide: PositiveDuration | None = None
    offset: Annotated[int, BeforeValidator(duration_of)] = 0
    on: str | None = None
    count: Count | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> WindowKeys:
        kinds = [k for k in ("tumbling", "sliding", "count") if getattr(self, k) is not None]
        if len(kinds) != 1:
            got = f", got {' and '.join(kinds)}" if kinds else ", got none"
            raise ValueError("expected exactly one of tumbling, sliding, count" + got)
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


WindowKey = Annotated[
    WindowKeys,
    BeforeValidator(_shorthand),
    AfterValidator(lambda keys: keys.spec()),
    Field(description="a [window](#windows)"),
]
