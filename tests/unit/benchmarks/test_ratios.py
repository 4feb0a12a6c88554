"""``make bench`` compares ratios with those of the last release.  Nothing here measures time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.ratios import STORED, Compared, Ratio, compare, from_data, measured_in, run, to_data
from benchmarks.tables import WrongResult


@pytest.mark.parametrize(
    ("now", "verdict"),
    [(2.0, "same"), (2.5, "same"), (1.6, "same"), (2.51, "worse"), (1.59, "better")],
)
def test_a_ratio_is_worse_or_better_only_beyond_the_margin(now: float, verdict: str) -> None:
    (one,) = compare({"a": Ratio(2.0, 0.25)}, {"a": Ratio(now, 0.25)})
    assert one == Compared("a", 2.0, now, verdict)
    assert one.change == pytest.approx(now / 2.0 - 1)


def test_the_wider_margin_counts() -> None:
    assert compare({"a": Ratio(1.0, 0.1)}, {"a": Ratio(1.4, 0.5)})[0].verdict == "same"
    assert compare({"a": Ratio(1.0, 0.5)}, {"a": Ratio(1.4, 0.1)})[0].verdict == "same"


def test_an_exact_ratio_may_not_move() -> None:
    assert compare({"a": Ratio(1.0, 1e-6)}, {"a": Ratio(1.001, 1e-6)})[0].verdict == "worse"


def test_a_ratio_that_was_nothing_has_no_relative_change() -> None:
    (one,) = compare({"a": Ratio(0.0, 0.25)}, {"a": Ratio(1.0, 0.25)})
    assert (one.verdict, one.change) == ("worse", None)


def test_new_and_removed_ratios_are_reported() -> None:
    new, gone = compare({"old": Ratio(1.0, 0.1)}, {"new": Ratio(2.0, 0.1)})
    assert (new.name, new.verdict, new.change) == ("new", "new", None)
    assert (gone.name, gone.verdict, gone.change) == ("old", "gone", None)


def test_ratio_file_stores_the_compared_values() -> None:
    ratios = {"a": Ratio(1.25, 0.25), "b": Ratio(1.0, 1e-6)}
    assert from_data(json.loads(json.dumps(to_data("1.2.3", ratios)))) == ("1.2.3", ratios)


def test_the_stored_ratios_can_be_read() -> None:
    release, ratios = from_data(json.loads(STORED.read_text()))
    assert release
    assert all(ratio.value > 0 and ratio.within > 0 for ratio in ratios.values())


def test_a_run_stores_compares_and_reports_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ratios.json"
    assert run(lambda: iter([("a", Ratio(1.0, 0.1)), ("b", Ratio(3.0, 0.1))]), file, store=True) == 0
    assert run(lambda: iter([("a", Ratio(1.0, 0.1)), ("b", Ratio(6.0, 0.1))]), file, store=False) == 0
    told = capsys.readouterr().out
    assert "worse: b +100.0 %" in told
    assert "1 of 2 moved" in told


def test_a_run_takes_medians(tmp_path: Path) -> None:
    values = iter([1.0, 9.0, 2.0])
    file = tmp_path / "ratios.json"
    assert run(lambda: iter([("a", Ratio(next(values), 0.1))]), file, store=True) == 0
    assert from_data(json.loads(file.read_text()))[1] == {"a": Ratio(2.0, 0.1)}


def test_another_checkout_is_measured_in_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its own code, whatever is stored."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    (tmp_path / "benchmarks" / "ratios.py").write_text(
        "from types import SimpleNamespace\n"
        "def tune_malloc(): ...\n"
        "def tune_gc(): ...\n"
        "def measured():\n    yield 'a', SimpleNamespace(value=1.5, within=0.1)\n"
    )
    turns = []

    def other() -> Iterator[tuple[str, Ratio]]:
        turns.append("other")
        return measured_in(tmp_path)

    def ours() -> Iterator[tuple[str, Ratio]]:
        turns.append("ours")
        return iter([("a", Ratio(3.0, 0.1))])

    assert run(ours, tmp_path / "none", store=False, beside=other, against="old") == 0
    assert turns == ["other", "ours"] * 3
    told = capsys.readouterr().out
    assert "old, a: 1.500" in told
    assert "worse: a +100.0 %" in told


def test_another_checkout_that_cannot_be_measured_fails(tmp_path: Path) -> None:
    (tmp_path / "benchmarks.py").touch()
    assert run(lambda: iter(()), tmp_path / "none", store=False, beside=lambda: measured_in(tmp_path)) == 1


def test_a_wrong_result_fails(tmp_path: Path) -> None:
    def measure() -> Iterator[tuple[str, Ratio]]:
        yield "a", Ratio(1.0, 0.1)
        raise WrongResult("the engine differs")

    assert run(measure, tmp_path / "ratios.json", store=True) == 1
    assert not (tmp_path / "ratios.json").exists()
