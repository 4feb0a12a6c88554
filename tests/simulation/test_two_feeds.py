"""Fresh results and corrections at once: at a node, in a chain, at a client; replicas correct in turn."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
import trio

from spe.plan.plan import Limits
from spe.stream.batch import Batch, Undo
from spe.stream.history import FeedMode
from spe.stream.names import Kind, NodeState
from tests.simulation.test_buffers import longer
from tests.simulation.test_cluster import make_plan
from tests.support.faulty_cluster import FaultyCluster
from tests.support.long_forms import long_but
from tests.support.situations import Met, Span, apart, play

#: With this a correction takes long: a few rows at a time, and each step takes a while.
LITTLE = Limits(slice_rows=4)
TURN_US = 10_000

DEPTH = 3
CUT_S, HEAL_S, END_S = 2, 5, 13
#: Buckets, boundaries, ticks, a switch without a connection to open.
GAP_US = 250_000


async def one_failure(cluster: FaultyCluster) -> None:
    await trio.sleep_until(CUT_S)
    cluster.cut("source:b", "*")
    await trio.sleep_until(HEAL_S)
    cluster.heal()


@cache
def slowly_corrected(*, replicas: int) -> Met:
    """A chain of three nodes; several tests use the same run."""
    plan, directory = longer(
        *make_plan(DEPTH, rate=50.0, bucket_us=40_000, replicas=replicas, limits=LITTLE),
        END_S,
    )
    return play(plan, directory, one_failure, turn_us=TURN_US)


def producers(met: Met, consumer: str, mode: FeedMode, span: Span) -> set[str]:
    return {producer for producer, _ in met.received(consumer, mode, span)}


def assert_fresh_all_along(met: Met) -> None:
    """New results reach the client all the time, except for αX when the failure begins (P1)."""
    assert met.longest_gap_us("c", (CUT_S * 1_000_000 + 950_000, (END_S - 1) * 1_000_000)) <= GAP_US


@pytest.mark.parametrize("consumer", ["u2/0@n2a", "u2/0@n2b", "u3/0@n3a", "u3/0@n3b"])
def test_chained_nodes_read_fresh_results_with_corrections(consumer: str) -> None:
    """F4: while one upstream replica corrects, fresh results of the other arrive; then CORRECTIONS turns MAIN (F5)."""
    met = slowly_corrected(replicas=2)
    (span,) = met.side_by_side(consumer)
    assert met.rows(consumer, "main", Kind.TENTATIVE, span) > 30
    assert met.rows(consumer, "corrections", Kind.STABLE, span) > 30
    mains, correcting = producers(met, consumer, "main", span), producers(met, consumer, "corrections", span)
    assert len(mains) == len(correcting) == 1
    assert mains != correcting


@pytest.mark.parametrize("consumer", ["u2/0@n2a", "u3/0@n3a"])
def test_an_only_replica_sends_fresh_results_and_corrections(consumer: str) -> None:
    """R5: no other replica has fresh results, so both feeds come from the correcting one."""
    met = slowly_corrected(replicas=1)
    (span,) = met.side_by_side(consumer)
    assert met.rows(consumer, "main", Kind.TENTATIVE, span) > 30
    assert met.rows(consumer, "corrections", Kind.STABLE, span) > 30
    assert producers(met, consumer, "main", span) == producers(met, consumer, "corrections", span)
    assert_fresh_all_along(met)


def test_a_client_reads_fresh_results_while_a_replica_corrects() -> None:
    """F7: MAIN only; it leaves the correcting replica at once, and gets the corrections afterwards."""
    met = slowly_corrected(replicas=2)
    begin, end = min(met.corrected(f"u{DEPTH}/0@n{DEPTH}{one}") for one in "ab")
    assert met.rows("client:c", "main", Kind.TENTATIVE, (begin + GAP_US, end)) > 100
    assert met.rows("client:c", "main", Kind.STABLE, (begin + GAP_US, end)) == 0
    assert met.rows("client:c", "main", Kind.STABLE, (end, end + GAP_US)) > 500
    assert not met.opened("client:c", "corrections")


def reads_the_first(met: Met) -> bool:
    """Does the client read the first replica to correct when its correction begins?"""
    first, (begin, _) = min(((one, met.corrected(f"u1/0@{one}")) for one in ("n1a", "n1b")), key=lambda it: it[1])
    return first in producers(met, "client:c", "main", (begin - GAP_US, begin))


@pytest.mark.parametrize("leaves", long_but([True], [True, False]))
def test_no_tentative_tuple_comes_twice_in_any_order_of_repair(leaves: bool) -> None:
    """F4: a client leaves the correcting replica before its undo, so the other one repeats nothing."""
    plan, directory = longer(
        *make_plan(1, rate=50.0, replicas=2, limits=LITTLE),
        END_S,
    )
    # The order of tasks decides who corrects first: with seed 4 the one that the client reads.
    runs = (play(plan, directory, one_failure, turn_us=TURN_US, seed=seed) for seed in range(4, 24))
    met = next(met for met in runs if reads_the_first(met) == leaves)
    shown = Counter(
        row
        for e in met.deliveries("c")
        if isinstance(e.element, Batch) and e.element.kind is Kind.TENTATIVE
        for row in zip(e.element.rows.time.tolist(), map(str, e.element.rows.to_tuples()), strict=True)
    )
    assert len(shown) > 300
    assert max(shown.values()) == 1


def test_a_client_of_an_only_replica_reads_fresh_results_first() -> None:
    """V4: the corrections are held back until the replica has caught up."""
    met = slowly_corrected(replicas=1)
    (span,) = met.spans(f"u{DEPTH}/0@n{DEPTH}a", NodeState.STABILIZATION, fresh=True)
    assert span == met.corrected(f"u{DEPTH}/0@n{DEPTH}a")
    assert met.rows("client:c", "main", Kind.TENTATIVE, span) > 30
    assert met.rows("client:c", "main", Kind.STABLE, span) == 0
    assert sum(isinstance(e.element, Undo) for e in met.deliveries("c")) == 1


def test_replicas_correct_in_turn_and_fresh_results_never_pause() -> None:
    """K1, K2, P1: never both at once, on any level; each correction is long enough to show a pause."""
    met = slowly_corrected(replicas=2)
    for level in range(1, DEPTH + 1):
        spans = [met.corrected(f"u{level}/0@n{level}{one}") for one in "ab"]
        assert apart(*spans)
        assert all(end - begin > GAP_US for begin, end in spans)
        assert all(not met.spans(f"u{level}/0@n{level}{one}", NodeState.STABILIZATION, fresh=True) for one in "ab")
    assert_fresh_all_along(met)
