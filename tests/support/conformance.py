"""The cases of ``shared/conformance`` as configurations of ours, and their comparison.

Each case names the outcome that users of another stream processor rely on.  A case's neutral plan becomes a
configuration, which the reference runs in one process and a real cluster runs as it is.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from spe.stream.times import parse_timestamp
from tests.support.python_sql import quoted, to_sql

#: Beside the checkout, or above that; the cases are not part of it.
_PLACES: Final = [above / "shared" / "conformance" for above in Path(__file__).resolve().parents[3:]]
FOLDER: Final = next((place for place in _PLACES if place.is_dir()), _PLACES[0])

#: Ten cases that between them use every operator, for runs that cost more than the reference.
CLUSTER_CASES: Final = (
    "nexmark_q2_filter",
    "arroyo_union",
    "arroyo_cascaded_windows",
    "arroyo_hop_min_max_count",
    "flink_tumble_late",
    "flink_interval_join",
    "rw_interval_join_left",
    "flink_doc_window_join_full",
    "nexmark_q5_hot_items",
    "spark_window_join",
)

_TYPES: Final = {"int": "int64", "double": "float64", "string": "string", "timestamp": "timestamp"}
_WINDOW_NAMES: Final = ("window_start", "window_end")
#: A tumbling window that covers every input: what "over the whole stream" is here.
_WHOLE: Final = {"tumbling": "36500d"}

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """One case, read from its folder."""

    folder: Path
    data: Mapping[str, Any]

    @property
    def id(self) -> str:
        return str(self.data["id"])

    @property
    def operators(self) -> tuple[str, ...]:
        """What the case is about: ``aggregate:sliding``, ``topk``, …"""
        return tuple(self.data["operators"])

    @property
    def output(self) -> str:
        return str(self.data["plan"][-1]["id"])

    @property
    def ends(self) -> bool:
        """Whether the end of input is signalled."""
        return all(step.get("flush", True) for step in self.data["plan"])

    @property
    def columns(self) -> Mapping[str, str]:
        return dict(self.data["expected"]["columns"])

    def expected(self) -> list[Row]:
        """The rows that must come out, timestamps in microseconds."""
        lines = _lines(self.folder / self.data["expected"]["file"])
        return [
            tuple(_value(line.get(name), type_) for name, type_ in self.columns.items())
            for line in map(json.loads, lines)
        ]

    def differences(self, rows: Iterable[Mapping[str, Any]]) -> list[str]:
        """What is missing (-) and what is too much (+) in ``rows``, as multisets.

        Args:
          rows: results by attribute name, timestamps in microseconds; attributes that are not expected are ignored.
        """
        found = [tuple(row[name] for name in self.columns) for row in rows]
        tolerance = float(self.data["expected"].get("float_tolerance", 0.0))
        return multiset_differences(found, self.expected(), list(self.columns.values()), tolerance)


def _lines(path: Path) -> list[str]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return [line for line in text.splitlines() if line.strip()]


def _value(value: Any, type_: str) -> Any:
    return parse_timestamp(value) if type_ == "timestamp" and value is not None else value


def multiset_differences(
    found: Sequence[Row], expected: Sequence[Row], types: Sequence[str], tolerance: float
) -> list[str]:
    """Texts of what is not in both; doubles may differ by ``tolerance``, relative or absolute."""
    doubles = [i for i, type_ in enumerate(types) if type_ == "double"]

    def exact(row: Row) -> Row:
        return tuple(v is None if i in doubles else v for i, v in enumerate(row))

    rest = Counter(exact(row) for row in found)
    rest.subtract(exact(row) for row in expected)
    texts = [f"{'+' if n > 0 else '-'}{abs(n)} {row}" for row, n in rest.items() if n]
    if texts or not doubles:
        return sorted(texts)

    def key(row: Row) -> tuple[str, list[float]]:
        return repr(exact(row)), [-math.inf if row[i] is None else float(row[i]) for i in doubles]

    for one, other in zip(sorted(found, key=key), sorted(expected, key=key), strict=True):
        for i in doubles:
            if one[i] is not None and not math.isclose(one[i], other[i], rel_tol=tolerance, abs_tol=tolerance):
                texts.append(f"{one} instead of {other}")
    return texts


def cases() -> list[Case]:
    """All cases, by id; empty where the folder is absent."""
    return [load(path.parent.name) for path in sorted(FOLDER.glob("*/case.yaml"))]


def load(id_: str) -> Case:
    path = FOLDER / id_ / "case.yaml"
    return Case(path.parent, yaml.safe_load(path.read_text()))


@dataclass(frozen=True)
class ClusterCase:
    """A case for a real run: ``spe run`` with this configuration, and what its client must hold in the end.

    Attributes:
      config: text of a configuration file.
      data: folder that holds the inputs; what ``--data`` names.
    """

    case: Case
    config: str
    data: Path


def cluster_cases(folder: Path, ids: Iterable[str] = CLUSTER_CASES, **options: Any) -> Iterator[ClusterCase]:
    """Cases for real runs, their inputs below ``folder``; ``options`` as of :func:`configuration`."""
    for id_ in ids:
        case = load(id_)
        data = write_inputs(case, folder / id_)
        yield ClusterCase(case, yaml.safe_dump(configuration(case, **options), sort_keys=False), data)


def write_inputs(case: Case, folder: Path) -> Path:
    """Puts the case's input files into a folder, unpacked; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for _, entry in _inputs(case):
        file = case.folder / entry["file"]
        (folder / _unpacked(entry)).write_text("".join(f"{line}\n" for line in _lines(file)))
    return folder


def _unpacked(entry: Mapping[str, Any]) -> str:
    return str(entry["file"]).removesuffix(".gz")


def configuration(
    case: Case,
    *,
    replay: Mapping[str, Any] | None = None,
    fragments: Mapping[str, Any] | None = None,
    **sections: Any,
) -> dict[str, Any]:
    """The case as plain data of a configuration file; its inputs are those of :func:`write_inputs`.

    Args:
      replay: pace of every source; as fast as it goes if not given.
      fragments: the section of that name, if the query is to be cut or partitioned.
      sections: further sections, e.g. ``nodes``, ``defaults``.
    """
    translation = _Translation(case)
    data: dict[str, Any] = {
        "cluster": case.id,
        "sources": {name: _source(name, entry, case, replay or {"max": True}) for name, entry in _inputs(case)},
        "query": translation.query,
        "outputs": [case.output],
    }
    if fragments is not None:
        data["fragments"] = dict(fragments)
    return data | sections


def _inputs(case: Case) -> list[tuple[str, Mapping[str, Any]]]:
    return list(case.data["inputs"].items())


def _source(name: str, entry: Mapping[str, Any], case: Case, replay: Mapping[str, Any]) -> dict[str, Any]:
    delay_s = case.data.get("watermark_delay_s", entry["max_disorder_s"])
    return {
        "schema": {column: _TYPES[type_] for column, type_ in entry["columns"].items()},
        "time": entry["time"],
        "disorder": f"{delay_s}s",
        "from": {"jsonl": _unpacked(entry)},
        "replay": dict(replay),
        # A row without a time is in no window; any other row that cannot be read is our mistake.
        "on_malformed": "skip" if _has_null(case.folder / entry["file"], entry["time"]) else "stop",
    }


def _has_null(path: Path, column: str) -> bool:
    return any(json.loads(line).get(column) is None for line in _lines(path))


class _Translation:
    """A neutral plan, node by node."""

    def __init__(self, case: Case) -> None:
        self.query: dict[str, Any] = {}
        #: Event time attribute of a stream whose rows are still those of a source.
        self._time = {name: str(entry["time"]) for name, entry in _inputs(case)}
        self._timestamps = frozenset(
            {*_WINDOW_NAMES, *(c for _, e in _inputs(case) for c, t in e["columns"].items() if t == "timestamp")}
        )
        #: Streams that only say which window a row is in: (input, window).
        self._assigned: dict[str, tuple[str, dict[str, str]]] = {}
        #: What attributes of a stream are called here, where the plan calls them otherwise.
        self._names: dict[str, dict[str, str]] = {}
        self._late = "watermark_delay_s" in case.data
        for step in case.data["plan"]:
            getattr(self, f"_{step['op']}")(step)

    def _sql(self, text: str, stream: str) -> str:
        return to_sql(text, self._timestamps, self._names.get(stream, {}))

    def _plain(self, stream: str) -> str:
        """``stream`` as one that can be read: rows with their windows are all of each window's rows, ranked."""
        if stream in self._assigned and stream not in self.query:
            source, window = self._assigned[stream]
            self.query[stream] = {
                "topk": {"from": source, "k": 1_000_000_000, "order_by": [quoted(self._time[source])], "window": window}
            }
        return stream

    def _filter(self, step: Mapping[str, Any]) -> None:
        source = self._plain(step["in"])
        self.query[step["id"]] = {"filter": {"from": source, "where": self._sql(step["where"], source)}}
        if source in self._time:
            self._time[step["id"]] = self._time[source]

    def _map(self, step: Mapping[str, Any]) -> None:
        source = self._plain(step["in"])
        compute = {name: self._sql(text, source) for name, text in step["set"].items()}
        self.query[step["id"]] = {"map": {"from": source, "compute": compute}}

    def _union(self, step: Mapping[str, Any]) -> None:
        self.query[step["id"]] = {"union": [self._plain(stream) for stream in step["in"]]}

    def _assign_window(self, step: Mapping[str, Any]) -> None:
        self._assigned[step["id"]] = (step["in"], _window(step["window"]))

    def _aggregate(self, step: Mapping[str, Any]) -> None:
        source = self._plain(step["in"])
        window = _window(step["window"]) if "window" in step else dict(_WHOLE)
        if self._late and source in self._time:  # a late row counts at its own time, or not at all
            window["on"] = self._time[source]
        self.query[step["id"]] = {
            "aggregate": {
                "from": source,
                "window": window,
                "group_by": {name: self._sql(name, source) for name in step["group_by"]},
                "compute": {name: self._call(call[0], call[1], source) for name, call in step["aggs"].items()},
            }
        }

    def _call(self, function: str, argument: str, stream: str) -> str:
        if function == "count_rows":
            return "count(*)"
        inner = self._sql(argument, stream)
        return f"count(distinct {inner})" if function == "count_distinct" else f"{function}({inner})"

    def _join(self, step: Mapping[str, Any]) -> None:
        left, right = step["in"]
        join: dict[str, Any] = {"kind": step["kind"]}
        on = [list(pair) for pair in step["on"]]
        if left in self._assigned and right in self._assigned:
            (left, join["window"]), (right, _) = self._assigned[left], self._assigned[right]
            on = [pair for pair in on if pair[0] not in _WINDOW_NAMES]
            self._names[step["id"]] = {f"{side}_{name}": name for side in "lr" for name in _WINDOW_NAMES}
            if not on:
                left, right, on = self._with_one(left), self._with_one(right), [["one", "one"]]
        elif "within" in step:
            join["within"] = [f"{step['within']['lower_s']}s", f"{step['within']['upper_s']}s"]
        else:  # results of one window have one time
            join["within"] = ["0s", "0s"]
        self.query[step["id"]] = {"join": {"left": left, "right": right, "on": on, **join}}

    def _with_one(self, stream: str) -> str:
        """A stream with an attribute that is always 1: a join here is by equality of something."""
        name = f"{stream}_one"
        self.query[name] = {"map": {"from": stream, "compute": {"one": "1"}, "keep": True}}
        return name

    def _topk(self, step: Mapping[str, Any]) -> None:
        source, partition_by = step["in"], list(step["partition_by"])
        topk: dict[str, Any] = {"k": step["k"], "order_by": []}
        if source in self._assigned:
            source, topk["window"] = self._assigned[source]
            partition_by = [name for name in partition_by if name not in _WINDOW_NAMES]
        topk["order_by"] = [f"{self._sql(name, source)} {direction}" for name, direction in step["order_by"]]
        if partition_by:
            topk["partition_by"] = partition_by
        if "rank_as" in step:
            topk["rank_as"] = step["rank_as"]
        if step.get("with_ties"):
            topk["with_ties"] = True
        self.query[step["id"]] = {"topk": {"from": source, **topk}}


def _window(window: Mapping[str, Any]) -> dict[str, str]:
    size, slide, offset = (f"{window[key]}s" for key in ("size_s", "slide_s", "offset_s"))
    made = {"tumbling": size} if size == slide else {"sliding": size, "slide": slide}
    return made if offset == "0s" else {**made, "offset": offset}
