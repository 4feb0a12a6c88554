"""The directory of a run: everything needed to understand it, to repeat it, and to talk to it while it lasts.

config.yaml  cluster.json  faults.json  events.jsonl  summary.json
logs/NAME.log  trace/NAME.jsonl  conditions/NAME.json  sources/…  nodes/…  clients/…  output/…
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from replicas.faults.model import processes_of
from replicas.faults.state import Conditions
from replicas.link.connection import TOKEN_VARIABLE, secured
from replicas.local.run_secret import read_secret
from replicas.on_spark.addresses import placed
from spe import RUN_VERSION, __version__
from spe.config import load
from spe.config.document import Document
from spe.errors import SpeError, other_version
from spe.plan.deploy import check_all_addressed, with_addresses, with_budget, with_default_client, with_origins
from spe.plan.directory import COORDINATOR, Directory
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.runtime.process_birth import birth_of
from spe.runtime.production import production_env
from spe.runtime.tls import CONTROL
from spe.runtime.tls import SUPERVISOR as SUPERVISOR

CONFIG: Final = "config.yaml"
CLUSTER: Final = "cluster.json"
#: Marks that the processes of a run have ended, with the pid of its supervisor, which compares their recordings.
ENDED: Final = "ended.json"
#: Addresses of the processes' metrics, as Prometheus reads them (``file_sd_configs``).
SCRAPED: Final = "prometheus.json"
_PACKAGES: Final = ("numpy", "trio", "msgpack", "pydantic", "pyyaml", "sqlglot", "cyclopts", "rich", "pyarrow")


@dataclass(frozen=True)
class Target:
    """A cluster, with everything needed to connect to it.

    Attributes:
      directory: roles of nodes; with the addresses of the run, if it is one.
      addresses: of all reachable processes, by name; in a run also its clients and its supervisor.
      folder: of the run; None for a configuration.
      supervisor_pid: of the run, as it was written; 0 for a configuration.
      metrics: addresses of metrics and health, by name.
      links: kind of link faults, as ``spe run --links``.
    """

    plan: Plan
    directory: Directory
    addresses: Mapping[str, str]
    token: str
    folder: Path | None = None
    supervisor_pid: int = 0
    metrics: Mapping[str, str] = field(default_factory=dict)
    links: str = "inside"

    def env(self, name: str = CONTROL) -> Env:
        """Returns the environment of a command, or a process of this name; nothing is stored on disk."""
        return secured(placed(production_env(Path()), self.folder), self.plan, name)


def load_target(path: Path, process: str = "") -> Target:
    """Reads a configuration, or the directory of a run.

    Args:
      process: the process of the run that connects: its links to peers may be its own.

    Raises:
      ConfigError, SpeError: it is neither.
    """
    if not path.is_dir():
        plan, directory = load(path)
        served = {} if plan.metrics is None else dict.fromkeys(processes_of(directory), plan.metrics.address)
        return Target(plan, directory, directory.addresses(), os.environ.get(TOKEN_VARIABLE, ""), metrics=served)
    file = path / CLUSTER
    try:
        data = json.loads(file.read_text())
        if why := other_version(file, data.get("version"), RUN_VERSION):
            raise SpeError(why)
        folder = Path(data["data"])
        plan, directory = load(path / CONFIG, folder)
        directory = with_default_client(plan, directory)
        known = directory.addresses()
        addresses = data["addresses"] | data.get("via", {}).get(process, {})
        directory = with_addresses(directory, {n: a for n, a in addresses.items() if n in known})
        plan = with_origins(plan, data["origins"])
        if "budget" in data:
            directory = with_budget(directory, int(data["budget"]))
        if "certificates" in data:  # the copy of the configuration is in another folder
            plan = replace(plan, security=replace(plan.security, certificates=data["certificates"]))
        metrics = data.get("metrics", {})
        secret = data.get("secret", "")
        token, links = read_secret(secret and str(path / secret)), str(data.get("links", "inside"))
        return Target(plan, directory, addresses, token, path, int(data["pid"]), metrics, links)
    except FileNotFoundError:
        raise SpeError(f"{path} is not the directory of a run: it has no {CLUSTER}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise SpeError(f"{file} is damaged: {error!r}") from error


def require_addresses(path: Path, target: Target, names: Iterable[str] | None = None) -> None:
    """Raises ConfigError if a configuration leaves addresses open: only ``spe run`` finds free ones."""
    wanted = target.addresses if names is None else names
    if target.folder is None:
        check_all_addressed(str(path), {n: target.addresses[n] for n in wanted})


def load_coordinated(path: Path, what: str) -> Target:
    """Loads a cluster for a command to its coordinator, which does ``what``.  Raises SpeError: it has none."""
    target = load_target(path)
    if not target.directory.coordinated:
        needs = "add a section `coordinator`, a spare node or a standby"
        raise SpeError(f"{path} has no coordinator, which {what}; {needs}")
    require_addresses(path, target, [COORDINATOR])
    return target


@dataclass(frozen=True)
class RunDirectory:
    """Paths inside the directory of a run, and its files."""

    path: Path

    @classmethod
    def create(cls, path: Path | None, config: Document) -> RunDirectory:
        """Makes a new one; ``runs/NAME-TIME`` by default.

        Raises:
          SpeError: there is something already, or it cannot be made.
        """
        named = path is not None
        if path is None:
            stem = Path("runs") / f"{Path(config.name).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
            path, number = stem, 1
            while path.exists():
                number += 1
                path = stem.with_name(f"{stem.name}-{number}")
        if named and path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise SpeError(f"{path} is there already and not empty; a run needs a directory of its own")
        try:
            path.mkdir(0o750, parents=True, exist_ok=True)
            (path / CONFIG).write_text(config.to_yaml(), encoding="utf-8")
        except OSError as error:
            raise SpeError(f"{path} cannot be made: {error.strerror}") from error
        return cls(path)

    def log(self, process: str) -> Path:
        return self.path / "logs" / f"{file_name(process)}.log"

    def trace(self, process: str) -> Path:
        return self.path / "trace" / f"{file_name(process)}.jsonl"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def output(self) -> Path:
        """Base of relative paths of sinks."""
        return self.path / "output"

    def first_malformed(self, source: str) -> str:
        """Returns ``line N: reason`` of the first row that a source set aside; "" if there is none."""
        try:
            with (self.path / "malformed" / f"{source}.jsonl").open(encoding="utf-8") as file:
                row = json.loads(file.readline())
                return f"line {row['line']}: {row['reason']}"
        except (OSError, ValueError, KeyError):
            return ""

    def write_cluster(self, plan: Plan, **facts: Any) -> None:
        """Writes the file for :func:`load_target`.  It names the file with the run's secret, and has no secret."""
        data = {
            "version": RUN_VERSION,
            "pid": os.getpid(),
            "birth": birth_of(os.getpid()),
            "cluster": plan.cluster,
            "fingerprint": plan.fingerprint,
            "versions": versions(),
            "command": sys.argv,
            **facts,
        }
        self.write(CLUSTER, data)

    def write(self, name: str, data: Any) -> None:
        """Replaces a JSON file as a whole.  Raises SpeError: the disk is full, or the like."""
        path = self.path / name
        aside = path.with_name(f".{path.name}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with aside.open("w") as file:
                json.dump(data, file, indent=1, default=str)
                file.write("\n")
            os.replace(aside, path)
        except OSError as error:
            raise SpeError(f"{path} cannot be written: {error.strerror}") from error

    def write_conditions(self, process: str, conditions: Conditions) -> None:
        """Writes the conditions that a process reads at its (next) start."""
        self.write(f"conditions/{file_name(process)}.json", conditions.to_data())

    def read_conditions(self, process: str) -> Conditions:
        try:
            text = (self.path / "conditions" / f"{file_name(process)}.json").read_text()
        except FileNotFoundError:
            return Conditions()
        return Conditions.from_data(json.loads(text))


def file_name(process: str) -> str:
    """Returns ``source:a`` as a file name."""
    return re.sub(r"[^\w.\-]", "-", process)


def versions() -> dict[str, str]:
    """Returns versions of this software and of its dependencies."""
    found_versions = {"spe": __version__, "python": platform.python_version(), "system": platform.platform()}
    for name in _PACKAGES:
        try:
            found_versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return found_versions


def commit() -> str:
    """Returns the git commit of this software, with "+" if files were changed since; "" outside a checkout."""
    here = ["git", "-C", str(Path(__file__).parent)]
    try:
        outputs = [
            subprocess.run([*here, *what], capture_output=True, text=True, timeout=10, check=True).stdout.strip()
            for what in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        ]
    except (OSError, subprocess.SubprocessError):
        return ""
    return outputs[0] + ("+" if outputs[1] else "")


def made_by() -> str:
    """Returns a line with everything besides the seed that a simulated run depends on."""
    known = versions()
    names = ("spe", "python", "trio", "numpy")
    at = commit()
    return ", ".join([f"{n} {known[n]}" for n in names if n in known] + ([f"commit {at}"] if at else []))
