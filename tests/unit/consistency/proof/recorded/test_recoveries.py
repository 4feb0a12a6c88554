"""In which order lost partitions came back, from lines of a coordinator and constructed tracks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from consistency.proof.recorded.recoveries import recovery_report
from consistency.proof.report.model import RecoveryReport, RecoveryStep, Track
from consistency.proof.report.page import page
from replicas.planning.recovery.cluster import value_of
from spe.config import load
from spe.plan.directory import ExpectedLoad, RecoverySettings
from spe.stream.ids import PartitionId
from spe.stream.names import UnitId
from tests.support.reports import check_schema, output, report, track

SECOND = 1_000_000
BEGUN = 1_000 * SECOND
PLAN, DIRECTORY = load(Path(__file__).parents[5] / "configs" / "recovery.yaml")
#: Two partitions are lost at 12 s, and there is room for the first one.
LOST = [
    track("revenue/0@n1", "STABLE 0 12", "down 12 60"),
    track("revenue/1@n1", "STABLE 0 12", "down 12 60"),
]


def at(seconds: float, event: str, **fields: Any) -> dict[str, Any]:
    """A line of the coordinator's trace."""
    return {"t": BEGUN + round(seconds * SECOND), "event": event} | fields


def planned(seconds: float, installs: str, waits: str = "") -> dict[str, Any]:
    return at(seconds, "recovery_planned", installs=installs, waits=waits)


def told(seconds: float, replica: str, verb: str = "install") -> dict[str, Any]:
    return at(seconds, "ordered", verb=verb, replica=replica, number=1)


def share(lost: Collection[PartitionId]) -> float:
    return 1 - len(lost) / 10


def found(lines: Sequence[dict[str, Any]], tracks: Sequence[Track], directory: Any = DIRECTORY) -> list[RecoveryStep]:
    made = recovery_report(directory, lines, [*LOST, *tracks], [], share, BEGUN)
    assert made is not None
    return made.steps


def shown(steps: Sequence[RecoveryStep]) -> list[str]:
    """PARTITION@NODE, and when it was wanted, told and back, seconds."""
    times = [(one.wanted_us, one.assigned_us, one.back_us) for one in steps]
    return [
        " ".join([f"{one.partition}@{one.node}", *("-" if us is None else f"{us / SECOND:g}" for us in each)])
        for one, each in zip(steps, times, strict=True)
    ]


def test_partitions_recover_in_order_of_instructions() -> None:
    lines = [
        planned(12.5, "revenue/1@n5", "revenue/0"),
        told(12.6, "revenue/1@n5"),
        planned(20, "revenue/0@n4"),
        told(20.1, "revenue/0@n4"),
        at(22, "recovery_over"),
        told(30, "revenue/0@n4", "retire"),
    ]
    steps = found(
        lines,
        [
            track("revenue/1@n5", "RECOVERING 12.6 14", "UP_FAILURE 14 15", "STABLE 15 60"),
            track("revenue/0@n4", "RECOVERING 20.1 21.5", "STABLE 21.5 30", "RECOVERING 30 60"),
        ],
    )
    assert shown(steps) == ["revenue/1@n5 12.5 12.6 14", "revenue/0@n4 12.5 20.1 21.5"]
    assert [(one.value_before, one.value) for one in steps] == [(0.8, 0.9), (0.9, 1.0)]
    assert [one.why for one in steps] == ["", ""]


def test_where_there_was_room_there_is_no_order() -> None:
    lines = [told(12.6, "revenue/1@n5")]
    assert recovery_report(DIRECTORY, lines, [*LOST, track("revenue/1@n5", "STABLE 14 60")], [], share, BEGUN) is None


def test_the_next_coordinator_continues_the_order() -> None:
    lines = [
        planned(12.5, "revenue/1@n5", "revenue/0"),
        told(12.6, "revenue/1@n5"),
        at(15, "coordinator_began", epoch=2),
        planned(16, "revenue/0@n4"),
        told(16.1, "revenue/0@n4"),
    ]
    tracks = [track("revenue/1@n5", "RECOVERING 12.6 17", "STABLE 17 60"), track("revenue/0@n4", "STABLE 18 60")]
    assert shown(found(lines, tracks)) == ["revenue/1@n5 12.5 12.6 17", "revenue/0@n4 12.5 16.1 18"]


def test_recovery_without_an_order_is_shown_once() -> None:
    """Its own node was started again; what befalls it later is no part of the recovery."""
    lines = [
        planned(12.5, "revenue/1@n5", "revenue/0"),
        told(12.6, "revenue/1@n5"),
        told(12.8, "revenue/1@n5"),
        at(22, "recovery_over"),
    ]
    own = track("revenue/0@n1", "STABLE 0 12", "down 12 18", "RECOVERING 18 20", "STABLE 20 40", "down 40 41")
    own = own.model_copy(update={"spans": [*own.spans, *track("", "STABLE 41 60").spans]})
    steps = found(lines, [track("revenue/1@n5", "STABLE 14 60"), own])
    assert shown(steps) == ["revenue/1@n5 12.5 12.6 14", "revenue/0@n1 12.5 - 20"]


def test_failed_restore_is_shown_with_its_reason() -> None:
    lines = [
        planned(12.5, "revenue/0@n4,revenue/1@n4"),
        told(12.6, "revenue/0@n4"),
        at(12.7, "order_refused", replica="revenue/0@n4", why="n4 is no standby"),
        told(13, "revenue/0@n5"),
        told(13, "revenue/1@n4"),
        told(18, "revenue/1@n5"),
    ]
    steps = found(lines, [track("revenue/0@n5", "STABLE 14 60"), track("revenue/1@n5", "STABLE 19 60")])
    assert [(one.node, one.back_us is not None, one.why) for one in steps] == [
        ("n4", False, "n4 is no standby"),
        ("n5", True, ""),
        ("n4", False, "n5 was first"),
        ("n5", True, ""),
    ]


def test_unrecovered_partition_is_shown_last() -> None:
    steps = found([planned(12.5, "revenue/1@n5", "revenue/0"), told(12.6, "revenue/1@n5")], [])
    assert shown(steps) == ["revenue/1@n5 12.5 12.6 -", "revenue/0@ 12.5 - -"]
    assert [one.value for one in steps] == [None, None]


def test_the_expected_time_is_that_of_the_configuration() -> None:
    loads = {UnitId("revenue"): ExpectedLoad((0.4,), (3 * SECOND, 2 * SECOND))}
    directory = replace(DIRECTORY, recovery=RecoverySettings(loads=loads))
    lines = [planned(12.5, "revenue/1@n5,alarms/0@n4"), told(12.6, "revenue/1@n5"), told(12.6, "alarms/0@n4")]
    assert [one.predicted_us for one in found(lines, [], directory)] == [2 * SECOND, None]


def test_the_order_of_recovery_is_on_the_page() -> None:
    lines = [planned(12.5, "revenue/1@n5", "revenue/0"), told(12.6, "revenue/1@n5")]
    tracks = [*LOST, track("revenue/1@n5", "RECOVERING 12.6 24", "STABLE 24 60")]
    made = recovery_report(DIRECTORY, lines, tracks, [output([])], share, BEGUN)
    assert isinstance(made, RecoveryReport)
    whole = report().model_copy(update={"recovery": made})
    check_schema(whole.model_dump_json())
    text = page(whole).partition("<h3>Order of recovery</h3>")[2]
    for part in (
        "1 plan said",
        "output fidelity",
        "revenue/1",
        "n5",
        "11.4 s",
        "80.0 % → 90.0 %",
        ">40<",
        "ran at 24 s",
    ):
        assert part in text
    assert "waited until the end" in text
    assert "Order of recovery" not in page(report())


def test_value_equals_the_coordinators_weight() -> None:
    """By priority: alarms are worth three times as much as revenue, of which a partition is lost."""
    rates = {"shop_a": [500.0], "shop_b": [500.0]}
    alarms, one = PartitionId(UnitId("alarms"), 0), PartitionId(UnitId("revenue"), 2)

    def of(*lost: PartitionId, goal: str = "fidelity") -> float:
        settings = replace(DIRECTORY.recovery, value=goal)
        return partial(value_of, PLAN, replace(DIRECTORY, recovery=settings))(rates, lost)

    assert [of(), of(alarms), of(one)] == [1.0, 0.25, 1 - 0.25 / 4]
    assert of(one, goal="complete") == of(one)
