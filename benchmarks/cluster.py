"""Real processes on loopback for the measurements: nodes, sources, and feeders that stand in for sources.

A feeder serves streams over the real protocol, but what it sends was encoded before: so it never is what a
measurement waits for, and its log (a source syncs before it sends) is no part of the figures.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import numpy as np
import trio

from benchmarks.data import STREAMS
from replicas.client.client import Client, open_client
from replicas.link.connection import Connection, Identity
from replicas.link.directory import DirectoryKeeper
from replicas.link.signal import Signal
from replicas.local.ports import free_addresses
from replicas.local.supervised_process import die_with_parent
from replicas.node.process import NodeProcess
from replicas.producer.feed import Accepted
from replicas.producer.server import Server
from replicas.producer.service import Service, Visitor
from replicas.source.process import SourceProcess
from spe.api import Environment, Stream, stdin
from spe.plan.deploy import Deployed, with_addresses
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.runtime.production import production_env, tune_gc, tune_malloc
from spe.status import SourceStatus
from spe.stream.batch import Batch, Boundary, Column, Element, Rows
from spe.stream.change import Change
from spe.stream.names import Kind, NodeId, NodeState, StreamId
from spe.stream.times import BEFORE_TIME, SECOND
from spe.wire.codec import ElementEncoder
from spe.wire.messages.feeds import Heartbeat, HeartbeatAnswer, NotReady, OutputStatus, Subscribe, Subscribed

#: What a feeder sends in one go, as a source that catches up does.
SEND_BYTES = 256 << 10
#: Pieces of bytes to send in order, one send each.
Segment = Sequence[bytes]
#: Makes a segment: (encoder of the stream, number of the stream, number of the segment, arguments) -> Segment.
#: A function of a module.
Maker = Callable[..., Segment]
#: Executes an order of the parent.
Obey = Callable[..., Awaitable[None]]


def at_free_addresses(plan: Plan, directory: Directory) -> Deployed:
    """The same with a free address of this machine for each process."""
    names = directory.addresses()
    return Deployed(plan, with_addresses(directory, dict(zip(names, free_addresses(len(names)), strict=True))))


def one_node(
    bucket: str,
    schema: Mapping[str, str],
    fragments: Callable[[Sequence[Stream], Environment], Sequence[Stream]],
) -> Deployed:
    """A node ``n`` that reads three streams; X is so large that nothing is ever tentative.

    Args:
      fragments: makes its fragments, and returns their outputs, which the client ``bench`` reads.
    """
    env = Environment("bench", bucket=bucket, x="60s")
    sources = [env.source(s, stdin(format="jsonl"), schema, boundary=bucket) for s in STREAMS]
    outputs = fragments(sources, env)
    return at_free_addresses(*env.outputs(*outputs).node("n").client("bench", outputs).deployed())


def only_merged(sources: Sequence[Stream], env: Environment) -> list[Stream]:
    merged = sources[0].union(*sources[1:], name="merged")
    env.fragment("f", [merged], replicas=1)
    return [merged]


def connected() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    for end in (near, far):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far


class Process:
    """A child with a pipe: it executes orders, and ends when we do."""

    def __init__(self, main: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=main, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.expect("ready")

    def ask(self, *words: Any) -> None:
        """Gives the child an order and waits until it is done."""
        self.pipe.send(words)
        self.expect("done")

    def expect(self, what: str) -> None:
        if not self.pipe.poll(120):
            raise RuntimeError(f"a process of the measurement did not get {what}")
        try:
            answer = self.pipe.recv()
        except (EOFError, OSError):
            raise self._failure() from None
        if answer != what:
            raise RuntimeError(f"a process of the measurement failed: {answer}")

    async def do(self, *words: Any) -> None:
        """Like ``ask``, beside other tasks."""
        await trio.to_thread.run_sync(self.ask, *words, abandon_on_cancel=True)

    async def send(self, segment: int) -> None:
        """Has a feeder encode a segment, and send it."""
        await self.do("load", segment)
        await self.do("go")

    async def send_each(self, segments: Iterable[int], every_us: int) -> None:
        """Has a feeder send one segment each ``every_us``."""
        next_at = trio.current_time()
        for segment in segments:
            await self.send(segment)
            next_at += every_us / SECOND
            await trio.sleep_until(next_at)

    async def live(self) -> None:
        """Raises RuntimeError when the child ends; never returns."""
        await trio.to_thread.run_sync(multiprocessing.connection.wait, [self._process.sentinel], abandon_on_cancel=True)
        raise self._failure()

    def _failure(self) -> RuntimeError:
        self._process.join(20)
        return RuntimeError(
            f"a process of the measurement ended with status {self._process.exitcode}; it said why above"
        )

    def close(self) -> None:
        self.pipe.close()
        self._process.join(20)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


async def results(client: Client, sources: Sequence[Process], nodes: Sequence[Process], within_s: float) -> list[Rows]:
    """Starts the sources and waits for all that the client gets.  Raises RuntimeError as soon as one of them ends."""
    rows: list[Rows] = []
    async with trio.open_nursery() as nursery:
        for process in (*sources, *nodes):
            nursery.start_soon(process.live)
        for source in sources:
            nursery.start_soon(source.do, "begin")
        with trio.fail_after(within_s):
            async for change in client.changes():
                if isinstance(change.element, Batch):
                    rows.append(change.element.rows)
        nursery.cancel_scope.cancel()
    return rows


@contextlib.contextmanager
def running(*processes: Process) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.close()


@contextlib.asynccontextmanager
async def reading(
    plan: Plan, directory: Directory, name: str, take: Callable[[Change], object]
) -> AsyncIterator[tuple[Client, trio.Nursery]]:
    """A client that hands each change to ``take``; it ends, with the tasks of the nursery, when the block does."""
    async with (
        open_client(production_env(Path("."), 0), plan, directory, name) as client,
        trio.open_nursery() as nursery,
    ):

        async def read() -> None:
            async for change in client.changes():
                take(change)

        nursery.start_soon(read)
        yield client, nursery
        nursery.cancel_scope.cancel()


# --- nodes and sources ---


def child(pipe: Pipe, start: Callable[[Env, trio.Nursery], Awaitable[Obey | None]]) -> None:
    """The main function of a child.

    Args:
      start: starts the services of the child, and returns the executor of orders; None: it gets none.
    """
    die_with_parent()
    tune_malloc()
    tune_gc()

    async def main() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with trio.open_nursery() as nursery:
                obey = await start(production_env(Path(folder), 0), nursery)
                pipe.send("ready")
                while (words := await _hear(pipe)) is not None:
                    assert obey is not None
                    await obey(*words)
                    pipe.send("done")
                nursery.cancel_scope.cancel()

    trio.run(main)


async def _hear(pipe: Pipe) -> tuple[Any, ...] | None:
    """The next order; None when our parent needs no more."""
    try:
        words: tuple[Any, ...] = await trio.to_thread.run_sync(pipe.recv, abandon_on_cancel=True)
    except (EOFError, OSError):
        return None
    return words


def node_main(pipe: Pipe, plan: Plan, directory: Directory, node: str) -> None:
    """A node as ``spe node`` runs it."""

    async def start(env: Env, nursery: trio.Nursery) -> None:
        await nursery.start(NodeProcess(env, plan, directory, NodeId(node)).run)

    child(pipe, start)


def source_main(pipe: Pipe, plan: Plan, directory: Directory, stream: str) -> None:
    """A source as ``spe source`` runs it, with its log in a temporary folder; it begins on order.

    It ends where its input fails.
    """

    async def start(env: Env, nursery: trio.Nursery) -> Obey:
        async def begin(_: str) -> None:
            source = SourceProcess(env, plan, directory, StreamId(stream))
            await nursery.start(source.run)
            nursery.start_soon(end_on_failure, source)

        async def end_on_failure(source: SourceProcess) -> None:
            while not ((log := source.status().log) and log.fault):  # noqa: ASYNC110 - it has no event
                await trio.sleep(0.2)
            nursery.cancel_scope.cancel()

        return begin

    child(pipe, start)


# --- feeders ---


class _Feed:
    """Segments for the consumers of a stream: in the place of the server's feeds, and of subscriptions.

    Attributes:
      segments: in order.  Sent ones are dropped, unless there are several consumers.
    """

    def __init__(self, several: bool) -> None:
        self.segments: list[Segment] = []
        self.signal = Signal()
        self.several = several

    async def run(self, connection: Connection, opened: Accepted) -> None:
        at = 0
        while True:
            token = self.signal.token()
            while at < len(self.segments):
                for piece in self.segments[at] if self.several else self.segments.pop(at):
                    await connection.send_bytes(piece)
                at += self.several
            await self.signal.wait(token)

    def set_mode(self, mode: str) -> None:
        """A feeder has a single mode."""

    def close(self) -> None:
        """Nothing is held."""


class Feeder(Server):
    """The service of one stream, and its server: the hello, heartbeats and the subscription are the real ones."""

    def __init__(self, env: Env, plan: Plan, directory: Directory, stream: StreamId, *, several: bool = False) -> None:
        keeper = DirectoryKeeper(env, directory, Identity("source", f"source:{stream}", 1))
        service = Service(f"source:{stream}", self._status, {Subscribe: self._opened, Heartbeat: self._beat})
        super().__init__(env, plan, keeper, service)
        self.stream = stream
        self.schema = plan.sources[stream].schema
        self._feeds = self._segments = _Feed(several)

    def send(self, segment: Segment) -> None:
        self._segments.segments.append(segment)
        self._segments.signal.wake()

    def _opened(self, visitor: Visitor, message: Subscribe) -> Accepted | NotReady:
        greeting = Subscribed(NodeState.STABLE, False, 0, BEFORE_TIME, BEFORE_TIME, 1, 0, "")
        return Accepted(greeting, self._segments, self.schema, Signal())

    def _beat(self, visitor: Visitor, message: Heartbeat) -> HeartbeatAnswer:
        # Between two segments we are silent for longer than a source ever is.  Announcing more than has arrived would
        # then look like a half-open connection, so we announce nothing.
        status = OutputStatus(self.stream, 0, NodeState.STABLE, False, 0, BEFORE_TIME, BEFORE_TIME, 1, 0.0)
        return HeartbeatAnswer(message.number, 1, [status])

    def _status(self) -> SourceStatus:
        return SourceStatus(name=f"source:{self.stream}", incarnation=1, log=None)


async def _feeders(env: Env, nursery: trio.Nursery, plan: Plan, directory: Directory, several: bool) -> list[Feeder]:
    """Feeders of all sources of the plan, serving."""
    feeders = [Feeder(env, plan, directory, stream, several=several) for stream in plan.sources]
    for feeder in feeders:
        await nursery.start(env.network.serve, directory.sources[feeder.stream], feeder.handle)
    return feeders


def feeder_main(pipe: Pipe, plan: Plan, directory: Directory, make: Maker, arguments: tuple[Any, ...]) -> None:
    """Serves all sources of the plan.  Obey ("load", i) it encodes segment i of each, told ("go",) it sends them."""

    async def start(env: Env, nursery: trio.Nursery) -> Obey:
        feeders = await _feeders(env, nursery, plan, directory, several=False)
        encoders = [ElementEncoder(feeder.schema) for feeder in feeders]
        loaded: list[Segment] = []

        async def obey(what: str, segment: int = 0) -> None:
            if what == "load":
                # Off the event loop, which must go on answering heartbeats.
                loaded[:] = [
                    await trio.to_thread.run_sync(partial(make, encoder, at, segment, *arguments))
                    for at, encoder in enumerate(encoders)
                ]
                return
            for feeder, pieces in zip(feeders, loaded, strict=True):
                feeder.send(pieces)

        return obey

    child(pipe, start)


def pieces_of(encoder: ElementEncoder, elements: Sequence[Element]) -> Segment:
    """Batches, each with the boundary behind it, in pieces as a source that catches up sends them."""
    pieces: list[bytes] = []
    waiting = bytearray()
    for at in range(0, len(elements), 2):
        waiting += encoder.encode_many(elements[at : at + 2])
        if len(waiting) >= SEND_BYTES or at + 2 >= len(elements):
            pieces.append(bytes(waiting))
            waiting.clear()
    return pieces


def numbered_buckets(buckets: range, each: int, bucket_us: int) -> list[Element]:
    """Buckets of ``each`` tuples with a number n, their time and n / 2; a batch and a boundary each."""
    elements: list[Element] = []
    for bucket in buckets:
        numbers = np.arange(bucket * each, (bucket + 1) * each)
        stamps = SECOND + numbers * bucket_us // each
        upto = int(numbers[-1]) + 1
        rows = Rows(stamps, stamps, (Column(stamps), Column(numbers), Column(numbers / 2)))
        elements += [
            Batch(Kind.STABLE, int(numbers[0]), upto, None, rows),
            Boundary(Kind.STABLE, SECOND + (bucket + 1) * bucket_us, upto),
        ]
    return elements


def live_main(pipe: Pipe, plan: Plan, directory: Directory, tuples: int, every_us: int, staggered: bool) -> None:
    """Serves all sources of the plan as live ones: every ``every_us`` a batch with the tuples of that time.

    Args:
      tuples: per batch and stream; their times are spread evenly over the interval that has just passed.  0: boundaries
        only.
      staggered: the streams send one after the other, a third of the interval apart if there are three; otherwise all
        at once, at the end of a bucket.
    """

    async def start(env: Env, nursery: trio.Nursery) -> Obey:
        feeders = await _feeders(env, nursery, plan, directory, several=True)

        async def go(_: str) -> None:
            start_us = (env.clock.wall_us() // every_us + 10) * every_us
            for at, feeder in enumerate(feeders):
                shift = at * every_us // len(feeders) if staggered else 0
                nursery.start_soon(_live, env, feeder, start_us + shift, tuples, every_us)

        return go

    child(pipe, start)


async def _live(env: Env, feeder: Feeder, start_us: int, tuples: int, every_us: int) -> None:
    encoder = ElementEncoder(feeder.schema)
    last_id, end = 0, start_us
    while True:
        end += every_us
        time = end - every_us + np.arange(tuples, dtype=np.int64) * every_us // max(tuples, 1)
        ids = np.arange(last_id, last_id + tuples)
        await trio.sleep(max(0.0, (end - env.clock.wall_us()) / 1e6))
        out: list[Element] = []
        if tuples:
            rows = Rows(time, time, (Column(ids), Column(ids / 8)))
            out.append(Batch(Kind.STABLE, last_id, last_id + tuples, None, rows))
            last_id += tuples
        out.append(Boundary(Kind.STABLE, end, last_id))
        feeder.send([encoder.encode_many(out)])
