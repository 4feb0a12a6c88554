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

#: How long to wait for the first process that answers.
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
    """Results of a running cluster, for one of its clients, or for a reader, which no log is kept for.

    Args:
      config: a YAML file, a Python script (spe.api), what :func:`spe.config.load` makes of one, or the directory of a
        run.
      client: which client of the configuration to be; nobody else may be it meanwhile.  Another name, or none, is that
        of a reader.  With TLS it needs the certificate of ``client:NAME``; NAME is "reader" where none is given.
      start: where to begin: "now" (the next results), "stored" (the oldest that are stored) or "beginning" (id 1, or an
        error).  A client of the configuration goes on where it left if this is "".
      streams: that a reader reads; none: every output.
      token: shared secret of the cluster; None: that of the run, or of the environment variable SPE_TOKEN.
      wait_s: how long to wait until a process of the cluster answers.  From then on all failures are borne.
      env: what to run on; None: this machine.

    Returns:
      For ``async with``, under trio or asyncio, or for ``with``, outside of trio.  Entering raises

      * ConfigError: the configuration has mistakes, no such client or stream, or no addresses.
      * PeerRefused: all refuse us: another plan, cluster, version or token.
      * NotReachable: nobody answers, or has room; says which addresses were tried, and what happened there.
    """

    @asynccontextmanager
    async def connected() -> AsyncGenerator[Changes, None]:
        target = _target(config, f"client:{client or READER}", env)
        plan = target.plan
        one = _client(target, client, start, streams, target.token if token is None else token)
        peers = one.peers()
        check_all_addressed("the configuration" if isinstance(config, Deployed) else str(config), peers)
        await _someone_answers(target.env, plan, one.me, peers, wait_s)
        async with running(one):
            yield Changes(plan, one)

    return Connecting(connected)


class Connecting:
    """What :func:`connect` returns."""

    def __init__(self, connected: Callable[[], AbstractAsyncContextManager[Changes]]) -> None:
        self._connected = connected
        self._entered: AbstractAsyncContextManager[Changes] | None = None
        self._thread: ThreadChanges | None = None
        self._left = False

    def open(self) -> ThreadChanges:
        """Without a block, for the cells of a notebook: call ``close()`` at the end."""
        self._thread = ThreadChanges(self._connected)
        if self._left:  # cancelled meanwhile
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
            if self._thread is not None:  # it was there already
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
    """Where to connect to, and on what.  Raises ConfigError, SpeError."""
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
    """Raises ConfigError where there is no such client, start or stream."""
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
    one, begin = name or READER, STARTS[start]
    return Client(env, plan, directory, one, token=token, channels=channels, guest=True, start=begin)


async def _someone_answers(env: Env, plan: Plan, me: Identity, peers: Mapping[str, str], wait_s: float) -> None:
    """Returns when a peer has greeted us.  Raises PeerRefused when all refuse, NotReachable after ``wait_s``."""
    said = {peer: "no answer" for peer in peers}
    refused: set[str] = set()

    async def knock(peer: str) -> None:
        while True:
            try:
                connection, _ = await dial(env, plan, me, peer, peers[peer])
            except PeerRefused as error:
                said[peer] = str(error)
                refused.add(peer)
                return  # it will not change its mind
            except (LinkBroken, LinkClosed, RemoteProtocolError) as error:
                said[peer] = str(error)
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
    tried = "".join(f"\n  {peer} at {address}: {said[peer]}" for peer, address in peers.items())
    if len(refused) == len(peers):
        raise PeerRefused(f"cluster {plan.cluster!r} refuses {me.name}:{tried}")
    raise NotReachable(f"cluster {plan.cluster!r} does not answer {me.name} within {wait_s:g} s; is it running?{tried}")
