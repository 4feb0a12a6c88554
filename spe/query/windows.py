"""The kinds of windows: a class each in KINDS, with keys and membership (docs/internals/new-window.md)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache, cached_property
from typing import Annotated, Any, ClassVar, Final, TypeVar, get_type_hints

from pydantic import BeforeValidator, Field, PlainValidator, create_model
from pydantic.fields import FieldInfo
from pydantic_core import PydanticKnownError

from spe.errors import QueryError
from spe.problems import one_of
from spe.query.declaration import OperatorSpec, check_timestamp
from spe.stream.batch import Int64Array
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
Offset = Annotated[int, BeforeValidator(duration_of), Field(alias="offset")]
#: Times or numbers of windows and panes.
Times = TypeVar("Times", int, Int64Array)


class Window(ABC):
    """A kind of window with its parameters: a frozen dataclass whose fields are keys of the configuration.

    Attributes:
      KEYWORD: the key that tells the kind.
      attributes: what the window adds to a result.
      by_arrival: do ties in time decide which tuples share a window?
      on: the timestamp attribute that decides membership; None: there is none.
      lifetime_rows: rows after which the state of a group ends; None: it ends by time.
    """

    KEYWORD: ClassVar[str]
    attributes: ClassVar[tuple[Attribute, ...]] = ()
    by_arrival: ClassVar[bool] = False
    on: str | None = None

    @property
    def panes(self) -> int:
        """Most states that a group has at a time."""
        return 1

    @property
    def reach_us(self) -> int | None:
        """Distance in tuple time from a result back to its earliest row; None: unknown."""
        return None

    @property
    def cadence_us(self) -> int:
        """Tuple time between two results of a group; 0: any."""
        return 0

    @property
    def lifetime_rows(self) -> int | None:
        return None

    @abstractmethod
    def describe(self) -> str:
        """Describes a window: ``tumbling 1s``, ``sliding 10s every 2s over ts``, ``windows of 100 tuples``."""

    @abstractmethod
    def check(self, schemas: Sequence[Schema]) -> None:
        """Raises QueryError if a window does not fit these inputs."""


class TimeWindow(Window):
    """Half-open windows that depend on the time alone: window k is [offset + k·slide, offset + k·slide + size).

    Windows are numbered by their ends, so those of a time are ``first`` to ``last``.  They consist of panes: state is
    per pane, so a tuple is processed once however many windows overlap.  The methods take and return a number or an
    array, times in microseconds.  Another kind overrides them; ``size_us`` is its largest size.
    """

    attributes = WINDOW_ATTRIBUTES
    size_us: int
    slide_us: int
    offset_us: int

    @cached_property
    def pane_us(self) -> int:
        return math.gcd(self.size_us, self.slide_us)

    @property
    def panes(self) -> int:
        return self.size_us // self.pane_us

    @property
    def overlap(self) -> int:
        """Most windows of a tuple."""
        return -(-self.size_us // self.slide_us)

    @property
    def has_gaps(self) -> bool:
        """Are there times in no window?"""
        return self.slide_us > self.size_us

    @property
    def reach_us(self) -> int | None:
        return None if self.on is not None else self.size_us

    @property
    def cadence_us(self) -> int:
        return self.slide_us

    def first(self, times: Times) -> Times:
        """Returns the first window that ends after each time; after a gap it may begin later."""
        return (times - (self.offset_us + self.size_us)) // self.slide_us + 1

    def last(self, times: Times) -> Times:
        """Returns the last window that begins at or before each time."""
        return (times - self.offset_us) // self.slide_us

    def start(self, windows: Times) -> Times:
        return self.offset_us + windows * self.slide_us

    def end(self, windows: Times) -> Times:
        """Returns the exclusive ends, which may be beyond the end of time."""
        return self.offset_us + windows * self.slide_us + self.size_us

    def pane(self, times: Times) -> Times:
        return (times - self.offset_us) // self.pane_us

    def pane_start(self, panes: Times) -> Times:
        return self.offset_us + panes * self.pane_us

    def describe(self) -> str:
        text = f"{self.KEYWORD} {format_duration(self.size_us)}"
        if self.slide_us != self.size_us:
            text += f" every {format_duration(self.slide_us)}"
        if self.offset_us:
            text += f" offset {describe_signed(self.offset_us)}"
        return text if self.on is None else f"{text} over {self.on}"

    def check(self, schemas: Sequence[Schema]) -> None:
        for name, length_us in (("size", self.size_us), ("slide", self.slide_us)):
            if length_us <= 0:
                raise QueryError(f"window.{name}", f"expected more than 0, got {length_us} us")
        if self.overlap > MAX_OVERLAP:
            raise QueryError("window.slide", f"each tuple would be in more than {MAX_OVERLAP} windows")
        if self.on is not None:
            for schema in schemas:
                check_timestamp(schema, self.on, "window.on")


@dataclass(frozen=True)
class TumblingWindow(TimeWindow):
    KEYWORD = "tumbling"

    size_us: Annotated[PositiveDuration, Field(alias="tumbling")]
    offset_us: Offset = 0
    on: str | None = None

    @property
    def slide_us(self) -> int:  # type: ignore[override]
        return self.size_us


@dataclass(frozen=True)
class SlidingWindow(TimeWindow):
    KEYWORD = "sliding"

    size_us: Annotated[PositiveDuration, Field(alias="sliding")]
    slide_us: Annotated[PositiveDuration, Field(alias="slide")]
    offset_us: Offset = 0
    on: str | None = None


@dataclass(frozen=True)
class CountWindow(Window):
    """``count`` tuples of a group, in order; a partly filled window is never released."""

    KEYWORD = "count"
    by_arrival = True

    count: Count

    @property
    def lifetime_rows(self) -> int:
        return self.count

    def describe(self) -> str:
        return f"windows of {self.count} tuples"

    def check(self, schemas: Sequence[Schema]) -> None:
        if self.count < 1:
            raise QueryError("window.count", f"expected at least 1, got {self.count}")


KINDS: Final[dict[str, type[Window]]] = {kind.KEYWORD: kind for kind in (TumblingWindow, SlidingWindow, CountWindow)}


def check_on_late(spec: OperatorSpec, on: str | None) -> None:
    """Raises QueryError if late rows are to be rejected and windows are not by an attribute."""
    if spec.rejects_late and on is None:
        raise QueryError("on_late", "nothing is late without windows by an attribute, such as {tumbling: 10s, on: ts}")


def check_by_time(operator: str, window: Any) -> None:
    """Raises ValueError if the windows of an operator are not of time."""
    if not isinstance(window, TimeWindow | None):
        kinds = " or ".join(keyword for keyword, kind in KINDS.items() if issubclass(kind, TimeWindow))
        raise ValueError(f"{operator} takes a {kinds} window, not a {window.KEYWORD} window")


def describe_signed(us: int) -> str:
    return f"-{format_duration(-us)}" if us < 0 else format_duration(us)


@cache
def _keys_of(kind: type[Any]) -> type[Model]:
    hints = get_type_hints(kind, include_extras=True)
    defaults = {field.name: ... if field.default is MISSING else field.default for field in fields(kind)}
    made: dict[str, Any] = {name: (hints[name], default) for name, default in defaults.items()}
    return create_model(f"{kind.__name__}Keys", __base__=Model, **made)


def window_of(value: Any) -> Window:
    """Reads ``{tumbling: 1s}``, ``{sliding: 10s, slide: 2s}``, ``{count: 100}``; ``1s`` is short for the first.

    Raises ValueError.
    """
    options = {"tumbling": value} if isinstance(value, str) else value
    if not isinstance(options, Mapping):
        raise PydanticKnownError("dict_type")
    options = {key: option for key, option in options.items() if option is not None}
    kinds = [keyword for keyword in KINDS if keyword in options]
    if len(kinds) != 1:
        got = f", got {' and '.join(kinds)}" if kinds else ", got none"
        raise ValueError(f"expected exactly one of {', '.join(KINDS)}{got}")
    keys = _keys_of(KINDS[kinds[0]])
    if strays := [key for key in options if key not in keys.known()]:
        raise ValueError(f"a {kinds[0]} window has no {strays[0]!r}; expected {one_of(list(keys.known()))}")
    return KINDS[kinds[0]](**dict(keys.model_validate(options)))


class WindowKeys(Model):
    """The keys of all kinds."""

    @classmethod
    def known(cls) -> dict[str, FieldInfo]:
        return {key: field for kind in KINDS.values() for key, field in _keys_of(kind).known().items()}


WindowKey = Annotated[WindowKeys, PlainValidator(window_of), Field(description="a [window](#windows)")]
