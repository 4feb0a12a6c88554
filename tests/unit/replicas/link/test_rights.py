"""Which roles may send which messages, and on whose behalf."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from replicas.link.rights import check_right, no_host, wrong_claim
from spe.errors import RemoteProtocolError
from spe.plan.directory import COORDINATOR
from spe.status import SupervisorStatus
from spe.stream.names import NodeState, StreamId
from spe.wire.fields import Role
from spe.wire.messages.commands import (
    Inject,
    InjectAnswer,
    JoinCluster,
    JoinClusterAnswer,
    MoveAnswer,
    MoveOrder,
    SetAnswer,
    SetOrder,
    Setting,
    Status,
    StatusRequest,
)
from spe.wire.messages.connection import DirectoryAnswer, DirectoryRequest, Hello, Refused, Welcome
from spe.wire.messages.feeds import (
    Ack,
    Announced,
    Heartbeat,
    HeartbeatAnswer,
    NotReady,
    OtherLog,
    SetMode,
    StateChange,
    Subscribe,
    Subscribed,
    Truncated,
)
from spe.wire.messages.message import MESSAGES, Message
from spe.wire.messages.pushes import (
    CommitPushed,
    DropParts,
    EndPushed,
    PartStaged,
    PushCommitted,
    PushEnded,
    PushWaits,
    StagePart,
)
from spe.wire.messages.replicas import (
    Order,
    OrderAnswer,
    PartnerAnswer,
    PartnerRequest,
    SnapshotPart,
    SnapshotRefused,
    SnapshotRequest,
)
from tests.simulation.test_cluster import make_plan

PLAN, DIRECTORY = make_plan()
PUSHED = replace(PLAN.sources[StreamId("b")], reader={"kind": "push", "writers": ("etl",)})
PLAN = replace(PLAN, sources={**PLAN.sources, StreamId("b"): PUSHED})
ROLES: tuple[Role, ...] = ("node", "source", "client", "coordinator", "control", "newcomer", "writer")
NAMES: dict[Role, str] = {
    "node": "n1a",
    "source": "source:a",
    "client": "client:c",
    "coordinator": COORDINATOR,
    "control": "control",
    "newcomer": "n9",
    "writer": "writer:etl",
}
#: Which roles may send which messages, stated independently of the code.
MAY: dict[str, str] = {
    "Hello": "node source client coordinator control newcomer writer",
    "Subscribe": "node client",
    "SetMode": "node client",
    "Heartbeat": "node client coordinator",
    "PartnerRequest": "node",
    "SnapshotRequest": "node",
    "Order": "coordinator",
    "StatusRequest": "control",
    "Inject": "control",
    "MoveOrder": "control",
    "SetOrder": "control",
    "JoinCluster": "newcomer",
    "StagePart": "writer",
    "CommitPushed": "writer",
    "DropParts": "writer",
    "EndPushed": "writer",
    "DirectoryRequest": "node client coordinator",
    "DirectoryAnswer": "node coordinator",
}


def consumer_of(role: Role) -> str:
    return "u1/0@n1a" if role == "node" else NAMES[role]


def all_messages(role: Role) -> list[Message]:
    """One message of each kind, on behalf of a peer of this role."""
    mine = consumer_of(role)
    acks: Any = [Ack("s1", 0, mine, 1)] if role in ("node", "client") else []
    return [
        Hello(2, 2, "test", role, NAMES[role], 1, PLAN.fingerprint, ""),
        Subscribe("s1", 0, mine, "main", 0, 0, False, 0, 0, 1, ""),
        SetMode("main"),
        Heartbeat(1, 1, 100_000, acks),
        PartnerRequest("u1", 0, NAMES[role], 1),
        SnapshotRequest("u1", 0, 100_000),
        Order(1, 1, "install", "u1", 0),
        StatusRequest(),
        Inject({}),
        MoveOrder("drain", "", "n1", "", 0),
        JoinCluster(b"{}"),
        JoinClusterAnswer(b"", ""),
        MoveAnswer(1, 0, ""),
        SetOrder("n1", (Setting("x", "4s"),)),
        SetAnswer(0, 0, ""),
        Welcome(2, "n1a", 1),
        Refused("no"),
        Subscribed(NodeState.STABLE, False, 0, 0, 0, 1, 0, ""),
        OtherLog("no"),
        Announced([]),
        NotReady("no"),
        Truncated(1),
        StateChange(NodeState.STABLE, False, 1),
        HeartbeatAnswer(1, 1, []),
        PartnerAnswer("u1", 0, 1, True),
        SnapshotPart(0, True, b""),
        SnapshotRefused("no"),
        Status(SupervisorStatus(name="supervisor", incarnation=1, faults=(), phases={}, begun_us=None)),
        InjectAnswer(True, ""),
        OrderAnswer(1, 1, ""),
        DirectoryRequest(1, 1),
        DirectoryAnswer(b""),
        StagePart("q", 0, "0" * 32, 0, True, b""),
        PartStaged("0" * 32, ""),
        CommitPushed("q", 0, ["0" * 32], ""),
        PushCommitted(0, ""),
        DropParts([]),
        EndPushed(),
        PushEnded(0, (), ""),
        PushWaits("its disk is full"),
    ]


def test_every_message_has_rights_for_every_role() -> None:
    assert set(MESSAGES.values()) == {type(m) for m in all_messages("node")}
    assert set(get_args(get_args(Role)[0])) == set(ROLES) == set(NAMES)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_send_only_its_messages(role: Role) -> None:
    for message in all_messages(role):
        kind = type(message).__name__
        if role in MAY.get(kind, "").split():
            check_right(DIRECTORY, role, NAMES[role], message)
        else:
            with pytest.raises(RemoteProtocolError, match=f"a {role} must not send {kind}"):
                check_right(DIRECTORY, role, NAMES[role], message)


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ("client", Subscribe("s1", 0, "client:d", "main", 0, 0, False, 0, 0, 1, "")),
        ("node", Subscribe("s1", 0, "u1/0@n1b", "main", 0, 0, False, 0, 0, 1, "")),
        ("client", Heartbeat(1, 1, 100_000, [Ack("s1", 0, "client:c", 1), Ack("s1", 0, "client:d", 1)])),
        ("node", Heartbeat(1, 1, 100_000, [Ack("a", 0, "u1/0@n1b", 1)])),
        ("node", PartnerRequest("u1", 0, "n1b", 1)),
    ],
)
def test_a_peer_may_not_act_for_another(role: Role, message: Message) -> None:
    with pytest.raises(RemoteProtocolError, match="in the name of"):
        check_right(DIRECTORY, role, NAMES[role], message)


@pytest.mark.parametrize(("unit", "partition"), [("nobody", 0), ("u1", 7)])
def test_only_nodes_with_a_role_for_a_partition_are_its_partners(unit: str, partition: int) -> None:
    assert no_host(DIRECTORY, unit, partition, "n1a").startswith(f"n1a has no role for {unit}/{partition}")
    assert no_host(DIRECTORY, "u1", 0, "n1a") is None


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("of", ROLES)
def test_a_name_belongs_to_one_role(role: Role, of: Role) -> None:
    """A node may join again."""
    fits = role == of or (role, of) == ("newcomer", "node")
    assert (wrong_claim(PLAN, DIRECTORY, role, NAMES[of]) is None) is fits


@pytest.mark.parametrize(
    ("role", "name"),
    [
        ("node", "n9"),
        ("source", "source:"),
        ("client", "client:"),
        ("control", ""),
        ("control", "n7"),
        ("control", "source:old"),
        ("control", "client:old"),
        ("control", "writer:old"),
        ("newcomer", ""),
        ("newcomer", "source:old"),
        ("newcomer", "client:old"),
        ("newcomer", "writer:old"),
        ("newcomer", "supervisor"),
        ("writer", "writer:other"),
    ],
)
def test_an_unknown_name_is_refused(role: Role, name: str) -> None:
    assert wrong_claim(PLAN, DIRECTORY, role, name)
