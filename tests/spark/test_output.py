"""One output at one client: its verdict and its figures, from streams written by hand.  An element a second."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest
from pyspark import SparkConf

from consistency.proof.comparing.delay import judge_delay
from consistency.proof.comparing.experience import delays
from consistency.proof.output import SKIP_US, judge_output, judge_stable, received_tables, tables_of
from consistency.proof.report.model import FaultSpan, Flaw, OutputReport, Verdict
from consistency.proof.scene import Scene
from consistency.proof.session.parallel import background_threads
from consistency.proof.storage.tables import Keep, MadeByTasks, frame_of
from spe.config import load_text
from spe.log.announced_settings import RecordedAnnouncement
from spe.plan.delays import epochs
from spe.stream.names import StreamId
from spe.stream.times import END_OF_TIME
from spe.wire.messages.feeds import Announcement
from tests.support.received import received, truth

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECOND = 1_000_000
PLAN, DIRECTORY = load_text("""
sources:
  a: {from: {generator: {name: orders, rate: 10, duration: 10s}}}
query:
  totals: {aggregate: {from: a, window: {tumbling: 1s}, group_by: key, compute: {n: count(*), total: sum(price)}}}
defaults: {x: 2s, alpha: 0.9, policy: process}
nodes: [n1, n2]
""")
TOTALS = StreamId("totals")
SCHEMA = PLAN.query.schema_of(TOTALS)


def stream(text: str) -> str:
    """``S1@3:7,5,2.5``: of window 3 (from 3 s to 4 s) and key 7: n 5, total 2.5.  ``B3``: until window 3 is over."""
    words = []
    for word in text.split():
        head, at, rest = word.partition("@")
        if at:
            window, _, values = rest.partition(":")
            key, n, total = values.split(",")
            start = int(window) * SECOND
            words.append(f"{head}/{start + SECOND - 1}:{key},{start},{start + SECOND},{n},{total}")
        elif head[0] in "Bb" and head[1:] != "inf":
            words.append(f"{head[0]}{(int(head[1:]) + 1) * SECOND}")
        else:
            words.append(head)
    return " ".join(words)


TRUE = stream("S@0:1,10,1.5 S@0:2,20,2.5 S@1:1,11,3.5 S@2:1,12,4.5 S@2:2,22,5.5 S@3:1,13,6.5 Binf")
UNIT = str(PLAN.units[0].id)
SAID = Announcement("n1", UNIT, 5, 0, 2 * SECOND, 2 * SECOND, 0.9, "process", "process", "checkpoint", 0)
ANNOUNCED = [RecordedAnnouncement(0, SAID)]
CUT = FaultSpan(name="cut", from_us=0, until_us=6 * SECOND, kind="cut", targets=["source:a", "all"])


def scene(known_us: int = END_OF_TIME, announced: Sequence[RecordedAnnouncement] = ANNOUNCED) -> Scene:
    known, data_until = {TOTALS: known_us}, {TOTALS: 4 * SECOND}
    return Scene(PLAN, DIRECTORY, 0, 12 * SECOND, [CUT], known, data_until, {"board": announced}, True, "interrupted")


def keeper(spark: SparkSession, folder: Path) -> Keep:
    def keep(name: str, given: DataFrame | MadeByTasks) -> DataFrame:
        frame = frame_of(given)
        frame.write.parquet(str(folder / name))
        return spark.read.schema(frame.schema).parquet(str(folder / name))

    return keep


def judged(spark: SparkSession, folder: Path, text: str) -> OutputReport:
    came = received(spark, [stream(text)], SCHEMA)
    keep = keeper(spark, folder)
    return judge_output(scene(), "board", TOTALS, truth(spark, [TRUE], SCHEMA), came, keep, received_tables(came, keep))


def delays_of(spark: SparkSession, folder: Path, text: str, *, start_us: int = 0) -> tuple[DataFrame, int]:
    """The delays in a recording, and the wall time from which on they count."""
    came = received(spark, [stream(text)], SCHEMA, start_us=start_us)
    keep = keeper(spark, folder)
    tables = tables_of(truth(spark, [TRUE], SCHEMA), came, SCHEMA, received_tables(came, keep))
    epoch = epochs(PLAN, 0)[TOTALS]
    return keep("delays", delays(tables, epoch, 4 * SECOND)), tables.first_arrival_us + SKIP_US


@pytest.fixture(scope="module")
def healed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> OutputReport:
    """Windows 1 and 2 were tentative: 1 wrong, of 2 one right, one missing, and one that is none.

    1 boundary   2 stable   3 boundary   4, 5 tentative   6 tentative boundary   7 undo   8 stable   9 rec_done   10 end
    """
    text = (
        "B-1 S1@0:1,10,1.5 S2@0:2,20,2.5 B0 T@1:1,5,1.75 | T@2:1,12,4.5 T@2:3,1,9.5 b2 U(2) "
        "S3@1:1,11,3.5 S4@2:1,12,4.5 S5@2:2,22,5.5 S6@3:1,13,6.5 R+ Binf"
    )
    return judged(spark, tmp_path_factory.mktemp("healed"), text)


def test_a_corrected_stream_is_consistent(healed: OutputReport) -> None:
    assert (healed.verdict, healed.reasons, healed.findings) == (Verdict.CONSISTENT, [], [])
    assert (healed.truth, healed.stable) == (6, 6)


def test_tentative_tuples_are_counted_as_right_or_wrong(healed: OutputReport) -> None:
    found = healed.tentative
    assert (found.count, found.right, found.wrong, found.undone, found.corrections) == (3, 1, 2, 3, 1)
    assert found.stood_max_us == 3 * SECOND  # window 1, from 4 s to the undo at 7 s
    assert found.predicted == 3  # a cut of 6 s at 6 results in 12 s


def test_accuracy_by_window_compares_with_all_true_tuples(healed: OutputReport) -> None:
    assert healed.accuracy is not None
    assert healed.accuracy.key == ["key", "window_start", "window_end"]
    first, second = healed.accuracy.windows
    assert (first.tentative, first.truth, first.at_us) == (1, 1, 4 * SECOND)
    assert first.measures == pytest.approx({"overlap": 1, "exact": 0, "error n": 6 / 11, "error total": 0.5})
    assert (second.tentative, second.truth) == (2, 2)
    assert second.measures == pytest.approx({"overlap": 1 / 3, "exact": 0.5, "error n": 0, "error total": 0})
    assert healed.accuracy.overall["overlap"] == pytest.approx(2 / 4)


def test_delay_is_of_new_tuples_only_on_first_receipt(healed: OutputReport) -> None:
    """The corrections at 8 s are old but for window 3, which ended at 4 s."""
    assert healed.delay.max_us == 8 * SECOND - (4 * SECOND - 1)
    assert healed.delay.kept is False
    assert (healed.delay.bound_us, healed.k) == (2 * SECOND, 1)


@pytest.mark.parametrize(
    ("received_too", "verdict"),
    [
        ("B1", Verdict.UNKNOWN),  # merely unfinished: the logs go to 2 s, and so does what is final
        ("B1 S4@2:1,12,4.5", Verdict.INCONSISTENT),
        pytest.param("B2", Verdict.INCONSISTENT, marks=pytest.mark.long),
        pytest.param("Binf", Verdict.INCONSISTENT, marks=pytest.mark.long),
    ],
)
def test_stable_output_beyond_logs_shows_lost_end(
    spark: SparkSession, tmp_path: Path, received_too: str, verdict: Verdict
) -> None:
    """No correct run publishes what its sources have not logged and synced (S3)."""
    known = stream("S@0:1,10,1.5 S@0:2,20,2.5 S@1:1,11,3.5")
    came = received(spark, [stream(f"S1@0:1,10,1.5 S2@0:2,20,2.5 B0 S3@1:1,11,3.5 {received_too}")], SCHEMA)
    keep = keeper(spark, tmp_path)
    tables = tables_of(truth(spark, [known], SCHEMA), came, SCHEMA, received_tables(came, keep))
    found, reasons, findings = judge_stable(scene(2 * SECOND), TOTALS, tables, keep)
    assert found is verdict, reasons
    named = [(f.flaw, o.place) for f in findings for o in f.offenders]
    assert named == ([(Flaw.UNFOUNDED, 4)] if "S4" in received_too else [])


def test_results_that_arrive_before_their_data_do_not_keep_x(spark: SparkSession, tmp_path: Path) -> None:
    """An hour before: the clocks differ, or the times of arrival are not those at which anything arrived."""
    text = "B-1 S1@0:1,10,1.5 S2@0:2,20,2.5 S3@1:1,11,3.5 S4@2:1,12,4.5 S5@2:2,22,5.5 S6@3:1,13,6.5 Binf"
    found, _ = judge_delay(scene(), "board", TOTALS, *delays_of(spark, tmp_path, text, start_us=-3600 * SECOND), 6)
    assert (found.kept, found.max_us, found.p99_us, found.median_us) == (None, None, None, None)
    assert found.why == "results came up to 3599 s before their data: the clocks differ by more than 0.5 s"


def test_the_last_window_of_an_ended_stream_is_not_early(spark: SparkSession, tmp_path: Path) -> None:
    """The last data are of 4 s, where it is known that nothing follows; its window is over at 10 s."""
    text = "S1@0:1,10,1.5 B0 S2@1:1,11,3.5 B1 S3@9:1,13,6.5 Binf"  # at 5 s
    found, _ = judge_delay(scene(), "board", TOTALS, *delays_of(spark, tmp_path, text), 6)
    assert (found.why, found.kept) == ("", True)
    assert found.max_us == 1_000_001


@pytest.fixture(scope="module")
def late_result(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[DataFrame, int]:
    """One result, at 6 s, is 4 s late."""
    text = "S1@0:1,10,1.5 B0 | b-1 b-1 b-1 S2@1:1,11,3.5 Binf"
    return delays_of(spark, tmp_path_factory.mktemp("late"), text)


@pytest.mark.parametrize(
    ("announced", "kept", "bound_s"),
    [
        ([], None, 2),  # nothing was announced: not known
        ([(0, 5)], True, 5),
        ([(0, 2), (3, 5)], True, 5),  # a node began anew with more, before the result was late
        ([(0, 5), (4, 2)], True, 5),  # with less, while it was on its way (X5)
        ([(0, 2), (7, 5)], False, 2),
    ],
)
def test_x_of_a_result_is_the_one_announced_on_its_way(
    late_result: tuple[DataFrame, int], announced: list[tuple[int, int]], kept: bool | None, bound_s: int
) -> None:
    """The file says 2 s."""
    heard = [
        RecordedAnnouncement(
            at * SECOND,
            SAID._replace(incarnation=5 + n, since_us=at * SECOND, share_us=x * SECOND, x_us=x * SECOND),
        )
        for n, (at, x) in enumerate(announced)
    ]
    found, _ = judge_delay(scene(announced=heard), "board", TOTALS, *late_result, 6)
    assert found.max_us == 4 * SECOND + 1
    assert (found.kept, found.bound_us) == (kept, bound_s * SECOND)
    assert ("no node announced" in found.why) == (kept is None)


def test_silences_and_the_time_from_heal_to_correction(healed: OutputReport) -> None:
    assert (healed.gaps.any_us, healed.gaps.stable_us) == (2 * SECOND, 5 * SECOND)
    assert (healed.healing.healed_us, healed.healing.corrected_us) == (6 * SECOND, 9 * SECOND)


def test_bins_add_up(healed: OutputReport) -> None:
    assert healed.bin_us >= SECOND  # no shorter than the time between two results
    assert [sum(getattr(b, kind) for b in healed.bins) for kind in ("stable", "tentative", "undone")] == [
        6,
        3,
        3,
    ]


def test_received_table_is_stored_once_for_all_callers(spark: SparkSession) -> None:
    """Verdict and figures are computed beside each other, and the table has one name."""
    stored: list[str] = []

    def keep(name: str, frame: DataFrame | MadeByTasks) -> DataFrame:
        stored.append(name)
        if len(stored) == 1:
            other.start()
            other.join(0.1)  # as long as it waits for this
        return frame_of(frame)

    came = received(spark, [stream("S1@0:1,10,1.5 B1")], SCHEMA, keep=keep)
    other = Thread(target=lambda: came.rows)
    first = came.rows
    other.join()
    assert stored == ["received"]
    assert came.rows is first


def test_background_work_has_its_own_pool(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it was begun by such work; but not where Spark is set up by somebody else."""
    sc = spark.sparkContext

    def pool() -> str | None:
        return sc.getLocalProperty("spark.scheduler.pool")

    with background_threads() as background:
        inner = background(lambda: (pool(), background(pool)()))
        pools = {*inner(), background(pool)()}
    assert len(pools - {None}) == 3
    assert pool() is None
    monkeypatch.setattr(sc, "getConf", lambda: SparkConf(loadDefaults=False))
    with background_threads() as background:
        assert background(pool)() is None


def test_wrong_tuple_is_shown_with_true_one_and_neighbours(spark: SparkSession, tmp_path: Path) -> None:
    found = judged(spark, tmp_path, "S1@0:1,10,1.5 B-1 S2@0:2,99,2.5 S3@1:1,11,3.5 B1 T4@2:1,12,4.5 b2")
    assert found.verdict is Verdict.INCONSISTENT
    assert found.reasons == ["1 tuple altered"]
    (offender,) = next(f for f in found.findings if f.flaw is Flaw.ALTERED).offenders
    assert offender.place == 2
    assert (offender.tuple["n"], (offender.expected or {})["n"]) == (99, 20)
    assert offender.tuple["window_start"] == "1970-01-01 00:00:00"
    assert [line for line in offender.around if line.startswith("▸")] == [
        "▸ 3 s  stable 2 to 3 (2 tuples, until 1970-01-01 00:00:01.999999)"
    ]
