"""A whole cluster in one process and in virtual time: the real node, source and client code on a simulated network.

    async with SimCluster(plan, seed=1) as cluster:
        await cluster.start()
        cluster.cut("source:a", "*"); await trio.sleep(5); cluster.heal()
        cluster.kill("n1"); cluster.restart("n1")

Run it under ``trio.testing.MockClock(autojump_threshold=0)``: an hour costs what happens in it.  With
:func:`seeded_scheduling` a run is its seed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from pathlib import PurePosixPath
from random import Random
from types import TracebackType
from typing import Any

import trio
import trio.lowlevel

from consistency.checking.history import FaultBegan, FaultEnded, History, Note, ProcessDown, ProcessUp
from replicas.client import Client
from replicas.client_view import Change
from replicas.comparison import ChannelRows
from replicas.node import NodeProcess
from replicas.reference import reference_rows
from replicas.signal import Signal
from replicas.source_process import run_source_process
from spe.env import Env
from spe.errors import LinkBroken
from spe.plan import Channel, Plan
from spe.source_log import read_source_log
from spe.states import NodeId, StreamId
from tests.support.memory_storage import MemoryStorage

WINDOW_BYTES = 1 << 20
CONNECT_SECONDS = 0.3

#: Which host a task belongs to.
HOST: ContextVar[str] = ContextVar("host", default="")


@contextmanager
def seeded_scheduling(seed: int) -> Iterator[None]:
    """trio's task order as a function of ``seed`` (its own, private, switch for Hypothesis)."""
    run = trio._core._run
    before = run._ALLOW_DETERMINISTIC_SCHEDULING
    run._ALLOW_DETERMINISTIC_SCHEDULING = True
    run._r.seed(seed)
    try:
        yield
    finally:
        run._ALLOW_DETERMINISTIC_SCHEDULING = before


class _Freezer(trio.abc.Instrument):
    """SIGSTOP: what becomes runnable on a frozen host waits, with the time going on, until it is thawed."""

    def __init__(self) -> None:
        self.frozen: dict[str, list[trio.lowlevel.Task]] = {}

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        waiting = self.frozen.get(task.context.get(HOST, ""))
        if waiting is not None:
            queue = trio._core._run.GLOBAL_RUN_CONTEXT.runner.runq
            assert queue.pop() is task
            waiting.append(task)

    def thaw(self, host: str) -> None:
        trio._core._run.GLOBAL_RUN_CONTEXT.runner.runq.extend(self.frozen.pop(host, ()))


class _Pipe:
    """Bytes in one direction of one connection."""

    def __init__(self, network: SimNetwork, source: str, target: str) -> None:
        self._network = network
        self.source, self.target = source, target
        #: (when it arrives, bytes), oldest first.
        self.chunks: deque[tuple[float, bytes]] = deque()
        self.size = 0
        self.ended = False
        self.broken = False
        #: Half open: nothing arrives any more, not even the end.
        self.lost = False
        self.changed = Signal()


class SimStream(trio.abc.Stream):
    """One end of a connection: reads one pipe, writes the other."""

    def __init__(self, network: SimNetwork, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._network = network
        self._in, self._out = incoming, outgoing
        self._closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        out = self._out
        while out.size >= WINDOW_BYTES and not (out.broken or self._closed):
            token = out.changed.token()
            await token.wait()
        if self._closed:
            raise trio.ClosedResourceError
        if out.broken or out.ended:
            raise trio.BrokenResourceError("reset by peer")
        delay = self._network.delay(out.source, out.target)
        last = out.chunks[-1][0] if out.chunks else 0.0
        out.chunks.append((max(last, trio.current_time() + delay), bytes(data)))
        out.size += len(data)
        out.changed.wake()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        pipe = self._in
        while True:
            if self._closed:
                raise trio.ClosedResourceError
            token = pipe.changed.token()
            if not (pipe.lost or self._network.is_cut(pipe.source, pipe.target)):
                if pipe.broken:
                    raise trio.BrokenResourceError("reset by peer")
                if pipe.chunks and pipe.chunks[0][0] > trio.current_time():
                    with trio.move_on_at(pipe.chunks[0][0]):
                        await token.wait()
                    continue
                if pipe.chunks:
                    due, chunk = pipe.chunks.popleft()
                    if max_bytes is not None and len(chunk) > max_bytes:
                        pipe.chunks.appendleft((due, chunk[max_bytes:]))
                        chunk = chunk[:max_bytes]
                    pipe.size -= len(chunk)
                    pipe.changed.wake()
                    return chunk
                if pipe.ended:
                    return b""
            await token.wait()

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._out.ended = True
            self._in.broken = True
            self._out.changed.wake()
            self._in.changed.wake()
        await trio.lowlevel.checkpoint()


class SimNetwork:
    """All connections of the cluster, and what is cut."""

    def __init__(self) -> None:
        self.listeners: dict[str, tuple[str, Callable[[SimStream], None]]] = {}
        self.pipes: list[_Pipe] = []
        self._cuts: set[tuple[str, str]] = set()
        #: Seconds that everything between two hosts takes, by (source, target).
        self.delays: dict[tuple[str, str], float] = {}

    def delay(self, source: str, target: str) -> float:
        return self.delays.get((source, target), 0.0)

    def lose(self, a: str, b: str) -> None:
        """Every connection that two hosts have now is half open from here on; new ones are not."""
        for pipe in self.pipes:
            if {pipe.source, pipe.target} == {a, b}:
                pipe.lost = True

    def lose_one(self, random: Random) -> None:
        """One direction of one connection becomes half open."""
        alive = [p for p in self.pipes if not (p.ended or p.broken or p.lost)]
        if alive:
            random.choice(alive).lost = True

    def is_cut(self, source: str, target: str) -> bool:
        return any(pair in self._cuts for pair in ((source, target), (source, "*"), ("*", target)))

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """``*`` stands for everybody."""
        self._cuts.add((a, b))
        if not one_way:
            self._cuts.add((b, a))

    def heal(self) -> None:
        self._cuts.clear()
        for pipe in self.pipes:
            pipe.changed.wake()

    def reset(self, host: str) -> None:
        """The host's kernel says goodbye for a killed process."""
        for pipe in self.pipes:
            if host in (pipe.source, pipe.target):
                pipe.broken = True
                pipe.changed.wake()
        self.pipes = [p for p in self.pipes if not p.broken]
        self.listeners = {a: v for a, v in self.listeners.items() if v[0] != host}


class HostNetwork:
    """One host's view: an env.Network."""

    def __init__(self, network: SimNetwork, host: str) -> None:
        self._network = network
        self._host = host

    async def connect(self, address: str) -> trio.abc.Stream:
        network = self._network
        owner = network.listeners.get(address)
        if owner is None:
            await trio.lowlevel.checkpoint()
            raise LinkBroken(f"{address} refused")
        target, accept = owner
        if network.is_cut(self._host, target) or network.is_cut(target, self._host):
            await trio.sleep(CONNECT_SECONDS)
            raise LinkBroken(f"{address} timed out")
        await trio.lowlevel.checkpoint()
        there, back = _Pipe(network, self._host, target), _Pipe(network, target, self._host)
        network.pipes += [there, back]
        accept(SimStream(network, there, back))
        return SimStream(network, back, there)

    async def serve(
        self,
        address: str,
        handler: Callable[[trio.abc.Stream], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[str],
    ) -> None:
        async with trio.open_nursery() as nursery:
            context = copy_context()  # whoever connects, the handler is a task of this host
            self._network.listeners[address] = (
                self._host,
                lambda s: context.copy().run(nursery.start_soon, handler, s),
            )
            task_status.started(address)
            await trio.sleep_forever()


class SimClock:
    """trio's clock for both."""

    def monotonic_us(self) -> int:
        return round(trio.current_time() * 1e6)

    def wall_us(self) -> int:
        return round(trio.current_time() * 1e6) + 1_700_000_000_000_000


class SimCompute:
    async def run(self, function: Callable[[], Any]) -> Any:
        await trio.lowlevel.checkpoint()
        return function()


class ListTrace:
    """Keeps what happened, for assertions and for people reading a failure."""

    def __init__(self, log: list[str], history: History, host: str) -> None:
        self._log = log
        self._history = history
        self._host = host

    def event(self, name: str, /, **fields: Any) -> None:
        text = " ".join(f"{k}={v}" for k, v in fields.items())
        self._log.append(f"{trio.current_time():9.3f} {self._host:12} {name} {text}")
        self._history(Note(round(trio.current_time() * 1e6), self._host, name, text))


class SimCluster:
    """Sources, nodes and clients of a plan; see the module."""

    def __init__(self, plan: Plan, *, seed: int = 0) -> None:
        self.plan = plan
        self.network = SimNetwork()
        self.log: list[str] = []
        self.history = History()
        self._lasting: list[FaultBegan] = []
        self.changes: dict[str, list[Change]] = {name: [] for name in plan.clients}
        self.clients: dict[str, Client] = {}
        #: The node processes that run now.
        self.nodes: dict[str, NodeProcess] = {}
        self._freezer = _Freezer()
        self._seed = seed
        self._storages: dict[str, MemoryStorage] = {}
        self._scopes: dict[str, trio.CancelScope] = {}
        self._starts: dict[str, Callable[[], Awaitable[None]]] = {}
        self._nursery_manager: Any = None
        self._nursery: trio.Nursery | None = None

    async def __aenter__(self) -> SimCluster:
        self._nursery_manager = trio.open_nursery()
        self._nursery = await self._nursery_manager.__aenter__()
        trio.lowlevel.add_instrument(self._freezer)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> Any:
        assert self._nursery is not None
        for host in list(self._freezer.frozen):
            self._freezer.thaw(host)
        trio.lowlevel.remove_instrument(self._freezer)
        self._nursery.cancel_scope.cancel()
        return await self._nursery_manager.__aexit__(kind, error, tb)

    def env(self, host: str) -> Env:
        storage = self._storages.setdefault(host, MemoryStorage())
        return Env(
            SimClock(),
            HostNetwork(self.network, host),
            storage,
            SimCompute(),
            Random(f"{self._seed}/{host}"),
            ListTrace(self.log, self.history, host),
            self.history,
        )

    async def start(self) -> None:
        """Starts every process of the plan."""
        for stream in self.plan.sources:
            self.launch(f"source:{stream}", lambda s=stream: self._source(s))
        for node in self.plan.nodes:
            self.launch(node, lambda n=node: self._node(n))
        for name in self.plan.clients:
            self.launch(f"client:{name}", lambda n=name: self._client(n))
        await trio.lowlevel.checkpoint()

    def launch(self, host: str, main: Callable[[], Awaitable[None]]) -> None:
        assert self._nursery is not None
        self._starts[host] = main
        self.history(ProcessUp(now := round(trio.current_time() * 1e6), host, now))
        self._nursery.start_soon(self._process, host)

    def kill(self, host: str) -> None:
        """kill -9: tasks stop, connections are reset, unsynced bytes of its disk stay in the page cache."""
        self._note(f"kill {host}")
        self._scopes[host].cancel()
        self.history(ProcessDown(round(trio.current_time() * 1e6), host))
        self.network.reset(host)
        self.nodes.pop(host, None)
        self._freezer.thaw(host)
        self._ended("freeze", host)

    def restart(self, host: str) -> None:
        assert self._nursery is not None
        self._note(f"restart {host}")
        self._storages[host] = self._storages[host].restarted()
        self.history(ProcessUp(now := round(trio.current_time() * 1e6), host, now))
        self._nursery.start_soon(self._process, host)

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        self._note(f"cut {a} {'->' if one_way else '--'} {b}")
        hosts = [
            *self.plan.nodes,
            *(f"source:{s}" for s in self.plan.sources),
            *(f"client:{c}" for c in self.plan.clients),
        ]
        ends = [[h for h in hosts if name in (h, "*")] for name in (a, b)]
        links = [(x, y) for x in ends[0] for y in ends[1]]
        self._began("cut", (), links if one_way else links + [(y, x) for x, y in links])
        self.network.cut(a, b, one_way=one_way)

    def heal(self) -> None:
        self._note("heal")
        self._ended("cut")
        self.network.heal()

    def freeze(self, host: str) -> None:
        """SIGSTOP: its tasks stand still, its sockets fill, the time goes on."""
        self._note(f"freeze {host}")
        self._freezer.frozen.setdefault(host, [])
        self._began("freeze", (host,))

    def thaw(self, host: str) -> None:
        self._note(f"thaw {host}")
        self._ended("freeze", host)
        self._freezer.thaw(host)

    def lose(self, a: str, b: str) -> None:
        """The connections that two hosts have become half open: nobody hears of it."""
        self._note(f"half open {a} -- {b}")
        self._began("half-open", (a, b))
        self._ended("half-open")
        self.network.lose(a, b)

    def _began(self, kind: str, hosts: Sequence[str], links: Sequence[tuple[str, str]] = ()) -> None:
        now = round(trio.current_time() * 1e6)
        fault = FaultBegan(now, len(self.history), kind, tuple(hosts), tuple(links))
        self._lasting.append(fault)
        self.history(fault)

    def _ended(self, kind: str, host: str = "") -> None:
        over = [f for f in self._lasting if f.kind == kind and (not host or host in f.hosts)]
        for fault in over:
            self._lasting.remove(fault)
            self.history(FaultEnded(round(trio.current_time() * 1e6), fault.number))

    def _note(self, text: str) -> None:
        self.log.append(f"{trio.current_time():9.3f} ------------ {text}")

    def reference(self) -> dict[Channel, ChannelRows]:
        """What a run without failures gives, by the sources' logs."""
        inputs = {
            s: read_source_log(self.env(f"source:{s}").storage, PurePosixPath(s), self.plan.query.sources[s])
            for s in self.plan.sources
        }
        return reference_rows(self.plan, inputs)

    @contextmanager
    def explain(self) -> Iterator[None]:
        """Prints the story of the run when the block fails."""
        try:
            yield
        except BaseException:
            print("\n".join(self.log[-400:]))
            raise

    async def _process(self, host: str) -> None:
        HOST.set(host)
        with trio.CancelScope() as scope:
            self._scopes[host] = scope
            await self._starts[host]()

    async def _node(self, name: NodeId) -> None:
        self.nodes[name] = process = NodeProcess(self.env(name), self.plan, name)
        await process.run()

    async def _source(self, stream: str) -> None:
        await run_source_process(
            self.env(f"source:{stream}"), self.plan, StreamId(stream), folder=PurePosixPath(stream)
        )

    async def _client(self, name: str) -> None:
        client = Client(self.env(f"client:{name}"), self.plan, name)
        self.clients[name] = client
        async with trio.open_nursery() as nursery:
            await nursery.start(client.run)
            async for change in client.changes():
                self.changes[name].append(change)
            # All streams have ended; what it holds goes on being acknowledged.


__all__ = ["NodeId", "SimCluster", "SimNetwork"]
