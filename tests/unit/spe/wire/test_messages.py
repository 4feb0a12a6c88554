"""Control messages are decoded as they were encoded, and anything else is refused."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from spe.errors import LocalProtocolError, PeerRefused, RemoteProtocolError
from spe.status import plain
from spe.stream.names import NodeState
from spe.stream.times import BEFORE_TIME, END_OF_TIME
from spe.wire import greeting
from spe.wire.fields import SNAPSHOT_PART_BYTES
from spe.wire.framing import CONTROL_BYTES, STATUS_BYTES, FrameReader, FrameType
from spe.wire.greeting import check_hello, check_welcome
from spe.wire.messages import connection
from spe.wire.messages.commands import (
    Inject,
    InjectAnswer,
    JoinCluster,
    JoinClusterAnswer,
    MoveAnswer,
    MoveOrder,
    ProposedMove,
    Remark,
    SetAnswer,
    SetOrder,
    Setting,
    Status,
    StatusRequest,
)
from spe.wire.messages.connection import (
    PROTOCOL,
    DirectoryAnswer,
    DirectoryRequest,
    Hello,
    Refused,
    VersionRange,
    Welcome,
)
from spe.wire.messages.feeds import (
    Ack,
    Announced,
    Announcement,
    Heartbeat,
    HeartbeatAnswer,
    Held,
    Load,
    NotReady,
    OtherLog,
    OutputStatus,
    SetMode,
    StateChange,
    Subscribe,
    Subscribed,
    Truncated,
)
from spe.wire.messages.message import MESSAGES, Message, decode_message, expect
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
from tests.support.statuses import a_node, a_replica

HELLO = Hello(*PROTOCOL, "demo", "node", "n1", 3, "f00d", "secret", 7, 2)
SUBSCRIBE = Subscribe("trades", 0, "joined/1@n2", "main", 17, BEFORE_TIME, True, BEFORE_TIME - 1, 1, 4, "")
OUTPUT = OutputStatus(
    "joined",
    1,
    NodeState.STABILIZATION,
    True,
    9,
    100,
    END_OF_TIME,
    4,
    0.25,
    1000,
    7,
    False,
    3,
    True,
    "0123456789abcdef",
)
LOAD = Load("joined", 1, 0.25, 3e6, 1e5, 1e3, 2e6)
ANNOUNCEMENT = Announcement("n1", "u1", 3, 17, 2_000_000, 1_000_000, 0.9, "process", "delay", "undo", 1_234)
EXAMPLES: list[Message] = [
    HELLO,
    Welcome(PROTOCOL.highest, "n2", 1, 7, 3),
    Refused("no"),
    SUBSCRIBE,
    Subscribed(NodeState.UP_FAILURE, False, 17, 100, 120, 1, 3, "f00d"),
    NotReady("recovering"),
    Truncated(5),
    StateChange(NodeState.STABLE, False, 3),
    SetMode("corrections"),
    Heartbeat(7, 3, 100_000, (Ack("trades", 0, "client:c", 4), Ack("trades", 1, "client:c", 0))),
    HeartbeatAnswer(7, 1, (OUTPUT,), (Held("joined", 0, 2),), (LOAD,)),
    PartnerRequest("joined", 1, "n1", 2),
    PartnerAnswer("joined", 1, 2, True),
    SnapshotRequest("joined", 1, 100_000),
    SnapshotPart(0, True, b"\0\xff" * 100),
    SnapshotRefused("recovering myself"),
    StatusRequest(),
    Status(a_node("n1", a_replica(fill=0.5), incarnation=3)),
    Inject({"kind": "cut", "peer": "n2", "seconds": 1.5}),
    InjectAnswer(False, "unknown fault"),
    Order(3, 17, "install", "u1", 2),
    OrderAnswer(17, 3, "n1 is no standby of u1/2"),
    OtherLog("the log of source:a is f00d"),
    Announced((ANNOUNCEMENT, ANNOUNCEMENT._replace(node="n2", waited_us=0))),
    DirectoryRequest(7, 2),
    DirectoryAnswer(b"\0\xff" * 100),
    MoveOrder("move", "u1/0", "n1", "n2", 0),
    MoveAnswer(1, 4, "", (ProposedMove("u1", 0, "n1", "n2", 2_000_000),), (Remark("n1 needs 0.9 of 1 cores"),)),
    SetOrder("n1", (Setting("x", "4s"), Setting("policy", "delay"))),
    SetAnswer(1, 4, ""),
    JoinCluster(b"{}"),
    JoinClusterAnswer(b"", "n9 runs already"),
    StagePart("query", 3, "0" * 32, 1, True, b"\0\xff" * 100),
    PartStaged("0" * 32, "row 1 of the part has no ts"),
    CommitPushed("query", 3, ("0" * 32, "1" * 32), ""),
    PushCommitted(3, ""),
    DropParts(("0" * 32,)),
    PushWaits("its disk is full"),
    EndPushed(),
    PushEnded(17, ("writer:etl",), ""),
]


def body_of(message: Message) -> bytes:
    (found,) = FrameReader(CONTROL_BYTES).feed(message.encode())
    assert found.type is FrameType.CONTROL
    return bytes(found.body)


def packed(message: Message, **changes: Any) -> bytes:
    """The body of a message with some fields replaced by what its sender must not send."""
    values = [changes.get(f.name, getattr(message, f.name)) for f in fields(message)]
    return bytes(msgpack.packb([message.TAG, *values]))


def status_body(**changes: Any) -> bytes:
    """The body of a node's status with some fields replaced, in it or in its only replica."""
    data = plain(a_node("n1", a_replica()))
    for name, value in changes.items():
        (data if name in data else data["replicas"][0])[name] = value
    return bytes(msgpack.packb([Status.TAG, data]))


def test_there_is_an_example_of_every_message() -> None:
    assert {m.TAG: type(m) for m in EXAMPLES} == dict(MESSAGES)
    assert sorted(MESSAGES) == list(range(1, len(EXAMPLES) + 1))


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_messages_are_decoded_as_they_were_encoded(message: Message) -> None:
    assert decode_message(body_of(message)) == message


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_a_body_that_is_cut_off_anywhere_is_refused(message: Message) -> None:
    body = body_of(message)
    for cut in range(len(body)):
        with pytest.raises(RemoteProtocolError):
            decode_message(body[:cut])


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (
            packed(HELLO, role="king"),
            "Hello.role: expected one of node, source, client, coordinator, control, newcomer, writer, got 'king'",
        ),
        (packed(HELLO, name=b"n1"), "Hello.name: expected a text"),
        (packed(HELLO, name="n" * 1000), "Hello.name: expected a text of at most"),
        (packed(HELLO, incarnation=-1), "Hello.incarnation: expected an integer from 0"),
        (packed(HELLO, incarnation=True), "Hello.incarnation: expected an integer"),
        (packed(SUBSCRIBE, position=2**63), "Subscribe.position: expected an integer"),
        (packed(SUBSCRIBE, frontier=END_OF_TIME + 1), "Subscribe.frontier"),
        (packed(SUBSCRIBE, held=1), "Subscribe.held: expected a boolean"),
        (packed(SUBSCRIBE, substream_index=4), "expected a substream index below 4, got 4"),
        (packed(SUBSCRIBE, substream_count=0), "Subscribe.substream_count: expected an integer from 1"),
        (packed(StateChange(NodeState.STABLE, False, 3), state=4), "StateChange.state: expected a state from 0 to 3"),
        (packed(HeartbeatAnswer(1, 1, (OUTPUT,)), outputs=[["joined"]]), "outputs: expected records of 15 fields"),
        (packed(HeartbeatAnswer(1, 1, ()), outputs=[OUTPUT._replace(fill=float("nan"))]), "a number from 0 to 1"),
        (packed(HeartbeatAnswer(1, 1, ()), loads=[LOAD._replace(cpu=-0.1)]), "loads: expected a number from 0"),
        (packed(HeartbeatAnswer(1, 1, ()), loads=[LOAD._replace(rows=float("nan"))]), "a number from 0 to 2\\^63"),
        (packed(HeartbeatAnswer(1, 1, ()), loads=[LOAD._replace(memory=True)]), "a number from 0 to 2\\^63"),
        (packed(Heartbeat(1, 1, 1, ()), acks=7), "Heartbeat.acks: expected a list"),
        (msgpack.packb([18, {1: 2}]), "no control message|expected a map"),
        (msgpack.packb([18, 7]), "Status.process: Input should be a valid dictionary"),
        (msgpack.packb([18, {"replicas": []}]), "Status.process: Unable to extract tag using discriminator 'kind'"),
        (status_body(kind="feeder"), "Status.process: Input tag 'feeder'"),
        (status_body(name=7), "Status.process: name: Input should be a valid string"),
        (status_body(incarnation=True), "Status.process: incarnation: Input should be a valid integer"),
        (status_body(replicas={}), "Status.process: replicas: Input should be a valid tuple"),
        (status_body(fill="0.5"), "Status.process: replicas.0.fill: Input should be a valid number"),
        (status_body(fill=float("nan")), "Status.process: replicas.0.fill: Input should be a finite number"),
        (status_body(fresh=1), "Status.process: replicas.0.fresh: Input should be a valid boolean"),
        (status_body(state="BUSY"), "Status.process: replicas.0.state: .*expected one of STABLE, UP_FAILURE"),
        (status_body(counters={"late": 0.5}), "Status.process: replicas.0.counters.late: Input should be a valid int"),
        (
            packed(SnapshotPart(0, True, b""), data=bytes(SNAPSHOT_PART_BYTES + 1)),
            "SnapshotPart.data: expected at most",
        ),
        (msgpack.packb([2, 1, "n1"]), "Welcome: expected 5 fields, got 2"),
        (msgpack.packb([99]), "expected \\[tag"),
        (msgpack.packb([]), "expected \\[tag"),
        (msgpack.packb({}), "expected \\[tag"),
        (msgpack.packb(7), "expected \\[tag"),
        (msgpack.packb([17]) + b"\0", "no control message: ExtraData"),
        (b"\x92\x03\xa2\xff\xfe", "no control message: UnicodeDecodeError"),
        (b"\x91" * 100_000, "no control message"),
        (b"\xc1", "no control message"),
        (b"\xdd\xff\xff\xff\xff", "no control message"),
        (msgpack.packb([3, msgpack.ExtType(1, b"x")]), "no control message"),
    ],
)
def test_unexpected_messages_are_refused_with_the_expectation(body: bytes, what: str) -> None:
    with pytest.raises(RemoteProtocolError, match=what):
        decode_message(body)


def test_a_message_out_of_its_bounds_is_not_sent() -> None:
    with pytest.raises(LocalProtocolError, match=r"cannot send Truncated.*expected an integer"):
        Truncated(-1).encode()
    with pytest.raises(LocalProtocolError, match="a CONTROL frame"):
        Inject({"what": "x" * CONTROL_BYTES}).encode()
    with pytest.raises(LocalProtocolError, match="a CONTROL frame"):
        Status(a_node("x" * STATUS_BYTES)).encode()
    with pytest.raises(LocalProtocolError, match=r"(?s)cannot send Status.*Expected `int`"):
        Status(a_node("n1", a_replica(counters={"late": "many"}))).encode()
    with pytest.raises(LocalProtocolError, match="cannot send Status"):
        Status(object()).encode()  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="cannot send Inject"):
        Inject({"what": object()}).encode()


def test_unknown_fields_of_a_status_are_ignored() -> None:
    data = plain(a_node("n1", a_replica()))
    more = data | {"weather": "fine", "replicas": [data["replicas"][0] | {"mood": {"good": True}}]}
    assert decode_message(msgpack.packb([Status.TAG, more])) == Status(a_node("n1", a_replica()))


def test_the_text_of_a_reason_is_cut_rather_than_refused() -> None:
    """It often is the text of an exception, which may be long."""
    answer = decode_message(body_of(InjectAnswer(False, "x" * 10_000 + "\ud800")))
    assert isinstance(answer, InjectAnswer)
    assert answer.error == "x" * 4096


def test_an_unexpected_message_is_named() -> None:
    assert expect(Truncated(1), Truncated) == Truncated(1)
    with pytest.raises(RemoteProtocolError, match=r"expected Subscribed, got Truncated\(first=1\)"):
        expect(Truncated(1), Subscribed)


def answer_to(hello: Hello) -> Welcome | Refused:
    return check_hello(
        hello, cluster="demo", fingerprint="f00d", token="secret", name="n2", incarnation=5, directory=(7, 3)
    )


def test_a_matching_hello_is_welcome() -> None:
    assert answer_to(HELLO) == Welcome(PROTOCOL.highest, "n2", 5, 7, 3)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"lowest": 4, "highest": 5}, "the peer speaks versions 4 to 5, n2 speaks version 1; upgrade the older one"),
        ({"cluster": "prod"}, "this is cluster 'demo', not 'prod'"),
        ({"token": "guess"}, "the token does not match"),
        ({"token": ""}, "the token does not match"),
        ({"fingerprint": "beef"}, "the plan is another one: fingerprint beef, n2 has f00d"),
        ({"fingerprint": ""}, "the plan is another one: fingerprint \\(none\\)"),
        ({"fingerprint": "beef", "role": "control"}, "the plan is another one"),
    ],
)
def test_a_hello_that_does_not_match_is_refused_with_the_reason(change: dict[str, Any], why: str) -> None:
    answer = answer_to(replace(HELLO, **change))
    assert isinstance(answer, Refused)
    with pytest.raises(PeerRefused, match=why):
        check_welcome(answer, "n2")


def test_a_control_program_needs_no_plan() -> None:
    assert isinstance(answer_to(replace(HELLO, role="control", fingerprint="")), Welcome)


def test_a_wrong_token_reveals_neither_cluster_nor_plan() -> None:
    answer = answer_to(replace(HELLO, token="guess", cluster="prod", fingerprint="beef"))
    assert answer == Refused("the token does not match")


def test_a_hello_of_another_version_is_refused_by_its_version() -> None:
    """Whatever its other fields are in that version."""
    hello = decode_message(msgpack.packb([Hello.TAG, 9, 9, {"everything": "else"}, 1]))
    assert isinstance(hello, Hello)
    assert refusal(hello) == "no common protocol: the peer speaks version 9, n2 speaks version 1; upgrade the older one"


def refusal(hello: Message) -> str:
    assert isinstance(hello, Hello)
    answer = answer_to(hello)
    assert isinstance(answer, Refused)
    return answer.reason


@pytest.mark.parametrize(
    ("theirs", "spoken"),
    [((6, 6), 6), ((5, 6), 6), ((6, 9), 7), ((7, 9), 7), ((1, 9), 7), ((4, 4), None), ((8, 9), None)],
)
def test_the_highest_version_that_both_know_is_spoken(
    monkeypatch: pytest.MonkeyPatch, theirs: tuple[int, int], spoken: int | None
) -> None:
    """We know 5 to 7 here; a later peer says more in its hello."""
    for module in (connection, greeting):
        monkeypatch.setattr(module, "PROTOCOL", VersionRange(5, 7))
    fields = [*theirs, "demo", "node", "n1", 3, "f00d", "secret", 7, 2]
    hello = decode_message(msgpack.packb([Hello.TAG, *fields, *(["more", 4] if theirs[1] > 7 else [])]))
    assert isinstance(hello, Hello)
    if spoken is None:
        assert refusal(hello).startswith(f"no common protocol: the peer speaks {VersionRange(*theirs)}, n2 speaks ")
        return
    assert hello == Hello(*theirs, "demo", "node", "n1", 3, "f00d", "secret", 7, 2)
    assert answer_to(hello) == Welcome(spoken, "n2", 5, 7, 3)


def test_more_fields_than_we_know_are_a_later_peers_only() -> None:
    fields = [*PROTOCOL, "demo", "node", "n1", 3, "f00d", "secret", 7, 2, "more"]
    with pytest.raises(RemoteProtocolError, match="Hello: expected 10 fields, got 11"):
        decode_message(msgpack.packb([Hello.TAG, *fields]))


def test_a_version_that_we_did_not_offer_is_not_spoken() -> None:
    with pytest.raises(RemoteProtocolError, match="n2 wants to speak version 8, we speak version 1"):
        check_welcome(Welcome(8, "n2", 1), "n2")


def test_a_welcome_from_another_process_is_refused() -> None:
    welcome = Welcome(PROTOCOL.highest, "n3", 1)
    assert check_welcome(welcome, None) is welcome
    with pytest.raises(PeerRefused, match="expected 'n2' at this address, found 'n3'"):
        check_welcome(welcome, "n2")
    with pytest.raises(RemoteProtocolError, match="expected Welcome, got Truncated"):
        check_welcome(Truncated(1), "n2")


def test_the_documentation_lists_every_message_once() -> None:
    page = (Path(__file__).parents[4] / "docs" / "internals" / "protocol.md").read_text(encoding="utf-8")
    cells = [line.split("|")[2] for line in page.splitlines() if line.startswith("| ")]
    names = [name.strip() for cell in cells for name in cell.split(",")]
    messages = {message.__name__ for message in MESSAGES.values()}
    assert sorted(name for name in names if name in messages) == sorted(messages)
