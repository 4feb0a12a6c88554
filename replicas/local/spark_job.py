"""``spe run --on spark``: runs the nodes as tasks of Spark; all others are processes of this machine."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from replicas.faults.links import LinkMode
from replicas.faults.model import processes_of
from replicas.local.job import Job
from replicas.local.ports import free_addresses
from replicas.local.process import Managed, ProcessSpec
from replicas.local.run_dir import CLUSTER, CONFIG, SUPERVISOR, RunDirectory, file_name
from replicas.on_spark.addresses import address_of, write_places
from replicas.on_spark.directory import NodeDirectory, open_directory
from replicas.on_spark.jobs import ExecutorCheck, SparkJobs, look, registered
from replicas.on_spark.link import new_secret
from replicas.on_spark.placement import SparkPlacement
from replicas.on_spark.session import expected_executors, open_spark, settings
from replicas.on_spark.spots import Executor, Fit, fit, needs, partners
from replicas.on_spark.task import FOLDER, NodeTask
from spe import __version__
from spe.errors import SpeError
from spe.plan.directory import Directory
from spe.plan.plan import Plan

if TYPE_CHECKING:
    from pyspark import SparkContext

_LOOK_S: Final = 0.3
_TELL_S: Final = 10.0
_TOKEN: Final = "token"
#: File in the directory of a run: executors that can read it see that directory.
_SEEN: Final = "seen-by-executors"


@dataclass
class SparkNodes:
    """Spark, with room for the nodes of a run.

    Attributes:
      host: name under which executors reach this machine.
      by_host: replicas of a partition share no host, either.
      stored: nodes' files are in the directory of the run, which all executors see.
    """

    context: SparkContext
    executors: Sequence[Executor]
    host: str
    by_host: bool
    stored: bool = False

    def addresses(self, directory: Directory) -> dict[str, str]:
        """Returns all addresses: a node's is its name; processes that talk to nodes must be reachable from Spark."""
        others = [n for n in processes_of(directory) if n not in directory.nodes]
        outside = [n for n in others if not n.startswith("client:")]
        inside = [SUPERVISOR, *(n for n in others if n.startswith("client:"))]
        addresses_ = {str(n): address_of(str(n)) for n in directory.nodes}
        addresses_ |= dict(zip(outside, free_addresses(len(outside), self.host), strict=True))
        taken = {address.rpartition(":")[2] for address in addresses_.values()}
        free = (a for a in free_addresses(len(inside) + len(addresses_)) if a.rpartition(":")[2] not in taken)
        return addresses_ | dict(zip(inside, free, strict=False))

    def prepare(self, run: RunDirectory, plan: Plan, directory: Directory) -> None:
        """Checks what executors see of a run.

        Raises:
          SpeError: they lack something.
        """
        write_places(run.path, {})
        path = run.path.absolute()
        mark = secrets.token_hex(16)
        (path / _SEEN).write_text(mark)
        certificates = plan.security.certificates
        folders = () if certificates is None else (str(Path(certificates).absolute()),)
        try:
            self.stored = look(
                self.context, self.executors, ExecutorCheck(__version__, str(path / _SEEN), mark, folders)
            )
        finally:
            (path / _SEEN).unlink()
        if not self.stored and (keeps := keeps_on_disk(directory)):
            raise SpeError(
                f"not all executors see {path}, and {keeps}, which must be read where a lost executor is replaced; "
                "expected --run-dir on a file system that driver and executors see at the same path, or a configuration"
                " without checkpoints on disk, whose nodes recover from their partners only"
            )

    @asynccontextmanager
    async def open(self, job: Job, say: Callable[[str], None]) -> AsyncIterator[Callable[[ProcessSpec], Managed]]:
        """Yields the function that makes each process of a run: nodes on Spark, while the block lasts."""
        secret, run = new_secret(), job.run
        commands = {spec.name: self._command(spec, run) for spec in job.specs}
        environments = {spec.name: spec.environment for spec in job.specs}
        shared = {
            CONFIG: (run.path / CONFIG).read_text(encoding="utf-8"),
            CLUSTER: cluster_file((run.path / CLUSTER).read_text(encoding="utf-8")),
            _TOKEN: job.token,
        }

        def task(node: str, attempt: int, driver: str) -> NodeTask:
            trace = str(run.trace(node).relative_to(run.path))
            return NodeTask(driver, node, attempt, secret, commands[node], shared, environments[node], trace)

        directory = NodeDirectory(
            SparkPlacement(partners(job.directory), by_host=self.by_host),
            SparkJobs(self.context),
            secret,
            run.path,
            host=self.host,
            task=task,
            files=lambda node: {
                f"conditions/{file_name(node)}.json": json.dumps(run.read_conditions(node).to_data()),
            },
            trace=run.trace,
            say=say,
        )
        async with open_directory(directory):
            yield directory.process

    def _command(self, spec: ProcessSpec, run: RunDirectory) -> tuple[str, ...]:
        """Returns the command without the interpreter; the task's folder replaces the directory of the run."""
        words = tuple(FOLDER if word == str(run.path) else word for word in spec.command[1:])
        return (*words, "--storage", str(run.path.absolute())) if self.stored else words


def cluster_file(text: str) -> str:
    """Returns a node's version of the run's file: the secret is elsewhere, and there are no metrics."""
    return json.dumps({**json.loads(text), "secret": _TOKEN, "metrics": {}})


def keeps_on_disk(directory: Directory) -> str:
    """Returns data of nodes that only their disks have; "" if partners have everything."""
    if directory.standbys:
        return "standbys keep checkpoints on disk"
    if directory.logs:
        return "replicas write checkpoint logs"
    for node in directory.nodes:
        if any(directory.disk_us(replica) is not None for replica in directory.replicas_on(node)):
            return f"{node} writes checkpoints to disk"
    return ""


@contextmanager
def open_nodes(
    master: str | None, conf: Mapping[str, str], plan: Plan, directory: Directory, links: str
) -> Iterator[SparkNodes]:
    """Starts Spark, and waits until there is room for all nodes.

    Raises:
      SpeError: an option does not go with Spark, or there are too few executors.
    """
    if links != LinkMode.INSIDE:
        raise SpeError(f"--links {links} does not go with --on spark: nodes change their places, proxies do not follow")
    print("starting Spark …", flush=True)
    with open_spark(f"spe {plan.cluster}", master, conf) as context:
        known = settings(context)
        apart = partners(directory)
        executors, room = wait_for_room(
            apart, lambda: registered(context), expected_executors(context.master or "", known)
        )
        if room is Fit.BY_EXECUTOR and len({e.spot.host for e in executors}) > 1:
            print("there are too few hosts: replicas of a partition may share one, but no executor", flush=True)
        yield SparkNodes(context, executors, known["spark.driver.host"], room is Fit.BY_HOST)


def wait_for_room(
    apart: Mapping[str, frozenset[str]], executors: Callable[[], Sequence[Executor]], expected: int | None
) -> tuple[Sequence[Executor], Fit]:
    """Returns the executors once all nodes fit on them.

    Raises:
      SpeError: they do not.
    """
    began = reported = time.monotonic()
    while True:
        now = executors()
        waited = time.monotonic() - began
        room = fit(apart, now, expected, round(waited * 1e6))
        if room is Fit.NEVER:
            raise SpeError(needs(apart, now))
        if room is not Fit.NOT_YET:
            return now, room
        if time.monotonic() - reported >= _TELL_S:
            reported = time.monotonic()
            print(f"waiting for executors: {needs(apart, now)}", flush=True)
        time.sleep(_LOOK_S)
