"""The directory at the driver, with real tasks and node processes, and processes of ours in place of Spark."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from replicas.local.cluster import Cluster, open_cluster
from replicas.local.process import Phase, ProcessSpec
from replicas.local.supervised_process import LineLink
from replicas.on_spark.addresses import PLACES
from replicas.on_spark.directory import NodeDirectory, open_directory
from replicas.on_spark.link import proof
from replicas.on_spark.placement import SparkPlacement
from replicas.on_spark.spots import Executor, Spot
from replicas.on_spark.task import NodeTask
from spe.errors import SpeError

pytestmark = pytest.mark.processes

SECRET = "of this run"
PATIENCE_S = 60
APART = {"n1": ["n2"], "n2": ["n1"]}
#: Runs a task as a Python worker of Spark does.
WORKER = "import pickle, sys; list(pickle.load(sys.stdin.buffer)(()))"


class OurJobs:
    """Starts each task as a process of an executor of our choice.

    Args:
      choices: executors, in the order of the jobs; afterwards each node has its own.
    """

    def __init__(self, choices: Sequence[str] = ()) -> None:
        self._choices = list(choices)
        self.workers: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        self.spots: list[tuple[str, str]] = []

    async def run(self, task: NodeTask) -> str:
        executor = self._choices.pop(0) if self._choices else f"{task.node}-{task.attempt}"
        self.spots.append((task.node, executor))
        one = subprocess.Popen(  # noqa: ASYNC220 - a task waits for it
            [sys.executable, "-c", WORKER],
            stdin=subprocess.PIPE,
            env={**os.environ, "SPARK_EXECUTOR_ID": executor},
            start_new_session=True,
        )
        self.workers[task.node, task.attempt] = one
        assert one.stdin is not None
        one.stdin.write(pickle.dumps(task))
        one.stdin.close()
        try:
            status = await trio.to_thread.run_sync(one.wait, abandon_on_cancel=True)
        finally:
            one.kill()
            one.wait()
        return "" if status == 0 else f"exit status {status}"

    async def cancel(self, node: str, attempt: int) -> None:
        await trio.lowlevel.checkpoint()
        self.workers[node, attempt].kill()

    async def executors(self) -> Sequence[Executor]:
        await trio.lowlevel.checkpoint()
        return [Executor(Spot(name, "h"), 1) for _, name in self.spots]


def spec(name: str, folder: Path) -> ProcessSpec:
    return ProcessSpec(name, ["python"], folder / "logs" / f"{name}.log")


def task_of(node: str, attempt: int, driver: str, mode: str = "begins") -> NodeTask:
    command = ("-m", "tests.support.supervised_child", mode)
    return NodeTask(driver, node, attempt, SECRET, command, {"config.yaml": "text"}, {"PYTHONUNBUFFERED": "1"})


@asynccontextmanager
async def opened(
    folder: Path, jobs: OurJobs, told: Callable[..., None] = lambda *facts: None, mode: str = "begins"
) -> AsyncIterator[Cluster]:
    """A cluster of n1 and n2, which share no executor; who is lost is started again."""
    placement = SparkPlacement(APART, by_host=False)
    directory = NodeDirectory(placement, jobs, SECRET, folder, host="127.0.0.1", task=partial(task_of, mode=mode))
    lost, to_hear = trio.open_memory_channel[str](10)

    def tell(event: str, name: str, facts: dict[str, Any]) -> None:
        told(event, name)
        if event == "lost":
            lost.send_nowait(name)

    async def again(cluster: Cluster) -> None:
        async for name in to_hear:
            await cluster.start(name)

    with trio.fail_after(PATIENCE_S):
        async with (
            open_directory(directory),
            open_cluster([spec("n1", folder), spec("n2", folder)], report=tell, make=directory.process) as cluster,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(again, cluster)
            await cluster.start_all()
            yield cluster
            nursery.cancel_scope.cancel()


def places(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / PLACES).read_text())
    return found


async def until(true: Callable[[], Any]) -> None:
    while not true():  # noqa: ASYNC110 - of another process
        await trio.sleep(0.05)


def is_gone(pid: int) -> bool:
    """It has ended, whether or not somebody has waited for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def test_nodes_are_supervised_like_processes_of_this_machine(tmp_path: Path) -> None:
    events: list[tuple[str, str]] = []
    async with opened(tmp_path, jobs := OurJobs(), lambda *said: events.append(said)) as cluster:
        assert places(tmp_path).keys() == {"n1", "n2"}
        assert len(set(places(tmp_path).values())) == 2
        await cluster.begin(1234)
        log = tmp_path / "logs" / "n1.log"
        await until(lambda: "1234" in log.read_text())
        one = cluster.processes["n1"]
        await cluster.kill("n1")
        assert (one.phase, one.status) == (Phase.KILLED, -signal.SIGKILL)
        await cluster.start("n1")
        await until(lambda: log.read_text().count("1234") == 2)  # who starts late is told the beginning, too
        assert one.pid is not None
        cluster.freeze("n1")
        await until(lambda: "T (" in Path(f"/proc/{one.pid}/status").read_text())
        cluster.resume("n1")
        await until(lambda: "T (" not in Path(f"/proc/{one.pid}/status").read_text())
        pids = [p.pid for p in cluster.processes.values()]
    assert sorted(node for node, _ in jobs.spots) == ["n1", "n2"]  # a place is kept while its process is down
    assert [worker.returncode for worker in jobs.workers.values()] == [0, 0]
    assert all(pid is not None and is_gone(pid) for pid in pids)
    assert ("lost", "n1") not in events


async def test_killed_executor_stops_its_node_which_restarts_elsewhere(tmp_path: Path) -> None:
    async with opened(tmp_path, jobs := OurJobs()) as cluster:
        one, before = cluster.processes["n1"], places(tmp_path)
        pid = one.pid
        assert pid is not None
        jobs.workers["n1", 1].kill()
        await until(lambda: one.starts == 2)
        await one.ready.wait()
        assert is_gone(pid)
        assert places(tmp_path)["n1"] != before["n1"]
        assert places(tmp_path)["n2"] == before["n2"]
        assert cluster.processes["n2"].starts == 1
        assert jobs.spots[-1] == ("n1", "n1-2")


async def test_task_next_to_partner_returns_its_place(tmp_path: Path) -> None:
    async with opened(tmp_path, jobs := OurJobs(["0", "0", "0", "1"])):
        pass
    assert [executor for _, executor in jobs.spots] == ["0", "0", "0", "1"]
    ended = [worker.returncode for worker in jobs.workers.values()]
    assert ended == [0, 0, 0, 0]


async def test_process_that_ends_by_itself_gives_its_reason(tmp_path: Path) -> None:
    with pytest.RaisesGroup(
        pytest.RaisesExc(SpeError, match="ended before it was ready:\nno such file: orders"), flatten_subgroups=True
    ):
        async with opened(tmp_path, OurJobs(), mode="broken"):
            pytest.fail("it did not start")


async def test_unrunnable_tasks_end_run_with_message_of_spark(tmp_path: Path) -> None:
    class NoJobs(OurJobs):
        async def run(self, task: NodeTask) -> str:
            await trio.lowlevel.checkpoint()
            return "ModuleNotFoundError: No module named 'replicas'"

    said = r"n\d cannot run on Spark: 4 jobs ended before .*: ModuleNotFoundError: No module named 'replicas'"
    with pytest.RaisesGroup(pytest.RaisesExc(SpeError, match=said), flatten_subgroups=True):
        async with opened(tmp_path, NoJobs()):
            pytest.fail("it did not start")


async def test_the_end_of_spark_ends_the_run_and_its_processes(tmp_path: Path) -> None:
    class EndingJobs(OurJobs):
        ended = False

        async def executors(self) -> Sequence[Executor]:
            if self.ended:
                raise SpeError("Spark has ended")
            return await super().executors()

    jobs, pids = EndingJobs(), list[int | None]()
    with pytest.RaisesGroup(pytest.RaisesExc(SpeError, match="Spark has ended"), flatten_subgroups=True):
        async with opened(tmp_path, jobs) as cluster:
            pids += [one.pid for one in cluster.processes.values()]
            jobs.ended = True
            await trio.sleep_forever()
    for pid in pids:
        assert pid is not None
        await until(partial(is_gone, pid))


async def test_task_with_dead_driver_ends_its_process(tmp_path: Path) -> None:
    """The directory dies: the connection ends without a word."""
    jobs, pids = OurJobs(), list[int]()

    async def driver(stream: trio.SocketStream) -> None:
        link = LineLink(stream)
        await link.send({"nonce": "1"})
        landed = await link.receive()
        await link.send({"proof": proof(SECRET, "driver", landed["nonce"])})
        await link.send({"start": {"files": {}, "places": {}}})
        while "ready" not in (message := await link.receive()):
            if "started" in message:
                pids.append(message["started"]["pid"])
        await stream.aclose()

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, driver, [listener])
            port = listener.socket.getsockname()[1]
            assert await jobs.run(task_of("n1", 1, f"127.0.0.1:{port}")) == ""
            nursery.cancel_scope.cancel()
    (pid,) = pids
    assert is_gone(pid)


async def test_neither_side_talks_to_one_that_does_not_know_the_secret(tmp_path: Path) -> None:
    async with opened(tmp_path, OurJobs()) as cluster:
        jobs = OurJobs()

        async def false_driver(stream: trio.SocketStream) -> None:
            link = LineLink(stream)
            await link.send({"nonce": "1"})
            landed = await link.receive()
            await link.send({"proof": proof("another", "driver", landed["nonce"])})
            await link.send({"start": {"files": {}, "places": {}}})
            with pytest.raises(Exception, match="gone"):  # it does not even say that it starts
                await link.receive()
            await stream.aclose()

        async with trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, false_driver, [listener])
            port = listener.socket.getsockname()[1]
            assert "exit status" in await jobs.run(task_of("n1", 1, f"127.0.0.1:{port}"))
            nursery.cancel_scope.cancel()
        assert all(one.alive for one in cluster.processes.values())
