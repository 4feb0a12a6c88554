"""Metrics and health of real processes, and a real Prometheus that scrapes them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from prometheus_client.parser import text_string_to_metric_families

from replicas.local.ports import free_addresses
from tests.unit.spe.metrics.test_metrics import DEPLOY, expressions

pytestmark = pytest.mark.processes

CONFIG = """
cluster: shown
sources: {a: {from: {generator: {name: sequence, rate: 100, seed: 1, duration: 600s}}}}
query: {out: {filter: {from: a, where: value >= 0}}}
nodes: [n1, n2]
"""
NAMES = {"n1", "n2", "source:a", "client:client"}
PATIENCE_S = 120.0
SPE = [sys.executable, "-m", "replicas.cli"]
T = TypeVar("T")


@contextmanager
def running(*command: Any, output: Path) -> Iterator[None]:
    with output.open("wb") as log, subprocess.Popen([*command], stdout=log, stderr=log) as process:
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def cluster(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A cluster that runs; where each process serves its metrics, as spe status says it."""
    (tmp_path / "c.yaml").write_text(CONFIG)
    command = [*SPE, "run", tmp_path / "c.yaml", "--run-dir", tmp_path / "run", "--no-view", "--duration", "600s"]

    def served() -> dict[str, str]:
        asked = subprocess.run(
            [*SPE, "status", tmp_path / "run", "--json"], capture_output=True, text=True, timeout=60, check=True
        )
        return dict(json.loads(asked.stdout)["metrics"])

    with running(*command, output=tmp_path / "run.log"):
        yield soon(served)


def soon(what: Callable[[], T]) -> T:
    """The result, once there is one: it may raise until then."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return what()
        except (OSError, AssertionError, ValueError, KeyError, subprocess.SubprocessError):
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def get(address: str, path: str) -> tuple[int, str]:
    """Status and body."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_each_process_serves_metrics_and_health(tmp_path: Path) -> None:
    with cluster(tmp_path) as served:
        assert set(served) == NAMES
        for name, address in served.items():
            assert address.startswith("127.0.0.1:")
            assert get(address, "/healthz") == (200, "ok\n")
            assert soon(lambda at=address: ready(at)) == "ok\n"  # type: ignore[misc]
            families = list(text_string_to_metric_families(get(address, "/metrics")[1]))
            assert {s.labels["process"] for f in families for s in f.samples} == {name}
            assert get(address, "/")[0] == 404
        assert soon(lambda: counted(served["client:client"])) > 0


def ready(address: str) -> str:
    status, body = get(address, "/readyz")
    assert status == 200, body
    return body


def counted(address: str) -> float:
    """Delays of new tuples that the client has counted."""
    for family in text_string_to_metric_families(get(address, "/metrics")[1]):
        for sample in family.samples:
            if sample.name == "spe_client_x_used_ratio_count" and sample.value:
                return sample.value
    raise AssertionError("none yet")


@pytest.mark.long
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no Prometheus here: apt-get install prometheus")
def test_a_real_prometheus_evaluates_every_alert_and_panel(tmp_path: Path) -> None:
    """With the files of deploy/; Prometheus reports a query that it cannot evaluate."""
    (at,) = free_addresses(1)
    for name in ("prometheus.yaml", "alerts.yaml"):
        shutil.copy(DEPLOY / name, tmp_path / name)
    config = tmp_path / "prometheus.yaml"
    config.write_text(config.read_text().replace("interval: 5s", "interval: 1s"))
    with cluster(tmp_path) as served:
        shutil.copy(tmp_path / "run" / "prometheus.json", tmp_path / "prometheus.json")
        command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
        with running(*command, f"--web.listen-address={at}", output=tmp_path / "prometheus.log"):

            def ask(expression: str) -> list[dict[str, Any]]:
                found = get(at, f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
                answer = json.loads(found[1])
                assert answer["status"] == "success", (expression, answer)
                return list(answer["data"]["result"])

            def scraped() -> set[str]:
                found = {one["metric"]["process"] for one in ask("spe_process_info")}
                assert found == set(served)
                return found

            def shown(expression: str) -> None:
                assert ask(expression), expression

            soon(scraped)
            assert {one["metric"]["cluster"] for one in ask("spe_process_info")} == {"shown"}
            targets = json.loads(get(at, "/api/v1/targets")[1])["data"]["activeTargets"]
            assert {(t["health"], t["lastError"]) for t in targets} == {("up", "")}
            rules = json.loads(get(at, "/api/v1/rules")[1])["data"]["groups"]
            assert len(rules[0]["rules"]) == sum(where.startswith("alert") for where in expressions())
            for where, expression in expressions().items():
                asked = expression.replace("$cluster", ".*").replace("$__rate_interval", "1m")
                if where.startswith("alert"):
                    ask(asked)
                else:
                    soon(partial(shown, asked))
