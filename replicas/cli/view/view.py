"""Draws a running cluster as tables and bars for a terminal.  Pure: statuses in, renderables out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from replicas.cli.view.certificates_view import certificates
from replicas.cli.view.coordinator_tables import coordinator_parts, directory_parts
from replicas.cli.view.formats import columns, seconds
from replicas.cli.view.replica_tables import checkpoint_logs_table, loads_table, replicas_table, x_used_table
from replicas.cli.view.stream_tables import clients_table, logs_table, newest_tables, sources_table
from replicas.local.story import failures_of
from spe.figures.cluster_figures import ClusterFigures
from spe.figures.sight import Sight
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.status import FaultStatus

_ELSEWHERE_COLUMNS: Final = 400
_FAULTS_SHOWN: Final = 8


def make_console() -> Console:
    """Returns a console for the terminal; wide enough for every table if the output is not a terminal."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=_ELSEWHERE_COLUMNS)


def render(plan: Plan, directory: Directory, sight: Sight) -> RenderableType:
    """Draws replicas, sources, clients and faults."""
    figures = ClusterFigures(plan, directory, sight)
    parts: list[RenderableType] = [_title(sight), sources_table(figures), replicas_table(figures)]
    if directory.coordinated:
        parts += coordinator_parts(figures)
    tables = [logs_table]
    if sight.loads:
        tables += [loads_table, x_used_table, checkpoint_logs_table]
    parts += [table for make in tables if (table := make(figures)).row_count]
    parts += directory_parts(figures)
    if (clients := clients_table(figures)).row_count:
        parts.append(clients)
    parts += newest_tables(figures)
    if sight.faults:
        parts.append(Panel(_faults(sight), title="faults", title_align="left", border_style="dim", expand=False))
    statuses = sight.statuses.values()
    parts += [Text(f"{who} {text}", style="bold red") for each in statuses for who, text in failures_of(each)]
    parts += certificates(statuses, sight.now_us)
    if sight.note:
        parts.append(Text(sight.note, style="dim"))
    return Group(*parts)


def _title(sight: Sight) -> Text:
    text = Text(sight.title, style="bold")
    if sight.begun_us is not None:
        text.append(f"   {seconds(sight.now_us - sight.begun_us)} s", style="not bold")
    if sight.page:
        text.append(f"\ndashboard  {sight.page}", style="not bold dim")
    return text


def metrics_table(metrics: Mapping[str, str]) -> Table:
    """Lists the addresses of metrics and health."""
    table = columns("metrics", "")
    for name, address in metrics.items():
        table.add_row(Text(name), f"http://{address}/metrics")
    return table


def _faults(sight: Sight) -> RenderableType:
    """Lists the latest faults that have begun, and the next ones."""
    begun = [f for f in sight.faults if f.began_us is not None]
    coming = sorted((f for f in sight.faults if f.began_us is None), key=lambda f: f.planned_us or 0)
    shown = [*sorted(begun, key=lambda f: f.began_us or 0)[-(_FAULTS_SHOWN - 2) :], *coming][:_FAULTS_SHOWN]
    table = columns("at", "fault", "")
    table.show_header = False
    for fault in shown:
        at = fault.began_us if fault.began_us is not None else fault.planned_us or 0
        table.add_row(f"{seconds(at - (sight.begun_us or at))} s", fault.fault, _fault_state(fault, sight.now_us))
    hidden = len(sight.faults) - len(shown)
    if hidden > 0:
        table.add_row("", f"and {hidden} more", "")
    return table


def _fault_state(fault: FaultStatus, now_us: int) -> Text:
    if fault.errors:
        return Text("; ".join(fault.errors), style="red")
    if fault.began_us is None:
        return Text(f"in {seconds((fault.planned_us or now_us) - now_us)} s", style="dim")
    if fault.ended_us is not None:
        return Text(f"over after {seconds(fault.ended_us - fault.began_us)} s", style="dim")
    if fault.for_us is not None:
        return Text(f"now, {seconds(fault.began_us + fault.for_us - now_us)} s left", style="bold red")
    return Text("done", style="red")
