"""A move is refused where `spe check` would refuse what it leads to (rule M5)."""

from __future__ import annotations

from typing import Any

import pytest

from replicas.planning.shares import Running, SharesOfX
from spe.config import load_data
from spe.errors import ConfigError
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, UnitId

N1, N2, N3, N4 = (NodeId(f"n{n}") for n in range(1, 5))
FIRST = [PartitionId(UnitId("first"), p) for p in (0, 1)]
SECOND = [PartitionId(UnitId("second"), p) for p in (0, 1)]


def config(first: list[list[str]], second: list[list[str]], **of_second: Any) -> dict[str, Any]:
    """Two units in sequence, each in two partitions; αX is 900 ms, and each needs more than 600 ms."""
    generator = {"name": "orders", "rate": 100, "keys": 10, "seed": 1, "duration": "10s"}
    divided = {"key": "key", "partitions": 2}
    return {
        "nodes": ["n1", "n2", "n3", "n4"],
        "defaults": {"x": "1s", "alpha": 0.9},
        "bucket": "500ms",
        "sources": {"a": {"from": {"generator": generator}, "boundary": "100ms", "disorder": "0s"}},
        "query": {
            "kept": {"filter": {"from": "a", "where": "price > 1"}},
            "dear": {"filter": {"from": "kept", "where": "price > 2"}},
        },
        "outputs": ["dear"],
        "fragments": {
            "first": {"operators": ["kept"], **divided, "replicas": first},
            "second": {"operators": ["dear"], **divided, "replicas": second, **of_second},
        },
    }


def shares(**of_second: Any) -> tuple[SharesOfX, Running]:
    plan, directory = load_data(config([["n1"], ["n2"]], [["n3"], ["n4"]], **of_second))
    return SharesOfX(plan, directory), directory.placement


def test_units_in_sequence_would_divide_x_and_are_refused() -> None:
    one, running = shares()
    reason = one.refused(running, SECOND[0], N1)
    assert reason is not None
    assert reason.startswith("αX = 450ms, the share of one unit there, is too short for unit 'first'")
    with pytest.raises(ConfigError, match=r"αX = 450ms, the share of one unit on 'n1'"):
        load_data(config([["n1"], ["n2"]], [["n3", "n1"], ["n4"]]))


def test_another_partition_of_the_same_unit_is_in_no_sequence() -> None:
    one, running = shares()
    assert one.refused(running, FIRST[0], N2) is None
    assert one.refused(running, FIRST[0], N1) is None, "it runs there"
    load_data(config([["n1", "n2"], ["n2"]], [["n3"], ["n4"]]))


def test_partitions_that_do_not_read_each_other_share_a_node() -> None:
    """Both are divided by one key, so second/1 reads first/1 alone."""
    one, running = shares()
    assert one.refused(running, SECOND[1], N1) is None
    load_data(config([["n1"], ["n2"]], [["n3"], ["n4", "n1"]]))


def test_a_standby_is_a_host_already_and_divides_x_as_if_it_ran() -> None:
    one, running = shares(standby=[["n4"], []])
    assert one.refused(running, SECOND[0], N4) is None
    assert one.refused(running, FIRST[0], N4) is not None


def test_earlier_moves_count() -> None:
    one, running = shares()
    moved = {**running, FIRST[0]: (N2,)}
    assert one.refused(moved, SECOND[0], N1) is None
    assert one.refused(moved, SECOND[0], N2) is not None
