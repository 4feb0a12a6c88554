"""Which partitions to recover (O3): where the algorithms differ, and where they agree."""

from __future__ import annotations

import numpy as np
import pytest

from replicas.planning.recovery import choosing
from replicas.planning.recovery.choosing import MOST_UNIONS, Shortage
from replicas.planning.recovery.program import best_choice
from spe.errors import ConfigError
from tests.support.recovery import Partitions

SHARING = Partitions(
    {"a": "", "b": "", "c": "", "w": "b", "x": "a c", "y": "b", "z": "a b"}, {"w": 4, "x": 2, "y": 5, "z": 2}
)
LOADS = {"a": 2, "b": 2, "c": 1, "w": 3, "x": 2, "y": 4, "z": 1}


def test_the_densest_query_alone_is_not_the_best() -> None:
    """w is the densest (1.09) and y next (1.07); no pair fits.  From all singles: y."""
    short = SHARING.shortage(LOADS, 6)
    density = short.priority / (short.needs @ short.shares)
    assert density.round(2).tolist() == [1.09, 0.5, 1.07, 0.75]
    for choose in (choosing.densest, choosing.best_density, choosing.dp):
        assert (SHARING.text(choose(short)), short.value(choose(short))) == ("b y", 5)
    assert SHARING.text(best_choice(short, [6]).partitions) == "b y"


def test_operator_by_operator_one_query_is_whole() -> None:
    short = SHARING.shortage(LOADS, 6)
    assert SHARING.text(choosing.operator_centric(short)) == "a b c z"
    assert short.value(choosing.operator_centric(short)) == 2


def test_the_optimum_by_room() -> None:
    values = [SHARING.shortage(LOADS, room).value(choosing.dp(SHARING.shortage(LOADS, room))) for room in range(16)]
    assert values == [0, 0, 0, 0, 0, 5 - 1, 5, 5, 6, 9, 9, 9, 11, 11, 11, 13]


def test_shared_partitions_are_paid_for_once() -> None:
    """Two queries are a start; the third has to be found."""
    shared = Partitions({"s": "", "a": "s", "b": "s", "c": "s"}, {"a": 1, "b": 1, "c": 1})
    short = shared.shortage({}, 4)
    for choose in (choosing.densest, choosing.best_density, choosing.dp):
        assert shared.text(choose(short)) == "s a b c"


def test_query_with_shared_partitions_is_denser() -> None:
    """Each p costs 4 and serves three queries of priority 3; q costs 3 and serves one of 4.  Two of three p may be in
    the start, the third must be found."""
    reads = {p: "" for p in ("p", "r", "s", "q")} | {f"{p}{i}": p for p in "prs" for i in range(3)}
    parts = Partitions(reads, {name: 3.0 for name in reads if len(name) == 2} | {"q": 4.0})
    short = parts.shortage({"p": 4, "r": 4, "s": 4, "q": 3} | {n: 0.5 for n in reads if len(n) == 2}, 16.5)
    assert (short.priority / (short.needs @ short.shares)).round(2).tolist() == [1.64] * 9 + [1.33]
    assert short.value(choosing.densest(short)) == 27


def test_rooms_of_several_nodes_are_not_one_room() -> None:
    """Two nodes with room for 3 each do not hold a partition of 4."""
    parts = Partitions({"big": "", "small": ""}, {"big": 10, "small": 1})
    short = parts.shortage({"big": 4, "small": 3}, 6)
    assert parts.text(choosing.dp(short)) == "big"
    proved = best_choice(short, [3, 3])
    assert (parts.text(proved.partitions), proved.bound) == ("small", pytest.approx(1))


def test_nothing_fits() -> None:
    short = SHARING.shortage(LOADS, 2)
    for choose in (choosing.best_density, choosing.dp):
        assert not choose(short).any()
    assert not best_choice(short, []).partitions.any()


def test_unions_of_too_many_queries_are_refused() -> None:
    many = MOST_UNIONS + 1
    short = Shortage(np.eye(many, dtype=np.bool_), np.ones(many), np.ones(many), np.zeros(many, np.int64), 3.0)
    with pytest.raises(ConfigError, match="at most 20 failed queries, here are 21; expected best-density"):
        choosing.dp(short)
    assert choosing.best_density(short).sum() == 3


def test_densest_starts_of_hundreds_of_queries_are_tried() -> None:
    random = np.random.default_rng(1)
    needs = random.random((200, 400)) < 0.01
    needs[np.arange(200), np.arange(200) + 200] = True
    short = Shortage(needs, random.random(200) + 0.1, random.random(400) + 0.1, np.zeros(400, np.int64), 40.0)
    chosen = choosing.best_density(short)
    assert chosen @ short.cost <= 40
    assert short.value(chosen) > 2 * short.value(choosing.operator_centric(short))


def test_where_the_densest_are_not_the_best_others_are_chosen() -> None:
    """Thirty queries that share nothing; the densest leave some room, which others fill better."""
    random = np.random.default_rng(6)
    cost = random.integers(5, 30, 30).astype(np.float64)
    priority = cost + random.integers(0, 9, 30)
    short = Shortage(np.eye(30, dtype=np.bool_), priority, cost, np.zeros(30, np.int64), 201.0)
    first, then = choosing.densest(short), choosing.best_density(short)
    assert (short.value(first), short.value(then)) == (280, 281)
    assert best_choice(short, [201.0]).bound == pytest.approx(281)
    assert then @ cost <= 201
