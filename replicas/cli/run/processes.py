"""``spe node``, ``source``, ``client``, ``coordinator``: run one process each, alone or under a supervisor."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from replicas.faults.injection import FaultInjector
from replicas.link.connection import TOKEN_VARIABLE, secured
from replicas.local.ports import free_addresses
from replicas.local.process_options import ProcessOptions
from replicas.local.run_dir import CONFIG, RunDirectory, Target, load_target, require_addresses
from replicas.local.supervised_process import Supervision, die_with_parent
from replicas.on_spark.addresses import placed
from replicas.producer.server import Server
from spe.config import load_plan, missing_files
from spe.config.load import load_newcomer
from spe.errors import ConfigError, SpeError
from spe.metrics.pages import pages
from spe.plan.directory import COORDINATOR
from spe.plan.exposure import unlocked
from spe.plan.plan import MetricsSettings, Plan
from spe.problems import check_known
from spe.runtime.env import Env
from spe.runtime.http_port import HttpPort
from spe.runtime.log_line import Level, configure_log, say
from spe.runtime.logged_trace import ListenerLog, LoggedTrace
from spe.runtime.network import parse_address
from spe.runtime.process_figures import process_figures
from spe.runtime.production import (
    FileTrace,
    NullTrace,
    SystemClock,
    give_back_memory,
    malloc_trim,
    production_env,
    tune_gc,
    tune_malloc,
)
from spe.runtime.storage import in_folder
from spe.runtime.tls import TlsNetwork
from spe.status import ProcessStatus
from spe.stream.names import NodeId, StreamId

if TYPE_CHECKING:
    from spe.runtime.span_trace import ExportedSpans


#: ``otlp``: failures, recoveries and moves are exported as OpenTelemetry spans.
SPANS_VARIABLE: Final = "SPE_SPANS"
#: Time to export the last spans when a process ends.
_LAST_SPANS_S: Final = 3.0


class Serving(Protocol):
    """The serving part of a process.

    Attributes:
      server: answers other processes; None: not yet serving.
    """

    server: Server | None

    def status(self) -> ProcessStatus: ...


@dataclass
class Surroundings:
    """The environment that a process runs in.

    Attributes:
      faults: injects faults into this process; None outside a run.
      supervision: None without a supervisor.
      process: the serving part, once it is made; metrics and health report its status.
    """

    name: str
    target: Target
    env: Env
    faults: FaultInjector | None
    supervision: Supervision | None = None
    announced: bool = False
    process: Serving | None = None

    @property
    def run(self) -> RunDirectory | None:
        return None if self.target.folder is None else RunDirectory(self.target.folder)

    def status(self) -> ProcessStatus | None:
        """Returns the status of the process; None until it is made."""
        process = self.process
        if process is None:
            return None
        return process.status() if process.server is None else process.server.status()

    async def ready(self) -> None:
        """Tells the supervisor that this process is ready, once."""
        if self.supervision is not None and not self.announced:
            self.announced = True
            await self.supervision.ready()

    async def begin(self) -> int | None:
        """Tells the supervisor that this process is ready; returns the wall time of the beginning, microseconds.

        Returns None without a supervisor.
        """
        if self.supervision is None:
            return None
        await self.ready()
        return await self.supervision.wait_begin()


#: Serves until cancelled; ``task_status`` gets the address.
Serve = Callable[[Surroundings, trio.TaskStatus[str]], Awaitable[None]]


def run_node_process(path: Path, node: str, options: ProcessOptions) -> int:
    target = load_target(path, node)
    check_known("node", node, target.directory.nodes)
    require_addresses(path, target)

    async def serve(here: Surroundings, task_status: trio.TaskStatus[str]) -> None:
        from replicas.node.process import NodeProcess

        plan, directory = target.plan, target.directory
        process = NodeProcess(here.env, plan, directory, NodeId(node), token=target.token, injector=here.faults)
        here.process = process
        await process.run(task_status=task_status)

    return _run(node, target, options, serve)


def join_node_process(path: Path, node: str, own: Mapping[str, Any], options: ProcessOptions) -> int:
    """Runs a node that is not in the configuration.

    Args:
      own: its settings, as a configuration would have them: ``address``, ``capacity``, ``memory``, ``x``.

    Raises:
      SpeError: a setting is wrong.
    """
    target = load_target(path, node)
    if node in target.directory.nodes:
        raise SpeError(f"{path} names {node}; start it without --join")
    if "address" not in own:
        if target.folder is None:
            raise SpeError("--join needs --address host:port, where the others reach the node")
        own = {**own, "address": free_addresses(1)[0]}
    require_addresses(path, target)
    newcomer = load_newcomer(path if target.folder is None else path / CONFIG, node, own)
    target = replace(target, addresses={**target.addresses, node: newcomer.address})

    async def serve(here: Surroundings, task_status: trio.TaskStatus[str]) -> None:
        from replicas.node.process import NodeProcess
        from replicas.placement.joining import join

        plan, directory = target.plan, target.directory
        await join(here.env, plan, directory, newcomer, target.token)
        process = NodeProcess(here.env, plan, directory, newcomer.id, token=target.token, injector=here.faults)
        here.process = process
        await process.run(task_status=task_status)

    return _run(node, target, options, serve)


def run_coordinator_process(path: Path, options: ProcessOptions) -> int:
    target = load_target(path, COORDINATOR)
    if not target.directory.coordinated:
        raise ConfigError(
            [f"{path} has no standbys, no spare nodes and no section `coordinator`, so there is nothing to coordinate"]
        )
    require_addresses(path, target)

    async def serve(here: Surroundings, task_status: trio.TaskStatus[str]) -> None:
        from replicas.placement.coordinator import run_coordinator

        await run_coordinator(
            here.env,
            target.plan,
            target.directory,
            token=target.token,
            injector=here.faults,
            made=partial(setattr, here, "process"),
            task_status=task_status,
        )

    return _run(COORDINATOR, target, options, serve)


def run_source_process(path: Path, source: str, data: Path | None, options: ProcessOptions) -> int:
    target = load_target(path, f"source:{source}")
    if data is not None and target.folder is None:
        target = replace(target, plan=load_plan(path, data))
    check_known("source", source, target.plan.sources)
    _check_files(target.plan, source)

    async def serve(here: Surroundings, task_status: trio.TaskStatus[str]) -> None:
        from replicas.source.process import SourceProcess

        begun_us = await here.begin()
        process = SourceProcess(
            here.env,
            target.plan,
            target.directory,
            StreamId(source),
            token=target.token,
            begun_us=begun_us,
            injector=here.faults,
            place=in_folder,
            sinks_root=None if here.run is None else here.run.output,
        )
        here.process = process
        await process.run(task_status=task_status)

    return _run(f"source:{source}", target, options, serve)


def run_client_process(path: Path, client: str, print_: str, options: ProcessOptions) -> int:
    target = load_target(path, f"client:{client}")
    check_known("client", client, target.directory.clients)
    require_addresses(path, target, target.directory.nodes)
    name = f"client:{client}"

    async def serve(here: Surroundings, task_status: trio.TaskStatus[str]) -> None:
        from replicas.cli.view.json_lines import printer
        from replicas.client.process import ClientProcess
        from spe.plan.delays import epochs

        begun_us = await here.begin()
        process = ClientProcess(
            here.env,
            target.plan,
            target.directory,
            client,
            place=in_folder,
            token=target.token,
            sinks_root=None if here.run is None else here.run.output,
            epochs=epochs(target.plan, begun_us),
            address=target.addresses.get(name),
            tap=None if print_ == "no" else printer(target.plan, corrections=print_ == "corrections"),
            injector=here.faults,
        )
        here.process = process
        await process.run(task_status=task_status)

    return _run(name, target, options, serve)


def _check_files(plan: Plan, source: str) -> None:
    missing = [m for m in missing_files(plan) if m.startswith(f"sources.{source}: ")]
    if missing:
        raise ConfigError([f"{m}: there is no such file" for m in missing])


def metrics_address(target: Target, name: str, option: str | None) -> str | None:
    """Returns the address of metrics and health; None: not served.

    Args:
      option: value on the command line.

    Raises:
      SpeError: not an address.
    """
    if option == "off":
        return None
    if option is None:
        return target.metrics.get(name)
    address = f"{MetricsSettings().bind}:{option}" if option.isdecimal() else option
    try:
        parse_address(address)
    except ValueError:
        raise SpeError(f"--metrics: expected HOST:PORT, a port or off, got {option!r}") from None
    return address


def _run(name: str, target: Target, options: ProcessOptions, serve: Serve) -> int:
    if options.link is not None:
        die_with_parent()
    tune_malloc()
    return trio.run(_main, name, target, options, serve)


async def _main(name: str, target: Target, options: ProcessOptions, serve: Serve) -> int:
    """Serves until a signal comes or the supervisor ends; then closes everything within a few seconds."""
    root = options.storage or target.folder or Path("state") / target.plan.cluster
    here, spans = _surroundings(name, target, options, root)
    signals_seen: list[str] = []
    async with trio.open_nursery() as nursery:
        if options.link is not None:
            here.supervision = Supervision.adopt(options.link)
            nursery.start_soon(here.supervision.run, nursery.cancel_scope)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:

            async def end_on_signal() -> None:
                async for number in signals:
                    signals_seen.append(signal.Signals(number).name)
                    nursery.cancel_scope.cancel()

            async def serve_it(task_status: trio.TaskStatus[str]) -> None:
                await serve(here, task_status)

            nursery.start_soon(end_on_signal)
            await _start_helpers(nursery, here, root, metrics_address(target, name, options.metrics))
            address = await nursery.start(serve_it)
            tune_gc()
            await here.ready()
            say(f"{name}: {f'serving on {address}' if address else 'running'}, plan {target.plan.fingerprint}")
            await trio.sleep_forever()
    if spans is not None:
        with trio.move_on_after(_LAST_SPANS_S):
            await trio.to_thread.run_sync(spans.close, abandon_on_cancel=True)
    say(f"{name}: {signals_seen[-1] if signals_seen else 'supervisor gone'}: ended")
    return 0


def _surroundings(
    name: str, target: Target, options: ProcessOptions, root: Path
) -> tuple[Surroundings, ExportedSpans | None]:
    """Configures the log and the trace of the process, and makes its environment."""
    run = None if target.folder is None else RunDirectory(target.folder)
    clock, cluster = SystemClock(), target.plan.cluster
    trace = LoggedTrace(NullTrace() if run is None else FileTrace(run.trace(name), clock), clock.wall_us)
    configure_log(name, clock.wall_us, format=options.log_format, level=options.log_level, cluster=cluster)
    if risk := unlocked(target.plan.security, target.addresses.get(name, ""), target.token):
        say(f"{name}: {risk}; expected the same secret for all processes in {TOKEN_VARIABLE}", Level.WARNING)
    ListenerLog(trace).install()
    spans = open_spans(name, cluster, clock.wall_us)
    env = production_env(root, trace=trace if spans is None else spans.trace(trace))
    env, faults = placed(env, target.folder), None
    if run is not None:
        faults = FaultInjector(env, target.addresses)
        faults.apply(run.read_conditions(name))
        env = faults.env
    return Surroundings(name, target, secured(env, target.plan, name), faults), spans


async def _start_helpers(nursery: trio.Nursery, here: Surroundings, root: Path, metrics: str | None) -> None:
    """Starts the tasks beside the serving part: memory, certificates, metrics."""
    if (trim := malloc_trim()) is not None:
        nursery.start_soon(give_back_memory, SystemClock(), trim)
    if isinstance(here.env.network, TlsNetwork):
        nursery.start_soon(here.env.network.watch)
    if metrics is not None:
        served = pages(here.name, here.status, partial(process_figures, root))
        port = await nursery.start(HttpPort(served).serve, metrics)
        say(f"{here.name}: metrics and health on http://{port}/metrics, /healthz, /readyz")


def open_spans(process: str, cluster: str, wall_us: Callable[[], int]) -> ExportedSpans | None:
    """Returns the exporter of spans; None: spans are not exported.

    Raises:
      SpeError: SPANS_VARIABLE has another value than ``otlp`` or ``off``, or the extra is missing.
    """
    wanted = os.environ.get(SPANS_VARIABLE, "")
    if wanted in ("", "off"):
        return None
    if wanted != "otlp":
        raise SpeError(f"{SPANS_VARIABLE}: expected otlp or off, got {wanted!r}")
    try:
        from spe.runtime.span_trace import ExportedSpans
    except ImportError as error:
        raise SpeError(f"{SPANS_VARIABLE} needs the extra otel: pip install '.[otel]' ({error})") from error
    return ExportedSpans(process, cluster, wall_us)
