"""Tables of the decisions of the coordinator: moves, recoveries, versions of the directory, and changed settings."""

from __future__ import annotations

from typing import Final

from rich.table import Table
from rich.text import Text

from replicas.cli.move import phase_text
from replicas.cli.view.formats import columns, state_text
from spe.figures.cluster_figures import ClusterFigures
from spe.plan.directory import CONFIGURED, COORDINATOR
from spe.plan.settings import describe_waits, same_waits
from spe.status import MoveStatus, RecoveryStatus

#: Largest number of moves shown that are over.
_MOVES_SHOWN: Final = 3


def coordinator_parts(figures: ClusterFigures) -> list[Text | Table]:
    """Draws the coordinator, the order of recoveries, and the moves."""
    parts: list[Text | Table] = [_line(figures)]
    if (status := figures.sight.coordinator()) is not None:
        parts += [_recovery(status.recovery)] if status.recovery is not None else []
        parts += [_moves(status.moves)] if status.moves else []
    return parts


def _line(figures: ClusterFigures) -> Text:
    text = Text("coordinator  ")
    if word := figures.sight.word(COORDINATOR):
        return text.append_text(state_text(word))
    text.append("running", style="green")
    if (status := figures.sight.coordinator()) is None:
        return text
    if waiting := [p.partition for p in status.partitions if not p.served]:
        text.append(f"  nobody serves {', '.join(waiting)}", style="bold red")
    if budget := status.activation.budget:
        text.append(f"  active for a budget of {budget}: {', '.join(status.activation.active) or 'none yet'}")
    return text


def _moves(moves: tuple[MoveStatus, ...]) -> Table:
    """Lists moves that are under way, and the last ones that are over."""
    over = [move.number for move in moves if move.is_over]
    table = columns("move", "", "from", "to", "", right=("move",))
    for move in moves:
        if not move.is_over or move.number in over[-_MOVES_SHOWN:]:
            style = {"done": "green", "dropped": "bold red", "wait": "dim"}.get(move.phase, "cyan")
            phase = Text(phase_text(move), style=style)
            if move.why:
                phase.append(f"  {move.why}")
            phase.append(f"  ({move.reason})", style="dim")
            table.add_row(str(move.number), move.partition, move.source, move.target, phase)
    return table


def _recovery(recovery: RecoveryStatus) -> Table:
    """Lists the order in which lost partitions are recovered, and which wait."""
    table = columns("recovery", "", "", title=f"{recovery.goal} {recovery.value:.0%}")
    for partition, node in recovery.under_way.items():
        table.add_row(partition, Text("is restored", style="cyan"), f"on {node}")
    for install in recovery.planned:
        table.add_row(install.partition, Text("comes next", style="cyan"), f"on {install.node}")
    for partition, why in recovery.waits.items():
        table.add_row(partition, Text("waits", style="bold red"), why)
    if expected := [f"{point.value:.0%} after {point.after_s:.0f} s" for point in recovery.values[1:]]:
        table.caption = f"expected {', '.join(expected)}"
    return table


def directory_parts(figures: ClusterFigures) -> list[Text | Table]:
    """Shows the newest version of the directory, and which processes lack it; nothing for the configured directory.

    Then lists nodes whose X, α or policies differ from the configuration.
    """
    parts: list[Text | Table] = []
    newest = figures.newest_version
    if newest != CONFIGURED:
        parts.append(text := Text(f"directory    version {newest.number}"))
        behind = [f"{name} has {version.number}" for name, version in figures.versions.items() if version != newest]
        text.append(f"  {', '.join(behind)}" if behind else "", style="yellow")
    configured = figures.directory.nodes
    changed = [node for name, node in figures.in_force.nodes.items() if not same_waits(node, configured[name])]
    if changed:
        parts.append(table := columns("settings", "now", "in the file"))
        for node in changed:
            table.add_row(node.id, describe_waits(node), describe_waits(configured[node.id]))
    return parts
