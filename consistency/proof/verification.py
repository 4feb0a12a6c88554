"""Reads a report, and compares it with one that was computed again.  Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from consistency.proof.report.model import VERSION, Report
from spe.errors import SpeError, other_version

#: Fields that tell where and how long it was computed, not the result.
_APART: Final = frozenset({"name", "folder", "versions", "timings_s", "evidence"})
#: Fields that Spark computes approximately, and their tolerance; the prediction depends on the median.
_APPROXIMATE: Final = frozenset({"median_us", "p99_us", "stood_median_us", "predicted_us"})
_NEAR: Final = 0.01
#: Sums of floats depend on the order in which Spark adds.
_EQUAL: Final = 1e-9
#: Maximum number of differences listed.
_LINES: Final = 20


def read_report(text: str | bytes, where: str | Path) -> Report:
    """Reads a ``report.json``.  Raises SpeError, which names the version or the wrong place in it."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise SpeError(f"{where} is no report: it is not JSON: {error}") from error
    version = data.get("version") if isinstance(data, dict) else None
    if version is None:
        raise SpeError(f"{where} is no report: it has no version")
    if why := other_version(where, version, VERSION):
        raise SpeError(why)
    try:
        return Report.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise SpeError(f"{where} is no report: {place}: {first['msg']}") from error


def disagreements(reported: Report, again: Report) -> list[str]:
    """Returns a sentence for each place where a report differs from the one computed again; the first ones of many."""
    sentences = []
    if len(reported.outputs) != len(again.outputs):  # two with the same title would hide one another
        sentences.append(
            f"outputs: the report has {len(reported.outputs)}, computed again there are {len(again.outputs)}"
        )
    for place, in_report, is_ in _unlike("", _plain(reported), _plain(again)):
        sentences.append(f"{place}: the report says {_shown(in_report)}, computed again it is {_shown(is_)}")
    more = len(sentences) - _LINES
    return sentences if more <= 0 else [*sentences[:_LINES], f"and {more:,} more"]


def _plain(report: Report) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(report.model_dump_json(exclude=set(_APART)))
    # By name rather than by number, for the messages.
    data["outputs"] = {o.title: output for o, output in zip(report.outputs, data["outputs"])}
    return data


def _unlike(place: str, in_report: Any, is_: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields (place, value of the report, computed value) of each difference."""
    if isinstance(in_report, dict) and isinstance(is_, dict):
        for name in [*in_report, *(n for n in is_ if n not in in_report)]:
            yield from _unlike(f"{place}.{name}" if place else str(name), in_report.get(name), is_.get(name))
    elif isinstance(in_report, list) and isinstance(is_, list) and len(in_report) == len(is_):
        for at, pair in enumerate(zip(in_report, is_)):
            yield from _unlike(f"{place}[{at}]", *pair)
    elif not _alike(place, in_report, is_):
        yield place, in_report, is_


def _alike(place: str, in_report: Any, is_: Any) -> bool:
    if in_report == is_:
        return True
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in (in_report, is_)):
        return False
    near = _NEAR if place.rpartition(".")[2] in _APPROXIMATE else _EQUAL if isinstance(in_report, float) else 0.0
    return bool(abs(in_report - is_) <= near * max(abs(in_report), abs(is_)))


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"
