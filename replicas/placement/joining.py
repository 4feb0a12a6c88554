"""A node that no configuration names joins a running cluster (rule D4)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import PurePosixPath
from typing import Final

import trio

from replicas.link.connection import Identity, dial
from replicas.link.directory import revision_file
from replicas.placement.deciders.move import Move, some
from replicas.producer.server import ANSWER_SECONDS, request
from spe.errors import LinkBroken, PeerRefused, RemoteProtocolError, SpeError
from spe.plan.directory import COORDINATOR, Directory
from spe.plan.nodes import Node
from spe.plan.plan import Plan
from spe.plan.revision import Revision, encode_node
from spe.runtime.env import Env
from spe.runtime.log_line import Level, say
from spe.stream.names import NodeId
from spe.wire.messages.commands import JoinCluster, JoinClusterAnswer
from spe.wire.messages.message import expect

#: Pause between two attempts to reach the coordinator.
_AGAIN_S: Final = 1.0


class JoinRefused(SpeError):
    """A node cannot join; the message has the reason and the remedy."""


class JoinFailed(SpeError):
    """A node may join, but the disk of the coordinator fails; the message has the reason."""


def joined(directory: Directory, node: Node, configured: Collection[NodeId], alive: Collection[str]) -> Directory:
    """Returns the directory with the node as a spare.  A node that joined before replaces its earlier entry.

    Args:
      configured: nodes that the configuration names.
      alive: processes that answer.

    Raises:
      JoinRefused: another node has its name or its address.
    """
    if node.id in configured:
        raise JoinRefused(f"the configuration names {node.id}; start it with that file, without --join")
    before = directory.nodes.get(node.id)
    if before is not None and before.address != node.address and node.id in alive:
        raise JoinRefused(f"{node.id} runs at {before.address}; stop it first, or give this one another name")
    others = {at: name for name, at in directory.addresses().items() if name != node.id}
    if node.address in others:
        raise JoinRefused(f"{node.address} is the address of {others[node.address]}; expected another one")
    return directory if directory.joined.get(node.id) == node else directory.with_node(node)


class LeaveRefused(SpeError):
    """A node cannot leave; the message has the reason and the remedy."""


def left(
    directory: Directory, node: NodeId, configured: Collection[NodeId], alive: Collection[str], moves: Iterable[Move]
) -> Directory:
    """Returns the directory without a node that has joined.

    Args:
      configured: nodes that the configuration names.
      alive: processes that answer.
      moves: moves that have not ended.

    Raises:
      LeaveRefused: it has not joined, or is still needed.
    """
    if node in configured:
        raise LeaveRefused(f"the configuration names {node}; drain it, stop it, and take it out of the file")
    if node not in directory.nodes:
        raise LeaveRefused(f"there is no node {node}; there are {some(directory.nodes)}")
    if coming := [move for move in moves if node in (move.source, move.target)]:
        raise LeaveRefused(f"{node} cannot leave: {coming[0]} has not ended")
    if hosted := [partition for partition, roles in directory.roles.items() if node in roles]:
        raise LeaveRefused(f"{node} cannot leave: it hosts {some(map(str, hosted))}; drain it first")
    if node in alive:
        raise LeaveRefused(f"{node} cannot leave: it runs; stop its process first")
    return directory.without_node(node)


async def join(env: Env, plan: Plan, directory: Directory, node: Node, token: str) -> None:
    """Asks the coordinator until it answers, and stores the directory for the node's process.

    A node that has joined before asks once, for it may have left since then: where the coordinator does not answer,
    the directory on its disk counts.

    Raises:
      JoinRefused, JoinFailed: the coordinator says why.
      PeerRefused: the coordinator refuses the connection.
      OSError: the disk fails.
    """
    path = revision_file(PurePosixPath("nodes", node.id), plan)
    before = _joined_before(env, path, node)
    me = Identity("newcomer", node.id, env.clock.wall_us(), token)
    reported = ""
    while True:
        try:
            answer = await _ask(env, plan, me, directory.coordinator.address, node)
            break
        except PeerRefused:
            raise
        except SpeError as error:
            if before is not None:
                return
            if str(error) != reported:
                reported = str(error)
                say(f"{node.id} waits for the coordinator to let it join: {reported}", Level.WARNING)
            await env.clock.sleep(_AGAIN_S)
    if answer.error:
        raise (JoinFailed if answer.failed else JoinRefused)(f"{node.id} cannot join: {answer.error}")
    if before is None or before.version < Revision.decode(answer.revision).version:
        await env.storage.write_atomic(path, answer.revision)


def _joined_before(env: Env, path: PurePosixPath, node: Node) -> Revision | None:
    """Returns the directory on the node's disk, if it has the node unchanged."""
    try:
        revision = Revision.decode(env.storage.read(path)) if env.storage.exists(path) else None
    except (OSError, ValueError):  # the coordinator sends it again
        return None
    return revision if revision is not None and revision.nodes.get(node.id) == node else None


async def _ask(env: Env, plan: Plan, me: Identity, address: str, node: Node) -> JoinClusterAnswer:
    connection, _ = await dial(env, plan, me, COORDINATOR, address)
    try:
        with trio.move_on_after(ANSWER_SECONDS) as waiting:
            reply = await request(connection, JoinCluster(encode_node(node)))
        if waiting.cancelled_caught:
            raise LinkBroken(f"{COORDINATOR} at {address} did not answer within {ANSWER_SECONDS:g} s")
        answer = expect(reply, JoinClusterAnswer)
        if not answer.error:
            Revision.decode(answer.revision)
        return answer
    except ValueError as error:
        raise RemoteProtocolError(str(error)) from None
    finally:
        await connection.aclose()
