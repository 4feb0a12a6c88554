"""The directory at the driver: talks to tasks, publishes addresses of nodes, performs actions of ``placement``."""

from __future__ import annotations

import secrets
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from replicas.local.process import Managed, ProcessSpec
from replicas.local.supervised_process import LineLink
from replicas.on_spark.addresses import write_places
from replicas.on_spark.link import ALIVE_S, DRIVER_PATIENCE_S, GREET_S, check_proof, proof, receive_within
from replicas.on_spark.placement import (
    Action,
    Cancel,
    Event,
    Fail,
    GiveBack,
    JobEnded,
    Landed,
    Lost,
    NodeUnwanted,
    NodeWanted,
    PlaceLost,
    Registered,
    Say,
    SparkPlacement,
    Submit,
    Tick,
)
from replicas.on_spark.remote import RemoteProcess
from replicas.on_spark.spots import Executor, Spot
from replicas.on_spark.task import NodeTask
from spe.errors import LinkClosed, RemoteProtocolError, SpeError

_TICK_S: Final = 0.25
#: Time between two counts of the executors.
_COUNT_S: Final = 1.0
#: Maximum number of messages waiting for one task; a task that takes none in time is given up.
_WAITING_MAX: Final = 1_000
#: Maximum number of connections that have not identified themselves.
_STRANGERS_MAX: Final = 64
#: Time at the end for tasks to end.
_END_S: Final = 8.0


class Jobs(Protocol):
    """Runs tasks on Spark."""

    async def run(self, task: NodeTask) -> str | None:
        """Runs one job with this task; returns at its end the reason why it failed, None where its task returned.

        Raises:
          SpeError: Spark has ended.
        """
        ...

    async def cancel(self, node: str, attempt: int) -> None:
        """Ends the job of an attempt, and its task."""
        ...

    async def executors(self) -> Sequence[Executor]:
        """Returns the executors.  Raises SpeError: Spark has ended."""
        ...


class _Session:
    """The connection to an accepted task.

    Attributes:
      ended: set when it is gone.
    """

    def __init__(self) -> None:
        self._outbox, self.messages = trio.open_memory_channel[dict[str, Any]](_WAITING_MAX)
        self.scope = trio.CancelScope()
        self.ended = trio.Event()

    def send(self, message: dict[str, Any]) -> None:
        try:
            self._outbox.send_nowait(message)
        except trio.WouldBlock:
            self.scope.cancel()


class NodeDirectory:
    """Runs nodes on Spark.  Use :func:`open_directory`.

    Args:
      host: name under which executors reach this process.
      task: makes the task of an attempt: node, number, our address.
      folder: of the run; ``places.json`` there has the addresses of nodes.
      files: of a node: the files in its folder when it starts.
      trace: file for a node's trace.
      say: prints a line.
    """

    def __init__(
        self,
        placement: SparkPlacement,
        jobs: Jobs,
        secret: str,
        folder: Path,
        *,
        host: str,
        task: Callable[[str, int, str], NodeTask],
        files: Callable[[str], Mapping[str, str]] = lambda node: {},
        trace: Callable[[str], Path] | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._placement = placement
        self._jobs = jobs
        self._secret = secret
        self._folder = folder
        self._host = host
        self._task = task
        self._files = files
        self._trace = trace
        self._say = say
        self._sessions: dict[str, _Session] = {}
        self._processes: dict[str, RemoteProcess] = {}
        self._places: dict[str, str] = {}
        #: For the latest attempt of each node: set when its job is over.
        self._jobs_over: dict[str, trio.Event] = {}
        self._strangers = 0
        self._address = ""
        self._nursery: trio.Nursery | None = None
        self._scope = trio.CancelScope(shield=True)
        self._over = False
        write_places(folder, {})

    # --- for processes ---

    def process(self, spec: ProcessSpec) -> Managed:
        """Returns a process: nodes run on Spark, others here."""
        if spec.name not in self._placement.nodes:
            return Managed(spec)
        process = self._processes[spec.name] = RemoteProcess(spec, self)
        return process

    def start(self, node: str) -> None:
        """Starts the process of a node; if it has no place yet, it gets one first."""
        if node in self._sessions:
            self._start(node)
        else:
            self._handle(NodeWanted(node))

    def send(self, node: str, message: dict[str, Any]) -> bool:
        """Sends a message; returns False if the node has no place."""
        session = self._sessions.get(node)
        if session is not None:
            session.send(message)
        return session is not None

    def signal(self, node: str, number: signal.Signals) -> bool:
        """Sends a signal; returns False if the node has no place; it is withdrawn if the signal would have ended it."""
        if self.send(node, {"signal": int(number)}):
            return True
        if number in (signal.SIGTERM, signal.SIGKILL):
            self._handle(NodeUnwanted(node))
        return False

    # --- what happens ---

    def _handle(self, event: Event) -> None:
        self._do(self._placement.handle(event, round(trio.current_time() * 1e6)))

    def _do(self, actions: Sequence[Action]) -> None:
        if self._over or self._nursery is None:
            return
        for action in actions:
            match action:
                case Submit(node, attempt):
                    self._nursery.start_soon(self._run_job, self._task(node, attempt, self._address))
                case Cancel(node, attempt):
                    self._nursery.start_soon(self._jobs.cancel, node, attempt)
                case PlaceLost(node, spot):
                    self._say(f"{node} was lost with {spot}; it is started again elsewhere")
                    self._forget(node)
                    self._processes[node].lost()
                case Say(text):
                    self._say(text)
                case Fail(text):
                    raise SpeError(text)
                case _:
                    raise AssertionError(action)

    async def _run_job(self, task: NodeTask) -> None:
        over = self._jobs_over[task.node] = trio.Event()
        why = await self._jobs.run(task)
        over.set()
        self._handle(JobEnded(task.node, task.attempt, why))

    async def _tick(self) -> None:
        while True:
            self._handle(Tick())
            await trio.sleep(_TICK_S)

    async def _count(self) -> None:
        while True:
            self._handle(Registered(tuple(await self._jobs.executors())))
            await trio.sleep(_COUNT_S)

    # --- one connection ---

    async def _attend(self, stream: trio.SocketStream) -> None:
        """Serves a new connection; its errors end only this connection."""
        link = LineLink(stream)
        try:
            if self._strangers < _STRANGERS_MAX:
                await self._greet(link)
        except* (LinkClosed, RemoteProtocolError):
            pass
        finally:
            with trio.CancelScope(shield=True):
                await link.aclose()

    async def _greet(self, link: LineLink) -> None:
        ours = secrets.token_hex(16)
        self._strangers += 1
        try:
            await link.send({"nonce": ours})
            message = await receive_within(link, GREET_S)
        finally:
            self._strangers -= 1
        check_proof(self._secret, "task", ours, message.get("proof"))
        landed = message["landed"]
        node, attempt = str(landed["node"]), int(landed["attempt"])
        spot = Spot(str(landed["executor"]), str(landed["host"]))
        first, *rest = self._placement.handle(Landed(node, attempt, spot), round(trio.current_time() * 1e6))
        self._do(rest)
        answer = {"proof": proof(self._secret, "driver", str(message["nonce"]))}
        if isinstance(first, GiveBack):
            await link.send({**answer, "give_back": first.why})
            return
        session = self._sessions[node] = _Session()
        try:
            await link.send(answer)
            self._start(node)
            with session.scope:
                await self._serve(link, node, session)
        finally:
            del self._sessions[node]
            session.ended.set()
            self._handle(Lost(node, attempt))

    def _start(self, node: str) -> None:
        if self._processes[node].alive:
            self._sessions[node].send({"start": {"files": dict(self._files(node)), "places": self._places}})
            if (begin_us := self._processes[node].begin_us) is not None:
                self._sessions[node].send({"begin_us": begin_us})

    async def _serve(self, link: LineLink, node: str, session: _Session) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_all, link, session)
            while True:
                message = await receive_within(link, DRIVER_PATIENCE_S)
                if (started := message.get("started")) is not None:
                    self._placed_at(node, str(started["address"]))
                if (text := message.get("log")) is not None:
                    self._append(self._processes[node].spec.log, text)
                if (text := message.get("trace")) is not None and self._trace is not None:
                    self._append(self._trace(node), text)
                self._processes[node].heard(message)

    async def _send_all(self, link: LineLink, session: _Session) -> None:
        while True:
            message: dict[str, Any] = {"alive": True}
            with trio.move_on_after(ALIVE_S):
                message = await session.messages.receive()
            await link.send(message)

    # --- where nodes are ---

    def _placed_at(self, node: str, address: str) -> None:
        self._places[node] = address
        self._tell_places()

    def _forget(self, node: str) -> None:
        if self._places.pop(node, None) is not None:
            self._tell_places()

    def _tell_places(self) -> None:
        write_places(self._folder, self._places)
        for session in self._sessions.values():
            session.send({"places": self._places})

    def _append(self, path: Path, text: str) -> None:
        with suppress(OSError):  # a log for people must not end the run
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(text.encode("latin-1"))

    # --- from start to end ---

    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        with self._scope:
            listeners = await trio.open_tcp_listeners(0, host=self._host)
            port = listeners[0].socket.getsockname()[1]
            self._address = f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"
            try:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    nursery.start_soon(self._tick)
                    nursery.start_soon(self._count)
                    task_status.started()
                    await trio.serve_listeners(self._attend, listeners[:1])
            finally:
                self._nursery = None  # from now on processes cannot be ended any more

    async def _close(self) -> None:
        """Ends the tasks, and waits for them."""
        self._over = True
        with trio.CancelScope(shield=True), trio.move_on_after(_END_S):
            for session in (sessions := dict(self._sessions)).values():
                session.send({"end": True})
            for node, session in sessions.items():
                await session.ended.wait()
                await self._jobs_over[node].wait()
        self._scope.cancel()


@asynccontextmanager
async def open_directory(directory: NodeDirectory) -> AsyncIterator[NodeDirectory]:
    """Runs the directory during the block, also while that is being cancelled; tasks end with it."""
    async with trio.open_nursery() as nursery:
        await nursery.start(directory._run)
        try:
            yield directory
        finally:
            await directory._close()
