"""Runs within a task of Spark: reports its place to the driver, and hosts the process of one node.

The process is a child, which the kernel ends with this one; this one ends with the connection to the driver.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from replicas.local.ports import free_addresses
from replicas.local.process import Managed, Phase, ProcessSpec
from replicas.local.supervised_process import LineLink
from replicas.on_spark.addresses import write_places
from replicas.on_spark.link import ALIVE_S, GREET_S, TASK_PATIENCE_S, check_proof, proof, receive_within
from spe.errors import LinkClosed, RemoteProtocolError
from spe.runtime.network import parse_address

#: Time between SIGTERM and SIGKILL.
_GRACE_S: Final = 5.0
#: Time between two reports of a process's output, and the size of a piece.
_SHIP_S: Final = 0.5
_PIECE_BYTES: Final = 8 << 10
#: Stands for the folder in a command.
FOLDER: Final = "{folder}"
LOG: Final = "node.log"


@dataclass(frozen=True)
class NodeTask:
    """Description of a task; Spark carries it there.

    Attributes:
      driver: ``host:port``.
      command: of the process, for the interpreter of the task; FOLDER in it stands for the folder with ``files``.
      files: path in that folder -> text.
      trace: path there of the trace that the driver wants in addition to the log.
    """

    driver: str
    node: str
    attempt: int
    secret: str = field(repr=False)
    command: tuple[str, ...]
    files: Mapping[str, str] = field(repr=False)
    environment: Mapping[str, str] = field(default_factory=dict)
    trace: str = ""

    def __call__(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Runs as ``mapPartitions`` calls it: without input and output."""
        del rows
        host(self)
        return iter(())


def host(task: NodeTask) -> None:
    """Hosts the node until the driver ends it, refuses it, or is gone."""
    trio.run(_host, task)


async def _host(task: NodeTask) -> None:
    try:
        name, port = parse_address(task.driver)
        with trio.fail_after(GREET_S):
            stream = await trio.open_tcp_stream(name, port)
    except (OSError, trio.TooSlowError) as error:
        raise RuntimeError(f"the driver cannot be reached at {task.driver}: {str(error) or 'no answer'}") from error
    address = stream.socket.getsockname()[0]
    link = LineLink(stream)
    try:
        if await greet(link, task):
            await TaskHost(task, link, address).run()
    except LinkClosed:
        pass
    finally:
        with trio.CancelScope(shield=True):
            await link.aclose()


async def greet(link: LineLink, task: NodeTask) -> bool:
    """Reports to the driver; returns whether the node shall run here.

    Raises:
      LinkClosed, RemoteProtocolError: there is no driver of this run.
    """
    theirs, ours = str((await receive_within(link, GREET_S)).get("nonce")), secrets.token_hex(16)
    executor, host_name = here()
    landed = {"node": task.node, "attempt": task.attempt, "executor": executor, "host": host_name}
    await link.send({"landed": landed, "nonce": ours, "proof": proof(task.secret, "task", theirs)})
    answer = await receive_within(link, GREET_S)
    check_proof(task.secret, "driver", ours, answer.get("proof"))
    return "give_back" not in answer


def here() -> tuple[str, str]:
    """Returns the executor that this process belongs to, and its host."""
    host_name = socket.gethostname()
    pid = os.getpid()
    while pid > 1:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            if "--executor-id" in words:
                host = words[words.index("--hostname") + 1] if "--hostname" in words else host_name
                return words[words.index("--executor-id") + 1], host
            pid = int(re.sub(r".*\)", "", Path(f"/proc/{pid}/stat").read_text(), flags=re.DOTALL).split()[1])
        except (OSError, ValueError, IndexError):
            break
    # an unknown kind of executor: use its Python process as its name
    return os.environ.get("SPARK_EXECUTOR_ID", f"python-{os.getppid()}"), host_name


class TaskHost:
    """A task whose place was accepted.

    Args:
      address: of this machine, in the driver's network.
    """

    def __init__(self, task: NodeTask, link: LineLink, address: str) -> None:
        self._task = task
        self._link = link
        self._address = f"[{address}]" if ":" in address else address
        self._folder = Path(tempfile.mkdtemp(prefix=f"spe-{task.node}-", dir=_scratch()))
        for name, text in task.files.items():
            self._write(name, text)
        command = [sys.executable, *(word.replace(FOLDER, str(self._folder)) for word in task.command)]
        self._process = Managed(ProcessSpec(task.node, command, self._folder / LOG, task.environment))
        self._places: dict[str, str] = {}
        self._ships = [_Ship("log", self._folder / LOG)]
        if task.trace:
            self._ships.append(_Ship("trace", self._folder / task.trace))
        self._sending, self._shipping = trio.Lock(), trio.Lock()

    async def run(self) -> None:
        """Runs until the driver ends it or is gone; the process is gone, too, when this returns."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._say_alive)
                nursery.start_soon(self._ship)
                while True:
                    message = await receive_within(self._link, TASK_PATIENCE_S)
                    if "end" in message:
                        break
                    await self._do(message, nursery)
                nursery.cancel_scope.cancel()
        except* (LinkClosed, RemoteProtocolError):
            pass
        finally:
            with trio.CancelScope(shield=True):
                await self._end()

    async def _do(self, message: dict[str, Any], nursery: trio.Nursery) -> None:
        process = self._process
        if (start := message.get("start")) is not None and not process.alive:
            for name, text in start["files"].items():
                self._write(name, text)
            # a port of its own for each start: the one before may not be free yet
            address = free_addresses(1, self._address)[0]
            self._tell_places({**start["places"], self._task.node: address})
            process.spawn()
            await self._send({"started": {"pid": process.pid, "address": address}})
            nursery.start_soon(self._watch)
            nursery.start_soon(self._relay)
        if (places := message.get("places")) is not None:
            own = {self._task.node: self._places[self._task.node]} if self._task.node in self._places else {}
            self._tell_places({**places, **own})
        if (begin := message.get("begin_us")) is not None and process.alive and process.link is not None:
            with suppress(LinkClosed):  # it has just ended
                await process.link.send({"begin_us": begin})
        if (number := message.get("signal")) is not None:
            process.signal(signal.Signals(number))

    def _tell_places(self, places: dict[str, str]) -> None:
        self._places = places
        write_places(self._folder, places)

    async def _watch(self) -> None:
        """Waits until this start of the process has ended."""
        status = await self._process.wait()
        await self._ship_all()
        await self._send({"ended": status, "said": self._process.last_words()[-2000:]})

    async def _relay(self) -> None:
        """Relays messages of the process to its supervisor."""
        link = self._process.link
        assert link is not None
        try:
            while True:
                message = await link.receive()
                await self._send({"ready": message.get("ready", {})})
        except LinkClosed:
            await link.aclose()

    async def _say_alive(self) -> None:
        while True:
            await self._send({"alive": True})
            await trio.sleep(ALIVE_S)

    async def _ship(self) -> None:
        while True:
            await trio.sleep(_SHIP_S)
            await self._ship_all()

    async def _ship_all(self) -> None:
        async with self._shipping:
            for ship in self._ships:
                for text in ship.news():
                    await self._send({ship.name: text})

    async def _send(self, message: dict[str, Any]) -> None:
        async with self._sending:
            await self._link.send(message)

    def _write(self, name: str, text: str) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")

    async def _end(self) -> None:
        """Ends the process, sends the rest of its output if the driver is there, and removes its files."""
        process = self._process
        if process.alive:
            process.phase = Phase.ENDED
            process.signal(signal.SIGTERM)
            process.signal(signal.SIGCONT)
            with trio.move_on_after(_GRACE_S):
                await process.wait()
            process.end_now()
        with trio.move_on_after(_GRACE_S):
            with suppress(LinkClosed):
                await self._ship_all()
        shutil.rmtree(self._folder, ignore_errors=True)


class _Ship:
    """Reads additions to a file, in pieces that fit on a line."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self._path = path
        self._at = 0

    def news(self) -> Iterator[str]:
        """Yields bytes as characters of Latin 1: a piece may end within a character."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._at:  # another file took its place
                    self._at = 0
                file.seek(self._at)
                while data := file.read(_PIECE_BYTES):
                    self._at += len(data)
                    yield data.decode("latin-1")
        except OSError:
            return


def _scratch() -> str | None:
    """Returns a folder that Spark removes with the executor; None: that of the system."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkFiles

    try:
        folder = SparkFiles.getRootDirectory()
    except Exception:  # not in a task
        return None
    return folder if os.access(folder, os.W_OK) else None
