"""``make mutants`` tells mutants that are killed from those that survive, and from those that were not played."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants import play
from tests.mutants.play import EQUIVALENT, KILLED, SURVIVES, Result, judge, table
from tests.mutants.texts import TEXTS

GAP = "gap-in-a-log-is-followed"
TAKER = "tests/unit/replicas/checkpoint/test_log_taker.py"


@pytest.mark.long
@pytest.mark.parametrize(
    ("tests", "outcome"),
    [
        (TEXTS[GAP].tests, KILLED),
        ((f"{TAKER}::test_later_slices_are_added_to_the_log",), SURVIVES),
        (("tests/unit/spe/plan/test_directory.py",), "not played"),  # it does not import what is changed
        (("tests/unit/no_such_test.py",), "not played"),
    ],
)
def test_a_change_of_text_is_judged_by_its_tests(
    tests: tuple[str, ...], outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TEXTS, GAP, replace(TEXTS[GAP], tests=tests))
    assert judge(GAP).outcome.split(":")[0] == outcome


def test_the_share_is_that_of_mutants_that_can_be_killed() -> None:
    results = [Result("a", "x/y", KILLED), Result("b", "x", SURVIVES), Result("c", "x", EQUIVALENT)]
    assert table(results).splitlines() == [
        "folder       mutants  killed",
        "x                  1      0 %",
        "x/y                1    100 %",
        "all folders        2     50 %",
        "1 more cannot be killed: they change nothing (tests/mutants/texts.py says why)",
        "b (x) survives",
    ]


def test_results_of_other_sources_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "RESULTS", tmp_path / "build" / "mutants.jsonl")
    result = Result("a", "x/y", KILLED)
    play.keep(result)
    assert play.known() == {"a": result}
    monkeypatch.setattr(play, "sources", lambda: "others")
    assert play.known() == {}
