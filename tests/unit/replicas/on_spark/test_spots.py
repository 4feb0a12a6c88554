"""Which executors nodes may run on."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from replicas.on_spark.spots import (
    PATIENCE_US,
    SETTLED_US,
    Executor,
    Fit,
    Spot,
    conflict,
    fit,
    needs,
    partners,
    possible,
)
from tests.support.sights import deployed

TWO = {"n1": ["n2"], "n2": ["n1"]}


def executors(*hosts: str, slots: int = 1) -> tuple[Executor, ...]:
    return tuple(Executor(Spot(str(i), host), slots) for i, host in enumerate(hosts))


def test_partners_are_all_nodes_with_role_for_same_partition() -> None:
    _, directory = deployed(
        """
        sources: {a: {from: {generator: {name: orders, rate: 10}}}}
        query: {t: {filter: {from: a, where: qty > 1}}}
        fragments: {all: {operators: [t], key: key, partitions: 2, replicas: [[n1, n2], [n3, n4]], standby: [[n5], []]}}
        nodes: [n1, n2, n3, n4, n5]
        """
    )
    assert partners(directory) == {
        "n1": {"n2", "n5"}, "n2": {"n1", "n5"}, "n3": {"n4"}, "n4": {"n3"}, "n5": {"n1", "n2"}
    }  # fmt: skip


@pytest.mark.parametrize(
    ("spot", "by_host", "why"),
    [
        (Spot("0", "h1"), False, "n1 runs on executor 0 on h1"),
        (Spot("1", "h1"), False, None),
        (Spot("1", "h1"), True, "n1 runs on host h1"),
        (Spot("1", "h2"), True, None),
    ],
)
def test_partners_share_no_executor_nor_a_host_where_that_counts(spot: Spot, by_host: bool, why: str | None) -> None:
    assert conflict("n2", spot, TWO, {"n1": Spot("0", "h1")}, by_host=by_host) == why


def test_nodes_without_a_common_partition_may_share_an_executor() -> None:
    assert possible({"a": [], "b": []}, executors("h", slots=2), {}, by_host=True)


def test_placement_search_backtracks() -> None:
    """a and c must share the executor with two slots, which one who takes the first free place does not see."""
    apart: Mapping[str, list[str]] = {"a": ["b"], "b": ["a", "c"], "c": ["b"]}
    some = (Executor(Spot("0", "h"), 1), Executor(Spot("1", "h"), 2))
    assert possible(apart, some, {}, by_host=False)
    assert possible(apart, some, {"a": Spot("1", "h")}, by_host=False)
    assert not possible(apart, some, {"a": Spot("0", "h")}, by_host=False)


def test_placement_search_gives_up_in_time_as_possible() -> None:
    """40 nodes that must all be apart, on 20 executors: to see that this cannot be takes longer than the universe."""
    names = [f"n{i}" for i in range(40)]
    apart = {n: [o for o in names if o != n] for n in names}
    assert possible(apart, executors(*"abcdefghijklmnopqrst", slots=2), {}, by_host=False)


@pytest.mark.parametrize(
    ("hosts", "expected", "waited_us", "found"),
    [
        (("h1", "h2"), None, 0, Fit.BY_HOST),
        (("h1", "h1"), 2, 0, Fit.BY_EXECUTOR),
        (("h1", "h1"), 3, 0, Fit.NOT_YET),
        (("h1", "h1"), None, 0, Fit.NOT_YET),
        (("h1", "h1"), None, SETTLED_US, Fit.BY_EXECUTOR),
        (("h1", "h1"), 3, PATIENCE_US, Fit.BY_EXECUTOR),
        (("h1",), 1, 0, Fit.NEVER),
        (("h1",), 2, 0, Fit.NOT_YET),
        (("h1",), None, SETTLED_US, Fit.NOT_YET),
        (("h1",), None, PATIENCE_US, Fit.NEVER),
        ((), 2, PATIENCE_US, Fit.NEVER),
    ],
)
def test_hosts_are_waited_for_while_more_executors_may_come(
    hosts: tuple[str, ...], expected: int | None, waited_us: int, found: Fit
) -> None:
    assert fit(TWO, executors(*hosts), expected, waited_us) is found


def test_missing_places_are_reported_with_present_ones() -> None:
    assert needs({**TWO, "n3": []}, executors("h1", slots=2)) == (
        "3 nodes need 3 tasks at a time on 2 executors or more, of which no two replicas of a partition share one; "
        "there are 1 executors, which run 2 tasks at a time"
    )
