"""``spe run``: runs a cluster of real processes on this machine, shows it, injects faults, and judges it at the end."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, Final

import trio
from rich.live import Live
from rich.text import Text

from consistency.faults.kind import Do
from consistency.faults.kinds import HEAL
from replicas.cli.checkpoint_log import refuse_logs
from replicas.cli.dashboard.hub import Hub
from replicas.cli.dashboard.page import LOOPBACK, Site, bind_address, fault_kinds, is_local
from replicas.cli.run.reporter import Reporter, reporter
from replicas.cli.run.summary import failures, figures, summary_text
from replicas.cli.run.verdict import judge, sinks
from replicas.cli.view.view import Sight, make_console, moment, render, seconds
from replicas.faults.links import LinkMode, open_links
from replicas.faults.model import Fault, configured_faults, load_faults, processes_of, refuse_unreal
from replicas.faults.runner import FaultRunner, Happening
from replicas.faults.state import Action, Conditions, FaultState
from replicas.link.connection import Identity, secured
from replicas.link.directory import DirectoryKeeper
from replicas.local.cluster import READY_S, Cluster, open_cluster
from replicas.local.continuation import EarlierRun
from replicas.local.history import EventList
from replicas.local.job import Job, common_origins, local_addresses, metrics_addresses, process_specs
from replicas.local.log_errors import LogErrors
from replicas.local.polling import Poller
from replicas.local.ports import check_free
from replicas.local.process import Managed, Phase, ProcessSpec
from replicas.local.progress import ProgressWatch, UnreadWatch
from replicas.local.run_dir import ENDED, SCRAPED, SUPERVISOR, RunDirectory
from replicas.local.run_secret import kept_secret
from replicas.local.spark_job import SparkNodes, SparkOptions, open_nodes
from replicas.local.story import Story
from replicas.local.supervisor import Hands, Restarts, SupervisorService, fault_status
from replicas.on_spark.addresses import placed
from replicas.producer.server import Server
from spe.config import load_document, missing_files
from spe.config.document import Document
from spe.errors import ConfigError
from spe.plan.deploy import with_addresses, with_budget, with_default_client, with_origins, without_external
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.runtime.production import production_env
from spe.status import ClientStatus, ProcessStatus
from spe.stream.names import StreamId

#: Time between "all are ready" and the first tuple: sources open their logs, nodes and clients connect.
LEAD_US: Final = 700_000
#: Sources of replayed input that show no progress for this long are stuck.
QUIET_US: Final = 3_000_000
#: The run is stuck when nothing moves for this long, besides twice the sum of X over the nodes.
STUCK_US: Final = 8_000_000
#: After a failure that ends the run, wait so long for data that is under way.
GRACE_US: Final = 1_500_000
#: When the clients are complete, wait so long for replicas that recover.
RETURN_US: Final = 15_000_000
#: When the clients are complete, external clients may pause so long between reads.
UNREAD_US: Final = 60_000_000
_LOOK_S: Final = 0.1
_AGAIN_S: Final = 0.5
_DRAW_S: Final = 0.2
_TELL_S: Final = 5.0

DONE: Final = 0
NOT_AS_EXPECTED: Final = 1
INTERRUPTED: Final = 130
TERMINATED: Final = 143


def run_document(
    document: Document,
    *,
    data: Path | None,
    run_dir: Path | None,
    faults: Path | None,
    seed: int | None,
    duration_us: int | None,
    view: bool,
    links: str = LinkMode.INSIDE,
    logs: tuple[str, str] = ("text", "info"),
    report: bool = False,
    budget: int | None = None,
    dashboard: str = LOOPBACK,
    spark: SparkOptions | None = None,
    earlier: EarlierRun | None = None,
) -> tuple[Path, int]:
    """Returns the directory of the run, and its exit status.

    ``logs``: format and level of the processes' log.  ``dashboard``: address of the page; ``off``: none.
    ``spark``: run the nodes on Spark; None: run them here.  ``earlier``: the run to continue, with its document.
    The status is 0 only if the clients' stable streams equal the reference run, and the report, if any, agrees.
    """
    request = check_request(
        document, data=data, faults=faults, links=links, budget=budget, dashboard=dashboard, earlier=earlier
    )
    seed = SystemRandom().getrandbits(32) if seed is None else seed
    with ExitStack() as stack:
        nodes = None
        if spark is not None:
            nodes = stack.enter_context(open_nodes(spark.master, spark.conf, request.plan, request.directory, links))
        job = stack.enter_context(
            open_job(
                request,
                run_dir=run_dir,
                nodes=nodes,
                seed=seed,
                duration_us=duration_us,
                view=view,
                logs=logs,
            )
        )
        proof = stack.enter_context(reporter(job.run.path))
        return job.run.path, trio.run(Supervisor(job, proof if report else None).main)


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


def check_request(
    document: Document,
    *,
    data: Path | None,
    faults: Path | None,
    links: str,
    budget: int | None,
    dashboard: str,
    earlier: EarlierRun | None = None,
) -> RunRequest:
    """Checks a run.  Raises SpeError: it cannot run on this machine."""
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
    schedule += load_faults(faults, directory) if faults is not None else []
    mode = LinkMode(links)
    refuse_unreal(schedule, mode)
    missing = missing_files(plan)
    if missing:
        raise ConfigError([f"{m}: there is no such file" for m in missing])
    page = bind_address(dashboard)
    if page:
        check_free({"--dashboard": page})
    origins = common_origins(plan) if earlier is None else earlier.origins
    return RunRequest(document, data, plan, directory, external, schedule, mode, budget, page, origins, earlier)


@contextmanager
def open_job(
    request: RunRequest,
    *,
    run_dir: Path | None,
    nodes: SparkNodes | None,
    seed: int,
    duration_us: int | None,
    view: bool,
    logs: tuple[str, str],
) -> Iterator[Job]:
    """Writes the directory of a run for its processes; the run's secret exists while the block lasts."""
    plan, directory = request.plan, request.directory
    addresses = local_addresses(directory) if nodes is None else nodes.addresses(directory)
    metrics = metrics_addresses(addresses, () if nodes is None else directory.nodes)
    ways = open_links(request.links, plan, directory, addresses, Random(seed))
    earlier = request.earlier
    run_directory = RunDirectory.create(run_dir, request.document) if earlier is None else RunDirectory(earlier.path)
    if nodes is not None:
        nodes.prepare(run_directory, plan, directory)
    with kept_secret() as (token, secret):
        job = Job(
            config=request.document.name,
            data=(request.data if request.data is not None else request.document.home).absolute(),
            plan=with_origins(plan, request.origins),
            directory=with_addresses(directory, {n: addresses[n] for n in directory.addresses()}),
            run=run_directory,
            faults=sorted(request.faults, key=lambda f: f.at_us),
            addresses=addresses,
            origins=dict(request.origins),
            external=request.external,
            token=token,
            seed=seed,
            duration_us=duration_us,
            live_view=view and sys.stdout.isatty(),
            links=ways,
            logs=logs,
            dashboard=request.dashboard,
            nodes=nodes,
            begun_us=None if earlier is None else earlier.begun_us,
        )
        job.specs = process_specs(job)
        run_directory.write("faults.json", [f.to_data() for f in job.faults])
        run_directory.write(SCRAPED, scraped(plan, metrics))
        run_directory.write_cluster(
            plan,
            data=str(job.data),
            addresses=addresses,
            origins=request.origins,
            secret=str(secret),
            seed=seed,
            via=ways.via,
            metrics=metrics,
            links=str(request.links),
            **certificates(plan),
            **({} if request.budget is None else {"budget": request.budget}),
        )
        yield job


def scraped(plan: Plan, metrics: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns the targets for Prometheus: the contents of a file for ``file_sd_configs``."""
    return [{"targets": list(metrics.values()), "labels": {"cluster": plan.cluster}}]


def certificates(plan: Plan) -> dict[str, str]:
    """Returns the folder of the certificates as an absolute path, for ``security``; empty without certificates."""
    folder = plan.security.certificates
    return {} if folder is None else {"certificates": str(Path(folder).absolute())}


class Supervisor:
    """Supervises one run from start to end."""

    def __init__(self, job: Job, proof: Reporter | None = None) -> None:
        self._job = job
        self._proof = proof
        self._console = make_console()
        self._history = EventList()
        self._story = Story()
        self._state = FaultState(processes_of(job.directory))
        self._cluster: Cluster | None = None
        self._faults: FaultRunner | None = None
        self._begun_us: int | None = None
        self._drawn = False
        self._stopped_as_asked = False
        self._note = "starting"
        self._page = ""
        self._died: dict[str, str] = {}
        self._log_errors = LogErrors({spec.name: spec.log for spec in job.specs})
        self._never_returned: list[str] = []
        self._sinks: list[dict[str, Any]] = []
        self._everything = trio.CancelScope()
        self._comparing = trio.CancelScope()
        self._stop_asked = trio.Event()
        self._signal = ""
        self._over = False
        self._to_start, self._lost = trio.open_memory_channel[str](math.inf)

    async def main(self) -> int:
        """Runs; returns 0 if equal, 1 if not, 130 after Ctrl-C, 143 after SIGTERM."""
        job = self._job
        env = placed(production_env(job.run.path, job.seed, job.run.events), job.run.path)
        self._env = env = secured(env, job.plan, SUPERVISOR)
        self._poller = Poller(env, job.plan, job.addresses, job.token, heard=self._heard)
        env.trace.event("run", config=job.config, plan=job.plan.fingerprint, seed=job.seed)
        status = INTERRUPTED
        with self._everything:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._signals)
                status = await self._run_and_prove()
                nursery.cancel_scope.cancel()
        if self._everything.cancelled_caught:
            self._say(f"{self._signal or 'stopped'}: all processes have ended; recorded in {job.run.path}")
            env.trace.event("stopped", signal=self._signal)
            return TERMINATED if self._signal in ("SIGTERM", "SIGHUP") else INTERRUPTED
        return status

    async def _run_and_prove(self) -> int:
        """Runs the cluster, then the report; a signal also ends the report."""
        summary = await self._run()
        self._job.run.write("summary.json", summary)
        self._console.print(summary_text(summary))
        if self._signal:
            return INTERRUPTED
        self._over = True
        verdict = summary["verdict"]
        as_asked = verdict["complete"] or self._stopped_as_asked
        failed = self._died or failures(summary)
        proved = DONE if self._proof is None else await self._proof.finish()
        return proved if verdict["equal"] and as_asked and not failed else NOT_AS_EXPECTED

    # --- from start to end ---

    async def _run(self) -> dict[str, Any]:
        job, env = self._job, self._env
        with self._drawing() as draw:
            async with (
                self._made() as make,
                open_cluster(job.specs, report=self._told, make=make) as cluster,
                trio.open_nursery() as nursery,
            ):
                self._cluster = cluster
                await nursery.start(job.links.run)
                hands = Hands(cluster, self._poller, job.run, self._state, job.links)
                self._faults = faults = FaultRunner(
                    env.clock,
                    self._state,
                    hands.perform,
                    report=self._fault_told,
                    reads=self._reads,
                    in_state=self._history.in_state,
                    once=hands.once,
                )
                nursery.start_soon(draw)
                nursery.start_soon(self._start_lost, hands)
                restarts = Restarts(cluster, self._poller, job.directory, hands)
                service = self._service(faults, cluster, restarts)
                await nursery.start(self._serve, service)
                if job.dashboard:
                    await nursery.start(self._serve_page, service)
                for name in cluster.processes:
                    job.run.write_conditions(name, Conditions())
                await cluster.start_all()
                self._poller.joined = lambda name: nursery.start_soon(self._poller.follow, name)
                for name in cluster.processes:
                    nursery.start_soon(self._poller.follow, name)
                begun_us = env.clock.wall_us() + LEAD_US
                self._begun_us = begun_us
                sources_begun_us = begun_us if job.begun_us is None else job.begun_us
                await cluster.begin(sources_begun_us)
                env.trace.event("begin", begun_us=sources_begun_us)
                if self._proof is not None:
                    self._proof.start()
                await nursery.start(faults.run, job.faults, begun_us)
                nursery.start_soon(restarts.run)
                nursery.start_soon(self._watch_logs)
                self._note = ""
                reason = await self._until_over(cluster, faults, begun_us)
                ended_us = env.clock.wall_us()
                down = {name for name, process in cluster.processes.items() if not process.alive}
                await self._last_words(cluster)
                job.run.write(ENDED, {"pid": os.getpid()})  # from here on commands would get no answer
                nursery.cancel_scope.cancel()
        # The cluster has ended, so its recordings are complete.
        self._show_errors()
        summary = figures(job.plan, job.directory, self._history, faults.happenings, begun_us, ended_us, down=down)
        summary |= {"verdict": await self._judge(reason), "sinks": self._sinks, "died": self._died, "seed": job.seed}
        summary |= {"never_returned": self._never_returned, "errors": self._log_errors.found}
        summary |= {"run_dir": str(job.run.path), "fingerprint": job.plan.fingerprint}
        for source in summary["sources"]:
            source["first_malformed"] = job.run.first_malformed(source["source"])
        env.trace.event("over", verdict=summary["verdict"])
        return summary

    @asynccontextmanager
    async def _made(self) -> AsyncIterator[Callable[[ProcessSpec], Managed]]:
        """Yields the function that starts processes."""
        if self._job.nodes is None:
            yield Managed
            return
        async with self._job.nodes.open(self._job, self._say) as make:
            yield make

    async def _start_lost(self, hands: Hands) -> None:
        """Restarts processes that were lost with the machine that ran them; never returns."""
        async for name in self._lost:
            await hands.perform(Action(Do.START, name))

    def _service(self, faults: FaultRunner, cluster: Cluster, restarts: Restarts) -> SupervisorService:
        job, now = self._job, self._env.clock.wall_us()
        return SupervisorService(job.directory, faults, job.links.mode, now, cluster, restarts, lambda: self._begun_us)

    async def _serve(self, service: SupervisorService, *, task_status: trio.TaskStatus[str]) -> None:
        """Serves ``spe inject``, ``spe restart`` and ``spe top``."""
        job, env = self._job, self._env
        me = Identity("control", SUPERVISOR, service.incarnation, job.token)
        server = Server(env, job.plan, DirectoryKeeper(env, job.directory, me), service.service(), service.inject)
        await env.network.serve(job.addresses[SUPERVISOR], server.handle, task_status=task_status)

    async def _serve_page(self, service: SupervisorService, *, task_status: trio.TaskStatus[None]) -> None:
        """Serves the dashboard.  An error there must not end the run."""
        job = self._job
        hub = Hub(
            job.plan,
            job.directory,
            self._sight,
            inject=service.inject if is_local(job.dashboard) else None,
            kinds=fault_kinds(job.links.mode),
            targets=processes_of(job.directory),
        )
        try:
            async with trio.open_nursery() as nursery:
                self._page = await nursery.start(Site(hub, job.dashboard).run)
                self._say(f"dashboard: {self._page}")
                task_status.started()
        except* Exception as errors:
            if not self._page:
                raise
            self._page = ""
            error: BaseException = errors
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            self._env.trace.event("dashboard_failed", error=repr(error))
            self._say(f"the dashboard has ended: {error!r}")

    async def _until_over(self, cluster: Cluster, faults: FaultRunner, begun_us: int) -> str:
        """Returns why the run was broken off; "" if it is complete."""
        watch = ProgressWatch(self._job.plan, self._job.directory)
        healed = False
        while True:
            with trio.move_on_after(_LOOK_S):
                await self._stop_asked.wait()
            now = self._env.clock.wall_us()
            if self._stop_asked.is_set():
                return f"interrupted after {seconds(now - begun_us)} s"
            if self._job.duration_us is not None and now - begun_us >= self._job.duration_us:
                self._stopped_as_asked = True
                return f"stopped after {seconds(now - begun_us)} s, as asked"
            watch.look(self._history.latest(), now)
            starting = [n for n, p in cluster.processes.items() if p.phase is Phase.STARTING]
            watch.starting(starting, now, round(READY_S * 1e6))
            for what in watch.newly_stranded(now):
                self._say(f"{what}; it waits for a partner or a disk that has it")
            if watch.complete:
                await self._until_returned(watch, cluster, faults)
                await self._until_read()
                # Heartbeats carry digests of outputs, which partners compare (invariant 4).
                await trio.sleep(2 * self._job.plan.timing.heartbeat_us / 1e6)
                return ""
            if lost := without_whom(self._job.directory, [n for n in self._died if not cluster.processes[n].alive]):
                return f"{lost} died: {self._died[lost]}"
            gone = [n for n, p in cluster.processes.items() if not p.alive]
            if not faults.pending and (why := watch.hopeless(now, GRACE_US, gone)):
                return why
            if faults.pending or not watch.sources_quiet(now, QUIET_US):
                continue
            if not healed and self._state.holds:
                healed = True
                await faults.inject(Fault(HEAL))
                watch.restart(now)
            elif watch.stuck(now, STUCK_US):
                return f"nothing moves any more: {watch.what_is_open(now)}"

    async def _until_returned(self, watch: ProgressWatch, cluster: Cluster, faults: FaultRunner) -> None:
        """Waits for replicas that still recover after the clients are complete, while no lasting fault is on."""
        until_us = self._env.clock.wall_us() + RETURN_US
        while True:
            gone = [n for n, p in cluster.processes.items() if not p.alive]
            watch.look(self._history.latest(), now := self._env.clock.wall_us())
            self._never_returned = watch.recovering(gone)
            if not self._never_returned or now >= until_us:
                return
            if self._state.holds:
                await faults.inject(Fault(HEAL))
            with trio.move_on_after(_LOOK_S):
                await self._stop_asked.wait()
                return

    async def _until_read(self) -> None:
        """Waits for external clients to read the remaining results, which end with the nodes."""
        external, announced = self._job.external, False
        names = " and ".join(external)
        watch = UnreadWatch(self._job.plan, external, UNREAD_US)
        while watch.left and not self._stop_asked.is_set():
            if watch.over(await self._poller.nodes(), self._env.clock.wall_us()):
                break
            if not announced:
                announced = True
                self._say(
                    f"all is stable; waits for {names} to read the rest, until nothing is read for "
                    f"{seconds(UNREAD_US)} s"
                )
            with trio.move_on_after(_AGAIN_S):
                await self._stop_asked.wait()
        if watch.left:
            self._say(f"{names} may not have read all of it; it is in the recordings of the other clients")

    async def _last_words(self, cluster: Cluster) -> None:
        async with trio.open_nursery() as nursery:
            for name, process in cluster.processes.items():
                if process.phase is Phase.RUNNING:
                    nursery.start_soon(self._poller.ask_status, name)

    async def _judge(self, reason: str) -> dict[str, Any]:
        """Judges the run in a thread, so that Ctrl-C can interrupt it."""
        job, verdict = self._job, None
        self._say("comparing with the reference run …")
        self._comparing = trio.CancelScope()
        run = job.plan, job.directory, job.run.path
        with self._comparing:
            verdict = await trio.to_thread.run_sync(
                lambda: judge(*run, complete=not reason, reason=reason), abandon_on_cancel=True
            )
            self._sinks = await trio.to_thread.run_sync(
                lambda: sinks(*run, complete=not reason), abandon_on_cancel=True
            )
        return verdict or {"equal": None, "complete": not reason, "rows": 0, "differences": [], "reason": "interrupted"}

    async def _signals(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Handles signals: the first Ctrl-C ends the run and judges it; the second, or SIGTERM, ends everything at
        once.

        When the run is over and its proof goes on, the first one ends everything.
        """
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                again, self._signal = bool(self._signal), signal.Signals(number).name
                self._env.trace.event("signal", signal=self._signal)
                if number == signal.SIGINT and not again and self._begun_us is not None and not self._over:
                    self._stop_asked.set()
                    self._comparing.cancel()
                else:
                    self._everything.cancel()

    # --- events and statuses ---

    def _told(self, event: str, name: str, facts: dict[str, Any]) -> None:
        """Takes an event about a process."""
        self._env.trace.event(f"process_{event.replace(' ', '_')}", process=name, **facts)
        if event == "died":
            self._died[name] = how_it_died(facts["status"], facts["said"])
            self._say(f"{name} died: {self._died[name]}")
        elif event == "lost":
            self._to_start.send_nowait(name)
        elif event == "started" and facts["start"] > 1:
            self._say(f"{name} is started again")

    def _heard(self, status: ProcessStatus) -> None:
        """Takes the status of a process."""
        for replica, before, after in self._history.heard(status):
            self._env.trace.event("state", replica=replica, before=before, after=after)
            if before:
                self._say(f"{replica} {before} → {after}")
        for line in self._story.heard(status):
            self._env.trace.event("told", text=line)
            self._say(line)

    def _fault_told(self, event: str, happening: Happening) -> None:
        self._env.trace.event(f"fault_{event}", **happening.fault.to_data(), errors=happening.errors)
        if event == "failed":
            self._say(f"fault {happening.fault}: {'; '.join(happening.errors)}")
        else:
            self._say(f"fault {happening.fault}: {event}")

    async def _watch_logs(self) -> None:
        while True:
            self._show_errors()
            await trio.sleep(_AGAIN_S)

    def _show_errors(self) -> None:
        """Prints errors that processes have logged, also above the live view."""
        for name, text in self._log_errors.read():
            self._say(f"{name}: {text}", style="bold red", always=True)

    def _reads(self, client: str) -> str | None:
        """Returns the node that a client reads its first channel from."""
        status = self._history.last(f"client:{client}", ClientStatus)
        return None if status is None else next((c.producer for c in status.channels if c.producer), None)

    def _say(self, text: str, *, style: str = "", always: bool = False) -> None:
        """Prints a line, unless the live view is on."""
        if always or not self._drawn:
            at = "" if self._begun_us is None else f"{seconds(self._env.clock.wall_us() - self._begun_us):>6} s  "
            self._console.print(Text(f"{at}{text}", style), soft_wrap=True)

    # --- drawing ---

    @contextmanager
    def _drawing(self) -> Iterator[Any]:
        """Yields the task that draws the live view, or prints a line now and then."""
        if not self._job.live_view:
            self._say(f"{self._job.plan.cluster}: {len(self._job.specs)} processes, recorded in {self._job.run.path}")
            yield self._tell_now_and_then
            return
        with Live(console=self._console, auto_refresh=False, transient=False) as live:

            async def draw() -> None:
                try:
                    while True:
                        live.update(render(self._job.plan, self._job.directory, self._sight()), refresh=True)
                        await trio.sleep(_DRAW_S)
                finally:
                    live.update(render(self._job.plan, self._job.directory, self._sight()), refresh=True)

            self._drawn = True
            try:
                yield draw
            finally:
                self._drawn = False

    def _sight(self) -> Sight:
        cluster, faults = self._cluster, self._faults
        return Sight(
            title=f"{self._job.plan.cluster}   {self._job.run.path}",
            now_us=self._env.clock.wall_us(),
            begun_us=self._begun_us,
            phases={n: p.phase for n, p in cluster.processes.items()} if cluster is not None else {},
            seen=self._poller.seen,
            errors=self._poller.errors,
            faults=[fault_status(h) for h in faults.happenings] if faults is not None else (),
            note=self._note,
            page=self._page,
        )

    async def _tell_now_and_then(self) -> None:
        while True:
            await trio.sleep(_TELL_S)
            for client in self._job.directory.clients:
                status = self._history.last(f"client:{client}", ClientStatus)
                for channel in () if status is None else status.channels:
                    self._say(
                        f"{client} {channel.channel}: {channel.stable:,} stable, {channel.tentative:,} tentative, "
                        f"at {moment(channel.frontier) or 'the beginning'}"
                    )


def without_whom(directory: Directory, died: Collection[str]) -> str:
    """Returns a process that died by itself and without which the run cannot go on; "" if it can.

    That is a source, a client, or the last node of a partition.
    """
    for name in died:
        if name.startswith(("source:", "client:")):
            return name
    hosts = [directory.hosts(id) for id in directory.placement]
    return next((str(nodes[-1]) for nodes in hosts if all(n in died for n in nodes)), "")


def how_it_died(status: int, output: str) -> str:
    """Returns ``killed by SIGSEGV``, or the exit status with the last line of output."""
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    lines = [line.strip(" |+-") for line in output.splitlines()]
    last = next((line for line in reversed(lines) if line), "")
    return f"exit status {status}{f': {last}' if last else ''}"
