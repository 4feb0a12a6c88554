"""What `spe status` and the live view say of moves, and of logs that are not kept for ever."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import takewhile

import pytest
from rich.console import Console

from replicas.cli.move import move_text
from replicas.cli.view.view import render
from spe.config import load_text
from spe.figures.sight import Sight
from spe.status import HolderStatus, NewestStatus, ProcessStatus, RecordingStatus, ResultStatus
from spe.stream.times import SECOND
from tests.support.sights import CONFIG, NOW, a_sight
from tests.support.statuses import a_channel, a_client, a_coordinator, a_move, a_source

#: Who wanted a move: people, a drain, the balancer.
REASONS = ("ordered", "n1 is drained", "n1 needs 1.00 of 1 cores and 2 MB")
KEPT = CONFIG.replace("a: {from", "a: {retain: {for: 1h}, from")
KEPT += """
defaults: {checkpoint: {every: 1s, disk: true}}
clients: {client: {reads: out, retain: {size: 1MB, unproved: delete}}}
"""


def lines(text: str, sight: Sight) -> list[str]:
    """The screen, with single spaces."""
    console = Console(width=200, color_system=None, file=io.StringIO(), record=True)
    console.print(render(*load_text(text), sight))
    return [" ".join(line.split()) for line in console.export_text().splitlines()]


@pytest.mark.parametrize(
    ("phase", "why", "said"),
    [("install", "n2 recovers", "install n2 recovers"), ("follow", "", "follow"), ("done", "", "done in 2.0 s")],
)
def test_view_shows_the_reason_of_each_move(phase: str, why: str, said: str) -> None:
    began = {"wait": NOW - 2 * SECOND, phase: NOW}
    moves = [a_move(number=n, reason=r, phase=phase, why=why, began_us=began) for n, r in enumerate(REASONS)]
    found = lines(CONFIG + "coordinator: {}", a_sight(NOW, a_coordinator(*moves)))
    assert [line for line in found if "main/0 n1 n2" in line] == [
        f"{number} main/0 n1 n2 {said} ({reason})" for number, reason in enumerate(REASONS)
    ]


def test_progress_of_a_move_shows_its_reason() -> None:
    drained = a_move(reason="n1 is drained", phase="install", why="n2 recovers")
    assert move_text(drained) == "move 1: main/0 from n1 to n2 (n1 is drained): install: n2 recovers"
    done = a_move(phase="done", began_us={"wait": NOW - 2 * SECOND, "done": NOW})
    assert move_text(done) == "move 1: main/0 from n1 to n2 (ordered): done in 2.0 s"


def log_lines(*statuses: ProcessStatus) -> list[str]:
    """The table of logs, between its head and the clients'."""
    found = lines(KEPT, a_sight(NOW, *statuses))
    head = found.index("log whole from bytes due, and needed by")
    return list(takewhile(lambda line: "worst gap" not in line, found[head + 1 :]))


class TestLogs:
    def test_default_retention_is_not_shown(self) -> None:
        assert log_lines(a_source("source:a", bytes=1_234), a_source("source:b", bytes=5)) == [
            "a the beginning 1,234",
        ]
        assert not [line for line in lines(CONFIG, a_sight()) if "whole from" in line]

    def test_log_lines_show_start_and_space_held_by_readers(self) -> None:
        held = [HolderStatus(holder=h, since_us=NOW + n * SECOND, bytes=n * 1_000) for n, h in enumerate("wxyz", 1)]
        source = a_source("source:a", bytes=2_000_000, first_us=NOW - 3_600 * SECOND, held=tuple(held[:1]))
        recording = RecordingStatus(bytes=3_000, deleted_bytes=7, held=tuple(held), archive="")
        client = replace(a_client(a_channel(channel="out/0")), recording=recording)
        since = "since 2023-11-14T22:13:2"
        assert log_lines(source, client) == [
            f"a 11-14 21:13:20.0 2,000,000 w: 1,000 {since}1",
            f"client client 3,000 w: 1,000 {since}1; x: 2,000 {since}2; y: 3,000 {since}3; and 1 more",
        ]

    def test_why_nothing_can_be_deleted_comes_first(self) -> None:
        held = (HolderStatus(holder="main/0@n1", since_us=NOW, bytes=1_000),)
        source = a_source("source:a", bytes=9, held=held, archive="no room in the archive")
        (line,) = log_lines(source)
        assert line.startswith("a the beginning 9 no room in the archive; main/0@n1: 1,000 since ")


def newest_of(stream: str, *rows: tuple[bool, str]) -> NewestStatus:
    """The last rows of an output with one column."""
    return NewestStatus(
        stream=stream, columns=("n",), rows=tuple(ResultStatus(tentative=t, values=(v,)) for t, v in rows)
    )


def test_the_view_shows_the_newest_results() -> None:
    client = replace(a_client(a_channel(channel="out/0")), newest=(newest_of("out", (False, "41"), (True, "[b]42")),))
    found = lines(CONFIG, a_sight(NOW, client))
    head = found.index("newest out n")
    assert found[head + 1 : head + 3] == ["41", "tentative [b]42"]
    assert not any("newest" in line for line in lines(CONFIG, a_sight(NOW)))


def test_many_outputs_have_a_row_each() -> None:
    rows = [(False, f"{n}") for n in range(5)]
    client = replace(a_client(a_channel(channel="out/0")), newest=tuple(newest_of(f"o{i}", *rows) for i in range(8)))
    found = lines(CONFIG, a_sight(NOW, client))
    heads = [at for at, line in enumerate(found) if line.startswith("newest o")]
    assert [found[at + 1] for at in heads] == ["4"] * 8
