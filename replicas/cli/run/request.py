"""Reads and checks a run before any file is written, then writes its directory."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from replicas.cli.checkpoint_log import refuse_logs
from replicas.cli.dashboard.page import bind_address
from replicas.cli.run.run_options import RunOptions
from replicas.faults.links import LinkMode, open_links
from replicas.faults.model import Fault, configured_faults, load_faults, refuse_unreal
from replicas.local.continuation import EarlierRun
from replicas.local.job import Job, common_origins, local_addresses, metrics_addresses, process_specs
from replicas.local.ports import check_free
from replicas.local.run_dir import SCRAPED, RunDirectory
from replicas.local.run_secret import kept_secret
from replicas.local.spark_job import SparkNodes
from spe.config import load_document, missing_files
from spe.config.document import Document
from spe.errors import ConfigError
from spe.plan.deploy import with_addresses, with_budget, with_default_client, with_origins, without_external
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.stream.names import StreamId


@dataclass(frozen=True)
class RunRequest:
    """A run to start: read and checked as far as possible before any file is written.

    Attributes:
      data: base folder of relative paths of data files; None: the document's folder.
      directory: the placement, without external clients.
      external: the streams that each external client reads.
      links: how links are made to fail.
      budget: number of standbys that run from the start; None: as configured.
      dashboard: ``host:port`` of the page; "" where there is none.
      origins: event time at which each replayed source begins, if not configured.
      earlier: the run to continue; None: a new run.
    """

    document: Document
    data: Path | None
    plan: Plan
    directory: Directory
    external: Mapping[str, Collection[StreamId]]
    faults: Sequence[Fault]
    links: LinkMode
    budget: int | None
    dashboard: str
    origins: Mapping[str, int]
    earlier: EarlierRun | None = None


def check_request(document: Document, options: RunOptions, earlier: EarlierRun | None = None) -> RunRequest:
    """Checks a run.  Raises SpeError: it cannot run on this machine."""
    data, budget = options.data, options.budget
    if earlier is not None:
        data, budget = earlier.data, earlier.budget if budget is None else budget
    plan, directory = load_document(document, data)
    if earlier is not None:
        plan = replace(plan, security=earlier.security)
    refuse_logs(document, plan, directory)
    external = {name: client.reads for name, client in directory.clients.items() if client.external}
    directory = without_external(with_default_client(plan, directory))
    if not directory.clients:
        raise ConfigError(["clients: all are external, so a run would record nothing; expected one that is not"])
    if budget is not None:
        directory = with_budget(directory, budget)
    schedule = configured_faults(document, directory) if earlier is None else []  # those were injected before
    schedule += load_faults(options.faults, directory) if options.faults is not None else []
    mode = LinkMode(options.links)
    refuse_unreal(schedule, mode)
    missing = missing_files(plan)
    if missing:
        raise ConfigError([f"{m}: there is no such file" for m in missing])
    page = bind_address(options.dashboard)
    if page:
        check_free({"--dashboard": page})
    origins = common_origins(plan) if earlier is None else earlier.origins
    return RunRequest(document, data, plan, directory, external, schedule, mode, budget, page, origins, earlier)


@contextmanager
def open_job(
    request: RunRequest, options: RunOptions, nodes: SparkNodes | None, seed: int, duration_us: int | None
) -> Iterator[Job]:
    """Writes the directory of a run for its processes; the run's secret exists while the block lasts."""
    plan, directory, earlier = request.plan, request.directory, request.earlier
    addresses = local_addresses(directory) if nodes is None else nodes.addresses(directory)
    metrics = metrics_addresses(addresses, () if nodes is None else directory.nodes)
    links = open_links(request.links, plan, directory, addresses, Random(seed))
    run = RunDirectory.create(options.run_dir, request.document) if earlier is None else RunDirectory(earlier.path)
    if nodes is not None:
        nodes.prepare(run, plan, directory)
    with kept_secret() as (token, secret):
        job = Job(
            config=request.document.name,
            data=(request.data if request.data is not None else request.document.home).absolute(),
            plan=with_origins(plan, request.origins),
            directory=with_addresses(directory, {n: addresses[n] for n in directory.addresses()}),
            run=run,
            faults=sorted(request.faults, key=lambda f: f.at_us),
            addresses=addresses,
            origins=dict(request.origins),
            external=request.external,
            token=token,
            seed=seed,
            duration_us=duration_us,
            live_view=options.view and sys.stdout.isatty(),
            links=links,
            logs=(options.log_format, options.log_level.name.lower()),
            dashboard=request.dashboard,
            nodes=nodes,
            begun_us=None if earlier is None else earlier.begun_us,
        )
        job.specs = process_specs(job)
        _write(job, request, metrics, secret)
        yield job


def _write(job: Job, request: RunRequest, metrics: Mapping[str, str], secret: Path) -> None:
    """Writes the files that processes and commands read."""
    job.run.write("faults.json", [f.to_data() for f in job.faults])
    job.run.write(SCRAPED, scraped(request.plan, metrics))
    job.run.write_cluster(
        request.plan,
        data=str(job.data),
        addresses=job.addresses,
        origins=request.origins,
        secret=str(secret),
        seed=job.seed,
        via=job.links.via,
        metrics=metrics,
        links=str(request.links),
        **certificates(request.plan),
        **({} if request.budget is None else {"budget": request.budget}),
    )


def scraped(plan: Plan, metrics: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns the targets for Prometheus: the contents of a file for ``file_sd_configs``."""
    return [{"targets": list(metrics.values()), "labels": {"cluster": plan.cluster}}]


def certificates(plan: Plan) -> dict[str, str]:
    """Returns the folder of the certificates as an absolute path, for ``security``; empty without certificates."""
    folder = plan.security.certificates
    return {} if folder is None else {"certificates": str(Path(folder).absolute())}
