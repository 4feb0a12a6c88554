"""A report is read with clear messages, and differences from one that was computed anew are named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from consistency.proof.report.model import Report
from consistency.proof.verification import disagreements, read_report
from spe.errors import SpeError
from tests.support.reports import report


def changed(path: str, value: Any) -> Report:
    """A report with another value at a place, as ``outputs.0.stable``."""
    data = json.loads(report().model_dump_json())
    *parts, last = [int(p) if p.isdigit() else p for p in path.split(".")]
    at = data
    for part in parts:
        at = at[part]
    at[last] = value
    return Report.model_validate(data)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "it is not JSON"),
        ("[]", "it has no version"),
        ("{}", "it has no version"),
        ('{"version": 7}', "is of format version 7; this release reads version 1"),
        ('{"version": 1}', r"is no report: name: Field required"),
        (report().model_dump_json().replace('"stable":328', '"stable":"many"'), r"outputs\.0\.stable: Input should be"),
    ],
)
def test_invalid_report_is_refused(text: str, said: str) -> None:
    with pytest.raises(SpeError, match=said):
        read_report(text, "r.json")


def test_a_report_is_read_as_it_was_written() -> None:
    assert read_report(report().model_dump_json(), "r.json") == report()


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("outputs.0.stable", 327, "dashboard · per_second.stable: the report says 327, computed again it is 328"),
        ("verdict", "UNKNOWN", 'verdict: the report says "UNKNOWN", computed again it is "CONSISTENT"'),
        ("outputs.0.client", "other", "outputs.other · per_second: the report says {"),
        ("sources.1.late", 3, "sources[1].late: the report says 3, computed again it is null"),
        ("faults", [], "faults: the report says []"),
        ("outputs.0.delay.p99_us", 1_020_000, "outputs.dashboard · per_second.delay.p99_us: the report says 1020000"),
        ("outputs.0.accuracy.overall.exact", 0.0831, "overall.exact: the report says 0.0831"),
        ("outputs.0.delay.max_us", 1_013_001, "delay.max_us: the report says 1013001"),
    ],
)  # fmt: skip
def test_a_changed_figure_is_named(path: str, value: Any, expected: str) -> None:
    found = disagreements(changed(path, value), report())
    assert found
    assert expected in found[0]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "elsewhere"),
        ("folder", "/mnt/runs/demo"),
        ("versions", {"spe": "9"}),
        ("timings_s", {}),
        ("outputs.0.delay.p99_us", 1_009_000),  # Spark computes it approximately
        ("outputs.0.delay.predicted_us", 2_110_000),  # from the median
        ("outputs.0.accuracy.overall.exact", 0.083 * (1 + 1e-12)),
    ],
)
def test_where_and_how_it_was_computed_makes_no_difference(path: str, value: Any) -> None:
    assert disagreements(changed(path, value), report()) == []


def test_many_differences_are_counted() -> None:
    (one,) = report().outputs
    bins = [b.model_copy(update={"stable": 9}) for b in one.bins]
    found = disagreements(report().model_copy(update={"outputs": [one.model_copy(update={"bins": bins})]}), report())
    assert len(found) == 21
    assert found[-1] == "and 21 more"


def test_duplicate_output_is_reported() -> None:
    """The second one is right, and would hide the first."""
    (right, *_), wrong = report().outputs, changed("outputs.0.stable", 327).outputs[0]
    twice = report().model_copy(update={"outputs": [wrong, right, *report().outputs[1:]]})
    count = len(report().outputs)
    assert disagreements(twice, report()) == [f"outputs: the report has {count + 1}, computed again there are {count}"]
