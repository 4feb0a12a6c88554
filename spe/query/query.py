"""The logical query: sources, operators, outputs.  Plain data, made by the configuration or by hand.

Each operator defines one stream that has the operator's name.  Inputs are names of sources or of other operators.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from spe.stream.names import StreamId
from spe.stream.schema import Schema


class OnError(enum.StrEnum):
    """Where an operator cannot take a row in, or make one: does the replica stop, or go on without the row?

    It is in no specification's text, of which fingerprints are made: see :meth:`Operator.described`.
    """

    STOP = "stop"
    SKIP = "skip"


class WindowKind(enum.StrEnum):
    TUMBLING = "tumbling"
    SLIDING = "sliding"
    COUNT = "count"


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


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """One aggregate: ``function(argument)``, e.g. count(*), sum(price * qty), my.module:P99(latency).

    Attributes:
      function: count, count_distinct, sum, avg, min, max, first, last, or an import path ``module:Class`` of a
        user-defined aggregate (operators.custom.Aggregator).
      argument: SQL expression; None for count(*).
    """

    function: str
    argument: str | None = None


class JoinKind(enum.StrEnum):
    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class FilterSpec:
    """Tuples for which ``where`` is true (not false, not null)."""

    input: StreamId
    where: str


@dataclass(frozen=True, slots=True)
class MapSpec:
    """New attributes from expressions.  ``{name: expression}`` in output order; the input's others are dropped,
    unless ``keep`` is set: then they come first."""

    input: StreamId
    columns: Mapping[str, str]
    keep: bool = False
    on_error: OnError = field(default=OnError.STOP, repr=False)


@dataclass(frozen=True, slots=True)
class UnionSpec:
    """All inputs in one stream, merged by (time, input order).  Attribute names and types must be equal."""

    inputs: tuple[StreamId, ...]


@dataclass(frozen=True, slots=True)
class AggregateSpec:
    """Per window and group: ``group_by`` attributes, window_start, window_end, then the aggregates.

    Output: group attributes; window_start, window_end (timestamps, end exclusive; not for count windows); then one
    attribute per entry of ``aggregates``.  ``group_by`` maps output name to expression.
    A group appears in a window when at least one tuple of it does; with no group_by likewise.
    """

    input: StreamId
    window: Window
    group_by: Mapping[str, str]
    aggregates: Mapping[str, AggregateCall]
    on_error: OnError = field(default=OnError.STOP, repr=False)


@dataclass(frozen=True, slots=True)
class JoinSpec:
    """Equi-join by key expressions, in the same window or within a time interval, with an optional predicate.

    Attributes:
      left, right: input streams; output attributes are ``l_``- and ``r_``-prefixed unless ``prefix`` is False
        (then names must not clash).
      on: pairs (left attribute, right attribute); null keys do not match.
      window: both tuples lie in the same window (tumbling or sliding); a pair is released once per window that
        both are in, at the larger of the two times, with window_start and window_end as last attributes; an
        unmatched outer row at end − 1; or
      lower_us, upper_us: right time − left time in [lower, upper], ends included, over tuple time or over the
        timestamp attributes ``left_time`` / ``right_time``.  0 and 0 join window results of the same window.
      where: further condition over the joined attributes (part of the join condition, also for outer joins).
    A join needs a window or an interval: without one its state would grow for ever.
    """

    left: StreamId
    right: StreamId
    kind: JoinKind
    on: tuple[tuple[str, str], ...]
    window: Window | None = None
    lower_us: int | None = None
    upper_us: int | None = None
    left_time: str | None = None
    right_time: str | None = None
    where: str | None = None
    prefix: tuple[str, str] = ("l_", "r_")
    on_error: OnError = field(default=OnError.STOP, repr=False)


@dataclass(frozen=True, slots=True)
class TopKSpec:
    """The first k per group in each window, by ``order_by``; ties beyond k by arrival order, or all kept.

    Attributes:
      order_by: pairs (expression, descending).  Nulls are smaller than everything.
      partition_by: rank within each combination of these attributes (may be empty).
      rank_as: name of an added int64 attribute with the rank from 1, if wanted.
      window: rank within each window over tuple time or a timestamp attribute; the result then carries
        window_start and window_end behind the input's attributes (unless the input has them already), and time =
        end − 1.  None: tuples with the same tuple time are ranked together, which is what window results
        (all of one window have time = end − 1) ask for; no state is kept then.
    """

    input: StreamId
    k: int
    order_by: tuple[tuple[str, bool], ...]
    partition_by: tuple[str, ...] = ()
    window: Window | None = None
    with_ties: bool = False
    rank_as: str | None = None


@dataclass(frozen=True, slots=True)
class CustomSpec:
    """A user-defined operator: ``path`` is ``module:Class`` of an operators.custom.CustomOperator."""

    inputs: tuple[StreamId, ...]
    path: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    on_error: OnError = field(default=OnError.STOP, repr=False)


OperatorSpec = Union[  # noqa: UP007
    FilterSpec, MapSpec, UnionSpec, AggregateSpec, JoinSpec, TopKSpec, CustomSpec
]


def inputs_of(spec: OperatorSpec) -> tuple[StreamId, ...]:
    """Input streams in port order."""
    if isinstance(spec, JoinSpec):
        return (spec.left, spec.right)
    if isinstance(spec, UnionSpec | CustomSpec):
        return spec.inputs
    return (spec.input,)


def skips(spec: OperatorSpec) -> bool:
    """Does the operator go on without rows that it cannot take in or make?"""
    return getattr(spec, "on_error", OnError.STOP) is OnError.SKIP


@dataclass(frozen=True, slots=True)
class Operator:
    """A named operator and the schema of the stream that it makes (derived when the query is typed)."""

    name: StreamId
    spec: OperatorSpec
    schema: Schema

    def described(self) -> list[Any]:
        """All that its rows depend on, for fingerprints.  One that skips nothing is described as it always was."""
        return [self.name, repr(self.spec), self.schema.to_wire(), *(["skip"] if skips(self.spec) else [])]


def streams_before(operators: Iterable[Operator], stream: StreamId) -> set[StreamId]:
    """A stream, and all that it is made of, as far as these operators go."""
    made = {o.name: o.spec for o in operators}
    found: set[StreamId] = set()
    waiting = [stream]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += inputs_of(made[name]) if name in made else ()
    return found


@dataclass(frozen=True, slots=True)
class Query:
    """A typed DAG.

    Attributes:
      sources: schema per source stream, in configuration order.
      operators: in topological order.
      outputs: the streams that clients read.
    """

    sources: Mapping[StreamId, Schema]
    operators: tuple[Operator, ...]
    outputs: tuple[StreamId, ...]

    def schema_of(self, stream: StreamId) -> Schema:
        if stream in self.sources:
            return self.sources[stream]
        for operator in self.operators:
            if operator.name == stream:
                return operator.schema
        raise KeyError(stream)
