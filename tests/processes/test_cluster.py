"""The supervisor of a local cluster leaves no process behind, however it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from replicas.local.cluster import open_cluster
from replicas.local.ports import PORTS, check_free, free_addresses
from replicas.local.process import Phase
from spe.errors import PortInUse, SpeError
from tests.support.supervised_child import child

pytestmark = pytest.mark.processes

#: A test that waits longer than this for a process has failed.
PATIENCE_S = 30


@contextmanager
def watched(pid: int) -> Iterator[int]:
    """A descriptor that becomes readable when the process ends."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


async def gone(*descriptors: int) -> None:
    with trio.fail_after(PATIENCE_S):
        for descriptor in descriptors:
            await trio.lowlevel.wait_readable(descriptor)


def is_alive(pid: int | None) -> bool:
    assert pid is not None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_processes_start_and_end_with_the_block(tmp_path: Path) -> None:
    events: list[str] = []

    def told(event: str, name: str, facts: dict[str, Any]) -> None:
        events.append(f"{event} {name}")

    with trio.fail_after(PATIENCE_S):
        async with open_cluster([child("a", tmp_path), child("b", tmp_path)], report=told) as cluster:
            await cluster.start_all()
            pids = [p.pid for p in cluster.processes.values()]
            assert {p.phase for p in cluster.processes.values()} == {Phase.RUNNING}
    assert not any(is_alive(pid) for pid in pids)
    assert sorted(events) == ["ended a", "ended b", "ready a", "ready b", "started a", "started b"]


async def test_killed_process_is_restarted_and_gets_begin_order(tmp_path: Path) -> None:
    with trio.fail_after(PATIENCE_S):
        async with open_cluster([child("a", tmp_path, "begins")]) as cluster:
            await cluster.start_all()
            await cluster.begin(1_234)
            one, first = cluster.processes["a"], cluster.processes["a"].pid
            assert await cluster.kill("a")
            assert (one.phase, one.status) == (Phase.KILLED, -signal.SIGKILL)
            assert not await cluster.kill("a")
            await cluster.start("a")
            await one.ready.wait()
            assert (one.starts, one.alive) == (2, True)
            assert one.pid != first


async def test_a_frozen_process_is_ended(tmp_path: Path) -> None:
    with trio.fail_after(PATIENCE_S):
        async with open_cluster([child("a", tmp_path)]) as cluster:
            await cluster.start_all()
            assert cluster.freeze("a")
            pid = cluster.processes["a"].pid
    assert not is_alive(pid)


async def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    with trio.fail_after(PATIENCE_S):
        async with open_cluster([child("a", tmp_path, "stubborn")]) as cluster:
            await cluster.start_all()
            await cluster.stop(grace_s=0.2)
            one = cluster.processes["a"]
            assert not is_alive(one.pid)
            assert one.status == -signal.SIGKILL


@pytest.mark.parametrize("how", ["exception", "cancelled"])
async def test_no_process_survives_an_exception_in_the_block(tmp_path: Path, how: str) -> None:
    pid = 0
    with trio.fail_after(PATIENCE_S), trio.CancelScope() as scope:
        try:
            async with open_cluster([child("a", tmp_path)]) as cluster:
                await cluster.start_all()
                pid = cluster.processes["a"].pid or 0
                if how == "cancelled":
                    scope.cancel()
                    await trio.sleep_forever()
                raise RuntimeError("a bug")
        except* RuntimeError:
            assert how == "exception"
    assert not is_alive(pid)


async def test_no_process_survives_a_killed_supervisor(tmp_path: Path) -> None:
    """1. a supervisor with two processes, one of them frozen; 2. kill -9 of the supervisor; 3. both are gone"""
    command = [sys.executable, "-m", "tests.support.supervised_child", "supervises", str(tmp_path)]
    supervisor = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    assert supervisor.stdout is not None
    try:
        line = b""
        with trio.fail_after(PATIENCE_S):
            while not line.endswith(b"\n"):  # an unbuffered Python writes it word by word
                line += await supervisor.stdout.receive_some() or b"\n"
        pids = [int(p) for p in line.split()]
        assert len(pids) == 2
        with ExitStack() as stack:
            descriptors = [stack.enter_context(watched(pid)) for pid in pids]
            supervisor.kill()
            await gone(*descriptors)
    finally:
        supervisor.kill()
        await supervisor.wait()
        await supervisor.stdout.aclose()


async def test_a_process_that_cannot_start_reports_the_reason(tmp_path: Path) -> None:
    """The other processes are ended too."""
    with trio.fail_after(PATIENCE_S):
        with pytest.RaisesGroup(pytest.RaisesExc(SpeError, match="b ended before it was ready:\nno such file: orders")):
            async with open_cluster([child("a", tmp_path), child("b", tmp_path, "broken")]) as cluster:
                await cluster.start_all()
        assert not any(is_alive(p.pid) for p in cluster.processes.values())


async def test_a_process_that_ends_by_itself_is_reported(tmp_path: Path) -> None:
    died: list[tuple[str, Any]] = []

    def told(event: str, name: str, facts: dict[str, Any]) -> None:
        if event == "died":
            died.append((name, facts["status"]))

    with trio.fail_after(PATIENCE_S):
        async with open_cluster([child("a", tmp_path)], report=told) as cluster:
            await cluster.start_all()
            one = cluster.processes["a"]
            os.kill(one.pid or 0, signal.SIGSEGV)
            await one.gone.wait()
            assert one.phase is Phase.DIED
    assert died == [("a", -signal.SIGSEGV)]


def test_free_addresses_differ_and_avoid_ephemeral_ports() -> None:
    addresses = free_addresses(20)
    assert len(set(addresses)) == 20
    assert all(int(a.rpartition(":")[2]) in PORTS for a in addresses)
    check_free({a: a for a in addresses})


def test_an_address_in_use_is_reported_with_its_process() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PortInUse, match=f"n1: cannot listen on {address}: Address already in use"):
            check_free({"n1": address})
