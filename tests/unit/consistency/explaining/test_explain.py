"""Explanations of statuses that the simulation's faults never cause, or only for a moment."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from consistency.explaining.explain import BETWEEN_US, explain
from consistency.explaining.model import CauseKind, Condition, Explanation, Look
from spe.config import load_text
from spe.errors import LinkBroken, LinkClosed, NoTls, PeerBusy, PeerRefused, SpeError, TurnedAway
from spe.metrics.health import not_ready
from spe.status import CoordinatorStatus, NodeStatus, ProcessStatus, ReplicaStatus, SettingsStatus, UnreachedStatus
from spe.stream.names import NodeState
from spe.stream.times import END_OF_TIME, SECOND
from tests.support import statuses
from tests.support.statuses import a_channel, a_client, a_node, a_replica, a_source, an_input

CONFIG = """
sources:
  shop: {from: {generator: {name: orders, rate: 100, seed: 1, duration: 60s}}}
query: {large: {filter: {from: shop, where: qty >= 0}}}
fragments: {main: {operators: [large], replicas: [n1, n2]}}
nodes: {n1: {x: 2s}, n2: {x: 2s}}
"""
AT_US = 1_000 * SECOND


def look(at_us: int, client: dict[str, Any], **replica: Any) -> Look:
    """Everything advances with the time, but what is given; the client reads n1."""
    one = an_input(frontier=replica.pop("input", at_us), **replica.pop("reads", {}))
    replica = {"frontier": at_us, "inputs": (one,), "x_us": 2_000_000, "partners": {"n2": NodeState.STABLE}, **replica}
    channel = {"channel": "large/0", "frontier": at_us, "last_arrival_us": at_us, "delay_us": 1_000, **client}
    statuses: dict[str, ProcessStatus] = {
        "n1": a_node("n1", a_replica(**replica)),
        "n2": a_node("n2", a_replica(frontier=at_us, inputs=(an_input(frontier=at_us),))),
        "source:shop": a_source(frontier=at_us),
        "client:client": a_client(a_channel(**channel)),
    }
    return Look(at_us, statuses)


def explained(client: dict[str, Any], **replica: Any) -> Explanation:
    before = look(AT_US, client, **replica)
    (explanation,) = explain(*load_text(CONFIG), before, look(AT_US + BETWEEN_US, client, **replica))
    return explanation


def kinds(explanation: Explanation) -> list[CauseKind]:
    return [cause.kind for cause in explanation.causes]


def test_a_cluster_without_failure_has_nothing_to_explain() -> None:
    explanation = explained({})
    assert (explanation.condition, explanation.causes, explanation.next, explanation.elsewhere) == (
        Condition.FINE,
        (),
        (),
        (),
    )
    assert explanation.lines() == [
        "large/0 at client client is fine",
        "  client:client: reads n1, and gets stable results",
    ]


def test_a_stream_that_is_over_is_not_stuck() -> None:
    explanation = explained({"ended": True, "frontier": END_OF_TIME}, input=END_OF_TIME, frontier=END_OF_TIME)
    assert (explanation.condition, explanation.causes) == (Condition.ENDED, ())


@pytest.mark.parametrize(
    ("replica", "why"),
    [
        ({"state": NodeState.STABILIZATION, "redone_rows": 500}, "main/0@n1 corrects what was tentative"),
        (
            {"state": NodeState.UP_FAILURE, "partners": {"n2": NodeState.STABILIZATION}, "asks": True},
            "main/0@n1 has all of its input, and waits until n2 has corrected",
        ),
        ({"state": NodeState.UP_FAILURE}, "main/0@n1 has all of its input, and is about to correct"),
        ({"state": NodeState.STABLE}, "what client:client holds is old; n1 is stable and corrects it"),
    ],
)
def test_a_correction_is_a_cause_that_ends_by_itself(replica: dict[str, Any], why: str) -> None:
    explanation = explained({"held": True}, **replica)
    assert (explanation.condition, kinds(explanation)) == (Condition.TENTATIVE, [CauseKind.CORRECTING])
    assert explanation.causes[0].why == why


def test_a_replica_that_stopped_for_an_error_is_named_with_it() -> None:
    explanation = explained({"frontier": AT_US, "last_arrival_us": 0}, frontier=AT_US, error="division by zero")
    assert (explanation.condition, kinds(explanation)) == (Condition.SILENT, [CauseKind.FAILED])
    assert explanation.causes[0].why == "main/0@n1 has stopped: division by zero"


def test_a_full_output_buffer_is_a_cause() -> None:
    explanation = explained({"frontier": AT_US, "last_arrival_us": 0}, frontier=AT_US, fill=1.0)
    assert (kinds(explanation), explanation.next) == (
        [CauseKind.FULL],
        ("nothing stable leaves until a consumer acknowledges, or is removed",),
    )


def test_another_log_is_a_cause() -> None:
    why = "the log of source:shop is f00d; n1 has read log beef"
    explanation = explained(
        {"held": True},
        state=NodeState.UP_FAILURE,
        input=AT_US,
        reads={"main": None, "other_logs": {"source:shop": why}},
    )
    assert (kinds(explanation), explanation.causes[0].why) == ([CauseKind.OTHER_LOG], why)


def test_recovering_replica_says_what_it_lacks() -> None:
    explanation = explained({"frontier": AT_US, "last_arrival_us": 0}, state=NodeState.RECOVERING, frontier=AT_US)
    assert (explanation.condition, kinds(explanation)) == (Condition.SILENT, [CauseKind.RECOVERING])


def test_recovery_behind_a_missing_input_ends_in_serving() -> None:
    explanation = explained(
        {"frontier": AT_US, "last_arrival_us": 0},
        state=NodeState.RECOVERING,
        frontier=AT_US,
        reads={"main": None, "other_logs": {"source:shop": "another log"}},
    )
    assert kinds(explanation) == [CauseKind.OTHER_LOG]
    assert explanation.next[0] == "main/0@n1 serves when it has caught up"


def test_before_x_is_over_it_says_how_long_results_wait() -> None:
    explanation = explained({"frontier": AT_US, "last_arrival_us": 0}, frontier=AT_US, input=AT_US, waiting_us=800_000)
    assert kinds(explanation) == [CauseKind.LINK]
    assert "in 1.0 s main/0@n1 goes on without, tentative" in explanation.next


def test_under_suspend_it_waits_on() -> None:
    settings = SettingsStatus(x_us=2_000_000, alpha=0.5, during_failure="suspend", during_stabilization="suspend")
    stuck: dict[str, Any] = {"frontier": AT_US, "input": AT_US, "waiting_us": 800_000}
    before, now = (look(at, {"frontier": AT_US}, **stuck) for at in (AT_US, AT_US + BETWEEN_US))
    node = now.statuses["n1"]
    assert isinstance(node, NodeStatus)
    now = replace(now, statuses={**now.statuses, "n1": replace(node, settings=settings)})
    (explanation,) = explain(*load_text(CONFIG), before, now)
    assert "in 200 ms main/0@n1 waits on" in explanation.next


def test_without_answers_of_clients_replicas_explain_the_cluster() -> None:
    """As of a configuration, whose clients answer nobody."""
    looks = [look(at, {}) for at in (AT_US, AT_US + BETWEEN_US)]
    before, now = (replace(one, statuses=without(one, "client:client")) for one in looks)
    (explanation,) = explain(*load_text(CONFIG), before, now)
    assert (explanation.client, explanation.condition, explanation.causes) == ("", Condition.FINE, ())

    errors = {n: UnreachedStatus("silent", f"cannot connect to {n}") for n in ("n1", "n2")}
    now = replace(now, statuses=without(now, "client:client", "n1", "n2"), errors=errors)
    (explanation,) = explain(*load_text(CONFIG), before, now)
    assert (explanation.condition, kinds(explanation)) == (Condition.SILENT, [CauseKind.DOWN] * 2)
    assert explanation.next == (
        "nothing comes until a replica is back: n1, n2",
        "nothing comes until a replica is back: n2, n1",
    )


def test_a_producer_that_is_lost_is_replaced() -> None:
    before, now = look(AT_US, {}), look(AT_US + BETWEEN_US, {"frontier": AT_US})
    now = replace(
        now, statuses=without(now, "n1"), errors={"n1": UnreachedStatus("silent", "n1 did not answer within 1 s")}
    )
    (explanation,) = explain(*load_text(CONFIG), before, now)
    assert (kinds(explanation), explanation.next) == ([CauseKind.DOWN], ("client:client switches to n2 within 400ms",))


def without(one: Look, *names: str) -> dict[str, ProcessStatus]:
    return {name: status for name, status in one.statuses.items() if name not in names}


def test_only_the_output_that_is_asked_for_is_explained() -> None:
    looks = [look(at, {}) for at in (AT_US, AT_US + BETWEEN_US)]
    assert explain(*load_text(CONFIG), *looks, "other") == []
    assert len(explain(*load_text(CONFIG), *looks, "large")) == 1


def test_any_node_status_has_an_explanation() -> None:
    """A replica that the plan places nowhere, and inputs that read each other."""
    odd: ReplicaStatus = a_replica(NodeState.UP_FAILURE, inputs=(an_input(main=None), an_input(main="n9")))
    base = look(AT_US, {})
    one = replace(
        base, statuses={**base.statuses, "n9": a_node("n9", odd)}, errors={"n8": UnreachedStatus("silent", "no answer")}
    )
    (explanation,) = explain(*load_text(CONFIG), one, one)
    assert {cause.kind for cause in explanation.elsewhere} >= {CauseKind.DOWN}


a_move = partial(
    statuses.a_move,
    number=3,
    target="n3",
    reason="",
    phase="follow",
    why="n3 is behind n1",
    began_us={"wait": AT_US},
    predicted_us=2_000_000,
)


def test_moves_that_concern_the_output_are_reported() -> None:
    moves = (a_move(), a_move(number=1, phase="done"), a_move(number=2, partition="other/0"), a_move(role="standby"))
    coordinator = CoordinatorStatus(name="coordinator", incarnation=1, partitions=(), activation=None, moves=moves)
    looks = [look(at, {}) for at in (AT_US, AT_US + BETWEEN_US)]
    (explanation,) = explain(
        *load_text(CONFIG), *(replace(x, statuses={**x.statuses, "coordinator": coordinator}) for x in looks)
    )

    assert explanation.moves == (
        "move 3 of main/0 from n1 to n3, phase follow, 1.0 s after its order; expected to take 2.0 s: n3 is behind n1",
        "move 3 of the standby main/0 from n1 to n3, phase follow, 1.0 s after its order; expected to take 2.0 s: "
        "n3 is behind n1",
    )
    assert explanation.lines()[-1] == f"under way: {explanation.moves[1]}"


@pytest.mark.parametrize(
    ("error", "kind", "why"),
    [
        (LinkBroken("cannot connect to h:1: no answer within 2 s"), CauseKind.LINK, "is cut, or far too slow"),
        (LinkClosed("the token went round the world"), CauseKind.LINK, "is cut, or far too slow"),
        (TurnedAway("cannot connect to h:1: busy"), CauseKind.LINK, "refuses connections: a firewall, or n1 has"),
        (PeerRefused("no answer is right"), CauseKind.REFUSED, "source:shop refuses n1: no answer is right"),
        (PeerBusy("refused: too many"), CauseKind.REFUSED, "source:shop refuses n1: refused: too many"),
        (NoTls("h:1: no TLS: lost"), CauseKind.REFUSED, "source:shop refuses n1: h:1: no TLS: lost"),
        (None, CauseKind.LINK, "the link between source:shop and n1 is cut, or far too slow"),
    ],
)
def test_why_a_source_that_answers_is_not_reached(error: SpeError | None, kind: CauseKind, why: str) -> None:
    """As the node says it: it is the one that tries."""

    def at(at_us: int) -> Look:
        explanation = look(
            at_us, {"frontier": AT_US, "last_arrival_us": 0}, input=AT_US, frontier=AT_US, reads={"main": None}
        )
        node = replace(
            explanation.statuses["n1"], unreachable={"source:shop": UnreachedStatus.of(error)} if error else {}
        )
        return replace(explanation, statuses={**explanation.statuses, "n1": node})

    (explanation,) = explain(*load_text(CONFIG), at(AT_US), at(AT_US + BETWEEN_US))
    assert kinds(explanation) == [kind]
    assert why in explanation.causes[0].why


def test_slow_node_is_reported_instead_of_cut_links() -> None:
    client = {"held": True}
    reads = {"main": None}
    late = AT_US - 5 * SECOND
    before = look(AT_US, client, state=NodeState.UP_FAILURE, input=late, reads=reads)
    now = look(AT_US + BETWEEN_US, client, state=NodeState.UP_FAILURE, input=late, reads=reads)
    for slow, kind in ({}, CauseKind.LINK), ({"source:shop": 700_000}, CauseKind.SLOW):
        (explanation,) = explain(*load_text(CONFIG), before, replace(now, took_us=slow))
        assert [(cause.kind, cause.processes[0]) for cause in explanation.causes] == [(kind, "source:shop")]
    assert explanation.causes[0].why == (
        "source:shop answers only after 700 ms: it is overloaded, or its machine or disk is slow"
    )


def test_slow_node_with_good_results_is_named_elsewhere() -> None:
    now = replace(look(AT_US + BETWEEN_US, {}), took_us={"n2": 400_000, "n1": 20_000})
    (explanation,) = explain(*load_text(CONFIG), look(AT_US, {}), now)
    assert (explanation.condition, explanation.causes) == (Condition.FINE, ())
    assert [(cause.kind, cause.processes) for cause in explanation.elsewhere] == [(CauseKind.SLOW, ("n2",))]


def without_servers(away: str) -> Explanation:
    """The source brings nothing, or the client takes nothing, and says that a server outside does not answer."""

    def seen(at_us: int) -> Look:
        stuck = AT_US - 20 * SECOND
        now = look(at_us, {"frontier": stuck, "last_arrival_us": stuck}, input=stuck, frontier=stuck)
        said = {"reader": "no route"} if away.startswith("source") else {"sink redis out": "refused"}
        statuses = {**now.statuses, "source:shop": a_source(frontier=stuck)}
        statuses[away] = replace(statuses[away], away=said)
        return Look(at_us, statuses)

    (explanation,) = explain(*load_text(CONFIG), seen(AT_US), seen(AT_US + BETWEEN_US))
    return explanation


def test_a_source_goes_on_without_the_sink_of_its_late_rows() -> None:
    """What is wrong is named, but it is not why nothing comes."""
    stuck = AT_US - 20 * SECOND
    looks = []
    for at_us in (AT_US, AT_US + BETWEEN_US):
        now = look(at_us, {"frontier": stuck, "last_arrival_us": stuck}, input=stuck, frontier=stuck)
        late = replace(a_source(frontier=stuck), away={"late": "No space left on device"})
        looks.append(Look(at_us, {**now.statuses, "source:shop": late}))
    (explanation,) = explain(*load_text(CONFIG), *looks)
    assert kinds(explanation) == [CauseKind.QUIET]
    assert [cause.kind for cause in explanation.elsewhere] == [CauseKind.AWAY]
    assert not_ready(looks[0].statuses["source:shop"]) == []


def test_a_server_that_a_source_or_a_client_waits_for_is_named() -> None:
    source, client = without_servers("source:shop"), without_servers("client:client")
    assert [cause.why for cause in source.causes] == ["source:shop: reader: its server does not answer: no route"]
    assert source.next[0] == "source:shop goes on by itself when its server answers"
    assert [cause.why for cause in client.causes] == [
        "client:client: sink redis out: its server does not answer: refused"
    ]
    assert kinds(source) == kinds(client) == [CauseKind.AWAY]
