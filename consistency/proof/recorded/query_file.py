"""Reads the user's file a second time, independently of the engine.

It reads a file that ``spe check`` has accepted, so it looks for no mistakes.  Its assumptions are stated in
docs/reference/configuration.md.  Every value stays a text until its key tells its type, so that ``on`` and ``1e3``
stay as they were written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import gcd
from typing import Any, Final, Union

import yaml

_DURATION: Final = re.compile(r"([0-9.]+)\s*(us|ms|s|min|m|h|d)\s*")
_UNIT_US: Final = {"us": 1, "ms": 10**3, "s": 10**6, "m": 60 * 10**6, "min": 60 * 10**6, "h": 3600 * 10**6}
_UNITS_US: Final = _UNIT_US | {"d": 24 * 3600 * 10**6}
_ORDER: Final = re.compile(r"(.+?)\s+(asc|desc)\s*", re.IGNORECASE | re.DOTALL)
_DISTINCT: Final = re.compile(r"distinct\b", re.IGNORECASE)
#: Inputs that can be read again.  Any other, also of another package, is live: its rows are those of its log.
_REPLAYED: Final = ("csv", "jsonl", "parquet", "arrow", "avro", "generator")
#: Keys besides the reader's own.
_OPTIONS: Final = ("format", "columns", "delimiter", "quote", "header", "null", "timestamps", "sort")


@dataclass(frozen=True)
class CountEntry:
    """Windows of ``count`` tuples of a group: a proof in ranges keeps the rows of those that are open.

    Conditions are in Spark SQL.
    """

    count: int

    def begins(self, group: str) -> str:
        """Does a row begin a window?  ``group`` is the window specification of its group, in order."""
        return f"(row_number() over ({group}) - 1) % {self.count} = 0"

    def is_over(self, rows: str) -> str:
        """Is a window over that has so many rows?"""
        return f"{rows} = {self.count}"

    def __str__(self) -> str:
        return f"windows of {self.count} rows"


@dataclass(frozen=True)
class TimeEntry:
    """Half-open windows that depend on the time alone, numbered by their ends: of ``size_us``, every ``slide_us``.

    The methods take a time or a number, and return the other, in Spark SQL.  Another kind overrides them; ``size_us``
    is its largest size.
    """

    size_us: int
    slide_us: int
    offset_us: int = 0
    on: str | None = None

    @property
    def overlaps(self) -> bool:
        """May a tuple be in several windows?"""
        return self.size_us > self.slide_us

    @property
    def pane_us(self) -> int:
        """Largest length of a pane, of which windows consist."""
        return gcd(self.size_us, self.slide_us)

    def first(self, time: str) -> str:
        """Returns the first window that ends after a time."""
        return f"({floor_div(f'{time} - ({self.offset_us + self.size_us})', self.slide_us)} + 1)"

    def last(self, time: str) -> str:
        """Returns the last window that begins at or before a time."""
        return floor_div(f"{time} - ({self.offset_us})", self.slide_us)

    def start(self, window: str) -> str:
        return f"({window} * {self.slide_us}L + ({self.offset_us}))"

    def end(self, window: str) -> str:
        return f"({self.start(window)} + {self.size_us})"

    def pane(self, time: str) -> str:
        return floor_div(f"{time} - ({self.offset_us})", self.pane_us)

    def pane_start(self, pane: str) -> str:
        return f"({pane} * {self.pane_us}L + ({self.offset_us}))"


def floor_div(number: str, divisor: int) -> str:
    """Returns ⌊number / divisor⌋ of longs, in Spark SQL."""
    return f"(({number} - pmod({number}, {divisor}L)) div {divisor}L)"


@dataclass(frozen=True)
class CallEntry:
    """``function(argument)``; ``count_distinct`` is count(distinct …); no argument: count(*)."""

    function: str
    argument: str | None


@dataclass(frozen=True)
class _OneInput:
    input: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.input,)


@dataclass(frozen=True)
class FilterEntry(_OneInput):
    where: str


@dataclass(frozen=True)
class MapEntry(_OneInput):
    """``columns``: expression by name; ``keep``: added to the input's; ``skip``: failing rows are skipped."""

    columns: Mapping[str, str]
    keep: bool
    skip: bool = False


@dataclass(frozen=True)
class MergeEntry:
    """A union, by time and then by port."""

    inputs: tuple[str, ...]


@dataclass(frozen=True)
class AggregateEntry(_OneInput):
    """``group_by``: expression by name."""

    window: TimeEntry | CountEntry
    group_by: Mapping[str, str]
    calls: Mapping[str, CallEntry]
    skip: bool = False


@dataclass(frozen=True)
class JoinEntry:
    """``kind`` is inner, left, right or full; ``within_us`` is (from, to) of right time − left time, or None."""

    left: str
    right: str
    kind: str
    on: tuple[tuple[str, str], ...]
    window: TimeEntry | None
    within_us: tuple[int, int] | None
    left_time: str | None
    right_time: str | None
    where: str | None
    prefix: tuple[str, str]
    skip: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.left, self.right)


@dataclass(frozen=True)
class TopKEntry(_OneInput):
    """``order_by``: (expression, descending)."""

    k: int
    order_by: tuple[tuple[str, bool], ...]
    partition_by: tuple[str, ...]
    window: TimeEntry | None
    with_ties: bool
    rank_as: str | None


@dataclass(frozen=True)
class CustomEntry:
    """A user-defined operator, ``module:Class``."""

    inputs: tuple[str, ...]
    path: str
    skip: bool = False


@dataclass(frozen=True, slots=True)
class RejectedEntry:
    """The rejected rows of another operator: the proof does not compute them."""

    source: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.source,)


OperatorEntry = Union[  # noqa: UP007
    FilterEntry, MapEntry, MergeEntry, AggregateEntry, JoinEntry, TopKEntry, CustomEntry, RejectedEntry
]


@dataclass(frozen=True)
class SourceEntry:
    """A source.

    Attributes:
      types: type by attribute, without the ``!``; None: the generator's own.
      time: the attribute with the event time; None: the time of arrival.
      kind: kind of the input, replayed or live; ``reader``: its options.
    """

    types: Mapping[str, str] | None
    time: str | None
    disorder_us: int
    kind: str
    reader: Mapping[str, Any]
    replay: Mapping[str, Any]

    @property
    def live(self) -> bool:
        return self.kind not in _REPLAYED


@dataclass(frozen=True)
class FragmentEntry:
    """``key``: attributes for every input, or by input; None: not divided."""

    operators: tuple[str, ...]
    key: tuple[str, ...] | Mapping[str, tuple[str, ...]] | None
    partitions: int

    def key_of(self, stream: str) -> tuple[str, ...] | None:
        return self.key.get(stream) if isinstance(self.key, Mapping) else self.key


@dataclass(frozen=True)
class Reading:
    """The parts of a configuration on which the truth depends.

    Attributes:
      clients: the streams that each client reads; None: there is no such section, so all outputs are read.
    """

    bucket_us: int
    sources: Mapping[str, SourceEntry]
    operators: Mapping[str, OperatorEntry]
    outputs: tuple[str, ...]
    clients: Mapping[str, tuple[str, ...]] | None
    fragments: tuple[FragmentEntry, ...]


def read(text: str) -> Reading:
    """Reads a configuration that the engine has accepted."""
    data = _plain(yaml.compose(text, Loader=yaml.SafeLoader))
    operators = {name: _operator(entry) for name, entry in data["query"].items()}
    read_by_others = {stream for item in operators.values() for stream in item.inputs}
    outputs_section = data.get("outputs")
    outputs = (
        tuple(n for n in operators if n not in read_by_others) if outputs_section is None else _names(outputs_section)
    )
    clients = data.get("clients")
    fragments = [
        FragmentEntry(_names(item["operators"]), _key(item.get("key")), int(item.get("partitions") or 1))
        for item in (data.get("fragments") or {}).values()
    ]
    return Reading(
        bucket_us=duration_us(data.get("bucket") or "100ms"),
        sources={name: _source(entry) for name, entry in data["sources"].items()},
        operators=operators,
        outputs=outputs,
        clients=None if clients is None else {
            name: _names((item or {}).get("reads") or list(outputs)) for name, item in clients.items()
        },
        fragments=tuple(fragments) or (FragmentEntry(tuple(operators), None, 1),),
    )  # fmt: skip


def duration_us(text: str) -> int:
    """Parses ``1h30m``, ``-10s`` or ``0`` into microseconds."""
    body = text.strip()
    total = sum((Fraction(number) * _UNITS_US[unit] for number, unit in _DURATION.findall(body)), Fraction(0))
    return -round(total) if body.startswith("-") else round(total)


def _plain(node: Any) -> Any:
    """Returns texts, lists and mappings of texts; None for an empty value, ``~`` and ``null``."""
    if isinstance(node, yaml.ScalarNode):
        empty = node.style is None and node.value.lower() in ("", "~", "null")
        return None if empty else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_plain(element) for element in node.value]
    own, merged = {}, {}
    for key, value in node.value:
        if key.value == "<<" and key.style is None:
            parts = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for part in parts:
                merged.update({k: v for k, v in _plain(part).items() if k not in merged})
        else:
            own[key.value] = _plain(value)
    return {**merged, **own}


def _names(value: Any) -> tuple[str, ...]:
    """Parses one name, or a list of names."""
    return () if value is None else (value,) if isinstance(value, str) else tuple(value)


def _true(value: Any) -> bool:
    return value is not None and value.lower() == "true"


def _key(value: Any) -> tuple[str, ...] | dict[str, tuple[str, ...]] | None:
    if isinstance(value, dict):
        return {stream: _names(names) for stream, names in value.items()}
    return None if value is None else _names(value)


def _source(entry: Mapping[str, Any]) -> SourceEntry:
    from_ = dict(entry["from"])
    kind = next(k for k, value in from_.items() if k not in _OPTIONS and value is not None)
    options: Any = from_[kind] if kind == "generator" else from_
    options = {"name": options} if isinstance(options, str) else options
    types, time, disorder = entry.get("schema"), entry.get("time"), entry.get("disorder")
    if kind == "generator":
        disorder = options.get("disorder") if disorder is None else disorder
        if options["name"] != "rows":  # other generators bring their own schema, with `ts` as the time
            types, time = None, time or "ts"
    return SourceEntry(
        types=None if types is None else {name: text.rstrip("!") for name, text in types.items()},
        time=time,
        disorder_us=duration_us(disorder or "0"),
        kind=kind,
        reader=options,
        replay=entry.get("replay") or {},
    )


def _operator(entry: Mapping[str, Any]) -> OperatorEntry:
    ((kind, body),) = entry.items()
    if kind not in _OPERATORS:
        raise ValueError(f"the proof cannot read the operator {kind!r}: it is not in {__name__}")
    return _OPERATORS[kind](body)


def _aggregate(body: Mapping[str, Any]) -> AggregateEntry:
    groups = body.get("group_by")
    named = groups if isinstance(groups, dict) else {name: name for name in _names(groups)}
    calls = {name: _call(text) for name, text in (body["compute"] or {}).items()}
    return AggregateEntry(body["from"], _window(body["window"]), named, calls, _skips(body))


def _topk(body: Mapping[str, Any]) -> TopKEntry:
    window = body.get("window")
    return TopKEntry(
        input=body["from"],
        k=int(body["k"]),
        order_by=tuple(_order(text) for text in _names(body["order_by"])),
        partition_by=_names(body.get("partition_by")),
        window=None if window is None else _window(window),
        with_ties=_true(body.get("with_ties")),
        rank_as=body.get("rank_as"),
    )


def _skips(body: Mapping[str, Any]) -> bool:
    return bool(body.get("on_error") == "skip")


def _join(body: Mapping[str, Any]) -> JoinEntry:
    on, window, within = body["on"], body.get("window"), body.get("within")
    pairs = list(on.items()) if isinstance(on, dict) else [on] if isinstance(on, str) else on
    ends: tuple[int, int] | None = None
    if isinstance(within, list):
        ends = duration_us(within[0]), duration_us(within[1])
    elif within is not None:
        ends = -duration_us(within), duration_us(within)
    left_prefix, right_prefix = body.get("prefix") or ("l_", "r_")
    return JoinEntry(
        left=body["left"],
        right=body["right"],
        kind=body.get("kind") or "inner",
        on=tuple((pair, pair) if isinstance(pair, str) else (pair[0], pair[1]) for pair in pairs),
        window=None if window is None else _window(window),
        within_us=ends,
        left_time=body.get("left_time"),
        right_time=body.get("right_time"),
        where=body.get("where"),
        prefix=(left_prefix, right_prefix),
        skip=_skips(body),
    )


def _window(value: Any) -> Any:
    """Parses ``1s``, or a mapping with the keys of one kind."""
    options = {"tumbling": value} if isinstance(value, str) else value
    kind = next(key for key in WINDOWS if options.get(key) is not None)
    return WINDOWS[kind](options)


def timed(size: str, slide: str, kind: type[TimeEntry] = TimeEntry) -> Callable[[Mapping[str, Any]], TimeEntry]:
    """Returns a reader of windows of time: ``size`` and ``slide`` are its keys."""

    def made(options: Mapping[str, Any]) -> TimeEntry:
        lengths = duration_us(options[size]), duration_us(options[slide])
        return kind(*lengths, duration_us(options.get("offset") or "0"), options.get("on"))

    return made


#: Reads the keys of a window, by the key that tells its kind.
WINDOWS: Final[dict[str, Callable[[Mapping[str, Any]], TimeEntry | CountEntry]]] = {
    "tumbling": timed("tumbling", "tumbling"),
    "sliding": timed("sliding", "slide"),
    "count": lambda options: CountEntry(int(options["count"])),
}


def _call(text: str) -> CallEntry:
    """Parses ``sum(price * qty)``, ``count(*)``, ``count(distinct user)``, ``module:Class(latency)``."""
    function, _, rest = text.partition("(")
    argument = rest.rstrip()[:-1].strip()
    function = function.strip()
    if ":" not in function:
        function = function.lower()
    if function == "count" and (distinct := _DISTINCT.match(argument)):
        return CallEntry("count_distinct", argument[distinct.end() :].strip())
    return CallEntry(function, None if argument == "*" else argument)


def _order(text: str) -> tuple[str, bool]:
    match_ = _ORDER.fullmatch(text)
    return (text.strip(), False) if match_ is None else (match_[1].strip(), match_[2].lower() == "desc")


_OPERATORS: Final[Mapping[str, Callable[[Any], OperatorEntry]]] = {
    "filter": lambda body: FilterEntry(body["from"], body["where"]),
    "map": lambda body: MapEntry(body["from"], body["compute"] or {}, _true(body.get("keep")), _skips(body)),
    "union": lambda body: MergeEntry(_names(body["from"] if isinstance(body, dict) else body)),
    "aggregate": _aggregate,
    "join": _join,
    "topk": _topk,
    "custom": lambda body: CustomEntry(_names(body["from"]), body["class"], _skips(body)),
    "rejected": lambda body: RejectedEntry(body["from"] if isinstance(body, dict) else body),
}
