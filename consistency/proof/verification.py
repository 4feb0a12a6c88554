"""A report read again, and compared with one that was computed anew.  Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from consistency.proof.report.model import VERSION, Report
from spe.errors import SpeError

#: What says where and how long it was computed, and not what was found.
_APART: Final = frozenset({"name", "folder", "versions", "timings_s", "evidence"})
#: What Spark computes approximately, and how far it may be off; the prediction rests on the median.
_APPROXIMATE: Final = frozenset({"median_us", "p99_us", "stood_median_us", "predicted_us"})
_NEAR: Final = 0.01
#: Sums of floats depend on the order in which Spark adds.
_EQUAL: Final = 1e-9
#: Differences that are told.
_LINES: Final = 20


def read_report(text: str | bytes, where: str | Path) -> Report:
    """A ``report.json``.  Raises SpeError, which names the version or the place in it that is wrong."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise SpeError(f"{where} is no report: it is not JSON: {error}") from error
    version = data.get("version") if isinstance(data, dict) else None
    if version is None:
        raise SpeError(f"{where} is no report: it has no version")
    if version != VERSION:
        raise SpeError(f"{where} is of version {version}; this release reads version {VERSION}")
    try:
        return Report.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise SpeError(f"{where} is no report: {place}: {first['msg']}") from error


def disagreements(kept: Report, again: Report) -> list[str]:
    """Where a report says something else than was found again; a sentence each, the first ones of many."""
    found = []
    if len(kept.outputs) != len(again.outputs):  # two of one title would hide one another
        found.append(f"outputs: the report has {len(kept.outputs)}, computed again there are {len(again.outputs)}")
    for place, said, is_ in _unlike("", _plain(kept), _plain(again)):
        found.append(f"{place}: the report says {_shown(said)}, computed again it is {_shown(is_)}")
    more = len(found) - _LINES
    return found if more <= 0 else [*found[:_LINES], f"and {more:,} more"]


def _plain(report: Report) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(report.model_dump_json(exclude=set(_APART)))
    # By name rather than by number, for the messages.
    data["outputs"] = {o.title: one for o, one in zip(report.outputs, data["outputs"])}
    return data


def _unlike(place: str, said: Any, is_: Any) -> Iterator[tuple[str, Any, Any]]:
    """(place, what the report says, what it is) of each value that differs."""
    if isinstance(said, dict) and isinstance(is_, dict):
        for name in [*said, *(n for n in is_ if n not in said)]:
            yield from _unlike(f"{place}.{name}" if place else str(name), said.get(name), is_.get(name))
    elif isinstance(said, list) and isinstance(is_, list) and len(said) == len(is_):
        for at, pair in enumerate(zip(said, is_)):
            yield from _unlike(f"{place}[{at}]", *pair)
    elif not _alike(place, said, is_):
        yield place, said, is_


def _alike(place: str, said: Any, is_: Any) -> bool:
    if said == is_:
        return True
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in (said, is_)):
        return False
    near = _NEAR if place.rpartition(".")[2] in _APPROXIMATE else _EQUAL if isinstance(said, float) else 0.0
    return bool(abs(said - is_) <= near * max(abs(said), abs(is_)))


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"
