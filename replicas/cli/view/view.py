"""Draws a running cluster as tables and bars for a terminal.  Pure: statuses in, renderables out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from replicas.cli.move import OVER, phase_text
from replicas.cli.set import in_force
from replicas.cli.view.certificates_view import certificates
from replicas.cli.view.formats import columns, count, moment, seconds, tentative
from replicas.local.polling import Seen, last_of
from replicas.local.process import Phase
from replicas.local.story import failures_of
from replicas.planning.load import KEPT_US, SAMPLE_US
from spe.metrics.histogram import at_most
from spe.plan.delays import delay_bound_us, slowest_way
from spe.plan.describe import show_bound, show_duration
from spe.plan.directory import CONFIGURED, COORDINATOR, Directory, Version
from spe.plan.plan import Plan
from spe.plan.settings import describe_waits, same_waits
from spe.status import (
    ChannelStatus,
    ClientStatus,
    CoordinatorStatus,
    FaultStatus,
    HolderStatus,
    LoadStatus,
    NewestStatus,
    NodeStatus,
    ReplicaStatus,
    SourceLogStatus,
    SourceStatus,
    UnreachedStatus,
)
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import NodeId, NodeState, StreamId, UnitId
from spe.stream.times import SECOND, format_timestamp

#: A status older than this is not current.
STALE_US: Final = 1_500_000
_BAR_CELLS: Final = 8
_ELSEWHERE_COLUMNS: Final = 400
_FAULTS_SHOWN: Final = 8
_HOLDERS: Final = 3
#: Largest number of rows of all outputs together; each output shows at least one.
_RESULTS_SHOWN: Final = 5
#: Largest number of moves shown that are over.
_MOVES_SHOWN: Final = 3
#: The age of a load measurement is shown from here on.
_LOAD_OLD_US: Final = 2 * SAMPLE_US

STATE_STYLES: Final[Mapping[NodeState, str]] = {
    NodeState.STABLE: "bold green",
    NodeState.UP_FAILURE: "bold yellow",
    NodeState.STABILIZATION: "bold cyan",
    NodeState.RECOVERING: "bold magenta",
}
_PHASE_STYLES: Final[Mapping[str, str]] = {
    Phase.STARTING: "dim",
    Phase.FROZEN: "bold blue",
    Phase.KILLED: "bold red",
    Phase.STOPPED: "bold magenta",
    Phase.LOST: "bold red",
    Phase.DIED: "bold white on red",
    Phase.ENDED: "dim",
}


@dataclass(frozen=True)
class Sight:
    """All data of one view.

    Attributes:
      now_us, begun_us: wall time; None: the sources have not begun.
      phases: phase of each process in its supervisor; empty without a supervisor.
      seen: the last status of each process.
      errors: reasons why processes do not answer.
      faults: in order of planning.
      note: what the run is waiting for.
      loads: show the loads of replicas and partitions.
      page: address of the dashboard; "" where there is none.
    """

    title: str
    now_us: int
    begun_us: int | None = None
    phases: Mapping[str, str] = field(default_factory=dict)
    seen: Mapping[str, Seen] = field(default_factory=dict)
    errors: Mapping[str, UnreachedStatus] = field(default_factory=dict)
    faults: Sequence[FaultStatus] = ()
    note: str = ""
    loads: bool = False
    page: str = ""


def make_console() -> Console:
    """Returns a console for the terminal; wide enough for every table if the output is not a terminal."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=_ELSEWHERE_COLUMNS)


def render(plan: Plan, directory: Directory, sight: Sight) -> RenderableType:
    """Draws replicas, sources, clients and faults."""
    parts: list[RenderableType] = [_title(sight), _sources(plan, sight), _replicas(plan, directory, sight)]
    if directory.coordinated:
        parts.append(_coordinator(sight))
        if (recovery := _recovery(sight)) is not None:
            parts.append(recovery)
        if (moves := _moves(sight)) is not None:
            parts.append(moves)
    if (logs := _logs(plan, directory, sight)).row_count:
        parts.append(logs)
    if sight.loads and (loads := _loads(plan, sight)).row_count:
        parts.append(loads)
    if sight.loads and (used := _x_used(plan, sight)).row_count:
        parts.append(used)
    if sight.loads and (logs_table := _checkpoint_logs(plan, sight)).row_count:
        parts.append(logs_table)
    if (directories := _directories(sight)) is not None:
        parts.append(directories)
    now = in_force_now(directory, sight)
    if (changed := _settings(directory, now)) is not None:
        parts.append(changed)
    clients = _clients(plan, now, sight)
    if clients.row_count:
        parts.append(clients)
    parts += _newest(directory, sight)
    if sight.faults:
        parts.append(Panel(_faults(sight), title="faults", title_align="left", border_style="dim", expand=False))
    for answer in sight.seen.values():
        parts += [Text(f"{who} {text}", style="bold red") for who, text in failures_of(answer.status)]
    parts += certificates([answer.status for answer in sight.seen.values()], sight.now_us)
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


def process_word(sight: Sight, name: str) -> str:
    """Returns a word that replaces the last status of a process, such as "silent"; "" while it answers."""
    phase = sight.phases.get(name)
    if phase is not None and phase != Phase.RUNNING:
        return str(phase)
    answer = sight.seen.get(name)
    if answer is None:
        return "starting" if phase is not None else "unreachable"
    return "silent" if name in sight.errors and sight.now_us - answer.at_us > STALE_US else ""


def process_state(sight: Sight, name: str) -> Text | None:
    """Draws :func:`process_word`; None while the process answers."""
    word = process_word(sight, name)
    return Text(word, style=_PHASE_STYLES.get(word, "bold red")) if word else None


def _sources(plan: Plan, sight: Sight) -> Table:
    numbers = ("tuples", "late", "malformed", "refused")
    table = columns("source", "", "tuples", "at", "late", "malformed", "refused", right=numbers)
    for stream in plan.sources:
        name = f"source:{stream}"
        status = last_of(sight.seen, name, SourceStatus)
        log = None if status is None else status.log
        state = process_state(sight, name) or _source_state(log)
        if log is None:
            table.add_row(stream, state, "0")
            continue
        table.add_row(
            stream,
            state,
            f"{log.last_id:,}",
            moment(log.frontier),
            count(log.late),
            count(log.malformed),
            count(log.refused_ahead),
        )
    return table


def _logs(plan: Plan, directory: Directory, sight: Sight) -> Table:
    """Lists logs and recordings with limited retention: their size, and the readers that delay deletion."""
    table = columns("log", "whole from", "bytes", "due, and needed by", right=("bytes",))
    for stream, source in plan.sources.items():
        status = last_of(sight.seen, f"source:{stream}", SourceStatus)
        if source.retain is not None and status is not None and (log := status.log) is not None:
            since = "the beginning" if log.first_us is None else moment(log.first_us)
            table.add_row(stream, since, f"{log.bytes:,}", _held(log.held, log.archive))
    for name in directory.clients:
        client = last_of(sight.seen, f"client:{name}", ClientStatus)
        if client is not None and (recording := client.recording) is not None:
            table.add_row(f"client {name}", "", f"{recording.bytes:,}", _held(recording.held, recording.archive))
    return table


def _held(held: Sequence[HolderStatus], trouble: str) -> Text:
    texts = [
        f"{holder.holder}: {holder.bytes:,} since {format_timestamp(holder.since_us)}" for holder in held[:_HOLDERS]
    ]
    more = [f"and {len(held) - _HOLDERS} more"] if len(held) > _HOLDERS else []
    return Text("; ".join([*([trouble] if trouble else []), *texts, *more]), style="yellow")


def _source_state(log: SourceLogStatus | None) -> Text:
    if log is not None and log.fault:
        return Text("failed", style="bold red")
    return Text("ended", style="dim") if log is not None and log.ended else Text("running", style="green")


def _replicas(plan: Plan, directory: Directory, sight: Sight) -> Table:
    right = ("stable", "tentative", "corrections", "buffer")
    table = columns("replica", "", "stable", "tentative", "corrections", "buffer", "reads", right=right)
    coordinator = last_of(sight.seen, COORDINATOR, CoordinatorStatus)
    joined = [] if coordinator is None else [NodeId(n) for n in coordinator.joined if n not in directory.nodes]
    for node in [*directory.nodes, *joined]:
        status = last_of(sight.seen, node, NodeStatus)
        hidden = process_state(sight, node)
        known = {} if status is None else {(r.unit, r.partition): r for r in status.replicas}
        passive = {} if status is None else {(s.unit, s.partition): s for s in status.standbys}
        hosted = hosted_on(directory, node, status)
        if not hosted:
            table.add_row(Text(node, "bold"), hidden or Text("spare", style="dim"))
        for id in hosted:
            name = Text.assemble((str(id.node), "bold"), f" {partition_name(plan, id.of)}")
            if (standby := passive.get(id.of)) is not None:
                state = hidden or Text("stands by", style="dim")
                taken = f"{standby.checkpoints:,} checkpoints taken" if hidden is None else ""
                table.add_row(name, state, "", "", "", "", taken)
            elif (replica := known.get(id.of)) is None:
                table.add_row(name, hidden or "", "0", "", "", "0%")
            else:
                table.add_row(
                    name,
                    hidden or _replica_state(replica),
                    f"{replica.stable:,}",
                    tentative(replica.tentative),
                    count(replica.reconciliations),
                    f"{replica.fill:.0%}",
                    _reads(replica) if hidden is None else "",
                )
    return table


def partition_name(plan: Plan, id: PartitionId) -> str:
    """Returns the name of a partition; the name of its unit if that has only one."""
    return str(id) if plan.unit[id.unit].partitions > 1 else id.unit


def _loads(plan: Plan, sight: Sight) -> Table:
    """Lists the latest load of each replica, and the mean load of each partition (L1)."""
    figures = ("cpu", "rows/s", "network/s", "memory", "state")
    table = columns("load", *figures, "", right=figures)
    for name, answer in sight.seen.items():
        if isinstance(answer.status, NodeStatus):
            for replica in answer.status.replicas:
                if replica.load is not None and replica.load_age_us is not None:
                    partition = partition_name(plan, PartitionId(UnitId(replica.unit), replica.partition))
                    age = "" if replica.load_age_us < _LOAD_OLD_US else f"{replica.load_age_us // SECOND:,} s ago"
                    table.add_row(
                        Text.assemble((name, "bold"), f" {partition}"), *_needs(replica.load), Text(age, style="dim")
                    )
    coordinator = last_of(sight.seen, COORDINATOR, CoordinatorStatus)
    for mean in () if coordinator is None else coordinator.loads:
        known = f"mean of {mean.samples} of {KEPT_US // SAMPLE_US} samples"
        table.add_row(mean.partition, *_needs(mean.mean), Text(known, style="dim"))
    return table


def _checkpoint_logs(plan: Plan, sight: Sight) -> Table:
    """Lists for each replica the time to recover from its checkpoint log now, the least that its share allows, and the
    size.
    """
    figures = ("recovery", "least", "last", "records", "bytes")
    table = columns("checkpoint log", *figures, "trouble", right=figures)
    for name, answer in sight.seen.items():
        for replica in answer.status.replicas if isinstance(answer.status, NodeStatus) else ():
            if (log := replica.log) is not None:
                partition = partition_name(plan, PartitionId(UnitId(replica.unit), replica.partition))
                last = "" if log.recovered_us is None else show_duration(log.recovered_us)
                times = (show_duration(log.recovery_us), show_duration(log.least_us), last)
                sizes = (f"{log.records:,}", f"{log.kept_bytes:,}", Text(log.trouble, style="yellow"))
                table.add_row(Text.assemble((name, "bold"), f" {partition}"), *times, *sizes)
    return table


def _x_used(plan: Plan, sight: Sight) -> Table:
    """Lists how much of its X each replica has used since its process began."""
    figures = ("X", "waits", "99 %", "largest")
    table = columns("X used", *figures, right=figures)
    for name, answer in sight.seen.items():
        for replica in answer.status.replicas if isinstance(answer.status, NodeStatus) else ():
            if replica.x_us and replica.x_used is not None and sum(replica.x_used.counts):
                partition = partition_name(plan, PartitionId(UnitId(replica.unit), replica.partition))
                shares = (replica.waiting_us / replica.x_us, at_most(replica.x_used, 0.99), replica.x_used.largest)
                shown = [Text(f"{share:.0%}", style=_style_of(share)) for share in shares]
                table.add_row(Text.assemble((name, "bold"), f" {partition}"), show_duration(replica.x_us), *shown)
    return table


def _needs(load: LoadStatus) -> list[str]:
    sizes = map(_size, (load.network_bytes, load.memory_bytes, load.state_bytes))
    return [f"{load.cpu:.1%}", f"{load.rows:,.0f}", *sizes]


def _size(number: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} B"


def hosted_on(directory: Directory, node: NodeId, status: NodeStatus | None) -> list[ReplicaId]:
    """Returns the replicas that a node runs or stands by for: the configured ones until moves have changed them."""
    placed = [*directory.replicas_on(node), *directory.standbys_on(node)]
    if status is None:
        return placed
    runs = [(replica.unit, replica.partition) for replica in status.replicas]
    stands_by = [(standby.unit, standby.partition) for standby in status.standbys]
    reported = [PartitionId(UnitId(unit), partition) for unit, partition in runs + stands_by]
    moved = status.directory is not None and status.directory.number > 0
    stay = [id for id in placed if not moved or id.of in reported]
    return stay + [ReplicaId(*partition, node) for partition in reported if all(partition != id.of for id in placed)]


def _moves(sight: Sight) -> Table | None:
    """Lists moves that are under way, and the last ones that are over; None: there was none."""
    status = last_of(sight.seen, COORDINATOR, CoordinatorStatus)
    if status is None or not status.moves:
        return None
    over = [move.number for move in status.moves if move.phase in OVER]
    table = columns("move", "", "from", "to", "", right=("move",))
    for move in status.moves:
        if move.phase not in OVER or move.number in over[-_MOVES_SHOWN:]:
            style = {"done": "green", "dropped": "bold red", "wait": "dim"}.get(move.phase, "cyan")
            phase = Text(phase_text(move), style=style)
            if move.why:
                phase.append(f"  {move.why}")
            phase.append(f"  ({move.reason})", style="dim")
            table.add_row(str(move.number), move.partition, move.source, move.target, phase)
    return table


def _recovery(sight: Sight) -> Table | None:
    """Lists the order in which lost partitions are recovered, and which wait; None: there is room for all."""
    status = last_of(sight.seen, COORDINATOR, CoordinatorStatus)
    if status is None or (recovery := status.recovery) is None:
        return None
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


def _coordinator(sight: Sight) -> Text:
    text = Text("coordinator  ")
    if (hidden := process_state(sight, COORDINATOR)) is not None:
        return text.append_text(hidden)
    text.append("running", style="green")
    if (status := last_of(sight.seen, COORDINATOR, CoordinatorStatus)) is None:
        return text
    if waiting := [p.partition for p in status.partitions if not p.served]:
        text.append(f"  nobody serves {', '.join(waiting)}", style="bold red")
    if budget := status.activation.budget:
        text.append(f"  active for a budget of {budget}: {', '.join(status.activation.active) or 'none yet'}")
    return text


def _directories(sight: Sight) -> Text | None:
    """Shows the newest version of the directory, and which processes lack it; None for the configured directory."""
    directories = {name: answer.status.directory for name, answer in sight.seen.items()}
    versions = {
        name: Version(directory.epoch, directory.number)
        for name, directory in directories.items()
        if directory is not None
    }
    newest = max(versions.values(), default=CONFIGURED)
    if newest == CONFIGURED:
        return None
    text = Text(f"directory    version {newest.number}")
    if behind := [f"{name} has {directory.number}" for name, directory in versions.items() if directory != newest]:
        text.append(f"  {', '.join(behind)}", style="yellow")
    return text


def in_force_now(directory: Directory, sight: Sight) -> Directory:
    """Returns the directory with the current X, α and policies of the nodes."""
    statuses = {name: last_of(sight.seen, name, NodeStatus) for name in directory.nodes}
    nodes = {
        name: node if (status := statuses[name]) is None or status.settings is None else in_force(node, status.settings)
        for name, node in directory.nodes.items()
    }
    return replace(directory, nodes=nodes)


def _settings(directory: Directory, now: Directory) -> Table | None:
    """Lists nodes whose X, α or policies differ from the configuration; None: there are none."""
    changed = [node for name, node in now.nodes.items() if not same_waits(node, directory.nodes[name])]
    table = columns("settings", "now", "in the file")
    for node in changed:
        table.add_row(node.id, describe_waits(node), describe_waits(directory.nodes[node.id]))
    return table if changed else None


def _replica_state(replica: ReplicaStatus) -> Text:
    if replica.error:
        return Text("STOPPED", style="bold white on red")
    text = Text(replica.state.name, style=STATE_STYLES[replica.state])
    if replica.missing:
        text.append(f" {replica.missing[0]}", style="red")
    if others := [why for each in replica.inputs for why in each.other_logs.values()]:
        text.append(f" {others[0]}", style="bold white on red")
    if replica.skew:
        text.append(f" {replica.skew[0]}", style="yellow")
    if replica.differs:
        text.append(f" {replica.differs[0]}", style="bold white on red")
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


def _clients(plan: Plan, directory: Directory, sight: Sight) -> Table:
    """Lists channels, one per row; with the name of the client where there are several clients."""
    right = ("stable", "tentative", "undone", "worst", "gap")
    title = "client" if len(directory.clients) > 1 else f"client {next(iter(directory.clients), '')}"
    table = columns(
        title, "stable", "tentative", "undone", _delay_title(plan, directory), "worst", "gap", "reads", right=right
    )
    for client in directory.clients:
        name = f"client:{client}"
        if not any(name in known for known in (sight.phases, sight.seen, sight.errors)):
            continue  # only the clients of a run answer for themselves
        hidden = process_state(sight, name)
        status = last_of(sight.seen, name, ClientStatus)
        channels = () if status is None else status.channels
        for channel in channels:
            stream = channel.channel.rpartition("/")[0]
            bound = delay_bound_us(plan, directory, StreamId(stream))
            label = channel.channel if plan.partitions_of(StreamId(stream)) > 1 else stream
            table.add_row(
                Text.assemble((f"{client} ", "bold") if len(directory.clients) > 1 else "", label),
                f"{channel.position:,}",  # ids are ordinals, also after the client was restarted
                tentative(channel.tentative),
                count(channel.undone),
                _delay(channel, bound, sight.now_us),
                "" if channel.delay_max_us is None else _against(channel.delay_max_us, bound),
                seconds(channel.stable_gap_max_us),
                hidden or Text(channel.producer or ("" if channel.ended else "nobody")),
            )
        if not channels:
            table.add_row(Text(client, style="bold"), "", "", "", hidden or "", "", "", "")
    return table


def newest_rows(directory: Directory, sight: Sight) -> dict[str, NewestStatus]:
    """Returns the last results of each output by stream, each from one client that has received some."""
    newest: dict[str, NewestStatus] = {}
    for client in directory.clients:
        status = last_of(sight.seen, f"client:{client}", ClientStatus)
        for rows in () if status is None else status.newest:
            newest.setdefault(rows.stream, rows)
    return newest


def _newest(directory: Directory, sight: Sight) -> list[RenderableType]:
    """Draws the last rows of each output, the newest last; fewer per output where there are more outputs."""
    newest, tables = newest_rows(directory, sight), []
    for stream, rows in newest.items():
        table = columns(f"newest {stream}", *rows.columns)
        for row in rows.rows[-max(1, _RESULTS_SHOWN // len(newest)) :]:
            style = "yellow" if row.tentative else ""
            table.add_row("tentative" if row.tentative else "", *(Text(value) for value in row.values), style=style)
        tables.append(table)
    return [*tables]


def _delay_title(plan: Plan, directory: Directory) -> str:
    """Returns ``delay / X = 2s``: the bound of the bars, if it is the same for all outputs."""
    allowed = {show_bound([us for _, us in slowest_way(plan, directory, s)]) for s in plan.query.outputs}
    return f"delay / {allowed.pop()}" if len(allowed) == 1 else "delay / kX"


def _delay(channel: ChannelStatus, bound_us: int, now_us: int) -> Text:
    """Draws the current delay against kX.  Without new results, the delay is the time since the last one."""
    if channel.ended:
        return Text("complete", style="green")
    if channel.delay_us is None or channel.last_arrival_us is None:
        return Text("")
    current = max(channel.delay_us, now_us - channel.last_arrival_us)
    share = current / bound_us
    filled = min(_BAR_CELLS, round(share * _BAR_CELLS))
    style = _style_of(share)
    return Text.assemble(("█" * filled, style), ("░" * (_BAR_CELLS - filled), "dim"), (f" {seconds(current)}", style))


def _against(us: int, bound_us: int) -> Text:
    return Text(seconds(us), style=_style_of(us / bound_us))


def _style_of(share: float) -> str:
    return "green" if share < 0.6 else "yellow" if share <= 1 else "bold red"


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
