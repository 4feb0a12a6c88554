"""Processes start with the files of deploy/: with the modes and mounts that compose and Kubernetes give them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from spe.config import load_text
from tests.unit.test_deploy import COMPOSE, DEPLOY, MANIFESTS, manifest, pods

pytestmark = pytest.mark.processes

#: Of the image.
USER = 10001
PATIENCE_S = 120.0
STATE = "/var/lib/spe"


class Start(NamedTuple):
    """A container: its command, folders by mount path, its groups, and the group that its files get."""

    words: list[str]
    mounts: Mapping[str, Path]
    groups: set[int]
    files_group: int


def certificates(folder: Path, config: str) -> None:
    (folder / "shop.yaml").write_text(config)
    subprocess.run(
        [sys.executable, "-m", "replicas.cli", "certs", "shop.yaml", "--out", "keys"], cwd=folder, check=True
    )


def compose(folder: Path) -> Iterator[Start]:
    """By the commands at the head of the file, in a folder of which it mounts the whole."""
    here, bin_ = folder / "here", folder / "bin"
    here.mkdir(mode=0o755)
    bin_.mkdir()
    (bin_ / "spe").write_text(f'#!/bin/sh\nexec {sys.executable} -m replicas.cli "$@"\n')
    (bin_ / "spe").chmod(0o755)
    shutil.copy(DEPLOY / "container/shop.yaml", here / "shop.yaml")
    head = (DEPLOY / "container/compose.yaml").read_text()
    (command,) = re.findall(r"#   (spe certs .*)", head)
    environment = {**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", f"umask 022; {command}"], cwd=here, env=environment, check=True)
    assert "SPE_GROUP=$(id -g)" in head
    for name, service in COMPOSE["services"].items():
        assert service["group_add"] == ["${SPE_GROUP:?expected the group of the files in keys: id -g}"]
        (state := folder / name).mkdir(mode=0o750)
        places = dict(volume.split(":")[1::-1] for volume in service["volumes"])
        assert places.pop("/etc/spe") == "."
        mounts = {"/etc/spe": here, places.pop(STATE) and STATE: state}
        assert not places
        yield Start(service["command"], mounts, {USER, os.getgid()}, os.getgid())


def kubernetes(folder: Path) -> Iterator[Start]:
    """Secrets by the commands at the head of the file; a volume of secrets belongs to root and to fsGroup."""
    config = manifest("ConfigMap", "spe-config")["data"]["shop.yaml"]
    (made := folder / "made").mkdir()
    certificates(made, config)
    for one in (m for m in MANIFESTS if m["kind"] == "StatefulSet"):
        spec = one["spec"]["template"]["spec"]
        security, (container,) = spec["securityContext"], spec["containers"]
        assert security["runAsUser"] == USER
        for pod in pods(one):
            paths = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
            mounts = {path: folder / pod / name for name, path in paths.items()}
            for place in mounts.values():
                place.mkdir(parents=True)
            for volume in spec["volumes"]:
                place = mounts[paths[volume["name"]]]
                source = {"shop.yaml": made / "shop.yaml"}
                if "secret" in volume:
                    source = {p.name: p for p in (made / "keys").iterdir() if p.name != "ca.key"}
                mode = volume.get("secret", volume.get("configMap")).get("defaultMode", 0o644)
                for name, path in source.items():
                    shutil.copy(path, place / name)
                    (place / name).chmod(mode)
            number = pod.rpartition("-")[2]
            words = container.get("args") or shlex.split(container["command"][-1])[2:]
            words = [w.replace("$(POD_NAME)", pod).replace("${POD_NAME##*-}", number) for w in words]
            yield Start(words, mounts, {USER, security["fsGroup"]}, security["fsGroup"])


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def readable(path: Path, start: Start) -> bool:
    """Can the user of the image read it, who does not own it?"""
    return bool(path.stat().st_mode & (0o040 if start.files_group in start.groups else 0o004))


def on_this_machine(start: Start) -> list[str]:
    """The command, with mounts where they are, and addresses of this machine."""
    (config,) = (p for p in (place / "shop.yaml" for place in start.mounts.values()) if p.exists())
    text = config.read_text()
    for path, place in start.mounts.items():
        text = text.replace(f"{path}/", f"{place}/").replace(f"{path}}}", f"{place}}}")
    addresses = load_text(text).directory.addresses()
    for address, port in zip(addresses.values(), free_ports(len(addresses))):
        text = text.replace(f'"{address}"', f'"127.0.0.1:{port}"')
    (here := config.with_name("here.yaml")).write_text(text.replace("port: 9464, bind: 0.0.0.0", "port: 0"))
    words = start.words
    for path, place in start.mounts.items():
        words = [w.replace(path, str(place)) for w in words]
    return [w.replace(str(config), str(here)) for w in words]


@pytest.mark.skipif(os.name != "posix", reason="files have no modes")
@pytest.mark.parametrize("way", [compose, kubernetes])
def test_processes_start_with_the_modes_of_their_files(way: Any, tmp_path: Path) -> None:
    starts = list(way(tmp_path))
    assert len(starts) == 5
    for start in starts:
        for place in start.mounts.values():
            for path in place.rglob("*"):
                assert readable(path, start) or path.name == "ca.key", path
        command = [sys.executable, "-m", "replicas.cli", *on_this_machine(start)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "SPE_TOKEN": "x"}) as one:
            assert one.stderr is not None
            lines = []
            try:
                for line in one.stderr:
                    lines.append(line)
                    if ", plan " in line:
                        break
            finally:
                one.send_signal(signal.SIGTERM)
                one.wait(PATIENCE_S)
            assert lines, command
            assert ", plan " in lines[-1], lines


def engine() -> str:
    """Why no containers can be run; "" where they can."""
    if shutil.which("docker") is None:
        return "there is no docker"
    for words in (["docker", "compose", "version"], ["docker", "info"]):
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            return f"{' '.join(words)}: {(done.stderr or done.stdout).strip().splitlines()[-1]}"
    return ""


@pytest.mark.long
def test_the_compose_file_runs(tmp_path: Path) -> None:
    """The image is built, with an extra; all five become healthy."""
    if why := engine():
        pytest.skip(f"no container engine: {why}")
    root = tmp_path / "repository"
    shutil.copytree(DEPLOY.parent, root, ignore=shutil.ignore_patterns(".venv", ".git", "tests"))
    here = root / "deploy/container"
    (command,) = re.findall(r"#   (spe certs .*)", (here / "compose.yaml").read_text())
    words = command.replace("spe ", f"{shlex.quote(sys.executable)} -m replicas.cli ", 1)
    environment = {**os.environ, "PYTHONPATH": str(root), "SPE_TOKEN": "x", "SPE_EXTRAS": "tls"}
    environment["SPE_GROUP"] = str(os.getgid())
    subprocess.run(["sh", "-c", words], cwd=here, env=environment, check=True)

    def docker_compose(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker", "compose", *words], cwd=here, env=environment, capture_output=True, text=True, check=False
        )

    built = docker_compose("build")
    if built.returncode:
        pytest.skip(f"the image cannot be built here: {built.stderr.strip().splitlines()[-1]}")
    try:
        up = docker_compose("up", "--detach", "--wait", "--wait-timeout", "120")
        assert up.returncode == 0, up.stderr + docker_compose("logs").stdout
    finally:
        docker_compose("down", "--volumes")
