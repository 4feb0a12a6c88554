"""Topologies, nodes and rates from files; places for replicas; ``spe plan``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.experiments.topologies import Shape, random_topology
from replicas.cli.app import execute
from replicas.planning.cluster_topology import (
    costs_of,
    fidelity_of,
    layout_of,
    standby_places,
    topology_of,
    without_rates,
)
from replicas.planning.files import is_topology, read_layout, read_rates, read_topology
from replicas.planning.layout import Place, Placement
from replicas.planning.search import NOWHERE, PlanningProblem
from spe.config import load, load_data
from spe.errors import ConfigError
from spe.plan.plan import Partitioning
from spe.stream.ids import PartitionId
from spe.stream.names import UnitId

CONFIGS = Path(__file__).parents[4] / "configs"
TRAFFIC = CONFIGS / "topologies" / "traffic.yaml"
RACKS = CONFIGS / "topologies" / "racks.yaml"

SMALL = """\
operators:
  s: {tasks: 2, rates: [3, 1], cost: [1, 2]}
  z: {reads: {s: merge}}
"""


def test_a_topology_from_a_file() -> None:
    read = read_topology(SMALL + "nodes: [n1, n2]\nplacement: {s: [n1, n2], z: n1}\n", "t.yaml")
    assert [(o.name, o.tasks, o.rate.tolist()) for o in read.topology.operators] == [("s", 2, [3, 1]), ("z", 1, [4])]
    assert read.costs == (1, 2, 1)
    assert read.layout is not None
    assert read.layout.homes == ["n1", "n2", "n1"]
    assert is_topology(SMALL)
    assert not is_topology((CONFIGS / "quickstart.yaml").read_text())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("operators:\n  a: {reads: {b: full}}\n  b: {reads: {a: full}}\n", "t.yaml:2: operators.a: .*cycle among a, b"),
        ("operators:\n  a: {tasks: 3, rates: 1}\n  z: {tasks: 2, reads: {a: merge}}\n", "t.yaml:3: operators.z: merge"),
        ("operators:\n  a: {rates: 0}\n", "t.yaml:1: operators: no sink has any output"),
        ("operators:\n  a: {rate: 1}\n", "unknown key .did you mean 'rates'"),
        ("operators:\n  a: {tasks: 2, rates: [1]}\n", "t.yaml:2: operators.a: rates must be 2 numbers"),
        ("operators:\n  a: {tasks: 2, rates: 1, cost: [1]}\n", "t.yaml:2: operators.a.cost: expected 2 numbers, got 1"),
        ("operators:\n  a: {rates: 1}\n  z: {reads: {a: fully}}\n", "t.yaml:3: operators.z.reads.a: expected 'one-to-"),
        ("operators: 7\n", "expected a mapping: NAME"),
        ("operators: [\n", "not YAML"),
        (SMALL + "nods: [n1]\n", "t.yaml:4: nods: unknown section .did you mean 'nodes'"),
        (SMALL + "nodes: [n1]\nplacement: {s: [n1], z: n1}\n", "t.yaml:5: placement.s: expected a list of 2 nodes"),
        (SMALL + "nodes: [n1]\nplacement: {s: [n1, n2], z: n1}\n", "s/1 runs on 'n2', which is no node"),
        (SMALL + "nodes: [n1]\nplacement: {z: n1}\n", "nothing says where s/0 runs"),
        (
            SMALL + "nodes: {n1: {capacity: 0}}\nplacement: {s: [n1, n1], z: n1}\n",
            "capacity: expected a number above 0",
        ),
    ],
)
def test_impossible_topology_files_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_topology(text, "t.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes: [n1, n2]\nfailures: {rak: 1}\n", "d.yaml:2: failures.rak: unknown level .did you mean 'rack'"),
        ("nodes: [n1, n2]\nfailures: {rack: 0}\n", "d.yaml:2: failures.rack: expected a number above 0, got 0"),
        ("nodes: [n2]\n", "s/0 runs on 'n1', which is no node"),
    ],
)
def test_impossible_domains_are_refused(text: str, said: str) -> None:
    topology = read_topology(SMALL, "t.yaml").topology
    with pytest.raises(ConfigError, match=said):
        read_layout(text, "d.yaml", topology, ["n1", "n2", "n1"])


def test_rates_that_were_measured() -> None:
    assert read_rates("shop_a: 5\nrevenue: [1, 2, 3, 4]\n", "r.yaml") == {"shop_a": [5], "revenue": [1, 2, 3, 4]}
    with pytest.raises(ConfigError, match=r"r.yaml:1: shop_a: expected a rate of at least 0, .* got -1"):
        read_rates("shop_a: -1\n", "r.yaml")


def test_the_topology_of_a_configuration() -> None:
    """Sources never fail; units are divided by the hash of a key; what a client reads is an output."""
    plan, directory = load(CONFIGS / "partitioned.yaml")
    topology = topology_of(plan, directory, {"revenue": [4.0, 3.0, 2.0, 1.0]})
    assert [(o.name, o.tasks, o.fails, o.output) for o in topology.operators] == [
        ("shop_a", 1, False, False),
        ("shop_b", 1, False, False),
        ("revenue", 4, True, True),
        ("best", 1, True, True),
    ]
    assert topology.operators[2].rate.tolist() == [4, 3, 2, 1]
    assert layout_of(plan, directory, topology).homes == [None, None, "n1", "n3", "n1", "n3", "n1"]
    assert without_rates(plan, {}) == []
    with pytest.raises(ConfigError, match=r"no source or unit 'revenues' .did you mean 'revenue'"):
        topology_of(plan, directory, {"revenues": [1.0]})


def test_partitions_without_standbys_are_safe_or_lost() -> None:
    plan, directory = load(CONFIGS / "traffic.yaml")
    topology = topology_of(plan, directory, {})
    kinds = {o.name: [s.partitioning.value for s in o.inputs] for o in topology.operators}
    assert kinds == {
        "cars_1": [],
        "cars_2": [],
        "reports": [],
        "speeds": ["full", "full"],
        "incidents": ["full"],
        "jams": ["one-to-one", "split"],
        "everywhere": ["full"],
    }
    assert topology.fails.tolist() == [False] * 3 + [True] * 10 + [False]
    assert costs_of(plan, directory, topology)[3:] == [1.0] * 10 + [NOWHERE]
    assert standby_places(plan, directory, topology) == dict(
        enumerate(["b1", "b2", "b1", "b2", "b1", "b2", "b3", "b3", "b3", "b3"], 3)
    )


def test_tasks_are_numbered_as_in_the_topology() -> None:
    """``mid`` comes before ``other`` there, and after it by layers."""
    generator = {"from": {"generator": {"name": "orders", "duration": "1s"}}}
    plan, directory = load_data(
        {
            "nodes": ["n1", "n2"],
            "sources": {"a": generator, "b": generator},
            "query": {
                "front": {"filter": {"from": "a", "where": "true"}},
                "mid": {"filter": {"from": "front", "where": "true"}},
                "other": {"filter": {"from": "b", "where": "true"}},
                "last": {"union": ["mid", "other"]},
            },
            "outputs": ["last"],
            "fragments": {
                "f": {"operators": ["front"], "replicas": ["n1", "n2"]},
                "m": {"operators": ["mid"], "replicas": ["n1"], "standby": ["n2"]},
                "o": {"operators": ["other"], "replicas": ["n1"]},
                "l": {"operators": ["last"], "replicas": ["n1", "n2"]},
            },
        }
    )
    topology = topology_of(plan, directory, {})
    names = [o.name for o in topology.operators]
    assert names.index("o") < names.index("m")
    assert standby_places(plan, directory, topology) == {names.index("m"): "n2"}
    assert costs_of(plan, directory, topology)[names.index("o")] == NOWHERE
    assert costs_of(plan, directory, topology)[names.index("m")] == 1
    assert fidelity_of(plan, directory, {"a": [3.0], "b": [1.0]}, {PartitionId(UnitId("o"), 0)}) == 0.75
    assert fidelity_of(plan, directory, {"m": [3.0], "o": [1.0]}, {PartitionId(UnitId("o"), 0)}) == 0.75


def racks(*capacities: float | None) -> dict[str, Place]:
    """Two nodes per rack."""
    return {f"n{i}": Place(c, {"rack": f"r{i // 2}"}) for i, c in enumerate(capacities)}


def test_a_replica_is_placed_in_another_rack_while_there_is_room() -> None:
    layout = Placement(racks(2, 2, 1, 1), ["n0", "n0"], {"node": 1.0})
    assert layout.place([0, 1], [1, 1]) == {0: "n2", 1: "n3"}
    crowded = Placement(racks(2, 2, 1), ["n0", "n0"], {"node": 1.0})
    assert crowded.place([0, 1], [1, 1]) == {0: "n2", 1: "n1"}


def test_a_replica_makes_room_for_one_that_has_no_other_place() -> None:
    """The replica of 0 would take the place on n1, but that of 1, which runs on n2, can go nowhere else."""
    layout = Placement({"n0": Place(2), "n1": Place(1), "n2": Place(2)}, ["n0", "n2", "n0"], {"node": 1.0})
    placed = layout.place([0, 1], [1, 1, 1])
    assert placed == {0: "n2", 1: "n1"}


def test_missing_room_and_overfull_nodes_are_reported() -> None:
    layout = Placement(racks(2, 1), ["n0", "n0"], {"node": 1.0})
    with pytest.raises(ConfigError, match=r"no room for the replicas of 1 tasks \(cost 1\)"):
        layout.place([0, 1], [1, 1])
    with pytest.raises(ConfigError, match="node n0 offers 2, but the tasks on it cost 3"):
        layout.check([2, 1])


def test_a_domain_takes_the_replicas_in_it_along() -> None:
    read = read_topology(SMALL, "t.yaml")
    layout = Placement(racks(None, None, None), ["n0", "n0", "n2"], {"rack": 1.0})
    problem = PlanningProblem(read.topology, 1, failures=layout.failures())
    assert layout.value(problem, {0: "n2"}) == pytest.approx((0.75 + 0) / 2)
    assert layout.value(problem, {0: "n1"}) == 0
    assert layout.value(problem, {0: "n2", 2: "n0"}) == pytest.approx((0.75 + 1) / 2)


def test_random_topologies_follow_their_shape() -> None:
    """A chain of full partitionings; equal seeds make equal topologies."""
    shape = Shape(4, (3, 6), {Partitioning.FULL: 1.0}, branching=1.0, joins=1.0, skew=1.0)
    made = random_topology(shape, np.random.default_rng(7))
    assert len(made.operators) == 7
    assert all(3 <= o.tasks <= 6 for o in made.operators)
    assert all(s.partitioning is Partitioning.FULL for o in made.operators for s in o.inputs)
    assert [o.correlated for o in made.operators if o.inputs] == [True] * 3
    again = random_topology(shape, np.random.default_rng(7))
    assert all((a.rate == b.rate).all() for a, b in zip(made.operators, again.operators, strict=True))


def test_spe_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    svg = tmp_path / "curve.svg"
    assert execute(["plan", str(TRAFFIC), "--budget", "8", "--plot", str(svg)]) == 0
    said = capsys.readouterr().out
    assert "6 operators, 15 tasks (15 can fail), 16 complete trees" in said
    assert "structure-aware: 7 replicas for 7 of 8; OF 0.2400; IC 0.4037" in said
    assert "locations/0  n1       n4" in said
    assert "greedy             0.0000  0.2056" in said
    assert svg.read_text().startswith("<svg")


def test_spe_plan_with_domains_and_of_a_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["plan", str(TRAFFIC), "--budget", "8", "--domains", str(RACKS), "--algorithm", "exact"]) == 0
    said = capsys.readouterr().out
    assert "expected OF 0.7452, proved to within" in said
    assert "with these places for replicas, which fail with their domains: OF 0.7137" in said
    assert execute(["plan", str(CONFIGS / "partitioned.yaml"), "--budget", "3"]) == 0
    assert "3 replicas for 3 of 3; OF 0.5000" in capsys.readouterr().out


def test_spe_plan_replicates_partitions_on_their_standbys(capsys: pytest.CaptureFixture[str]) -> None:
    """Only partitions with one replica and a standby can be lost and replicated, at the standby's place."""
    assert execute(["plan", str(CONFIGS / "traffic.yaml"), "--budget", "5"]) == 0
    said = capsys.readouterr().out
    assert "(10 can fail)" in said
    assert "5 replicas for 5 of 5" in said
    assert "n1 " in said
    assert "b1" in said
    assert execute(["plan", str(CONFIGS / "traffic.yaml"), "--budget", "11"]) == 2
    assert "a budget of 11 is beyond all tasks" in capsys.readouterr().err


def test_rates_of_zero_everywhere_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = tmp_path / "rates.yaml"
    rates.write_text("cars_1: [0]\ncars_2: [0]\nreports: [0]\n")
    assert execute(["plan", str(CONFIGS / "traffic.yaml"), "--budget", "1", "--rates", str(rates)]) == 2
    assert "no sink has any output: all rates (or weights) are zero" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([str(TRAFFIC), "--budget", "16"], "a budget of 16 is beyond all tasks, whose replicas cost 15"),
        (["nowhere.yaml", "--budget", "1"], "nowhere.yaml: cannot be read"),
        ([str(TRAFFIC), "--budget", "1", "--rates", "r.yaml"], "has rates of its own"),
        (
            [str(TRAFFIC), "--budget", "1", "--domains", str(RACKS), "--algorithm", "dynamic"],
            "knows the worst case only",
        ),
    ],
)
def test_impossible_options_are_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["plan", *arguments]) == 2
    assert said in capsys.readouterr().err
