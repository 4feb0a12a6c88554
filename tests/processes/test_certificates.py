"""Certificates of a running cluster are renewed, and its secrets are nowhere to be read."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from replicas.link.connection import secured
from replicas.local.polling import Poller
from replicas.local.run_dir import SUPERVISOR, load_target
from spe.errors import SpeError
from spe.runtime.production import production_env
from spe.runtime.tls import CONTROL
from spe.status import ProcessStatus

pytestmark = pytest.mark.processes

CONFIG = """
cluster: renewed
sources: {a: {from: {generator: {name: orders, rate: 100, keys: 5, seed: 1, duration: 600s}}}}
query: {sums: {aggregate: {from: a, window: 500ms, group_by: key, compute: {n: count(*)}}}}
nodes: {n1: {}, n2: {}, n3: {spare: true}}
security: {certificates: keys}
"""
NAMES = {"n1", "n2", "n3", "source:a", "client:client", "coordinator"}
SPE = [sys.executable, "-m", "replicas.cli"]
PATIENCE_S = 60.0


def spe(*words: Any) -> str:
    return subprocess.run([*SPE, *words], capture_output=True, text=True, timeout=60, check=True).stdout


def certificates(run: Path) -> dict[str, tuple[int, int, str]]:
    """By process: its incarnation, when its certificate expires, and why new files are refused."""
    found = {}
    for status in trio.run(statuses, run):
        if (one := status.certificate) is not None:
            found[status.name] = (status.incarnation, one.expires_us, one.refused)
    return found


async def statuses(run: Path) -> list[ProcessStatus]:
    """Of those that answer."""
    target = load_target(run)
    env = secured(production_env(Path()), target.plan, CONTROL)
    poller = Poller(env, target.plan, target.addresses, target.token)
    async with trio.open_nursery() as nursery:
        for name in target.addresses:
            if name != SUPERVISOR:
                nursery.start_soon(poller.ask_status, name)
    return [seen.status for seen in poller.seen.values()]


def until(what: Callable[[], bool]) -> None:
    """Waits until it is so; it may raise until then."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            if what():
                return
        except (SpeError, OSError, KeyError):
            pass
        assert time.monotonic() < end
        time.sleep(0.3)


def files(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path, path.read_bytes()


def command_lines() -> Iterator[tuple[Path, bytes]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path, path.read_bytes()
        except OSError:
            continue


def found_in(secrets: Mapping[str, bytes], where: Iterator[tuple[Path, bytes]]) -> list[str]:
    return [f"{name} in {path}" for path, data in where for name, secret in secrets.items() if secret in data]


@pytest.mark.long
def test_cluster_uses_renewed_certificates_and_logs_no_secret(tmp_path: Path) -> None:
    """1. a run over TLS  2. half of a new file: refused by its process  3. all are renewed and used  4. it is stopped

    The secret of the run and every private key, old and new, are searched for in all that the run has written, in what
    it shows while it lasts, and in the command lines of all processes.
    """
    config, keys, run = tmp_path / "c.yaml", tmp_path / "keys", tmp_path / "run"
    config.write_text(CONFIG)
    spe("certs", config, "--days", "30")
    secrets = {f"old {k.name}": k.read_bytes().splitlines()[1] for k in keys.glob("*.key")}
    command = [*SPE, "run", config, "--run-dir", run, "--no-view", "--log-level", "debug"]
    with (tmp_path / "out").open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            until(lambda: set(certificates(run)) >= NAMES)
            before = certificates(run)
            secrets["token"] = load_target(run).token.encode()
            assert len(secrets["token"]) > 20

            whole = (keys / "n2.pem").read_bytes()
            (keys / "n2.pem").write_bytes(whole[:300])
            until(lambda: "expected a certificate and its key" in certificates(run)["n2"][2])

            spe("certs", config, "--days", "200", "--renew")
            secrets |= {f"new {k.name}": k.read_bytes().splitlines()[1] for k in keys.glob("*.key")}
            later_us = 100 * 86_400 * 1_000_000

            def renewed() -> dict[str, tuple[int, int, str]]:
                """Of those that answer: on a busy machine not all do each time."""
                return {n: c for n, c in certificates(run).items() if c[1] > before[n][1] + later_us and not c[2]}

            until(lambda: renewed().keys() == before.keys())
            after = certificates(run)
            assert {n: c[0] for n, c in after.items()}.items() <= {n: c[0] for n, c in before.items()}.items(), (
                "restarted"
            )

            shown = [("status", spe("status", run, "--json").encode())]
            for name, address in load_target(run).metrics.items():
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
                    shown.append((f"metrics of {name}", answer.read()))
            assert b"spe_certificate_expiry_timestamp_seconds" in shown[1][1]
            assert found_in(secrets, iter([(Path(name), text) for name, text in shown])) == []
            assert found_in(secrets, command_lines()) == []
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=PATIENCE_S) == 130, (tmp_path / "out").read_text()
        finally:
            process.kill()
    told = "\n".join(p.read_text() for p in (run / "logs").iterdir())
    assert "n2.pem and n2.key: expected a certificate and its key" in told
    assert "uses a new certificate, valid until" in told
    assert (run / "trace").is_dir()
    assert found_in(secrets, files(run)) == []
    assert found_in(secrets, iter([(tmp_path / "out", (tmp_path / "out").read_bytes())])) == []
