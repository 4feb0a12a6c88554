"""Prepares a local run: addresses, a common event time at which sources begin, command lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from replicas.connectors import Replay, open_reader
from replicas.faults.links import LinkFaultMaker
from replicas.faults.model import Fault, processes_of
from replicas.local.ports import check_free, free_addresses
from replicas.local.process import Managed, ProcessSpec
from replicas.local.run_dir import SUPERVISOR, RunDirectory
from spe.plan.directory import COORDINATOR, Directory
from spe.plan.plan import Plan
from spe.stream.names import StreamId


class ProcessMaker(Protocol):
    """Makes the processes of a job from their specifications."""

    def open(
        self, job: Job, say: Callable[[str], None]
    ) -> AbstractAsyncContextManager[Callable[[ProcessSpec], Managed]]:
        """Yields the function that makes them, while the block lasts."""


@dataclass
class Job:
    """Description of a run.

    Attributes:
      directory: roles of nodes, at the addresses of this run; without external clients.
      external: outputs that each external client reads.
      config: the name of the configuration, as it was given.
      addresses: of all processes, clients and supervisor included.
      logs: format and level of the processes' logs.
      dashboard: ``host:port`` of the page; "" if there is none.
      nodes: runs nodes on Spark; None: they run here.
      origins: event time at which each replayed source begins, if the configuration does not have it.
      begun_us: wall time at which the sources began in an earlier session of the run; None: they begin now.
    """

    config: str
    data: Path
    plan: Plan
    directory: Directory
    run: RunDirectory
    faults: list[Fault]
    addresses: dict[str, str]
    origins: dict[str, int]
    external: Mapping[str, Collection[StreamId]]
    token: str
    seed: int
    duration_us: int | None
    live_view: bool
    links: LinkFaultMaker
    logs: tuple[str, str] = ("text", "info")
    dashboard: str = ""
    nodes: ProcessMaker | None = None
    specs: list[ProcessSpec] = field(default_factory=list)
    begun_us: int | None = None


def local_addresses(directory: Directory) -> dict[str, str]:
    """Returns loopback addresses for all: those of the configuration if they are such, free ones otherwise.

    Raises:
      PortInUse: one of the configuration is in use.
    """
    wanted = {n: a for n, a in directory.addresses().items() if _is_local(a)}
    check_free(wanted)
    others = [n for n in [*processes_of(directory), SUPERVISOR] if n not in wanted]
    free = iter(a for a in free_addresses(len(others) + len(wanted)) if a not in wanted.values())
    return {n: wanted[n] if n in wanted else next(free) for n in [*processes_of(directory), SUPERVISOR]}


def metrics_addresses(addresses: Mapping[str, str], without: Collection[str] = ()) -> dict[str, str]:
    """Returns free loopback addresses for the metrics of all processes but some, different from ``addresses``."""
    names = [name for name in addresses if name != SUPERVISOR and name not in without]
    taken = set(addresses.values())
    free = iter(a for a in free_addresses(len(names) + len(taken)) if a not in taken)
    return {name: next(free) for name in names}


def _is_local(address: str) -> bool:
    host, _, port = address.rpartition(":")
    return port != "0" and (host in ("localhost", "[::1]") or host.startswith("127."))


def common_origins(plan: Plan) -> dict[str, int]:
    """Returns the event time at which the replay of all sources begins: the smallest, so that they stay in step.

    Sources with a configured time, and those that begin when they are started, are left out.

    Raises:
      SpeError: an input cannot be read.
    """
    first: dict[str, int] = {}
    for stream, source in plan.sources.items():
        replay = source.replay
        if replay.get("max") or replay.get("rate") is not None or replay.get("origin_us") is not None:
            continue
        reader = open_reader(source)
        if not isinstance(reader, Replay) or (source.reader["kind"] == "generator" and reader.origin_us is None):
            continue
        chunk = next(reader.chunks(0), None)
        if reader.origin_us is not None:
            first[str(stream)] = reader.origin_us
        elif chunk is not None and chunk.events is not None and len(chunk):
            first[str(stream)] = int(chunk.events[0])
    return dict.fromkeys(first, min(first.values(), default=0))


def process_specs(job: Job) -> list[ProcessSpec]:
    """Returns how to start each process: sources first, so that nodes find them; clients last."""
    words = [sys.executable, "-m", "replicas.cli"]
    where = str(job.run.path)
    logs = [] if job.logs == ("text", "info") else ["--log-format", job.logs[0], "--log-level", job.logs[1]]
    environment = {"OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}

    def spec(name: str, command: list[str], *, reads_stdin: bool = False) -> ProcessSpec:
        return ProcessSpec(name, [*command, *logs], job.run.log(name), environment, reads_stdin=reads_stdin)

    specs = []
    for stream, source in job.plan.sources.items():
        command = [*words, "source", where, "--source", stream]
        name = f"source:{stream}"
        stdin = source.reader.get("kind") == "stdin"
        specs.append(spec(name, command, reads_stdin=stdin))
    for node in job.directory.nodes:
        command = [*words, "node", where, "--node", node]
        specs.append(spec(str(node), command))
    if job.directory.coordinated:
        specs.append(spec(COORDINATOR, [*words, "coordinator", where]))
    for client in job.directory.clients:
        command = [*words, "client", where, "--client", client]
        name = f"client:{client}"
        specs.append(spec(name, command))
    return specs
