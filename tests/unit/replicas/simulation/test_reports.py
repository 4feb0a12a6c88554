"""Reports on many runs: tables, plots, cases in files."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest

from consistency.checking.counters import Counters
from consistency.checking.finding import Finding
from consistency.checking.measures import Cost
from replicas.cli.campaigns.campaign import SeedResult, Sums
from replicas.cli.campaigns.campaign_report import sums_text
from replicas.cli.campaigns.cases import read_case, write_case
from replicas.cli.campaigns.simulate import read_seeds, read_to_simulate
from replicas.cli.sweep import Point, table, with_x
from replicas.simulation.scenarios.random_scenario import random_scenario
from spe.config import load_data, load_plan_data
from spe.errors import ConfigError, SpeError
from spe.plots import Line, Panel, bars, svg
from spe.stream.names import NodeId, StreamId
from spe.stream.times import SECOND
from tests.support.reachable import empty_text, sums_data


def result(seed: int, *, failed: bool = False) -> SeedResult:
    counters = Counters()
    counters.add("virtual time_us", 1800 * SECOND)
    counters.add("p1 stable_us", 7 * SECOND)
    counters.add("undos", 3)
    counters.events["STABLE", "dies"] += 1
    counters.faults["kill", "STABLE"] += 1
    found = (Finding("P3", "complete", 5 * SECOND, "client:c", "lacks a tuple"),) if failed else ()
    return SeedResult(seed, found, Counter(kill=2), counters, 1.0)


def test_sums_show_seeds_hours_faults_and_coverage() -> None:
    sums = Sums()
    for one in (result(0), result(1), result(7, failed=True)):
        sums.add(one)
    text = sums_text(sums)
    assert "3 runs (seeds 0:2, 7), 1.50 simulated hours in 3 s of computing, 6 faults" in text
    assert "faults: kill 6" in text
    assert "21 s with a whole tree" in text
    assert "checked: undos 9" in text
    assert "STABLE" in text
    assert text.startswith("2 held, 1 failed\n")
    assert "UP_FAILURE × dies" in empty_text(sums)
    assert "STABLE × dies" not in empty_text(sums)
    data = sums_data(sums)
    assert (data["runs"], data["simulated_hours"], data["faults"]) == (3, 1.5, {"kill": 6})
    assert data["failed"] == [{"seed": 7, "findings": ["P3 (complete) at 5.000 s, client:c: lacks a tuple"]}]
    assert ["UP_FAILURE", "dies"] in data["empty_cells"]


def test_seeds_are_a_number_or_a_range() -> None:
    assert read_seeds("3") == range(3)
    assert read_seeds("100:200") == range(100, 200)
    for wrong in ("", "x", "5:5", "0", "1:2:3"):
        with pytest.raises(SpeError, match="expected a number of runs"):
            read_seeds(wrong)


def test_a_case_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "case.json"
    write_case(path, random_scenario(3), ["P3: lacks a tuple"], about="seed 3")
    assert read_case(path) == random_scenario(3)
    assert f"spe simulate --replay {path}" in path.read_text()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"scenario": {"seed": 1}}', '{"scenario": 3}'])
def test_a_file_that_is_no_case_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "case.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"case\.json: expected a scenario"):
        read_case(path)
    with pytest.raises(ConfigError, match=r"absent\.json: cannot be read"):
        read_case(tmp_path / "absent.json")


def test_bars_are_as_long_as_their_values() -> None:
    assert bars([0, 6, 12]) == [" " * 12, "█" * 6 + " " * 6, "█" * 12]
    assert bars([]) == []
    assert bars([0, 0]) == [" " * 12] * 2


def test_a_plot_is_well_formed_and_has_every_point() -> None:
    panels = [
        Panel("a < b", [1, 2, 4], [Line([0.5, None, 2], "<it>"), Line([1, 2, 4], "kX", dashed=True)]),
        Panel("nothing", [1], [Line([0])]),
    ]
    root = ElementTree.fromstring(svg(panels))
    names = Counter(element.tag.rpartition("}")[2] for element in root.iter())
    assert names["circle"] == 3  # one point was not measured, and limits have no marks
    assert names["polyline"] == 3
    texts = [element.text for element in root.iter()]
    assert "a < b" in texts
    assert {"<it>  ", "kX (dashed)  "} <= set(texts)


def test_a_sweep_is_printed_as_a_table() -> None:
    points = [
        Point(SECOND, 2 * SECOND, Cost((10_000, 20_000, 900_000), 0, 120, 1000), ()),
        Point(2 * SECOND, 4 * SECOND, Cost((10_000, 1_800_000), 3, 60, 1000), ("P1 (results come within kX): late",)),
    ]
    lines = table(points).splitlines()
    assert lines[1].split()[:10] == ["1", "s", "2", "s", "0.02", "s", "0.9", "s", "0.9", "s"]
    assert "120" in lines[1]
    assert lines[3:] == [
        "X = 2 s: P1 (results come within kX): late",
        "X = 2 s: 3 inputs were never covered by a result",
    ]


CONFIG = """
sources:
  a: {schema: {t: timestamp!, k: string, v: float64}, time: t, disorder: 200ms, from: {csv: a.csv}, replay: {speed: 2}}
  b: {schema: {t: timestamp!, k: string, v: float64}, time: t, from: {tcp: "127.0.0.1:9999"}}
  c: {from: {generator: {name: orders, rate: 100}}}
  d: {from: {generator: {name: orders, duration: 5s}}}
query:
  u: {union: [a, b]}
  o: {union: [c, d]}
outputs: [u, o]
fragments: {f: {operators: [u], replicas: 2}, g: {operators: [o], replicas: 2}}
defaults: {x: 3s}
nodes: {n1: {x: 1s}, n2: {}}
clients: {all: {reads: [u, o], sinks: [{jsonl: out}, {parquet: files}]}}
faults: [{at: 1s, kind: kill, target: n1}]
"""


def test_missing_data_are_replaced_by_generated_rows(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    config, said = read_to_simulate(file, None, 20 * SECOND)
    plan, directory = load_data(config)
    readers = {str(name): source.reader for name, source in plan.sources.items()}
    assert [line.partition(":")[0] for line in said] == ["a", "b"]
    assert "is not there; made-up rows" in said[0]
    assert "tcp is live" in said[1]
    assert readers["a"]["generator"] == readers["b"]["generator"] == "rows"
    assert (readers["a"]["rate"], readers["a"]["duration"]) == (25, 40_000_000)  # at twice the speed
    assert readers["c"]["duration"] == 20_000_000
    assert readers["d"]["duration"] == 5_000_000
    assert [sink["kind"] for sink in directory.clients["all"].sinks] == ["jsonl"]


def test_existing_data_files_are_read_in_place(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t,k,v\n2020-01-01T00:00:00,x,1\n")
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    config, said = read_to_simulate(file, None, 20 * SECOND)
    assert load_plan_data(config).sources[StreamId("a")].reader["path"] == str(tmp_path / "a.csv")
    assert len(said) == 1


def test_a_sweep_sets_x_of_every_node(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    config, _ = read_to_simulate(file, None, 20 * SECOND)
    directory = load_data(with_x(config, 2 * SECOND)).directory
    assert {directory.nodes[NodeId(n)].x_us for n in ("n1", "n2")} == {2 * SECOND}
