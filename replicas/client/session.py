"""Results of a running cluster for a Python program, in one statement.

    async with connect("shop.yaml", client="board") as changes:  # under trio and under asyncio
        async for change in changes:  # ends when all streams have ended
            match change:
                case StableRows():
                    print(" ", change.records())
                case TentativeRows():
                    print("?", change.records())
                case UndoneRows():
                    print("< the tentative ones are withdrawn")

Anywhere else, as in a cell of a notebook::

    with connect("shop.yaml", start="stored") as changes:
        received = changes.collect(seconds=5)
    received.current("totals").to_pandas()

Outside of trio the cluster is read in a thread of its own (:mod:`replicas.client.threads`).
:func:`replicas.client.client.open_client` is the same for programs that bring plan, directory and environment, and that
want boundaries and rec_done as well.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from replicas.client.changes import Changes
from replicas.client.client import Client, running
from replicas.client.start import READER, STARTS
from replicas.client.threads import AsyncioChanges, ThreadChanges
from replicas.link.connection import TOKEN_VARIABLE, Identity, dial, secured
from spe.errors import ConfigError, LinkBroken, LinkClosed, NotReachable, PeerRefused, RemoteProtocolError
from spe.plan.deploy import Deployed, check_all_addressed, with_default_client
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.problems import check_known, did_you_mean, one_of
from spe.runtime.env import Env
from spe.runtime.production import production_env
from spe.stream.ids import Channel
from spe.stream.names import StreamId

#: Time limit for the first answer of a process.
WAIT_S: Final = 10.0
_AGAIN_S: Final = 0.2


def connect(
    config: str | os.PathLike[str] | Deployed,
    *,
    client: str = "",
    start: str = "",
    streams: Sequence[str] = (),
    token: str | None = None,
    wait_s: float = WAIT_S,
    env: Env | None = None,
) -> Connecting:
    """Connects to a running cluster, as one of its clients, or as a reader, for which no log is kept.

    Args:
      config: a YAML file, a Python script (spe.api), the result of :func:`spe.config.load`, or the directory of a run.
      client: name of a client of the configuration, which no other process may use at that time.  Any other name, or
        none, makes a reader.  With TLS it needs the certificate of ``client:NAME``; NAME is "reader" if none is given.
      start: where to begin: "now" (the next results), "stored" (the oldest that are stored) or "beginning" (id 1, or an
        error).  With "", a client of the configuration continues where it stopped.
      streams: streams for a reader; empty: every output.
      token: shared secret of the cluster; None: that of the run, or of the environment variable SPE_TOKEN.
      wait_s: time limit for the first answer of a process.  From then on all failures are masked.
      env: environment to run in; None: this machine.

    Returns:
      A context manager for ``async with``, under trio or asyncio, or for ``with``, outside of trio.  Entering raises

      * ConfigError: the configuration has mistakes, no such client or stream, or no addresses.
      * PeerRefused: all processes refuse: another plan, cluster, version or token.
      * NotReachable: no process answers, or has room; says which addresses were tried, and what happened there.
    """

    @asynccontextmanager
    async def connected() -> AsyncGenerator[Changes, None]:
        target = _target(config, f"client:{client or READER}", env)
        plan = target.plan
        reader = _client(target, client, start, streams, target.token if token is None else token)
        peers = reader.lookout.peers()
        check_all_addressed("the configuration" if isinstance(config, Deployed) else str(config), peers)
        await _someone_answers(target.env, plan, reader.me, peers, wait_s)
        async with running(reader):
            yield Changes(plan, reader)

    return Connecting(connected)


class Connecting:
    """The result of :func:`connect`: a context manager."""

    def __init__(self, connected: Callable[[], AbstractAsyncContextManager[Changes]]) -> None:
        self._connected = connected
        self._entered: AbstractAsyncContextManager[Changes] | None = None
        self._thread: ThreadChanges | None = None
        self._left = False

    def open(self) -> ThreadChanges:
        """Connects without a block, for the cells of a notebook: call ``close()`` at the end."""
        self._thread = ThreadChanges(self._connected)
        if self._left:  # it was cancelled before
            self._thread.close()
        return self._thread

    __enter__ = open

    def __exit__(self, *error: object) -> None:
        if self._thread is not None:
            self._thread.close()

    async def __aenter__(self) -> Changes | AsyncioChanges:
        if trio.lowlevel.in_trio_run():
            self._entered = self._connected()
            return await self._entered.__aenter__()
        try:
            return AsyncioChanges(await asyncio.to_thread(self.open))
        except asyncio.CancelledError:
            self._left = True
            if self._thread is not None:  # open() was called before
                asyncio.get_running_loop().run_in_executor(None, self.__exit__)
            raise

    async def __aexit__(self, *error: Any) -> bool | None:
        if self._entered is not None:
            return await self._entered.__aexit__(*error)
        return await asyncio.to_thread(self.__exit__)


class _Target(NamedTuple):
    plan: Plan
    directory: Directory
    token: str
    env: Env


def _target(config: str | os.PathLike[str] | Deployed, process: str, env: Env | None) -> _Target:
    """Returns plan, directory, token and environment.  Raises ConfigError, SpeError."""
    if isinstance(config, Deployed):
        (plan, directory), token = config, os.environ.get(TOKEN_VARIABLE, "")
        env = secured(env or production_env(Path()), plan, process)
    else:
        from replicas.local.run_dir import load_target  # it knows what a run has written down

        target = load_target(Path(config), process)
        plan, directory, token = target.plan, target.directory, target.token
        env = target.env(process) if env is None else secured(env, plan, process)
    return _Target(plan, with_default_client(plan, directory), token, env)


def _client(target: _Target, name: str, start: str, streams: Sequence[str], token: str) -> Client:
    """Makes a client or a reader.  Raises ConfigError: there is no such client, start or stream."""
    plan, directory, _, env = target
    if start:
        check_known("start", start, STARTS)
    if name in directory.clients:
        if streams:
            raise ConfigError([f"client {name} reads what its configuration says; only a reader names streams"])
        return Client(env, plan, directory, name, token=token, start=STARTS.get(start, "left"))
    if not start:
        known = f"no client {name!r}{did_you_mean(name, directory.clients)}; expected {one_of(list(directory.clients))}"
        raise ConfigError([f"{known}; or say where a reader of any name starts: {', '.join(STARTS)}"])
    for stream in streams:
        check_known("stream", stream, [*plan.producer, *plan.sources])
    reads = tuple(map(StreamId, streams)) or plan.query.outputs
    channels = [Channel(s, p) for s in reads for p in range(plan.partitions_of(s))]
    reader, begin = name or READER, STARTS[start]
    return Client(env, plan, directory, reader, token=token, channels=channels, guest=True, start=begin)


async def _someone_answers(env: Env, plan: Plan, me: Identity, peers: Mapping[str, str], wait_s: float) -> None:
    """Returns when a peer has answered.  Raises PeerRefused when all refuse, NotReachable after ``wait_s``."""
    answers = {peer: "no answer" for peer in peers}
    refused: set[str] = set()

    async def knock(peer: str) -> None:
        while True:
            try:
                connection, _ = await dial(env, plan, me, peer, peers[peer])
            except PeerRefused as error:
                answers[peer] = str(error)
                refused.add(peer)
                return  # it will refuse again
            except (LinkBroken, LinkClosed, RemoteProtocolError) as error:
                answers[peer] = str(error)
                await env.clock.sleep(_AGAIN_S)
                continue
            with trio.CancelScope(shield=True):
                await connection.aclose()
            answered.set()
            nursery.cancel_scope.cancel()
            return

    answered = trio.Event()
    with trio.move_on_after(wait_s):
        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(knock, peer)
    if answered.is_set():
        return
    tried = "".join(f"\n  {peer} at {address}: {answers[peer]}" for peer, address in peers.items())
    if len(refused) == len(peers):
        raise PeerRefused(f"cluster {plan.cluster!r} refuses {me.name}:{tried}")
    raise NotReachable(f"cluster {plan.cluster!r} does not answer {me.name} within {wait_s:g} s; is it running?{tried}")
