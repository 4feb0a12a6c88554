"""What the page is told: the same as ``spe status`` says, out of the same statuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from consistency.explaining.model import Condition
from replicas.cli.dashboard.frame import CHANNEL, REPLICA, SOURCE, Memory, frame
from replicas.cli.dashboard.hub import said_of
from replicas.cli.dashboard.layout import ClusterLayout, LayoutMaker
from replicas.local.process import Phase
from spe.figures.histogram import Histogram
from spe.figures.sight import Sight
from spe.status import (
    ActivationStatus,
    ClientStatus,
    CoordinatorStatus,
    LoadStatus,
    NewestStatus,
    ResultStatus,
    SettingsStatus,
    UnreachedStatus,
)
from spe.stream.ids import Channel
from spe.stream.names import NodeState, StreamId
from spe.stream.times import END_OF_TIME, SECOND
from tests.support.sights import CONFIG, NOW, a_sight, a_small_replica, deployed
from tests.support.statuses import a_channel, a_client, a_move, a_node, a_source, a_standby, an_input


def laid_out(sight: Sight, text: str = CONFIG) -> ClusterLayout:
    return LayoutMaker(*deployed(text)).make(sight)


def shown(sight: Sight, memory: Memory | None = None) -> dict[str, Any]:
    """A frame with its rows as maps, by name."""
    layout = laid_out(sight)
    data = frame(layout, sight, Memory() if memory is None else memory)
    data["sources"] = {name: dict(zip(SOURCE, row, strict=True)) for name, row in zip(layout.sources, data["sources"])}
    names = [str(one) for one in layout.replicas]
    data["replicas"] = {name: dict(zip(REPLICA, row, strict=True)) for name, row in zip(names, data["replicas"])}
    data["channels"] = [dict(zip(CHANNEL, row, strict=True)) for row in data["channels"]]
    return data


def settings(x_us: int, alpha: float = 0.9) -> SettingsStatus:
    return SettingsStatus(x_us=x_us, alpha=alpha, during_failure="process", during_stabilization="process")


def test_a_replica_is_shown_with_its_figures() -> None:
    used = Histogram()
    for share in (0.1, 0.2, 0.94):
        used.add(share)
    load = LoadStatus(cpu=0.12345, memory_bytes=1, network_bytes=2, rows=99.96, state_bytes=3)
    replica = a_small_replica(
        NodeState.UP_FAILURE, waiting_us=SECOND, x_used=used.status(), load=load, held_bytes=7, suffix_bytes=8,
        frontier=NOW - 4 * SECOND, tentative_frontier=NOW - SECOND, stable=11, tentative=5,
    )  # fmt: skip
    one = shown(a_sight(NOW, replace(a_node("n1", replica), settings=settings(2 * SECOND, 0.8))))["replicas"][
        "main/0@n1"
    ]
    assert one == {
        "state": "UP_FAILURE", "x": 2 * SECOND, "alpha": 0.8, "waiting": SECOND, "x99": 0.94, "xmax": 0.94,
        "stable": 11, "tentative": 5, "frontier": NOW - 4 * SECOND, "lag": 4 * SECOND, "lead": 3 * SECOND,
        "fill": 0.25, "held": 7, "suffix": 8, "cpu": 0.1235, "rows": 100.0, "corrections": 0, "redone": 0,
        "expected": None, "reads": [["a/0", "source:a"], ["b/0", "source:b"]], "lost": [], "correcting": [],
        "trouble": "",
    }  # fmt: skip


@pytest.mark.parametrize("phase", [Phase.KILLED, Phase.FROZEN, Phase.DIED, Phase.STARTING])
def test_supervisor_phase_hides_last_status_of_process(phase: Phase) -> None:
    sight = a_sight(phases={"n1": phase, "source:b": phase, "client:client": phase})
    found = shown(sight)
    assert found["replicas"]["main/0@n1"]["state"] == sight.word("n1") == phase
    assert found["sources"]["b"]["state"] == phase
    assert found["channels"][0]["state"] == f"client {phase}"
    assert found["processes"] == dict.fromkeys(("n1", "source:b", "client:client"), phase)


@pytest.mark.parametrize(
    ("phase", "said"), [(Phase.DIED, "has died"), (Phase.ENDED, "has ended"), (Phase.KILLED, "is killed")]
)
def test_why_a_process_is_down_is_a_sentence(phase: Phase, said: str) -> None:
    assert said_of(phase) == said


def test_silent_and_unreachable_nodes_are_shown_with_reason() -> None:
    errors = {"n1": UnreachedStatus("silent", "no answer"), "n2": UnreachedStatus("turned away", "cannot connect")}
    sight = a_sight(phases={}, without=["n2"], errors=errors)
    seen = {**sight.seen, "n1": replace(sight.seen["n1"], at_us=NOW - 5 * SECOND)}
    found = shown(replace(sight, seen=seen))
    assert {name: one["state"] for name, one in found["replicas"].items()} == {
        "main/0@n1": "silent",
        "main/0@n2": "unreachable",
    }
    assert found["errors"] == {"n1": "no answer", "n2": "cannot connect"}


def test_a_stopped_replica_and_one_that_stands_by_say_so() -> None:
    stopped = a_node("n1", a_small_replica(error="operator out: division by zero"))
    found = shown(a_sight(NOW, stopped, a_node("n2", standbys=(a_standby(),))))["replicas"]
    assert (found["main/0@n1"]["state"], found["main/0@n1"]["trouble"]) == ("STOPPED", "operator out: division by zero")
    assert found["main/0@n2"]["state"] == "stands by"


def test_unserved_inputs_and_separate_corrections_are_named() -> None:
    inputs = (
        an_input(channel="a/0", main=None, frontier=NOW - 3 * SECOND),
        an_input(channel="b/0", main="source:b", corrections="n9", frontier=NOW),
    )
    one = shown(a_sight(NOW, a_node("n1", a_small_replica(inputs=inputs))))["replicas"]["main/0@n1"]
    assert (one["reads"], one["lost"], one["correcting"]) == ([["b/0", "source:b"]], ["a/0"], [["b/0", "n9"]])


class TestSources:
    def test_lagging_source_shows_lag_and_waiting_replicas(self) -> None:
        """Both replicas wait for a, which is three seconds behind b."""
        inputs = (
            an_input(channel="a/0", main="source:a", frontier=NOW - 3 * SECOND),
            an_input(channel="b/0", main="source:b", frontier=NOW),
        )
        nodes = [a_node(n, a_small_replica(inputs=inputs, frontier=NOW - 3 * SECOND)) for n in ("n1", "n2")]
        found = shown(a_sight(NOW, a_source("source:a", frontier=NOW - 3 * SECOND), *nodes))["sources"]
        assert [found["a"][k] for k in ("lag", "behind", "holds")] == [3 * SECOND, True, 2]
        assert [found["b"][k] for k in ("lag", "behind", "holds")] == [0, False, 0]

    def test_unheard_source_holds_replicas_without_being_behind(self) -> None:
        inputs = (
            an_input(channel="a/0", main=None, frontier=NOW - 3 * SECOND),
            an_input(channel="b/0", main="source:b", frontier=NOW),
        )
        found = shown(a_sight(NOW, a_node("n1", a_small_replica(inputs=inputs))))["sources"]["a"]
        assert (found["lag"], found["behind"], found["holds"]) == (0, False, 1)

    def test_unit_waiting_for_unit_waits_for_its_source(self) -> None:
        text = """
cluster: chain
sources:
  a: {from: {generator: {name: sequence, rate: 100, duration: 60s}}}
  b: {from: {generator: {name: sequence, rate: 100, duration: 60s}}}
  c: {from: {generator: {name: sequence, rate: 100, duration: 60s}}}
query: {first: {union: [a, b]}, second: {union: [first, c]}}
outputs: [second]
fragments:
  one: {operators: [first], replicas: [n1]}
  two: {operators: [second], replicas: [n2]}
nodes: [n1, n2]
"""
        late, early = NOW - 4 * SECOND, NOW
        read = (an_input(channel="a/0", main=None, frontier=late), an_input(channel="b/0", frontier=early))
        made = (an_input(channel="first/0", main="n1", frontier=late), an_input(channel="c/0", frontier=early))
        one = a_node("n1", a_small_replica(unit="one", inputs=read))
        two = a_node("n2", a_small_replica(unit="two", inputs=made))
        sight = a_sight(NOW, one, two, a_source("source:c", frontier=NOW))
        layout = laid_out(sight, text)
        rows = frame(layout, sight, Memory())["sources"]
        assert [dict(zip(SOURCE, row))["holds"] for row in rows] == [2, 0, 0]

    def test_ended_or_failed_source_is_shown_as_such(self) -> None:
        ended = a_source("source:a", frontier=END_OF_TIME, ended=True)
        found = shown(a_sight(NOW, ended, a_source("source:b", frontier=NOW, fault="disk gone")))["sources"]
        assert [found["a"][k] for k in ("state", "lag", "frontier")] == ["ended", None, -1]
        assert (found["b"]["state"], found["b"]["trouble"]) == ("failed", "disk gone")

    def test_the_rate_is_the_mean_of_the_last_seconds(self) -> None:
        memory = Memory()
        told = [a_source("source:a", frontier=NOW, last_id=100 * i) for i in range(8)]
        found = [shown(a_sight(NOW + i * SECOND, one), memory)["sources"] for i, one in enumerate(told)]
        assert [one["a"]["rate"] for one in found] == [None, *[100.0] * 7]


class TestChannels:
    def test_channel_is_shown_as_its_client_reports(self) -> None:
        one = a_channel(
            channel="out/0", producer="n2", stable=9, tentative=5, undone=2, held=True, position=12, switches=3,
            frontier=NOW - SECOND, delay_us=100_000, last_arrival_us=NOW - 700_000,
        )  # fmt: skip
        (found,) = shown(a_sight(NOW, a_client(one)))["channels"]
        assert found == {
            "state": "tentative", "reads": "n2", "stable_rate": None, "tentative_rate": None, "stable": 9,
            "tentative": 5, "undone": 2, "held": True, "delay": 700_000, "bound": 2 * SECOND, "delay_max": 1_500_000,
            "gap": 400_000, "position": 12, "frontier": NOW - SECOND, "lag": SECOND, "switches": 3,
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("explained", "changes", "state"),
        [
            (Condition.LATE, {}, "late"),
            (Condition.SILENT, {}, "silent"),
            (Condition.TENTATIVE, {}, "fine"),  # corrected since it was explained
            (Condition.FINE, {"held": True}, "tentative"),  # the client says it itself
            (Condition.SILENT, {"ended": True}, "ended"),
        ],
    )
    def test_channel_state_is_clients_state_then_explanation(
        self, explained: Condition, changes: dict[str, Any], state: str
    ) -> None:
        memory = Memory()
        memory.conditions = {("client", Channel(StreamId("out"), 0)): explained}
        one = a_channel(**{"channel": "out/0", "frontier": NOW, "last_arrival_us": NOW, **changes})
        assert shown(a_sight(NOW, a_client(one)), memory)["channels"][0]["state"] == state

    def test_nothing_is_late_before_the_first_result_can_have_come(self) -> None:
        memory = Memory()
        memory.conditions = {("client", Channel(StreamId("out"), 0)): Condition.SILENT}
        one = a_client(a_channel(channel="out/0", last_arrival_us=None, delay_us=None))
        states = [
            shown(a_sight(NOW, one, begun_us=NOW - age * SECOND), memory)["channels"][0]["state"] for age in (1, 9)
        ]
        assert states == ["starting", "silent"]

    def test_a_larger_x_of_a_node_moves_the_bound(self) -> None:
        memory, found = Memory(), []
        for x in (2, 5):
            sight = a_sight(NOW, replace(a_node("n1", a_small_replica()), settings=settings(x * SECOND)))
            found.append(shown(sight, memory)["channels"][0]["bound"])
        assert found == [2 * SECOND, 5 * SECOND]


def test_moves_show_actual_and_expected_time() -> None:
    expected = {"predicted_us": 3 * SECOND}
    status = CoordinatorStatus(
        name="coordinator",
        incarnation=1,
        partitions=(),
        activation=ActivationStatus(budget=0, active=(), target=(), of=None),
        moves=(
            a_move(phase="done", began_us={"wait": NOW - 9 * SECOND, "done": NOW - 5 * SECOND}, **expected),
            a_move(number=2, phase="install", began_us={"wait": NOW - 2 * SECOND, "install": NOW - SECOND}, **expected),
        ),
    )
    moves = shown(a_sight(NOW, status))["moves"]
    assert [(m["number"], m["took"], m["predicted"], m["over"]) for m in moves] == [
        (2, 2 * SECOND, 3 * SECOND, False),
        (1, 4 * SECOND, 3 * SECOND, True),
    ]


def test_a_full_disk_is_named() -> None:
    full = replace(a_source("source:a", frontier=NOW), disk_full={"the log": "No space left on device"})
    assert shown(a_sight(NOW, full))["disks"] == {"source:a: the log": "No space left on device"}


def test_many_replicas_send_only_broken_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicas.cli.dashboard.frame._READS_SHOWN", 1)
    assert shown(a_sight())["replicas"]["main/0@n1"]["reads"] == []


class TestLayout:
    def test_layout_stays_the_same_object_until_a_change(self) -> None:
        maker = LayoutMaker(*deployed())
        first = maker.make(a_sight())
        assert maker.make(a_sight(NOW + SECOND)) is first
        moved = replace(a_node("n2"), directory=None)
        assert [str(r) for r in maker.make(a_sight(NOW, moved)).replicas] == ["main/0@n1", "main/0@n2"]

    def test_unplanned_replicas_are_left_out(self) -> None:
        """A node that says that it runs something else is no reason to show nothing."""
        odd = a_node("n1", a_small_replica(), a_small_replica(unit="other"), a_small_replica(partition=7))
        assert [str(r) for r in laid_out(a_sight(NOW, odd)).replicas] == ["main/0@n1", "main/0@n2"]

    def test_clients_without_status_have_no_rows(self) -> None:
        assert laid_out(a_sight(phases={}, without=["client:client"])).channels == ()
        assert shown(a_sight(phases={}, without=["client:client"]))["channels"] == []

    def test_a_client_that_does_not_say_anything_of_an_output_begins(self) -> None:
        silent = ClientStatus(name="client:client", incarnation=1, channels=(), switches=())
        (found,) = shown(a_sight(NOW, silent))["channels"]
        assert (found["state"], found["stable"]) == ("starting", None)


def test_the_newest_results_are_those_of_the_status() -> None:
    rows = (ResultStatus(tentative=False, values=("1",)), ResultStatus(tentative=True, values=("2",)))
    newest = (NewestStatus(stream="out", columns=("n",), rows=rows),)
    client = replace(a_client(a_channel(channel="out/0")), newest=newest)
    assert shown(a_sight(NOW, client))["newest"] == {"out": [["n"], [[False, ["1"]], [True, ["2"]]]]}
    assert shown(a_sight(NOW))["newest"] == {}
