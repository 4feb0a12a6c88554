"""The state between two steps: of this run, whole, and of one process."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from consistency.proof.comparing.offenders import FIRST
from consistency.proof.follow.state import FILE, State, Tally, alone, load_state, save_text
from consistency.proof.report.model import Flaw, Offender
from spe.errors import SpeError

ORIGINS = {"a": "0123456789abcdef"}


def test_saved_state_can_be_loaded(tmp_path: Path) -> None:
    made = State(fingerprint="f", origins=ORIGINS, proved_us=7, steps=3, places={"out": [1, 2]})
    save_text(tmp_path / FILE, made.model_dump_json())
    assert load_state(tmp_path, "f", ORIGINS) == made
    assert [p.name for p in tmp_path.iterdir()] == [FILE]


def test_without_a_state_the_proof_begins(tmp_path: Path) -> None:
    assert load_state(tmp_path, "f", ORIGINS).steps == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "the whole: Invalid JSON"),
        ('{"version": 2, "fingerprint": "f", "origins": {}}', "of format version 2; this release reads version 1"),
        ('{"version": 1, "fingerprint": "f", "origins": {}, "more": 1}', "more: Extra inputs"),
        ('{"version": 1, "fingerprint": "g", "origins": {"a": "0123456789abcdef"}}', "of another run"),
        ('{"version": 1, "fingerprint": "f", "origins": {"a": "0"}}', "of another run"),
    ],
)
def test_unusable_state_is_reported_with_the_remedy(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(SpeError, match=rf"{said}.*; remove {tmp_path} to prove the run from its beginning"):
        load_state(tmp_path, "f", ORIGINS)


def test_two_processes_do_not_prove_one_run(tmp_path: Path) -> None:
    with (
        alone(tmp_path / "follow"),
        pytest.raises(SpeError, match="another process proves this run"),
        alone(tmp_path / "follow"),
    ):
        pass
    with alone(tmp_path / "follow"):
        pass


def test_first_offenders_are_stored_and_all_are_counted() -> None:
    tally = Tally()
    for n in range(3 * FIRST):
        tally.add(Flaw.EXTRA, 2, [Offender(partition=0, place=n, time=str(n), tuple={})], 1_000 - n)
    assert [(f.flaw, f.count) for f in tally.findings] == [(Flaw.EXTRA, 6 * FIRST)]
    assert [o.place for o in tally.findings[0].offenders] == list(range(FIRST))
    assert tally.wrong_us == 1_000 - 3 * FIRST + 1
    assert tally.counts == {Flaw.EXTRA: 6 * FIRST}
