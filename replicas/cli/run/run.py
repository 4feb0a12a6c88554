"""``spe run``: runs a cluster of real processes on this machine, shows it, injects faults, and judges it at the end."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from random import SystemRandom
from typing import Any, Final

import trio
from rich.live import Live

from consistency.faults.kind import Do
from replicas.cli.dashboard.hub import Hub
from replicas.cli.dashboard.page import Site, fault_kinds, is_local
from replicas.cli.report import parse_conf
from replicas.cli.run.narrator import Narrator
from replicas.cli.run.reporter import Reporter, reporter
from replicas.cli.run.request import check_request, open_job
from replicas.cli.run.run_end import RunEnd
from replicas.cli.run.run_options import RunOptions
from replicas.cli.run.summary import failures, figures, summary_text
from replicas.cli.run.verdict import judge, not_compared, sinks
from replicas.cli.view.view import make_console, render
from replicas.faults.model import processes_of
from replicas.faults.runner import FaultRunner
from replicas.faults.state import Action, Conditions, FaultState
from replicas.link.connection import Identity, secured
from replicas.link.directory import DirectoryKeeper
from replicas.local.cluster import Cluster, open_cluster
from replicas.local.continuation import EarlierRun
from replicas.local.job import Job
from replicas.local.polling import Poller
from replicas.local.process import Managed, Phase, ProcessSpec
from replicas.local.run_dir import ENDED, SUPERVISOR
from replicas.local.spark_job import open_nodes
from replicas.local.supervisor import Hands, Restarts, SupervisorService, fault_status
from replicas.on_spark.addresses import placed
from replicas.producer.server import Server
from spe.config.document import Document
from spe.figures.sight import Sight
from spe.runtime.production import production_env

#: Time between "all are ready" and the first tuple: sources open their logs, nodes and clients connect.
LEAD_US: Final = 700_000
_DRAW_S: Final = 0.2

DONE: Final = 0
NOT_AS_EXPECTED: Final = 1
INTERRUPTED: Final = 130
TERMINATED: Final = 143


def run_document(
    document: Document, options: RunOptions, *, duration_us: int | None, earlier: EarlierRun | None = None
) -> tuple[Path, int]:
    """Returns the directory of the run, and its exit status.

    ``earlier``: the run to continue, with its document.
    The status is 0 only if the clients' stable streams equal the reference run, and the report, if any, agrees.
    """
    conf = parse_conf(options.conf or [])
    request = check_request(document, options, earlier)
    seed = SystemRandom().getrandbits(32) if options.seed is None else options.seed
    with ExitStack() as stack:
        nodes = None
        if options.on == "spark":
            opened = open_nodes(options.master, conf, request.plan, request.directory, options.links)
            nodes = stack.enter_context(opened)
        job = stack.enter_context(open_job(request, options, nodes, seed, duration_us))
        proof = stack.enter_context(reporter(job.run.path))
        return job.run.path, trio.run(Supervisor(job, proof if options.report else None).main)


class Supervisor:
    """Supervises one run from start to end."""

    def __init__(self, job: Job, proof: Reporter | None = None) -> None:
        self._job = job
        self._proof = proof
        self._console = make_console()
        self._narrator = Narrator(job, self._console)
        self._state = FaultState(processes_of(job.directory))
        self._cluster: Cluster | None = None
        self._faults: FaultRunner | None = None
        self._note = "starting"
        self._page = ""
        self._everything = trio.CancelScope()
        self._comparing = trio.CancelScope()
        self._signal = ""
        self._over = False
        self._to_start, self._lost = trio.open_memory_channel[str](math.inf)

    async def main(self) -> int:
        """Runs; returns 0 if equal, 1 if not, 130 after Ctrl-C, 143 after SIGTERM."""
        job = self._job
        env = placed(production_env(job.run.path, job.seed, job.run.events), job.run.path)
        self._env = env = secured(env, job.plan, SUPERVISOR)
        self._narrator.env = env
        self._poller = Poller(env, job.plan, job.addresses, job.token, heard=self._narrator.heard)
        self._end = RunEnd(job, self._narrator, self._state, self._poller)
        env.trace.event("run", config=job.config, plan=job.plan.fingerprint, seed=job.seed)
        status = INTERRUPTED
        with self._everything:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._signals)
                status = await self._run_and_prove()
                nursery.cancel_scope.cancel()
        if self._everything.cancelled_caught:
            self._narrator.say(f"{self._signal or 'stopped'}: all processes have ended; recorded in {job.run.path}")
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
        as_asked = verdict["complete"] or self._end.as_asked
        failed = self._narrator.died or failures(summary)
        proved = DONE if self._proof is None else await self._proof.finish()
        return proved if verdict["equal"] and as_asked and not failed else NOT_AS_EXPECTED

    # --- from start to end ---

    async def _run(self) -> dict[str, Any]:
        """Runs the cluster until the end, and judges it; returns the summary."""
        job, env = self._job, self._env
        with self._drawing() as draw:
            async with (
                self._made() as make,
                open_cluster(job.specs, report=self._process_changed, make=make) as cluster,
                trio.open_nursery() as nursery,
            ):
                self._cluster = cluster
                await nursery.start(job.links.run)
                hands = Hands(cluster, self._poller, job.run, self._state, job.links)
                self._faults = faults = self._fault_runner(hands)
                nursery.start_soon(draw)
                nursery.start_soon(self._start_lost, hands)
                restarts = Restarts(cluster, self._poller, job.directory, hands)
                await self._serve_all(nursery, SupervisorService(
                    job.directory, faults, job.links.mode, env.clock.wall_us(), cluster, restarts,
                    lambda: self._narrator.begun_us,
                ))  # fmt: skip
                begun_us = await self._begin(cluster, nursery)
                await nursery.start(faults.run, job.faults, begun_us)
                nursery.start_soon(restarts.run)
                nursery.start_soon(self._narrator.watch_logs)
                self._note = ""
                reason = await self._end.wait(cluster, faults, begun_us)
                ended_us = env.clock.wall_us()
                down = {name for name, process in cluster.processes.items() if not process.alive}
                await self._last_words(cluster)
                job.run.write(ENDED, {"pid": os.getpid()})  # from here on commands would get no answer
                nursery.cancel_scope.cancel()
        # The cluster has ended, so its recordings are complete.
        self._narrator.show_errors()
        history = self._narrator.history
        summary = figures(job.plan, job.directory, history, faults.happenings, begun_us, ended_us, down=down)
        return summary | await self._judged(reason, summary["sources"])

    def _fault_runner(self, hands: Hands) -> FaultRunner:
        narrator = self._narrator
        return FaultRunner(
            self._env.clock,
            self._state,
            hands.perform,
            report=narrator.fault_changed,
            reads=narrator.producer_of,
            in_state=narrator.history.in_state,
            once=hands.once,
        )

    async def _serve_all(self, nursery: trio.Nursery, service: SupervisorService) -> None:
        await nursery.start(self._serve, service)
        if self._job.dashboard:
            await nursery.start(self._serve_page, service)

    async def _begin(self, cluster: Cluster, nursery: trio.Nursery) -> int:
        """Starts all processes, then their sources; returns the wall time at which these begin."""
        job, env = self._job, self._env
        for name in cluster.processes:
            job.run.write_conditions(name, Conditions())
        await cluster.start_all()
        self._poller.joined = lambda name: nursery.start_soon(self._poller.follow, name)
        for name in cluster.processes:
            nursery.start_soon(self._poller.follow, name)
        begun_us = env.clock.wall_us() + LEAD_US
        self._narrator.begun_us = begun_us
        sources_begun_us = begun_us if job.begun_us is None else job.begun_us
        await cluster.begin(sources_begun_us)
        env.trace.event("begin", begun_us=sources_begun_us)
        if self._proof is not None:
            self._proof.start()
        return begun_us

    async def _judged(self, reason: str, sources: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Judges the run; returns the rest of the summary."""
        job, narrator = self._job, self._narrator
        verdict, judged_sinks = await self._judge(reason)
        for source in sources:
            source["first_malformed"] = job.run.first_malformed(source["source"])
        self._env.trace.event("over", verdict=verdict)
        return {
            "verdict": verdict,
            "sinks": judged_sinks,
            "died": narrator.died,
            "seed": job.seed,
            "never_returned": self._end.never_returned,
            "errors": narrator.log_errors.found,
            "run_dir": str(job.run.path),
            "fingerprint": job.plan.fingerprint,
        }

    @asynccontextmanager
    async def _made(self) -> AsyncIterator[Callable[[ProcessSpec], Managed]]:
        """Yields the function that starts processes."""
        if self._job.nodes is None:
            yield Managed
            return
        async with self._job.nodes.open(self._job, self._narrator.say) as make:
            yield make

    def _process_changed(self, event: str, name: str, facts: dict[str, Any]) -> None:
        self._narrator.process_changed(event, name, facts)
        if event == "lost":
            self._to_start.send_nowait(name)

    async def _start_lost(self, hands: Hands) -> None:
        """Restarts processes that were lost with the machine that ran them; never returns."""
        async for name in self._lost:
            await hands.perform(Action(Do.START, name))

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
                self._narrator.say(f"dashboard: {self._page}")
                task_status.started()
        except* Exception as errors:
            if not self._page:
                raise
            self._page = ""
            error: BaseException = errors
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            self._env.trace.event("dashboard_failed", error=repr(error))
            self._narrator.say(f"the dashboard has ended: {error!r}")

    async def _last_words(self, cluster: Cluster) -> None:
        async with trio.open_nursery() as nursery:
            for name, process in cluster.processes.items():
                if process.phase is Phase.RUNNING:
                    nursery.start_soon(self._poller.ask_status, name)

    async def _judge(self, reason: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Judges the results and the sinks in a thread, so that Ctrl-C can interrupt it."""
        job, complete = self._job, not reason
        verdict = not_compared(complete, "interrupted")
        judged_sinks: list[dict[str, Any]] = []
        self._narrator.say("comparing with the reference run …")
        self._comparing = trio.CancelScope()
        run = job.plan, job.directory, job.run.path
        with self._comparing:
            verdict = await trio.to_thread.run_sync(
                lambda: judge(*run, complete=complete, reason=reason), abandon_on_cancel=True
            )
            judged_sinks = await trio.to_thread.run_sync(lambda: sinks(*run, complete=complete), abandon_on_cancel=True)
        return verdict, judged_sinks

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
                if number == signal.SIGINT and not again and self._narrator.begun_us is not None and not self._over:
                    self._end.requested.set()
                    self._comparing.cancel()
                else:
                    self._everything.cancel()

    # --- drawing ---

    @contextmanager
    def _drawing(self) -> Iterator[Any]:
        """Yields the task that draws the live view, or prints a line now and then."""
        if not self._job.live_view:
            self._narrator.say(
                f"{self._job.plan.cluster}: {len(self._job.specs)} processes, recorded in {self._job.run.path}"
            )
            yield self._narrator.print_progress
            return
        with Live(console=self._console, auto_refresh=False, transient=False) as live:

            async def draw() -> None:
                try:
                    while True:
                        live.update(render(self._job.plan, self._job.directory, self._sight()), refresh=True)
                        await trio.sleep(_DRAW_S)
                finally:
                    live.update(render(self._job.plan, self._job.directory, self._sight()), refresh=True)

            self._narrator.is_drawn = True
            try:
                yield draw
            finally:
                self._narrator.is_drawn = False

    def _sight(self) -> Sight:
        cluster, faults = self._cluster, self._faults
        return Sight(
            title=f"{self._job.plan.cluster}   {self._job.run.path}",
            now_us=self._env.clock.wall_us(),
            begun_us=self._narrator.begun_us,
            phases={n: p.phase for n, p in cluster.processes.items()} if cluster is not None else {},
            seen=self._poller.seen,
            errors=self._poller.errors,
            faults=[fault_status(h) for h in faults.happenings] if faults is not None else (),
            note=self._note,
            page=self._page,
        )
