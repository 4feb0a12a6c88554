"""What `spe status` and the live view say of moves."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from spe.cli.move import move_text
from spe.cli.view import Sight, render
from spe.config import load_text
from spe.stream.times import SECOND
from tests.support.sights import CONFIG, NOW, a_sight
from tests.support.statuses import a_coordinator, a_move

#: Who wanted a move: people, a drain, the balancer.
REASONS = ("ordered", "n1 is drained", "n1 needs 1.00 of 1 cores and 2 MB")


def lines(text: str, sight: Sight) -> list[str]:
    """The screen, with single spaces."""
    console = Console(width=200, color_system=None, file=io.StringIO(), record=True)
    console.print(render(*load_text(text), sight))
    return [" ".join(line.split()) for line in console.export_text().splitlines()]


@pytest.mark.parametrize(
    ("phase", "why", "said"),
    [("install", "n2 recovers", "install n2 recovers"), ("follow", "", "follow"), ("done", "", "done in 2.0 s")],
)
def test_the_view_says_who_wanted_each_move(phase: str, why: str, said: str) -> None:
    began = {"wait": NOW - 2 * SECOND, phase: NOW}
    moves = [a_move(number=n, reason=r, phase=phase, why=why, began_us=began) for n, r in enumerate(REASONS)]
    found = lines(CONFIG + "coordinator: {}", a_sight(NOW, a_coordinator(*moves)))
    assert [line for line in found if "main/0 n1 n2" in line] == [
        f"{number} main/0 n1 n2 {said} ({reason})" for number, reason in enumerate(REASONS)
    ]


def test_the_progress_of_a_move_says_who_wanted_it() -> None:
    drained = a_move(reason="n1 is drained", phase="install", why="n2 recovers")
    assert move_text(drained) == "move 1: main/0 from n1 to n2 (n1 is drained): install: n2 recovers"
    done = a_move(phase="done", began_us={"wait": NOW - 2 * SECOND, "done": NOW})
    assert move_text(done) == "move 1: main/0 from n1 to n2 (ordered): done in 2.0 s"
