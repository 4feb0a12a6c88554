"""Runs the tasks of nodes on Spark, one job with one task per attempt, and lists the executors."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from replicas.on_spark.spots import Executor, Spot
from replicas.on_spark.task import NodeTask
from spe import __version__
from spe.errors import SpeError

if TYPE_CHECKING:
    from pyspark import SparkContext

T = TypeVar("T")

#: Maximum number of threads that wait for jobs: one for each node, and a few that are being cancelled.
_THREADS: Final = 2_000
_DRIVER: Final = "driver"
#: Tasks per slot, so that no executor is likely to be left out.
_LOOKS: Final = 2


def group_of(node: str, attempt: int) -> str:
    """Returns the job group of an attempt."""
    return f"spe-{node}-{attempt}"


class SparkJobs:
    """See the module."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._limit = trio.CapacityLimiter(_THREADS)

    async def run(self, task: NodeTask) -> str | None:
        def job() -> None:
            context = self._context
            context.setJobGroup(group_of(task.node, task.attempt), f"node {task.node}", interruptOnCancel=True)
            context.parallelize([0], 1).mapPartitions(task).collect()

        try:
            await self._in_thread(job)
        except Exception as error:  # the loop over executors notices whether Spark has ended
            return reason(error)
        return None

    async def cancel(self, node: str, attempt: int) -> None:
        def cancel() -> None:
            self._context.cancelJobGroup(group_of(node, attempt))

        await self._asked(cancel)

    async def executors(self) -> Sequence[Executor]:
        return await self._asked(lambda: registered(self._context))

    async def _asked(self, question: Callable[[], T]) -> T:
        try:
            return await self._in_thread(question)
        except Exception as error:
            raise SpeError(f"Spark has ended: {reason(error)}") from error

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=self._limit)


def registered(context: SparkContext) -> list[Executor]:
    """Returns the living executors.

    Raises:
      SpeError: Spark was stopped, as it is when its master has been away for too long.
    """
    scala: Any = context._jsc.sc()
    if scala.isStopped():
        raise SpeError("it was stopped; its master may be gone")
    apply: Any = scala.statusStore().executorList(True)
    executors = [apply.apply(i) for i in range(apply.size())]
    return [
        Executor(Spot(str(e.id()), _host_of(str(e.hostPort()))), int(e.maxTasks()))
        for e in executors
        if e.id() != _DRIVER and e.isActive()
    ]


def _host_of(address: str) -> str:
    """Returns an executor's host: Spark knows no port yet of one that has just registered."""
    host, colon, port = address.rpartition(":")
    return host if colon and port.isdecimal() else address


@dataclass(frozen=True)
class ExecutorCheck:
    """Checks an executor: runs there, and returns its problem.

    Attributes:
      file: in the directory of the run; None: it need not see that.
      content: of the file.
      folders: that it must see at the same path.
    """

    version: str
    file: str | None
    content: str
    folders: tuple[str, ...]

    def __call__(self, rows: Iterable[Any]) -> Iterator[tuple[str, str | None, bool]]:
        for _ in rows:
            sees_file = self.file is not None and _read(self.file) == self.content
            yield socket.gethostname(), self._wrong(), sees_file

    def _wrong(self) -> str | None:
        if __version__ != self.version:
            return f"it has tentative-spe {__version__}, and the driver {self.version}; expected the same"
        missing = [folder for folder in self.folders if not Path(folder).is_dir()]
        return (
            f"it does not see {', '.join(missing)}; expected a file system that all executors see" if missing else None
        )


def look(context: SparkContext, executors: Sequence[Executor], what: ExecutorCheck) -> bool:
    """Checks the present executors; returns True if all of them see the file.

    Raises:
      SpeError: something is wrong on one of them.
    """
    tasks = _LOOKS * sum(e.slots for e in executors)
    context.setJobGroup("spe-look", "what executors see")
    try:
        answers = context.parallelize(range(tasks), tasks).mapPartitions(what).collect()
    except Exception as error:
        raise SpeError(f"an executor of Spark cannot run tasks of tentative-spe: {reason(error)}") from error
    if wrong := sorted({(host, why) for host, why, _ in answers if why is not None}):
        raise SpeError(f"an executor of Spark on {wrong[0][0]} cannot run nodes: {wrong[0][1]}")
    return all(sees_file for _, _, sees_file in answers)


def _read(file: str) -> str:
    try:
        return Path(file).read_text()
    except OSError:
        return ""


def reason(error: BaseException) -> str:
    """Returns why a job failed, in a line: Python's message on the executor, else Java's."""
    from consistency.proof.session.errors import essence

    text = str(error)
    if "Traceback (most recent call last)" in text:
        python = text.rpartition("Traceback (most recent call last)")[2].partition("\n\tat ")[0]
        lines = [line.strip(" |+-") for line in python.splitlines()]
        if words := [line for line in lines if line]:
            return words[-1]
    return essence(error)
