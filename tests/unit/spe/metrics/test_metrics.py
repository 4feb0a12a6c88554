"""The text of /metrics, read by Prometheus' own parser; health; and the files for Prometheus and Grafana."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from spe.figures.figure import Figure
from spe.figures.histogram import Histogram
from spe.metrics.exposition import Exposition
from spe.metrics.health import not_ready
from spe.metrics.pages import pages
from spe.metrics.status_metrics import METRICS, exposition
from spe.runtime.process_figures import process_figures
from spe.status import (
    ActivationStatus,
    CertificateStatus,
    CoordinatorStatus,
    DirectoryStatus,
    LoadStatus,
    MoveStatus,
    PartitionStatus,
    ProcessStatus,
    ServerStatus,
    SettingsStatus,
    SpillStatus,
)
from spe.stream.names import NodeState
from tests.support.statuses import a_channel, a_checkpoint_log, a_client, a_node, a_replica, a_source, a_standby

DEPLOY = Path(__file__).parents[4] / "deploy" / "prometheus"
Key = tuple[str, frozenset[tuple[str, str]]]


def parsed(text: str) -> dict[Key, float]:
    """Samples by name and labels; all that Prometheus' parser finds, each once."""
    found: dict[Key, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, f"{key} twice"
            found[key] = sample.value
    return found


def value(text: str, name: str, **labels: str) -> float:
    """Of the only sample of this name that has these labels."""
    (one,) = (v for (n, has), v in parsed(text).items() if n == name and labels.items() <= dict(has).items())
    return one


def histogram(*values: float) -> Any:
    made = Histogram()
    for each in values:
        made.add(each)
    return made.status()


def statuses() -> Iterator[ProcessStatus]:
    """Of each kind of process, with everything that can be in it."""
    replica = a_replica(
        counters={"per_second.late": 2, "tentative_dropped": 1},
        load=LoadStatus(cpu=0.5, memory_bytes=10, network_bytes=20, rows=30.0, state_bytes=40),
        load_age_us=5,
        x_us=2_000_000,
        waiting_us=500_000,
        x_used=histogram(0.01, 0.3, 7.0),
        log=a_checkpoint_log(trouble="the disk broke"),
        partners={"n2": NodeState.STABLE, "n3": None},
        tentative_frontier=7,
    )
    node = a_node("n1", replica, standbys=(a_standby(partition=1),))
    facts: dict[str, Any] = {name: getattr(node, name) for name in ("name", "incarnation", "replicas", "standbys")}
    yield type(node)(
        **facts,
        spill=SpillStatus(used=1, written=2, read=3, refused=4, damaged=5),
        settings=SettingsStatus(x_us=2_000_000, alpha=0.9, during_failure="process", during_stabilization="process"),
        server=ServerStatus(connections={"client:c": 2}, sent_away=1, other_logs=()),
        directory=DirectoryStatus(epoch=1, number=4),
        disk_full={"spill files": "No space left on device"},
        certificate=CertificateStatus(expires_us=2_000_000_000_500_000, ca_expires_us=3 * 10**15, refused="no key"),
    )
    yield replace(a_source(frontier=5_000_000), away={"reader": "connection refused"})
    yield a_client(a_channel(bound_us=4_000_000, x_used=histogram(0.2)))
    move = MoveStatus(
        number=1,
        partition="u/0",
        source="n1",
        target="n2",
        role="active",
        reason="",
        phase="join",
        why="",
        began_us={},
        predicted_us=None,
        state_from="partner",
    )
    partition = PartitionStatus(
        partition="u/0", running={"n1": NodeState.STABLE}, placed=("n1",), standbys=(), wanted=(), served=True
    )
    yield CoordinatorStatus(
        name="coordinator",
        incarnation=3,
        partitions=(partition,),
        activation=ActivationStatus(budget=2, active=("u/0",), target=(), of=None),
        moves=(move,),
    )


class TestExposition:
    def test_every_declared_metric_is_made(self) -> None:
        texts = [exposition(s).text() for s in statuses()]
        made = {f.name for text in texts for f in text_string_to_metric_families(text)}
        made |= {name.removesuffix("_total") for name, _ in process_figures(Path())}

        assert made == {m.name.removesuffix("_total") for m in METRICS}

    def test_names_follow_the_conventions_of_prometheus(self) -> None:
        for metric in METRICS:
            assert re.fullmatch(r"(spe|process)_[a-z_]+", metric.name)
            assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
            assert metric.help.endswith("."), metric.name
        assert len({m.name for m in METRICS}) == len(METRICS)

    def test_values_and_labels_are_those_of_the_status(self) -> None:
        node = exposition(next(statuses()), version="1.2").text()

        assert value(node, "spe_process_info", kind="node", version="1.2", process="n1") == 1
        assert value(node, "spe_replica_state", unit="main", partition="0", state="STABLE") == 1
        assert value(node, "spe_replica_state", state="UP_FAILURE") == 0
        assert value(node, "spe_replica_x_waiting_ratio") == 0.25
        assert value(node, "spe_replica_partners") == 2
        assert value(node, "spe_replica_partners_lost") == 1
        assert value(node, "spe_replica_operator_events_total", operator="per_second", event="late") == 2
        assert value(node, "spe_replica_operator_events_total", operator="", event="tentative_dropped") == 1
        assert value(node, "spe_input_producer", input="shop/0", producer="source:shop") == 1
        assert value(node, "spe_disk_full", what="spill files") == 1
        assert value(exposition(list(statuses())[1]).text(), "spe_server_away", what="reader") == 1
        assert value(node, "spe_certificate_expiry_timestamp_seconds") == 2e9 + 0.5
        assert value(node, "spe_certificate_ca_expiry_timestamp_seconds") == 3e9
        assert value(node, "spe_certificate_refused") == 1

    def test_counters_and_histograms_carry_incarnation_not_gauges(self) -> None:
        kinds = {m.name: m.kind for m in METRICS}
        for status in statuses():
            for family in text_string_to_metric_families(exposition(status).text()):
                for sample in family.samples:
                    kind = kinds.get(family.name) or kinds[f"{family.name}_total"]
                    assert ("incarnation" in sample.labels) == (kind != "gauge"), sample

    def test_times_before_first_boundary_or_after_end_are_omitted(self) -> None:
        for frontier in (-(2**62), 2**62):
            assert "frontier" not in exposition(a_source(frontier=frontier)).text()

    def test_a_histogram_is_cumulative(self) -> None:
        text = exposition(next(statuses())).text()
        buckets = [value(text, "spe_replica_x_used_ratio_bucket", le=le) for le in ("0.01", "0.25", "0.5", "5", "+Inf")]

        assert buckets == [1, 1, 2, 2, 3]
        assert value(text, "spe_replica_x_used_ratio_count") == 3
        assert value(text, "spe_replica_x_used_ratio_sum") == pytest.approx(7.31)
        assert value(text, "spe_replica_x_used_max_ratio") == 7.0

    @given(st.text(), st.floats(allow_nan=False, width=64) | st.integers(-(2**60), 2**60))
    def test_any_label_and_value_come_through(self, text: str, number: float) -> None:
        out = Exposition([Figure("a_ratio", lambda s: None, "One \\ of\nthem.")], {"process": text})
        out.add("a_ratio", number)
        if not re.search(r"[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]", text):  # this parser cuts lines there
            assert parsed(out.text()) == {("a_ratio", frozenset({("process", text)})): float(number)}


class TestHealth:
    def test_readiness_of_each_kind_of_process(self) -> None:
        assert not_ready(a_node("n1", a_replica())) == []
        assert not_ready(a_node("n1", a_replica(NodeState.UP_FAILURE))) == ["main/0 is UP_FAILURE"]
        assert not_ready(a_node("n1", a_replica(error="it broke"))) == ["main/0 has stopped: it broke"]
        assert not_ready(a_source()) == []
        assert not_ready(a_source(fault="the disk broke")) == ["the disk broke"]
        assert not_ready(a_client(a_channel())) == []
        assert not_ready(a_client(a_channel(producer=None))) == ["per_second/0 is read from nobody"]
        assert not_ready(a_client(a_channel(producer=None, ended=True))) == []

    def test_a_process_that_waits_for_disk_space_is_not_ready(self) -> None:
        assert not_ready(next(statuses())) == ["spill files: the disk is full: No space left on device"]

    def test_a_process_that_waits_for_a_server_is_not_ready(self) -> None:
        assert not_ready(list(statuses())[1]) == ["reader: its server does not answer: connection refused"]

    def test_pages_show_readiness(self) -> None:
        now: list[ProcessStatus | None] = [None]
        made = pages("n1", lambda: now[0], lambda: [("process_open_fds", 3)])
        assert (made["/healthz"]().status, made["/readyz"]()) == (
            200,
            ("it begins\n", 503, "text/plain; charset=utf-8"),
        )
        assert parsed(made["/metrics"]().body) == {("process_open_fds", frozenset({("process", "n1")})): 3}
        now[0] = a_node("n1", a_replica(NodeState.RECOVERING))
        assert made["/readyz"]()[:2] == ("main/0 is RECOVERING\n", 503)
        now[0] = a_node("n1", a_replica())
        assert made["/readyz"]()[:2] == ("ok\n", 200)
        assert value(made["/metrics"]().body, "spe_replica_stable_tuples_total") == 12


def expressions() -> dict[str, str]:
    """All that the files ask Prometheus for, by where it stands."""
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())
    board = json.loads((DEPLOY / "grafana.json").read_text())
    found = {f"alert {r['alert']}": r["expr"] for group in rules["groups"] for r in group["rules"]}
    for panel in board["panels"]:
        found |= {f"panel {panel['title']} {t['refId']}": t["expr"] for t in panel["targets"]}
    return found


class TestFiles:
    @pytest.mark.parametrize("where", list(expressions()))
    def test_metrics_named_by_alerts_and_panels_exist(self, where: str) -> None:
        known = {m.name for m in METRICS} | {"up"}
        for metric in METRICS:
            if metric.kind == "histogram":
                known |= {metric.name + end for end in ("_bucket", "_sum", "_count")}
        expression = re.sub(r'"[^"]*"', '""', expressions()[where])
        named = set(re.findall(r"\b(?:spe|process)_[a-z_]+|\bup\b", expression))

        assert named
        assert named <= known
        assert {m.name for m in METRICS if m.kind == "histogram"}.isdisjoint(named)

    def test_labels_that_alerts_show_are_those_of_their_metrics(self) -> None:
        text = "".join(exposition(status).text() for status in statuses())
        has: dict[str, set[str]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                has.setdefault(sample.name, set()).update(sample.labels)
        for group in yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]:
            for rule in group["rules"]:
                shown = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
                named = set(re.findall(r"\bspe_[a-z_]+", rule["expr"]))
                kept = set.union({"instance", "job", "cluster"}, *(has.get(name, {"process"}) for name in named))
                assert shown <= kept, rule["alert"]

    def test_a_panel_has_its_place(self) -> None:
        board = json.loads((DEPLOY / "grafana.json").read_text())
        cells = [
            (x, y)
            for p in board["panels"]
            for x in range(p["gridPos"]["x"], p["gridPos"]["x"] + p["gridPos"]["w"])
            for y in range(p["gridPos"]["y"], p["gridPos"]["y"] + p["gridPos"]["h"])
        ]
        assert len(cells) == len(set(cells))
        assert max(x for x, _ in cells) == 23

    def test_every_alert_is_tested_to_fire(self) -> None:
        groups = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
        tests = yaml.safe_load((Path(__file__).parent / "alerts_test.yaml").read_text())["tests"]
        fire = {
            re.findall(r'alertname="(\w+)", alertstate="firing"', one["expr"])[0]
            for test in tests
            for one in test["promql_expr_test"]
            if one.get("exp_samples")
        }
        assert fire == {rule["alert"] for group in groups for rule in group["rules"]}

    @pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool: apt-get install prometheus")
    @pytest.mark.parametrize(
        "what", [("check", "rules", DEPLOY / "alerts.yaml"), ("test", "rules", "alerts_test.yaml")]
    )
    def test_promtool_accepts_the_rules_and_they_fire(self, what: tuple[Any, ...]) -> None:
        found = subprocess.run(
            ["promtool", *what], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=60, check=False
        )
        assert found.returncode == 0, found.stdout + found.stderr
