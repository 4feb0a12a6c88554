"""The messages that each role may send, and on whose behalf.

The process that accepted the connection checks each message here before acting on it (docs/internals/protocol.md).
Messages in the other direction are answers, and are checked by the process that asked.
"""

from __future__ import annotations

from spe.errors import RemoteProtocolError
from spe.plan.directory import COORDINATOR, Directory
from spe.plan.plan import Plan
from spe.runtime.tls import CONTROL, holder_of
from spe.stream.history import host_of
from spe.stream.ids import PartitionId
from spe.stream.names import UnitId
from spe.wire.fields import Role
from spe.wire.messages.feeds import (
    Heartbeat,
    Subscribe,
)
from spe.wire.messages.message import Message
from spe.wire.messages.replicas import (
    PartnerRequest,
)


def wrong_claim(plan: Plan, directory: Directory, role: Role, name: str) -> str | None:
    """Returns why no process of this name has this role in the plan; None if one may have it.

    A client need not be in the plan: it is served, and no log waits for it.  A newcomer is a node that may be unknown
    here, so its name must have the form of nodes' names.
    """
    known = {
        "node": name in directory.nodes,
        "source": name.startswith("source:") and name.removeprefix("source:") in plan.sources,
        "client": name.startswith("client:") and len(name) > len("client:"),
        "coordinator": name == COORDINATOR,
        "writer": name in plan.writers,
    }
    if role == "control":
        fits = holder_of(name) == CONTROL
    elif role == "newcomer":
        fits = bool(name) and ":" not in name and holder_of(name) not in (CONTROL, COORDINATOR)
    else:
        fits = known[role]
    return None if fits else f"{name!r} is no {role} of this cluster"


def check_right(directory: Directory, role: Role, name: str, message: Message) -> None:
    """Raises RemoteProtocolError if a peer must not send this message, or not on behalf of the named process."""
    kind = type(message)
    if role not in message.SENDERS:
        raise RemoteProtocolError(f"a {role} must not send {kind.__name__}")
    match message:
        case Heartbeat():  # first: nearly all messages are heartbeats
            others = [ack.consumer for ack in message.acks if host_of(ack.consumer) != name]
        case Subscribe(consumer=consumer):
            others = [] if host_of(consumer) == name else [consumer]
        case PartnerRequest(asker=asker):
            others = [asker] if asker != name else []
        case _:
            others = []
    if others:
        raise RemoteProtocolError(f"{kind.__name__} of {name} in the name of {others[0]}")


def no_host(directory: Directory, unit: str, partition: int, name: str) -> str | None:
    """Returns why a node is not served as a replica of a partition; None if it is.

    This is no misuse: it may have another version of the directory.
    """
    partition_id = PartitionId(UnitId(unit), partition)
    hosts = directory.hosts(partition_id) if partition_id in directory.roles else ()
    return (
        None
        if name in hosts
        else f"{name} has no role for {partition_id} in version {directory.version} of the directory"
    )
