"""The Env of production."""

from __future__ import annotations

import gc
import json
import os
import platform
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import trio

from spe.runtime.env import Awaited
from spe.runtime.production import (
    FileTrace,
    SystemClock,
    give_back_memory,
    malloc_trim,
    production_env,
    tune_gc,
    tune_malloc,
)


class FixedClock:
    def monotonic_us(self) -> int:
        return 0

    def wall_us(self) -> int:
        return 1_700_000_000_000_000

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    async def wait(self, signal: Awaited, token: int, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await signal.wait(token)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_event_is_one_line_of_json_and_is_on_disk_at_once(tmp_path: Path) -> None:
    path = tmp_path / "run" / "trace.jsonl"
    trace = FileTrace(path, FixedClock())
    trace.event("switched", input="trades/0", to=PurePosixPath("n2"), bad="\ud800")
    assert lines_of(path) == [
        {"t": 1_700_000_000_000_000, "event": "switched", "input": "trades/0", "to": "n2", "bad": "\ud800"}
    ]


def test_a_trace_keeps_its_latest_events_within_bounds(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    trace = FileTrace(path, FixedClock(), limit_bytes=500)
    for number in range(100):
        trace.event("tick", number=number)
    files = sorted(tmp_path.iterdir())
    assert [f.name for f in files] == ["trace.jsonl", "trace.jsonl.1"]
    assert all(f.stat().st_size <= 500 for f in files)
    kept = [line["number"] for f in reversed(files) for line in lines_of(f)]
    assert kept == list(range(kept[0], 100))
    assert len(kept) > 500 // 60


def test_a_trace_that_cannot_be_written_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.jsonl"
    trace = FileTrace(path, FixedClock(), limit_bytes=100)
    trace.event("first")

    def refuse(*_: object) -> None:
        raise OSError("read-only")

    with monkeypatch.context() as m:
        m.setattr(os, "replace", refuse)
        for _ in range(5):
            trace.event("lost", text="x" * 80)
    trace.event("last")
    assert lines_of(path)[-1]["event"] == "last"


async def test_clocks_count_microseconds_and_compute_frees_the_loop(tmp_path: Path, autojump_clock: Any) -> None:
    env = production_env(tmp_path, seed=1)
    before = env.clock.monotonic_us()
    await trio.sleep(2)
    assert env.clock.monotonic_us() - before == 2_000_000
    assert env.clock.wall_us() > 1_700_000_000_000_000
    assert await env.compute.run(lambda: 6 * 7) == 42


def test_the_same_seed_draws_the_same_numbers(tmp_path: Path) -> None:
    drawn = [production_env(tmp_path, seed).random.random() for seed in (1, 1, 2, None, None)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 4


def test_trace_may_be_a_file(tmp_path: Path) -> None:
    production_env(tmp_path, trace=tmp_path / "t.jsonl").trace.event("started")
    assert lines_of(tmp_path / "t.jsonl")[0]["event"] == "started"
    production_env(tmp_path).trace.event("nobody listens")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_malloc_is_tuned_where_there_is_glibc() -> None:
    assert tune_malloc()


class HeapClock(SystemClock):
    """A clock whose steps take as long as the trims that :meth:`trim` plays."""

    def __init__(self, *trims_ms: int) -> None:
        self._trims_ms = list(trims_ms)
        self._now_ns = 0
        self.pauses_s: list[float] = []

    def step_ns(self) -> int:  # type: ignore[override]
        return self._now_ns

    async def sleep(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        if not self._trims_ms:
            raise EOFError

    def trim(self) -> None:
        self._now_ns += 1_000_000 * self._trims_ms.pop(0)


async def test_a_large_heap_is_trimmed_less_often() -> None:
    """A trim stops the process, so it takes at most 1/10,000 of the time: 40 ms every 400 s."""
    clock = HeapClock(2, 40, 1)
    with pytest.raises(EOFError):
        await give_back_memory(clock, clock.trim)
    assert clock.pauses_s == [60, 60, 400, 60]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc_trim is glibc's")
def test_a_trim_returns_free_pages_between_live_ones() -> None:
    """4,000 blocks of 16 KiB, of which every 16th stays: the pages of the others go back to the system."""

    def resident_pages() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    trim = malloc_trim()
    assert trim is not None
    blocks: list[bytearray | None] = [bytearray(16 << 10) for _ in range(4000)]
    blocks[:] = [block if at % 16 == 0 else None for at, block in enumerate(blocks)]
    before = resident_pages()
    trim()
    assert before - resident_pages() > 4000 * 2


def test_the_cycle_collector_leaves_small_reads_alone() -> None:
    """One read of small frames makes thousands of objects; that must not start a full collection."""
    before = gc.get_threshold()
    try:
        tune_gc()
        assert gc.isenabled()  # cycles are still found, only later
        assert gc.get_threshold()[0] >= 10_000
        assert gc.get_freeze_count() > 0
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
