"""Results of a running cluster for a Python program, in one statement.

    async with connect("shop.yaml", client="board") as changes:
        async for change in changes:  # ends when all streams have ended
            match change:
                case StableRows():
                    print(" ", change.records())
                case TentativeRows():
                    print("?", change.records())
                case UndoneRows():
                    print("< the tentative ones are withdrawn")

:func:`replicas.client.client.open_client` is the same for programs that bring plan, directory and environment, and that
want boundaries and rec_done as well.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio

from replicas.client.client import Client, open_client
from replicas.link.connection import TOKEN_VARIABLE, Identity, dial, secured
from spe.config import load
from spe.errors import LinkBroken, LinkClosed, NotReachable, PeerRefused, RemoteProtocolError
from spe.plan.deploy import Deployed, check_all_addressed, with_default_client
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.runtime.production import production_env
from spe.stream.batch import Batch, Rows, Undo
from spe.stream.change import Change
from spe.stream.names import Kind

#: How long to wait for the first process that answers.
WAIT_S: Final = 10.0
_AGAIN_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class ReceivedChange:
    """What happened to one partition of a stream.

    Attributes:
      change: as :meth:`Client.changes` gives it; what a :class:`replicas.client.view.CurrentView` takes.
      names: of the stream's attributes.
    """

    change: Change
    names: tuple[str, ...]

    @property
    def stream(self) -> str:
        return str(self.change.channel.stream)

    @property
    def partition(self) -> int:
        return self.change.channel.partition


class ReceivedRows(ReceivedChange):
    """Tuples, sorted by time except those of a source."""

    __slots__ = ()

    @property
    def batch(self) -> Batch:
        assert isinstance(self.change.element, Batch)
        return self.change.element

    @property
    def rows(self) -> Rows:
        """As columns."""
        return self.batch.rows

    def records(self) -> list[dict[str, Any]]:
        """As dicts: timestamps are int microseconds since the epoch, null is None.  For few rows."""
        return [dict(zip(self.names, row, strict=True)) for row in self.rows.to_tuples()]


class StableRows(ReceivedRows):
    """Final tuples: they are never withdrawn, and none comes twice."""

    __slots__ = ()


class TentativeRows(ReceivedRows):
    """The best results of the input that can be reached; an :class:`UndoneRows` withdraws them later."""

    __slots__ = ()


class UndoneRows(ReceivedChange):
    """All tentative tuples of this partition are withdrawn; what they should have been follows."""

    __slots__ = ()


class Changes:
    """An asynchronous iterator of changes; what was taken from it is acknowledged when the next one is asked for.

    Attributes:
      plan: of the cluster.
      client: the client that receives them; its ``status()`` says whom it reads.
    """

    def __init__(self, plan: Plan, client: Client) -> None:
        self.plan = plan
        self.client = client

    async def __aiter__(self) -> AsyncGenerator[StableRows | TentativeRows | UndoneRows, None]:
        """Until all streams have ended.  Raises SpeError as :meth:`Client.changes` does."""
        async for change in self.client.changes():
            element, names = change.element, self.plan.query.schema_of(change.channel.stream).names
            if isinstance(element, Undo):
                yield UndoneRows(change, names)
            elif isinstance(element, Batch) and len(element):
                yield (StableRows if element.kind is Kind.STABLE else TentativeRows)(change, names)

    def stable(self, stream: str) -> AsyncIterator[Rows]:
        """Instead of all changes: the final tuples of one stream, merged over its partitions in time order."""
        return self.client.stable(stream)


@asynccontextmanager
async def connect(
    config: str | os.PathLike[str] | Deployed,
    *,
    client: str,
    token: str | None = None,
    wait_s: float = WAIT_S,
    env: Env | None = None,
) -> AsyncGenerator[Changes, None]:
    """Takes the place of a client of a running cluster for the length of the block.

    Args:
      config: a YAML file, a Python script (spe.api), or what :func:`spe.config.load` makes of one.
      client: which client of the configuration to be; nobody else may be it meanwhile.
      token: shared secret of the cluster; None: that of the environment variable SPE_TOKEN.
      wait_s: how long to wait until a process of the cluster answers.  From then on all failures are borne.
      env: what to run on; None: this machine.

    Raises:
      ConfigError: the configuration has mistakes, no such client, or no addresses.
      PeerRefused: all refuse us: another plan, cluster, version or token.
      NotReachable: nobody answers; says which addresses were tried, and what happened there.
    """
    plan, directory = config if isinstance(config, Deployed) else load(config)
    directory = with_default_client(plan, directory)
    env = secured(env or production_env(Path()), plan, f"client:{client}")
    token = os.environ.get(TOKEN_VARIABLE, "") if token is None else token
    one = Client(env, plan, directory, client, token=token)
    peers = one.peers()
    check_all_addressed("the configuration" if isinstance(config, Deployed) else str(config), peers)
    await _someone_answers(env, plan, one.me, peers, wait_s)
    async with open_client(env, plan, directory, client, token=token) as running:
        yield Changes(plan, running)


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
