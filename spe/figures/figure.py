"""A figure: its name, its meaning, and how it is read from a status."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from spe.status import HistogramStatus
from spe.stream.times import BEFORE_TIME, END_OF_TIME

S = TypeVar("S")
Kind = Literal["counter", "gauge", "histogram"]
#: A value for each label, or one value; None: unknown.
Value: TypeAlias = float | HistogramStatus | Mapping[Any, float] | None


@dataclass(frozen=True, slots=True)
class Figure(Generic[S]):
    """A figure of a process, a replica, an input, a source or a channel.

    Attributes:
      name: its name as a metric: ends with the unit, that of a counter with ``_total``.
      value: reads it from a status.
      help: meaning of a value, in a line.
      labels: where there are several values, the labels of each.
    """

    name: str
    value: Callable[[S], Value]
    help: str
    labels: tuple[str, ...] = ()
    is_histogram: bool = False

    @property
    def kind(self) -> Kind:
        return "histogram" if self.is_histogram else "counter" if self.name.endswith("_total") else "gauge"


def seconds(us: int | None) -> float | None:
    """Converts microseconds."""
    return None if us is None else us / 1e6


def timestamp(us: int) -> float | None:
    """Converts tuple time to seconds; None before the first boundary, and after the end of the stream."""
    return us / 1e6 if BEFORE_TIME < us < END_OF_TIME else None
