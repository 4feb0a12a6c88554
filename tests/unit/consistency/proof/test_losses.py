"""The times in which no node ran a partition, from constructed tracks."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from consistency.proof.losses import losses
from consistency.proof.report.model import Accuracy, Span, Track, WindowAccuracy
from consistency.proof.report.page import page
from consistency.proof.report.summary import text
from replicas.planning.cluster_topology import fidelity_of
from spe.config import load
from spe.stream.ids import PartitionId
from spe.stream.names import UnitId
from tests.support.reports import output, report

TRAFFIC = load(Path(__file__).parents[4] / "configs" / "traffic.yaml")


def track(replica: str, *spans: tuple[str, int, int]) -> Track:
    return Track(name=replica, spans=[Span(name=n, from_us=a * SECOND, until_us=b * SECOND) for n, a, b in spans])


SECOND = 1_000_000


def share(lost: Collection[PartitionId]) -> float:
    return 1 - len(lost) / 10


def test_partition_is_lost_while_no_replica_serves_it() -> None:
    tracks = [
        track("speeds/0@n1", ("STABLE", 0, 40), ("down", 40, 100)),
        track("speeds/0@b1", ("RECOVERING", 60, 70), ("UP_FAILURE", 70, 80), ("STABLE", 80, 100)),
        track("speeds/1@n2", ("STABLE", 0, 50), ("down", 50, 75), ("RECOVERING", 75, 90), ("STABLE", 90, 100)),
        track("jams/0@n7", ("RECOVERING", 0, 10), ("STABLE", 10, 100)),
    ]

    found = losses(TRAFFIC.directory, tracks, [], share)

    assert [(one.from_us // SECOND, one.until_us // SECOND, one.partitions, one.fidelity) for one in found] == [
        (40, 50, ["speeds/0"], 0.9),
        (50, 70, ["speeds/0", "speeds/1"], 0.8),
        (70, 90, ["speeds/1"], 0.9),
    ]


def test_a_lasting_loss_ends_with_the_run() -> None:
    (found,) = losses(TRAFFIC.directory, [track("speeds/0@n1", ("STABLE", 0, 40), ("down", 40, 100))], [], share)
    assert (found.from_us, found.until_us) == (40 * SECOND, 100 * SECOND)


def test_a_partition_with_an_active_replica_is_not_lost() -> None:
    tracks = [
        track("speeds/0@n1", ("STABLE", 0, 40), ("down", 40, 100)),
        track("speeds/0@b1", ("STABLE", 5, 100)),
    ]
    assert losses(TRAFFIC.directory, tracks, [], share) == []


def test_accuracy_during_a_loss_is_shown_with_fidelity() -> None:
    windows = [
        WindowAccuracy(time="a", at_us=39 * SECOND, tentative=9, truth=9, measures={"recall": 1.0}),
        WindowAccuracy(time="b", at_us=45 * SECOND, tentative=3, truth=6, measures={"recall": 0.5}),
        WindowAccuracy(time="c", at_us=55 * SECOND, tentative=1, truth=2, measures={"recall": 0.1}),
        WindowAccuracy(time="d", at_us=None, tentative=0, truth=5, measures={"recall": 0.0}),
    ]
    accuracy = Accuracy(key=["segment"], measures=["recall"], overall={"recall": 0.4}, worst=[], windows=windows)
    one = output([]).model_copy(update={"accuracy": accuracy})
    tracks = [track("speeds/0@n1", ("STABLE", 0, 40), ("down", 40, 60), ("STABLE", 60, 100))]

    found = losses(TRAFFIC.directory, tracks, [one], share)

    assert [loss.measured for loss in found] == [{one.title: 0.4}]
    whole = report().model_copy(update={"outputs": [one], "losses": found})
    shown = page(whole)
    assert "While partitions were lost" in shown
    assert "speeds/0" in shown
    said = f"longest loss: nobody ran 1 partition for 20 s; expected fidelity (OF) 90.0 %, recall of {one.title} 40.0 %"
    assert text(whole)[-1].strip() == said


def test_fidelity_follows_from_the_losses_on_each_path() -> None:
    rates = {"cars_1": [2000.0], "cars_2": [2000.0], "reports": [100.0]}

    def of(*lost: tuple[str, int]) -> float:
        return fidelity_of(*TRAFFIC, rates, {PartitionId(UnitId(u), p) for u, p in lost})

    assert of() == 1
    assert of(("speeds", 2), ("jams", 2)) == 0.75
    assert of(("incidents", 1)) == 0.5
    assert of(("incidents", 1), ("speeds", 2), ("speeds", 3), ("jams", 3)) == 0.5
    assert of(("everywhere", 0)) == 0
