"""Streams of a query in Python, and what makes a new stream from them; see :mod:`spe.api`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from spe.config.script import caller, mistake
from spe.errors import ConfigError
from spe.problems import Path as Place
from spe.problems import show_path

Options = dict[str, Any]
#: SQL, or a literal.
Expression = str | int | float | bool

_OWN = "use process() for what SQL cannot express"
#: A stream has no end: results per group need a window to be complete.
_NO_WINDOW = 'a group needs a window: key_by(…).window(tumbling("1s")).aggregate(…); also sliding and count_window'


class Builder(Protocol):
    """The environment (spe.api), as its streams use it."""

    def operator(self, name: str | None, kind: str, body: Any) -> Stream: ...

    def set_choice(self, name: str, key: str, what: str) -> None: ...

    def outputs(self, *streams: Stream | str, bound: str | None = None) -> Builder: ...


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """The stream of a source or of an operator."""

    environment: Builder
    name: str

    def filter(self, where: str, *, name: str | None = None) -> Stream:
        """Selects the tuples for which ``where`` is true."""
        if callable(where):
            what = 'filter takes an expression, such as "price > 100", got a function'
            raise wrong(("query", name or "filter"), f"{what}; {_OWN}")
        return self.environment.operator(name, "filter", {"from": self.name, "where": where})

    def map(self, compute: Mapping[str, Expression], *, keep: bool = False, name: str | None = None) -> Stream:
        """Computes attributes from expressions; ``keep`` puts the present ones before them."""
        if not isinstance(compute, Mapping):
            got = "a function" if callable(compute) else repr(compute)
            what = f'map takes expressions by attribute, such as {{"total": "price * qty"}}, got {got}'
            raise wrong(("query", name or "map"), f"{what}; {_OWN}")
        body = {"from": self.name, "compute": dict(compute), **without_none(keep=keep or None)}
        return self.environment.operator(name, "map", body)

    def union(self, *others: Stream | str, name: str | None = None) -> Stream:
        """Merges this stream and others of the same schema by time."""
        return self.environment.operator(name, "union", [self.name, *names(others)])

    def key_by(self, *keys: str, **expressions: Expression) -> Keyed:
        """Groups tuples by attributes, and by named expressions."""
        return Keyed(self, {**{k: k for k in keys}, **expressions})

    def window(self, window: Mapping[str, Any]) -> Windowed:
        """Makes windows without groups."""
        return Keyed(self, {}).window(window)

    def join(
        self,
        other: Stream | str,
        on: str | Sequence[Any] | Mapping[str, str],
        *,
        within: str | Sequence[str | int] | None = None,
        window: Mapping[str, Any] | None = None,
        kind: str | None = None,
        where: str | None = None,
        left_time: str | None = None,
        right_time: str | None = None,
        prefix: Sequence[str] | None = None,
        name: str | None = None,
    ) -> Stream:
        """Joins pairs of equal keys ``within`` a time interval, or in the same ``window``."""
        options = without_none(
            kind=kind,
            on=on,
            window=window,
            within=within,
            left_time=left_time,
            right_time=right_time,
            where=where,
            prefix=prefix,
        )
        return self.environment.operator(name, "join", {"left": self.name, "right": names([other])[0], **options})

    def top_k(
        self,
        k: int,
        order_by: str | Sequence[str],
        *,
        partition_by: Sequence[str] = (),
        with_ties: bool = False,
        rank_as: str | None = None,
        name: str | None = None,
    ) -> Stream:
        """Ranks tuples of the same time, such as the results of one window; returns the first k."""
        return _top_k(self, None, k, order_by, list(partition_by), with_ties, rank_as, name)

    def process(
        self, path: str, *others: Stream | str, arguments: Mapping[str, Any] | None = None, name: str | None = None
    ) -> Stream:
        """Applies a user-defined operator, ``module:Class``, to this stream and others."""
        body = {"class": path, "from": [self.name, *names(others)], **without_none(arguments=arguments)}
        return self.environment.operator(name, "custom", body)

    def on_error(self, what: str) -> Stream:
        """Sets the reaction to rows on which this stream's operator fails: ``stop`` or ``skip``."""
        self.environment.set_choice(self.name, "on_error", what)
        return self

    def rejected(self, *, name: str | None = None) -> Stream:
        """Returns the stream of this operator's rejected rows and results (``on_error``, ``on_late``)."""
        return self.environment.operator(name, "rejected", {"from": self.name})

    def on_late(self, what: str) -> Stream:
        """Sets the reaction to rows late for windows by an attribute: ``count`` or ``reject``."""
        self.environment.set_choice(self.name, "on_late", what)
        return self

    def output(self, *, bound: str | None = None) -> Stream:
        """Makes this stream an output; ``bound`` as in :meth:`Environment.outputs`."""
        self.environment.outputs(self, bound=bound)
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Keyed:
    """A stream in groups."""

    stream: Stream
    group_by: Mapping[str, Expression]

    def window(self, window: Mapping[str, Any]) -> Windowed:
        """Makes windows per group by :func:`tumbling`, :func:`sliding` or :func:`count_window`."""
        return Windowed(self.stream, self.group_by, window)

    def aggregate(self, *_: object, **__: object) -> NoReturn:
        """Refuses: a group needs a window."""
        raise wrong(("query",), _NO_WINDOW)

    def top_k(self, *_: object, **__: object) -> NoReturn:
        """Refuses: a group needs a window."""
        raise wrong(("query",), _NO_WINDOW)


@dataclass(frozen=True, slots=True, eq=False)
class Windowed:
    """A stream in groups and windows."""

    stream: Stream
    group_by: Mapping[str, Expression]
    over: Mapping[str, Any]

    def aggregate(self, name: str | None = None, /, **compute: str) -> Stream:
        """Makes one tuple per group and window: ``n="count(*)"``, ``total="sum(price)"``."""
        body = {"from": self.stream.name, **without_none(window=self.over, group_by=self.group_by or None)}
        return self.stream.environment.operator(name, "aggregate", {**body, "compute": compute})

    def top_k(
        self,
        k: int,
        order_by: str | Sequence[str],
        *,
        with_ties: bool = False,
        rank_as: str | None = None,
        name: str | None = None,
    ) -> Stream:
        """Ranks each group in each window, and returns the first k; groups are attributes here, not expressions."""
        groups = list(self.group_by)
        if any(self.group_by[g] != g for g in groups):
            what = "a top-k ranks by attributes; compute the expression with map first"
            raise wrong(("query", name or "topk"), what)
        return _top_k(self.stream, self.over, k, order_by, groups, with_ties, rank_as, name)


def _top_k(
    stream: Stream,
    window: Mapping[str, Any] | None,
    k: int,
    order_by: str | Sequence[str],
    partition_by: list[str],
    with_ties: bool,
    rank_as: str | None,
    name: str | None,
) -> Stream:
    options = without_none(
        partition_by=partition_by or None, window=window, with_ties=with_ties or None, rank_as=rank_as
    )
    body = {"from": stream.name, "k": k, "order_by": plain(order_by), **options}
    return stream.environment.operator(name, "topk", body)


def without_none(**options: Any) -> Options:
    """Returns the options that are set, as plain data; the others keep the configuration's defaults."""
    return {k: plain(v) for k, v in options.items() if v is not None}


def names(streams: Sequence[Stream | str]) -> list[str]:
    return [s if isinstance(s, str) else s.name for s in streams]


def wrong(place: Place, message: str) -> ConfigError:
    """Returns the error of a mistake in the current call."""
    return mistake(caller(), f"{show_path(place)}: {message}")


def plain(value: Any) -> Any:
    """Converts mappings and sequences to dicts and lists, as in YAML."""
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value
