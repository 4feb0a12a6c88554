"""The page and the JSON of a report, from reports made by hand."""

from __future__ import annotations

import json
import re

import pytest
from pydantic import ValidationError

from consistency.proof.recorded.moved_partitions import move_reports
from consistency.proof.report.comparison import comparison, comparison_text
from consistency.proof.report.model import DirectoryChange, Flaw, Report, Verdict
from consistency.proof.report.page import FLAWS, page
from consistency.proof.report.summary import headline, sentence, text
from spe.log.issued_directories import MadeMove
from tests.support.reports import altered, output, report


def test_a_report_survives_json() -> None:
    one = report([altered()], Verdict.INCONSISTENT)
    assert Report.model_validate_json(one.model_dump_json()) == one


def test_a_report_of_another_version_is_refused() -> None:
    data = json.loads(report().model_dump_json()) | {"version": 2}
    with pytest.raises(ValidationError, match="version"):
        Report.model_validate(data)


def test_the_page_begins_with_the_verdict() -> None:
    text = page(report())
    assert "<title>CONSISTENT: demo</title>" in text
    body = text.partition("<main>")[2]
    assert body.index("CONSISTENT") < body.index("What happened")


def test_the_page_needs_nothing_from_a_network() -> None:
    made = page(report([altered()], Verdict.INCONSISTENT))
    assert not re.search(r"https?://|@import|<link|\bsrc=", made)


def test_offenders_are_shown_with_expected_values_and_context() -> None:
    made = page(report([altered()], Verdict.INCONSISTENT))
    for part in ("altered", "44729.22", "true: 44729.0", "id 17", "stable 16: key 2"):
        assert part in made


def test_names_given_by_users_are_escaped() -> None:
    finding = altered()
    evil = finding.offenders[0].model_copy(update={"tuple": {"<b>": "<script>alert(1)</script>"}})
    made = page(report([finding.model_copy(update={"offenders": [evil]})], Verdict.INCONSISTENT, name="<i>run</i>"))
    assert "<script>alert" not in made
    assert "<i>run</i>" not in made
    assert "&lt;script&gt;alert(1)" in made


def test_states_faults_and_kinds_of_tuples_are_drawn() -> None:
    made = page(report())
    for mark in ("s-STABLE", "s-UP_FAILURE", "s-STABILIZATION", "s-down", 'class="fault"', 'class="undone"'):
        assert mark in made
    assert 'data-tip="cut source:shop_a for 6s"' in made


def test_a_run_without_tentative_tuples_or_delays_has_a_page_too() -> None:
    bare = output([]).model_copy(
        update={
            "accuracy": None,
            "bins": [],
            "delay": output([]).delay.model_copy(update={"max_us": None, "kept": None}),
        }
    )
    made = page(report().model_copy(update={"outputs": [bare], "faults": [], "replicas": []}))
    assert "No fault was injected" in made
    assert "unknown" in made


def test_directory_versions_are_shown_with_their_reasons() -> None:
    change = DirectoryChange(at_us=12_000_000, number=3, why="set n3 x=4s & more")
    made = page(report().model_copy(update={"changes": [change]}))
    assert "set n3 x=4s &amp; more" in made.partition("Versions of the directory")[2]
    assert "Versions of the directory" not in page(report())


def test_announced_x_and_waits_are_shown_with_configuration() -> None:
    one = report()
    broken = one.promises[0].model_copy(update={"waited_us": 3_000_000, "kept": False, "differs": "X 1m"})
    found = one.model_copy(update={"promises": [broken, one.promises[1]]})
    made = page(found).partition("Node by node")[2]
    for part in ("n1", "totals", "3 s", ">X 1m<", ">the same<"):
        assert part in made
    lines = text(found)
    assert "  n1 let a bucket of totals wait for 3 s, of 2 s" in lines
    assert "  n1 announced X = 2 s, and config.yaml says: X 1m" in lines
    assert "No client recorded an announcement" in page(one.model_copy(update={"promises": []}))


def test_unknown_x_is_not_called_fulfilled() -> None:
    bare = output([])
    bare = bare.model_copy(update={"delay": bare.delay.model_copy(update={"kept": None, "why": "nobody announced X"})})
    shown = headline(report().model_copy(update={"outputs": [bare]}))[2]
    assert shown.note.startswith("not known whether kept")
    assert "nobody announced X" in shown.note


def test_every_flaw_has_a_text() -> None:
    assert set(FLAWS) == set(Flaw)


def test_the_sentence_gives_the_reason_of_the_verdict() -> None:
    assert "exactly those of a run without failures" in sentence(report())
    assert "1 tuple is not as in a run without failures: altered" in sentence(report([altered()], Verdict.INCONSISTENT))
    assert "not yet a proof" in sentence(report(verdict=Verdict.UNKNOWN))


def test_a_gap_has_the_same_name_as_in_the_summary_of_a_run() -> None:
    assert headline(report())[3].what == "Longest gap"


def test_the_headline_marks_a_delay_beyond_its_bound() -> None:
    late = output([])
    late = late.model_copy(update={"delay": late.delay.model_copy(update={"max_us": 2_500_000, "kept": False})})
    shown = headline(report().model_copy(update={"outputs": [late]}))[2]
    assert shown.bad
    assert (shown.figure, shown.limit, shown.note) == ("2.5 s", "of X = 2 s", "not kept")


def test_the_terminal_shows_the_verdict_and_the_first_offenders() -> None:
    lines = text(report([altered()], Verdict.INCONSISTENT))
    assert lines[0].startswith("INCONSISTENT")
    assert any("revenue 44729.22" in line for line in lines)


def test_compared_runs_share_one_table_and_one_plot() -> None:
    other = report(name="slow")
    made = comparison([report(), other.model_copy(update={"settings": other.settings.model_copy(update={"x": "8s"})})])
    assert made.count("<circle") == 2
    for part in ("demo", "slow", "8s", "1.01 s", "longest delay of a new tuple"):
        assert part in made
    lines = comparison_text([report(), other])
    assert [line.split()[:2] for line in lines[1:]] == [["demo", "CONSISTENT"], ["slow", "CONSISTENT"]]


def test_runs_of_the_same_name_are_shown_with_their_folders() -> None:
    twins = [report().model_copy(update={"folder": f"{place}/demo"}) for place in ("a", "b")]
    assert [line.split()[0] for line in comparison_text(twins)[1:]] == ["a/demo", "b/demo"]


MOVE = MadeMove(
    number=3,
    partition="totals/1",
    source="n2",
    target="n5",
    reason="n2 needs 0.9 of 0.8 cores & more",
    phases=((1_020_000_000, "join"), (1_022_100_000, "done")),
    predicted_us=1_900_000,
    why="",
)


def test_a_move_is_shown_with_its_time_and_its_effect_on_clients() -> None:
    (made,) = move_reports([MOVE], report().outputs, 1_000_000_000)
    assert (made.from_us, made.until_us, made.phase) == (20_000_000, 22_100_000, "done")
    assert (made.tentative, made.delay_max_us) == (24, 1_010_000)
    shown = page(report().model_copy(update={"moves": [made]})).partition("<h3>Moves</h3>")[2]
    for part in ("totals/1", "n2 needs 0.9 of 0.8 cores &amp; more", "20 s", "2.1 s", "1.9 s", "24", "done"):
        assert part in shown
    assert "<h3>Moves</h3>" not in page(report())


def test_waiting_or_unfinished_move_has_no_such_figures() -> None:
    waits, follows = move_reports(
        [MOVE._replace(phases=(), predicted_us=None), MOVE._replace(phases=((1_039_000_000, "join"),))],
        report().outputs,
        1_000_000_000,
    )
    assert (waits.phase, waits.from_us, waits.until_us, waits.tentative) == ("wait", None, None, 0)
    assert (follows.phase, follows.from_us, follows.until_us, follows.tentative) == ("join", 39_000_000, None, 0)
