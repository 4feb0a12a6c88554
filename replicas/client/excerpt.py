"""A range of ids of the stable stream of one channel: the same tuples for every reader at any time."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import trio

from replicas.client.client import FEW_CHANGES, Client, running
from spe.errors import NotReachable
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.stream.batch import Batch, Element
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from spe.stream.times import BEFORE_TIME


@dataclass(frozen=True)
class Excerpt:
    """The stable tuples with ids after ``from_id`` up to ``upto_id``.

    Attributes:
      origin: source logs that the tuples come from (rule S6).
    """

    stream: str
    partition: int
    from_id: int
    upto_id: int
    origin: str


@asynccontextmanager
async def excerpt(
    env: Env, plan: Plan, directory: Directory, client: str, what: Excerpt, *, patience_s: float, token: str = ""
) -> AsyncGenerator[AsyncGenerator[Batch, None], None]:
    """Yields the batches of an excerpt.

    It is read as any client reads, from the best replica, and from another one if that fails.  Nothing is acknowledged.

    Args:
      patience_s: longest time without a stable tuple.

    Raises:
      SpeError: the nodes have deleted it.
      NotReachable: no tuple came for so long; says how the replicas stand.
    """
    channel = Channel(StreamId(what.stream), what.partition)
    reader = Client(
        env, plan, directory, client, token=token, channels=[channel], acknowledges=False, waiting=FEW_CHANGES
    )
    reader.goes_on(channel, what.from_id, BEFORE_TIME, what.origin)
    async with running(reader), aclosing(_batches(reader, what, patience_s)) as batches:
        yield batches


async def _batches(client: Client, what: Excerpt, patience_s: float) -> AsyncGenerator[Batch, None]:
    position = what.from_id
    async with aclosing(client.changes()) as changes:
        while position < what.upto_id:
            element: Element | None = None
            with trio.move_on_after(patience_s):
                while not (isinstance(element, Batch) and element.kind is Kind.STABLE):
                    if (change := await anext(changes, None)) is None:  # the stream has ended
                        break
                    element = change.element
            if not isinstance(element, Batch) or element.kind is not Kind.STABLE:
                status = client.inputs[0].status()
                others = "".join(f"; {peer}: {why}" for peer, why in status.other_logs.items())
                raise NotReachable(
                    f"{client.name}: {status.channel} gave nothing after id {position} for {patience_s:g} s, and ids"
                    f" up to {what.upto_id} were promised; it is read from {status.main or 'nobody'}{others}"
                )
            position = element.upto_id
            if element.upto_id > what.upto_id:
                element = _until(element, what.upto_id)
            if len(element):
                yield element


def _until(batch: Batch, upto_id: int) -> Batch:
    """Returns the part of a batch up to an id."""
    count = int((batch.row_ids() <= upto_id).sum())
    ids = None if batch.ids is None else batch.ids[:count]
    return Batch(batch.kind, batch.from_id, upto_id, ids, batch.rows.slice(0, count))
