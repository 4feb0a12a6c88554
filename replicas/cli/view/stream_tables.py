"""Tables of sources and clients, their logs, and the newest results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from replicas.cli.view.formats import columns, count, moment, seconds, state_text, style_of, tentative
from spe.figures.cluster_figures import ChannelRow, ClusterFigures
from spe.plan.delays import slowest_way
from spe.plan.describe import show_bound
from spe.status import HolderStatus
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from spe.stream.times import format_timestamp

_BAR_CELLS: Final = 8
_HOLDERS: Final = 3
#: Largest number of rows of all outputs together; each output shows at least one.
_RESULTS_SHOWN: Final = 5


def sources_table(figures: ClusterFigures) -> Table:
    numbers = ("tuples", "late", "malformed", "refused")
    table = columns("source", "", "tuples", "at", "late", "malformed", "refused", right=numbers)
    for row in map(figures.source, figures.plan.sources):
        if (log := row.log) is None:
            table.add_row(row.stream, state_text(row.word or "running"), "0")
        else:
            counts = map(count, (log.late, log.malformed, log.refused_ahead))
            table.add_row(row.stream, state_text(row.state), f"{log.last_id:,}", moment(log.frontier), *counts)
    return table


def logs_table(figures: ClusterFigures) -> Table:
    """Lists logs and recordings with limited retention: their size, and the readers that delay deletion."""
    table = columns("log", "whole from", "bytes", "due, and needed by", right=("bytes",))
    for stream, source in figures.plan.sources.items():
        if source.retain is not None and (log := figures.source(stream).log) is not None:
            since = "the beginning" if log.first_us is None else moment(log.first_us)
            table.add_row(stream, since, f"{log.bytes:,}", _held(log.held, log.archive))
    for name in figures.directory.clients:
        client = figures.sight.client(name)
        if client is not None and (recording := client.recording) is not None:
            table.add_row(f"client {name}", "", f"{recording.bytes:,}", _held(recording.held, recording.archive))
    return table


def _held(held: Sequence[HolderStatus], trouble: str) -> Text:
    texts = [
        f"{holder.holder}: {holder.bytes:,} since {format_timestamp(holder.since_us)}" for holder in held[:_HOLDERS]
    ]
    more = [f"and {len(held) - _HOLDERS} more"] if len(held) > _HOLDERS else []
    return Text("; ".join([*([trouble] if trouble else []), *texts, *more]), style="yellow")


def clients_table(figures: ClusterFigures) -> Table:
    """Lists channels, one per row; with the name of the client where there are several clients."""
    right = ("stable", "tentative", "undone", "worst", "gap")
    clients = figures.directory.clients
    several = len(clients) > 1
    title = "client" if several else f"client {next(iter(clients), '')}"
    table = columns(title, "stable", "tentative", "undone", _delay_title(figures), "worst", "gap", "reads", right=right)
    for client in figures.clients:
        status = figures.sight.client(client)
        channels = () if status is None else status.channels
        for each in channels:
            stream, _, partition = each.channel.rpartition("/")
            row = figures.channel(client, Channel(StreamId(stream), int(partition)))
            label = each.channel if figures.plan.partitions_of(row.channel.stream) > 1 else stream
            table.add_row(Text.assemble((f"{client} ", "bold") if several else "", label), *_cells(row))
        if not channels:
            word = figures.sight.word(f"client:{client}")
            table.add_row(Text(client, style="bold"), "", "", "", state_text(word), "", "", "")
    return table


def _cells(row: ChannelRow) -> list[str | Text]:
    channel = row.status
    worst: str | Text = ""
    assert channel is not None
    if channel.delay_max_us is not None:
        share = channel.delay_max_us / row.bound_us
        worst = Text(seconds(channel.delay_max_us), style=style_of(share))
    return [
        f"{channel.position:,}",  # ids are ordinals, also after the client was restarted
        tentative(channel.tentative),
        count(channel.undone),
        _delay(row, channel.ended),
        worst,
        seconds(channel.stable_gap_max_us),
        state_text(row.word) if row.word else Text(channel.producer or ("" if channel.ended else "nobody")),
    ]


def _delay_title(figures: ClusterFigures) -> str:
    """Returns ``delay / X = 2s``: the bound of the bars, if it is the same for all outputs."""
    plan, now = figures.plan, figures.in_force
    allowed = {show_bound([us for _, us in slowest_way(plan, now, s)]) for s in plan.query.outputs}
    return f"delay / {allowed.pop()}" if len(allowed) == 1 else "delay / kX"


def _delay(row: ChannelRow, ended: bool) -> Text:
    """Draws the current delay against kX."""
    if ended:
        return Text("complete", style="green")
    if row.delay_us is None:
        return Text("")
    share = row.delay_us / row.bound_us
    filled = min(_BAR_CELLS, round(share * _BAR_CELLS))
    bar, rest, style = "█" * filled, "░" * (_BAR_CELLS - filled), style_of(share)
    return Text.assemble((bar, style), (rest, "dim"), (f" {seconds(row.delay_us)}", style))


def newest_tables(figures: ClusterFigures) -> list[Table]:
    """Draws the last rows of each output, the newest last; fewer per output where there are more outputs."""
    newest, tables = figures.newest, []
    for stream, rows in newest.items():
        table = columns(f"newest {stream}", *rows.columns)
        for row in rows.rows[-max(1, _RESULTS_SHOWN // len(newest)) :]:
            style = "yellow" if row.tentative else ""
            table.add_row("tentative" if row.tentative else "", *(Text(value) for value in row.values), style=style)
        tables.append(table)
    return tables
