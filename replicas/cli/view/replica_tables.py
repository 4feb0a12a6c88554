"""Tables of replicas: their states, loads, shares of X, and checkpoint logs."""

from __future__ import annotations

from typing import Final

from rich.table import Table
from rich.text import Text

from replicas.cli.view.formats import columns, count, size, state_text, style_of, tentative
from replicas.planning.load import KEPT_US, SAMPLE_US
from spe.figures.cluster_figures import ClusterFigures, ReplicaRow, partition_name, used_x
from spe.figures.node_figures import waiting_share
from spe.plan.describe import show_duration
from spe.status import LoadStatus, ReplicaStatus
from spe.stream.times import SECOND

#: The age of a load measurement is shown from here on.
_LOAD_OLD_US: Final = 2 * SAMPLE_US
#: Problems that a state does not show, in the order of the text.
_TROUBLE_STYLES: Final = {
    "missing": "red",
    "other log": "bold white on red",
    "skew": "yellow",
    "differs": "bold white on red",
}


def replicas_table(figures: ClusterFigures) -> Table:
    right = ("stable", "tentative", "corrections", "buffer")
    table = columns("replica", "", "stable", "tentative", "corrections", "buffer", "reads", right=right)
    for node in figures.nodes:
        hosted = figures.hosted_on(node)
        if not hosted:
            word = figures.sight.word(node)
            table.add_row(Text(node, "bold"), state_text(word) if word else Text("spare", style="dim"))
        for row in map(figures.replica, hosted):
            table.add_row(_name(figures, row), *_cells(row))
    return table


def _name(figures: ClusterFigures, row: ReplicaRow) -> Text:
    return Text.assemble((str(row.id.node), "bold"), f" {partition_name(figures.plan, row.id.of)}")


def _cells(row: ReplicaRow) -> list[str | Text]:
    if row.standby is not None:
        taken = "" if row.word else f"{row.standby.checkpoints:,} checkpoints taken"
        return [state_text(row.state), "", "", "", "", taken]
    if (replica := row.status) is None:
        return [state_text(row.word), "0", "", "", "0%"]
    return [
        _state(row),
        f"{replica.stable:,}",
        tentative(replica.tentative),
        count(replica.reconciliations),
        f"{replica.fill:.0%}",
        "" if row.word else _reads(replica),
    ]


def _state(row: ReplicaRow) -> Text:
    text, troubles = state_text(row.state), dict(row.troubles())
    if not row.word and "error" not in troubles:
        for kind, style in _TROUBLE_STYLES.items():
            if kind in troubles:
                text.append(f" {troubles[kind]}", style=style)
    return text


def _reads(replica: ReplicaStatus) -> Text:
    """Shows the producer of each input, unless it is the input's own source."""
    text = Text()
    for each in replica.inputs:
        stream = each.channel.rpartition("/")[0]
        if each.main == f"source:{stream}":
            continue
        text.append(f"{'  ' if text else ''}{each.channel} ← ")
        text.append(each.main or "nobody", style="" if each.main else "bold red")
        if each.corrections:
            text.append(f" + {each.corrections}", style="cyan")
    return text


def loads_table(figures: ClusterFigures) -> Table:
    """Lists the latest load of each replica, and the mean load of each partition (L1)."""
    names = ("cpu", "rows/s", "network/s", "memory", "state")
    table = columns("load", *names, "", right=names)
    for row in figures.replicas():
        replica = row.status
        if replica is not None and replica.load is not None and replica.load_age_us is not None:
            age = "" if replica.load_age_us < _LOAD_OLD_US else f"{replica.load_age_us // SECOND:,} s ago"
            table.add_row(_name(figures, row), *_needs(replica.load), Text(age, style="dim"))
    coordinator = figures.sight.coordinator()
    for mean in () if coordinator is None else coordinator.loads:
        known = f"mean of {mean.samples} of {KEPT_US // SAMPLE_US} samples"
        table.add_row(mean.partition, *_needs(mean.mean), Text(known, style="dim"))
    return table


def _needs(load: LoadStatus) -> list[str]:
    sizes = map(size, (load.network_bytes, load.memory_bytes, load.state_bytes))
    return [f"{load.cpu:.1%}", f"{load.rows:,.0f}", *sizes]


def x_used_table(figures: ClusterFigures) -> Table:
    """Lists how much of its X each replica has used since its process began."""
    names = ("X", "waits", "99 %", "largest")
    table = columns("X used", *names, right=names)
    for row in figures.replicas():
        replica = row.status
        if replica is not None and replica.x_us and (used := used_x(replica.x_used)) is not None:
            shares = (waiting_share(replica) or 0.0, used.p99, used.largest)
            shown = [Text(f"{share:.0%}", style=style_of(share)) for share in shares]
            table.add_row(_name(figures, row), show_duration(replica.x_us), *shown)
    return table


def checkpoint_logs_table(figures: ClusterFigures) -> Table:
    """Lists for each replica the time to recover from its checkpoint log now, the least that its share allows, and the
    size.
    """
    names = ("recovery", "least", "last", "records", "bytes")
    table = columns("checkpoint log", *names, "trouble", right=names)
    for row in figures.replicas():
        if row.status is not None and (log := row.status.log) is not None:
            last = "" if log.recovered_us is None else show_duration(log.recovered_us)
            times = (show_duration(log.recovery_us), show_duration(log.least_us), last)
            sizes = (f"{log.records:,}", f"{log.kept_bytes:,}", Text(log.trouble, style="yellow"))
            table.add_row(_name(figures, row), *times, *sizes)
    return table
