"""``spe plan --lost`` prints the order of recovery and the places (O1 to O6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicas.cli.app import execute
from replicas.planning.cluster_topology import topology_of
from replicas.planning.recovery.cluster import MeasuredWork, cluster_of, read_measured
from replicas.planning.recovery.goals import CompleteQueries
from spe.config import load, load_text
from spe.errors import ConfigError

CONFIGS = Path(__file__).parents[5] / "configs"
TRAFFIC = str(CONFIGS / "topologies" / "traffic.yaml")
PASSIVE = str(CONFIGS / "passive.yaml")

#: Queries X {m, x} of priority 1, Y {m, y} of 2, Z {z1, z2} of 1; nodes for two partitions each.
TREES = """\
operators:
  s: {rates: 1, fails: false}
  m: {reads: {s: full}}
  z1: {reads: {s: full}}
  x: {reads: {m: full}, weight: 1}
  y: {reads: {m: full}, weight: 2}
  z2: {reads: {z1: full}, weight: 1}
nodes: {n1: {capacity: 2}, n2: {capacity: 2}, n3: {capacity: 2}}
placement: {m: n1, z1: n1, x: n2, y: n2, z2: n3}
"""
WEIGHED = """
nodes: [n1, n2, n3, spare]
sources:
  s: {from: {generator: {name: orders, rate: 10}}}
query:
  a: {filter: {from: s, where: qty > 1}}
  b: {filter: {from: s, where: qty > 2}}
outputs: [a, b]
fragments:
  f: {operators: [a], replicas: [n1]}
  g: {operators: [b], replicas: [n2, n3]}
coordinator: {cap: 0.5}
recovery: {value: complete, priorities: {a: 3}}
"""


@pytest.fixture
def trees(tmp_path: Path) -> str:
    path = tmp_path / "trees.yaml"
    path.write_text(TREES)
    return str(path)


def test_the_order_its_value_over_time_and_the_optimum(
    trees: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "curve.svg"
    arrive = ["--arrive", "n1@10s", "n2@20s", "--arrive", "n3@30s"]
    command = ["plan", trees, "--lost", "n1,n2,n3", *arrive, "--value", "complete", "--until", "40s"]
    assert execute([*command, "--plot", str(plot)]) == 0
    said = capsys.readouterr().out
    assert "n1, n2, n3 lost: 5 of 5 partitions have no replica left; complete queries 0.0000" in said
    rows = [line.split() for line in said.splitlines()]
    assert [r[2] for r in rows if r[1:2] == ["s"] and "/" in r[2]] == ["m/0", "y/0", "x/0", "z1/0", "z2/0"]
    assert ["20.0", "s", "0.7500", "█████████"] in rows
    assert "area 22.50 until 40 s; no order has more than 22.50: 0.0% below" in said
    assert plot.read_text().startswith("<svg")
    assert execute([*command, "--algorithm", "operator-centric"]) == 0
    assert "area 17.50 until 40 s; no order has more than 22.50: 22.2% below" in capsys.readouterr().out


def test_fidelity_of_more_partitions_than_all_sets_are_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", TRAFFIC, "--lost", "n1,n2,n3,n4", "--arrive", "n1@5s,n2@10s,n3@15s", "--seconds", "3"]
    assert execute(command) == 0
    said = capsys.readouterr().out
    assert "15 of 15 partitions have no replica left; OF 0.0000" in said
    assert "until 25 s; no order has more than" in said


def test_assumptions_about_a_configuration_are_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert execute(["plan", PASSIVE, "--lost", "n1,n3,n4,n5", "--arrive", "n3@10s"]) == 0
    said = capsys.readouterr().out
    assert "3 of 5 partitions have no replica left; OF 0.2500" in said
    assert "nothing is known of the load of revenue, best: assumed in proportion to what is read" in said
    assert "revenue/3  0.160  n2  of n6" in said
    loads = tmp_path / "loads.yaml"
    loads.write_text("revenue: {load: [0.5, 0.1, 0.5, 0.5], work: 4s}\nbest: {load: 0.1, work: [1s]}\n")
    assert execute(["plan", PASSIVE, "--lost", "n1,n3,n4,n5", "--arrive", "n3@10s", "--loads", str(loads)]) == 0
    said = capsys.readouterr().out
    assert "note:" not in said
    assert "10.0 s  revenue/3  0.500  n3  of n6          14.0 s" in said
    assert "waits in the end" not in said
    assert execute(["plan", PASSIVE, "--lost", "n1,n3,n4,n5", "--loads", str(loads)]) == 0
    assert "revenue/3  needs 0.50 of a core; the most room is 0.20, on n2" in capsys.readouterr().out


def test_priorities_and_the_cap_come_from_the_configuration() -> None:
    plan, directory = load_text(WEIGHED)
    topology = topology_of(plan, directory, {}, directory.recovery.priorities)
    goal = CompleteQueries.of(topology)
    assert goal.priority.tolist() == [0.75, 0.25]
    cluster = cluster_of(plan, directory, topology, {})
    assert (cluster.cap, cluster.loads.max()) == (0.5, 0.5)
    assert [topology.name_of(t) for t in cluster.without(["n1", "n2"])] == ["f/0"]
    schedule = cluster.schedule(goal, ["n1", "n2"])
    assert schedule.value == 0.25
    assert [(topology.name_of(i.partition), i.node) for i in schedule.step()] == [("f/0", "spare")]


def test_capacities_and_loads_come_from_the_configuration() -> None:
    roomy = WEIGHED.replace("nodes: [n1, n2, n3, spare]", "nodes: {n1: {capacity: 2}, n2: {}, n3: {}, spare: {}}")
    plan, directory = load_text(roomy.replace("priorities: {", "loads: {f: {load: 0.25, work: 3s}}, priorities: {"))
    topology = topology_of(plan, directory, {}, directory.recovery.priorities)
    cluster = cluster_of(plan, directory, topology, {"f": MeasuredWork((0.125,))})
    assert cluster.capacity == {"n1": 2.0, "n2": 1.0, "n3": 1.0, "spare": 1.0}
    (f,) = [t for t in range(topology.tasks) if topology.name_of(t).startswith("f")]
    assert (cluster.loads[f], cluster.work[f]) == (0.125, 3.0), "what is measured counts more"


def test_where_no_client_is_configured_every_output_counts() -> None:
    """Also one that another operator reads."""
    chained = WEIGHED.replace("b: {filter: {from: s", "b: {filter: {from: a") + "clients: {}\n"
    plan, directory = load_text(chained)
    topology = topology_of(plan, directory, {}, directory.recovery.priorities)
    assert {o.name: o.weight for o in topology.sinks} == {"f": 3.0, "g": 1.0}


def test_a_spare_node_may_arrive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spare.yaml"
    path.write_text(WEIGHED)
    assert execute(["plan", str(path), "--lost", "n1", "--arrive", "spare@7s"]) == 0
    said = capsys.readouterr().out
    assert "1 of 2 partitions have no replica left; complete queries 0.2500" in said
    assert "7.0 s  f/0" in said
    assert "area 12.00 until 18 s; no order has more than 12.00" in said


def test_standbys_and_disks_hold_checkpoints() -> None:
    plan, directory = load(PASSIVE)
    cluster = cluster_of(plan, directory, topology_of(plan, directory, {}, {}), {})
    held = {cluster.topology.name_of(t): set(n) for t, n in enumerate(cluster.checkpoints) if n}
    assert held == {"revenue/2": {"n5"}, "revenue/3": {"n6"}}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--lost", "n9"], "--lost: no node 'n9'"),
        (["--lost", "n1,n1"], "--lost: 'n1' is named twice"),
        (["--lost", ","], "--lost: expected names of nodes, such as n1,n2"),
        (["--lost", "n1", "--arrive", "m1@10s"], "--arrive: no node 'm1'; expected one of: n1, n2"),
        (
            ["--lost", "n1", "--arrive", "n2@10s"],
            "--arrive n2@10s: n2 is not lost, and runs locations/1; expected a node",
        ),
        (["--lost", "n1", "--arrive", "n1@10"], "--arrive n1@10: expected a duration"),
        (["--lost", "n1", "--arrive", "n1@-1s"], "expected a time of zero or more after the loss, got -1s"),
        (["--lost", "n1", "--arrive", "n1"], "--arrive n1: expected NODE@TIME, such as n7@10s"),
        (["--lost", "n1", "--arrive", "n1@1s,n1@2s"], "--arrive n1@2s: n1 arrives twice"),
        (["--lost", "n1", "--algorithm", "dp"], "--algorithm dp is not for --value fidelity"),
        (
            ["--lost", "n1", "--value", "complete", "--algorithm", "greedy"],
            "--algorithm greedy is not for --value comp",
        ),
        (["--lost", "n1", "--rates", "r.yaml"], "has rates of its own"),
        (["--budget", "1", "--algorithm", "dp"], "--algorithm dp is for --lost; expected one of: structure-aware"),
        (["--budget", "1", "--lost", "n1"], "expected either --budget or --lost"),
        ([], "expected either --budget or --lost"),
        (["--budget", "1", "--arrive", "n1@1s"], "--arrive goes with --lost, not with --budget"),
    ],
)
def test_impossible_requests_are_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["plan", TRAFFIC, *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_topology_without_nodes_loses_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bare.yaml"
    path.write_text(TREES.partition("nodes:")[0])
    assert execute(["plan", str(path), "--lost", "n1"]) == 2
    assert "the topology names no nodes; expected nodes and placement" in capsys.readouterr().err


def test_loads_from_a_file() -> None:
    found = read_measured("a: 0.3\nb: {load: [0.1, 0.2], work: [1s, 500ms]}\nc: {work: 2s}\n", "l.yaml")
    assert found == {
        "a": MeasuredWork((0.3,)),
        "b": MeasuredWork((0.1, 0.2), (1.0, 0.5)),
        "c": MeasuredWork((), (2.0,)),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: -1\n", "l.yaml:1: a: expected a load of at least 0 cores, or a list with one per partition, got -1"),
        ("a: {work: 3}\n", "l.yaml:1: a.work: expected a duration with its unit"),
        ("a: {work: -3s}\n", "l.yaml:1: a.work: expected a duration of zero or more, got '-3s'"),
        ("a: {lod: 3}\n", "l.yaml:1: a.lod: unknown key (did you mean 'load'?); expected load or work"),
        ("- 1\n", "l.yaml:1: the configuration: expected a mapping"),
    ],
)
def test_impossible_loads_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_measured(text, "l.yaml")
    assert said in str(caught.value)


def test_loads_of_unknown_units_are_refused() -> None:
    plan, directory = load_text(WEIGHED)
    topology = topology_of(plan, directory, {}, {})
    with pytest.raises(ConfigError, match="loads: there is no 'h'; expected one of: s, f, g"):
        cluster_of(plan, directory, topology, {"h": MeasuredWork((1.0,))})
    with pytest.raises(ConfigError, match="loads: f: load is one number, or 1, one per partition"):
        cluster_of(plan, directory, topology, {"f": MeasuredWork((1.0, 2.0))})
