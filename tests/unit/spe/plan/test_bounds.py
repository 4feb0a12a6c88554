"""X of nodes from the bounds of outputs."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import yaml

from replicas.simulation.scenarios.topologies import random_configuration
from spe.api import Environment, generator
from spe.config import load_data, load_text
from spe.config.load import load_newcomer
from spe.errors import ConfigError
from spe.plan.bounds import derived, units_before
from spe.plan.delays import delay_bound_us
from spe.plan.deploy import Deployed
from spe.plan.directory import Directory, Role
from spe.plan.draw import check_text
from spe.plan.plan import Plan
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, StreamId
from spe.stream.times import MILLISECOND, SECOND

#: first → second, with one unit each and n2 on both ways; other by itself.
CONFIG = """
sources: {a: {from: {generator: {name: sequence, rate: 100, seed: 1, duration: 60s}}}}
query:
  first: {filter: {from: a, where: value >= 0}}
  second: {filter: {from: first, where: value >= 0}}
  other: {filter: {from: a, where: value >= 0}}
outputs: {second: {bound: 6s}, other: {}}
fragments:
  u1: {operators: [first], replicas: [n1, n2]}
  u2: {operators: [second], replicas: [n2, n3]}
  u3: {operators: [other], replicas: [n3, n4]}
nodes: {n1: {}, n2: {}, n3: {}, n4: {}}
"""


def with_(**sections: Any) -> Deployed:
    return load_data({**yaml.safe_load(CONFIG), **sections})


def x_of(directory: Directory) -> dict[str, float]:
    return {str(n): node.x_us / SECOND for n, node in directory.nodes.items()}


def mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_text(text, "shop.yaml")
    return caught.value.problems


def test_units_in_sequence_share_a_bound() -> None:
    plan, directory = with_()
    assert x_of(directory) == {"n1": 3, "n2": 6, "n3": 3, "n4": 2}  # n4 is on no way: the default
    assert delay_bound_us(plan, directory, StreamId("second")) == 6 * SECOND


def test_tighter_of_two_bounds_counts() -> None:
    plan, directory = with_(outputs={"second": {"bound": "6s"}, "other": {"bound": "2s"}})
    assert x_of(directory) == {"n1": 3, "n2": 6, "n3": 2, "n4": 2}
    assert delay_bound_us(plan, directory, StreamId("other")) == 2 * SECOND


def test_a_unit_on_a_short_way_has_more_than_one_on_a_long_way() -> None:
    """aside is alone between the source and joined, while first and second are two."""
    query = yaml.safe_load(CONFIG)["query"] | {"aside": {"filter": {"from": "a", "where": "value >= 0"}}}
    query["joined"] = {"union": {"from": ["second", "aside"]}}
    del query["other"]
    fragments = {name: {"operators": [name], "replicas": [f"n{i}"]} for i, name in enumerate(query, 1)}
    plan, directory = with_(query=query, outputs={"joined": {"bound": "6s"}}, fragments=fragments)
    of = {str(unit): count for unit, count in units_before(plan, StreamId("joined")).items()}
    assert of == {"first": 3, "second": 3, "aside": 2, "joined": 3}
    assert x_of(directory) == {"n1": 2, "n2": 2, "n3": 3, "n4": 2}
    assert delay_bound_us(plan, directory, StreamId("joined")) == 6 * SECOND


def test_standby_nodes_have_the_x_needed_to_take_over() -> None:
    fragments = yaml.safe_load(CONFIG)["fragments"]
    fragments["u1"] = {"operators": ["first"], "replicas": ["n1"], "standby": ["n4"]}
    _, directory = with_(fragments=fragments)
    assert x_of(directory) == {"n1": 3, "n2": 3, "n3": 3, "n4": 3}


def test_where_partitions_can_move_every_node_keeps_the_bound() -> None:
    nodes = {"n1": {}, "n2": {}, "n3": {}, "n4": {}, "n5": {"spare": True}}
    plan, directory = with_(nodes=nodes, outputs={"second": {"bound": "8s"}, "other": {}})
    assert set(x_of(directory).values()) == {4.0}
    moved = directory.with_role(PartitionId(plan.producer[StreamId("first")].id, 0), NodeId("n2"), None)
    moved = moved.with_role(PartitionId(plan.producer[StreamId("first")].id, 0), NodeId("n5"), Role.ACTIVE)
    assert delay_bound_us(plan, moved, StreamId("second")) == 8 * SECOND


@pytest.mark.parametrize("seed", range(60))
def test_no_path_takes_longer_than_its_bound(seed: int) -> None:
    data = random_configuration(Random(seed), 10)
    random = Random(seed)
    data["outputs"] = {name: {"bound": f"{random.choice([20, 30, 70])}s"} for name in data["outputs"]}
    data["defaults"] = {}
    plan, directory = load_data(data)
    reached = [delay_bound_us(plan, directory, s) / bound for s, bound in directory.bounds.items()]
    assert max(reached) <= 1
    if not directory.coordinated:
        assert reached[tightest(plan, directory)] > 0.99, "the tightest bound is used up"


def tightest(plan: Plan, directory: Directory) -> int:
    """The output whose units have the shortest share: nothing else takes anything from them."""
    names = list(directory.bounds)
    shares = [directory.bounds[s] / max(units_before(plan, s).values()) for s in names]
    return shares.index(min(shares))


def test_x_of_a_node_on_the_way_is_a_contradiction() -> None:
    assert mistakes(CONFIG.replace("n1: {}", "n1: {x: 3s}").replace("n4: {}", "n4: {x: 1s}")) == [
        "shop.yaml:12: nodes.n1.x: follows from outputs.second.bound = 6s; expected one of them"
    ]
    spare = CONFIG.replace("n1: {}", "n5: {spare: true}, n1: {}").replace("n4: {}", "n4: {x: 1s}")
    assert mistakes(spare) == [
        "shop.yaml:12: nodes.n4.x: follows from outputs.second.bound = 6s, for partitions can move there; expected one "
        "of them"
    ]


def test_suspending_is_a_contradiction_wherever_it_is_written() -> None:
    (own,) = mistakes(CONFIG.replace("n3: {}", "n3: {policy: suspend}"))
    assert own.startswith(
        "shop.yaml:12: nodes.n3.policy: suspend holds results of 'n3' back as long as a failure lasts"
    )
    everywhere = mistakes(CONFIG + "defaults: {policy: {stabilization: suspend}}")
    assert everywhere[0].startswith("shop.yaml:13: defaults.policy: suspend holds results of 'n1' back")
    load_text(CONFIG.replace("n4: {}", "n4: {policy: suspend}"))  # on no way


@pytest.mark.parametrize("nodes", ["nodes: {n1: {}", "nodes: {n5: {spare: true}, n1: {}"])
def test_a_bound_that_is_too_small_says_which_one_would_do(nodes: str) -> None:
    text = CONFIG.replace("nodes: {n1: {}", nodes)
    problem = mistakes(text.replace("6s", "300ms"))[-1]
    assert problem.startswith("shop.yaml:7: outputs.second.bound: αX = ")
    assert "a healthy system would be tentative" in problem
    least = problem.rpartition("expected a bound of at least ")[2]
    load_text(text.replace("6s", least))
    assert mistakes(text.replace("6s", f"{int(least.removesuffix('ms')) - 1}ms"))


def test_a_bound_may_be_half_a_unit_of_time_off_only_by_rounding() -> None:
    plan, directory = with_(outputs={"second": {"bound": "3001ms"}, "other": {}})
    bound_us = delay_bound_us(plan, directory, StreamId("second"))
    assert 3001 * MILLISECOND - 4 <= bound_us <= 3001 * MILLISECOND


def test_mistakes_in_outputs_are_named() -> None:
    assert "outputs.second.buond: unknown key (did you mean 'bound'?)" in mistakes(CONFIG.replace("bound", "buond"))[0]
    assert "outputs.secnd: no operator 'secnd'" in mistakes(CONFIG.replace("{second:", "{secnd:"))[0]
    assert "outputs.second.bound: expected a duration" in mistakes(CONFIG.replace("6s", "6"))[0]


def test_spe_check_shows_where_each_x_comes_from() -> None:
    text = check_text(*with_())
    shown = text[text.index("BOUNDS") : text.index("CLIENTS")].splitlines()[1:-1]
    assert [" ".join(line.split()) for line in shown] == [
        "second bound 6s u1 3s + u2 3s = 6s",
        "n1 X 3s 6s / 2 units in sequence to second",
        "n2 X 6s 6s / 2 units in sequence to second × 2 of them here",
        "n3 X 3s 6s / 2 units in sequence to second",
    ]
    assert "BOUNDS" not in check_text(*with_(outputs=["second", "other"]))


def test_remainder_of_a_bound_is_shown() -> None:
    plan, directory = with_(outputs={"second": {"bound": "6s"}, "other": {"bound": "1900ms"}})
    assert "u1 3s + u2 3s = 6s\n" in check_text(plan, directory)  # n2 replaces what n3 has too little of
    nodes = {"n1": {}, "n2": {}, "n3": {}, "n4": {}, "n5": {"spare": True}}
    text = check_text(*with_(nodes=nodes, outputs={"second": {"bound": "9s"}, "other": {"bound": "4s"}}))
    assert "u1 4s + u2 4s = 8s, 1s less than it may be" in text


def test_a_node_that_joins_has_the_x_of_the_others(tmp_path: Any) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(CONFIG + "coordinator: {}")
    assert load_newcomer(path, "n9", {"address": "127.0.0.1:7000"}).x_us == 3 * SECOND
    with pytest.raises(ConfigError, match=r"nodes\.n9\.x: follows from outputs\.second\.bound"):
        load_newcomer(path, "n9", {"address": "127.0.0.1:7000", "x": "3s"})


def test_the_same_in_python() -> None:
    env = Environment()
    orders = env.source("a", generator("sequence", rate=100, seed=1, duration="60s"))
    orders.filter("value >= 0", name="first").output(bound="5s")
    plan, directory = env.deployed()
    assert {node.x_us for node in directory.nodes.values()} == {5 * SECOND}
    assert derived(plan, directory).keys() == directory.nodes.keys()
    assert env.data()["outputs"] == {"first": {"bound": "5s"}}
