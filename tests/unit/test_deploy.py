"""What deploy/ has: configurations without a warning, and commands, probes and units that fit them and each other."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from replicas.cli.app import app
from spe.config import load_text
from spe.plan.deploy import Deployed
from spe.plan.review import review

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS = [m for m in yaml.safe_load_all((DEPLOY / "kubernetes/shop.yaml").read_text()) if m]
COMPOSE = yaml.safe_load((DEPLOY / "container/compose.yaml").read_text())
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def manifest(kind: str, name: str) -> Any:
    (found,) = (m for m in MANIFESTS if (m["kind"], m["metadata"]["name"]) == (kind, name))
    return found


def kubernetes() -> Deployed:
    return load_text(manifest("ConfigMap", "spe-config")["data"]["shop.yaml"])


def compose() -> Deployed:
    return load_text((DEPLOY / "container/shop.yaml").read_text())


def started(words: list[str]) -> tuple[str, str]:
    """The kind and the name of the process that a command starts; it must be one of spe."""
    command, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False, help_on_error=False)
    return command.__name__, str(bound.arguments[command.__name__])


def names(deployed: Deployed) -> set[tuple[str, str]]:
    directory = deployed.directory
    return {
        *(("node", str(n)) for n in directory.nodes),
        *(("source", str(s)) for s in directory.sources),
        *(("client", c) for c in directory.clients),
    }


@pytest.mark.parametrize("deployed", [kubernetes, compose])
def test_configurations_have_no_warnings_and_five_processes(deployed: Any) -> None:
    assert review(*deployed()) == []
    assert len(names(deployed())) == 5


def test_the_compose_file_starts_processes_under_their_hosts() -> None:
    directory = compose().directory
    services = COMPOSE["services"]
    assert {started(service["command"]) for service in services.values()} == names(compose())
    for name, service in services.items():
        kind, process = started(service["command"])
        assert f"{name}:/var/lib/spe" in service["volumes"]
        assert name in COMPOSE["volumes"]
        assert service["healthcheck"]["test"][0] == "CMD"
        compile(service["healthcheck"]["test"][-1], name, "exec")
        address = directory.addresses().get(process if kind == "node" else f"{kind}:{process}", f"{name}:0")
        assert address.partition(":")[0] == name


@pytest.mark.parametrize(("extras", "installed"), [("", "."), ("kafka,tls", ".[kafka,tls]")])
def test_the_image_takes_extras(extras: str, installed: str) -> None:
    """pip refuses brackets without an extra."""
    lines = (DEPLOY / "container/Containerfile").read_text().splitlines()
    assert "ARG EXTRAS=" in lines
    (what,) = (shlex.split(line, posix=False)[-1] for line in lines if "pip install" in line)
    done = subprocess.run(
        ["sh", "-c", f"echo {what}"], env={"EXTRAS": extras}, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{installed}\n"
    (build,) = (service["build"] for service in COMPOSE["services"].values() if "build" in service)
    assert build["args"] == {"EXTRAS": "${SPE_EXTRAS:-}"}


def pods(manifest: Any) -> Iterator[str]:
    for number in range(manifest["spec"]["replicas"]):
        yield f"{manifest['metadata']['name']}-{number}"


def test_the_manifests_start_processes_under_their_hosts() -> None:
    found = set()
    sets = [m for m in MANIFESTS if m["kind"] == "StatefulSet"]
    addresses = set(kubernetes().directory.addresses().values())
    hosts = set()
    for one in sets:
        (container,) = one["spec"]["template"]["spec"]["containers"]
        for pod in pods(one):
            words = container.get("args") or shlex.split(container["command"][-1])[2:]
            number = pod.rpartition("-")[2]
            found.add(started([w.replace("$(POD_NAME)", pod).replace("${POD_NAME##*-}", number) for w in words]))
            port = next((p["containerPort"] for p in container["ports"] if p["name"] == "spe"), None)
            hosts |= {f"{pod}.{one['spec']['serviceName']}:{port}"} if port is not None else set()
    assert found == names(kubernetes())
    assert hosts == addresses


def test_each_set_has_its_service_probes_and_storage() -> None:
    metrics = kubernetes().plan.metrics
    assert metrics is not None
    for one in (m for m in MANIFESTS if m["kind"] == "StatefulSet"):
        spec, template = one["spec"], one["spec"]["template"]
        service = manifest("Service", spec["serviceName"])["spec"]
        assert service["selector"] == spec["selector"]["matchLabels"] == template["metadata"]["labels"]
        (container,) = template["spec"]["containers"]
        assert {p["containerPort"] for p in container["ports"]} == {p["port"] for p in service["ports"]}
        assert {"name": "metrics", "containerPort": metrics.port} in container["ports"]
        probes = {k: container[f"{k}Probe"]["httpGet"] for k in ("startup", "liveness", "readiness")}
        assert {k: p["path"] for k, p in probes.items()} == {
            "startup": "/healthz",
            "liveness": "/healthz",
            "readiness": "/readyz",
        }
        volumes = {
            v["name"] for v in template["spec"]["volumes"] + [c["metadata"] for c in spec["volumeClaimTemplates"]]
        }
        assert {m["name"] for m in container["volumeMounts"]} == volumes


def test_one_replica_may_be_away_and_no_two_share_a_machine() -> None:
    nodes, budget = manifest("StatefulSet", "node")["spec"], manifest("PodDisruptionBudget", "node")["spec"]
    assert budget["minAvailable"] == nodes["replicas"] - 1
    (rule,) = nodes["template"]["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"] == budget["selector"] == nodes["selector"]


def test_a_node_stops_only_after_its_partner_is_stable() -> None:
    spec = manifest("StatefulSet", "node")["spec"]["template"]["spec"]
    words = shlex.split(spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1])
    command, bound, _ = app.parse_args(words[1:], exit_on_error=False, print_error=False, help_on_error=False)
    assert (words[0], command.__name__, bound.arguments["partners"]) == ("spe", "wait", True)
    assert int(str(bound.arguments["within"]).removesuffix("s")) < spec["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.stem)
def test_systemd_units_start_the_named_process(unit: Path) -> None:
    lines = [line.partition("=") for line in unit.read_text().splitlines()]
    for key, _, value in lines:
        if key.startswith("Exec"):
            words = shlex.split(value.removeprefix("-").replace("%i", "n1"))
            assert words[0] == "/opt/spe/bin/spe"
            command, _, _ = app.parse_args(words[1:], exit_on_error=False, print_error=False, help_on_error=False)
            assert command.__name__ == (unit.stem[4:-1] if key == "ExecStart" else "wait")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_knows_every_key_of_the_units(tmp_path: Path) -> None:
    """The program is replaced by one that is there."""
    for unit in UNITS:
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/spe/bin/spe", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", *sorted(tmp_path.glob("*.service"))], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
