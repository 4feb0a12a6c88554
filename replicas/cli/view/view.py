"""What a running cluster looks like, as tables and bars for a terminal.  Pure: statuses in, something to draw out."""

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
)
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import NodeId, NodeState, StreamId, UnitId
from spe.stream.times import BEFORE_TIME, END_OF_TIME, SECOND, format_timestamp

#: A status older than this says nothing about now.
STALE_US: Final = 1_500_000
_BAR_CELLS: Final = 8
_ELSEWHERE_COLUMNS: Final = 400
_FAULTS_SHOWN: Final = 8
_HOLDERS: Final = 3
#: Rows of all outputs together; at least one of each.
_RESULTS_SHOWN: Final = 5
#: Moves that are over.
_MOVES_SHOWN: Final = 3
#: A load that was measured longer ago says so.
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
    """Everything that is shown, at one moment.

    Attributes:
      now_us, begun_us: wall time; None: the sources have not begun.
      phases: of each process, as its supervisor sees it; nothing where none is asked.
      seen: the last status of each process.
      errors: why a process does not answer.
      faults: in order of planning.
      note: what the run is waiting for.
      loads: what replicas and partitions need is shown too.
      page: address of the dashboard; "" where there is none.
    """

    title: str
    now_us: int
    begun_us: int | None = None
    phases: Mapping[str, str] = field(default_factory=dict)
    seen: Mapping[str, Seen] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    faults: Sequence[FaultStatus] = ()
    note: str = ""
    loads: bool = False
    page: str = ""


def make_console() -> Console:
    """The terminal; where the output goes elsewhere, wide enough for everything."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=_ELSEWHERE_COLUMNS)


def render(plan: Plan, directory: Directory, sight: Sight) -> RenderableType:
    """Replicas, sources, clients, faults."""
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
    if sight.loads and (kept := _checkpoint_logs(plan, sight)).row_count:
        parts.append(kept)
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
    for seen in sight.seen.values():
        parts += [Text(f"{who} {text}", style="bold red") for who, text in failures_of(seen.status)]
    parts += certificates([seen.status for seen in sight.seen.values()], sight.now_us)
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


def columns(*names: str, right: Sequence[str] = (), title: str = "") -> Table:
    """An empty table with these columns; those of ``right`` hold figures."""
    table = Table(title=title or None, title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in names:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    return table


def metrics_table(metrics: Mapping[str, str]) -> Table:
    """Where processes serve metrics and health."""
    table = columns("metrics", "")
    for name, address in metrics.items():
        table.add_row(Text(name), f"http://{address}/metrics")
    return table


def process_word(sight: Sight, name: str) -> str:
    """What hides whatever a process said last, in a word; "" while it answers."""
    phase = sight.phases.get(name)
    if phase is not None and phase != Phase.RUNNING:
        return str(phase)
    seen = sight.seen.get(name)
    if seen is None:
        return "starting" if phase is not None else "unreachable"
    return "silent" if name in sight.errors and sight.now_us - seen.at_us > STALE_US else ""


def process_state(sight: Sight, name: str) -> Text | None:
    """The same, to draw; None while it answers."""
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
    """Logs and recordings that are not kept for ever: how large they are, and who needs what is due to be deleted."""
    table = columns("log", "whole from", "bytes", "due, and needed by", right=("bytes",))
    for stream, source in plan.sources.items():
        status = last_of(sight.seen, f"source:{stream}", SourceStatus)
        if source.retain is not None and status is not None and (log := status.log) is not None:
            since = "the beginning" if log.first_us is None else moment(log.first_us)
            table.add_row(stream, since, f"{log.bytes:,}", _held(log.held, log.archive))
    for name in directory.clients:
        client = last_of(sight.seen, f"client:{name}", ClientStatus)
        if client is not None and (kept := client.recording) is not None:
            table.add_row(f"client {name}", "", f"{kept.bytes:,}", _held(kept.held, kept.archive))
    return table


def _held(held: Sequence[HolderStatus], trouble: str) -> Text:
    texts = [f"{one.holder}: {one.bytes:,} since {format_timestamp(one.since_us)}" for one in held[:_HOLDERS]]
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
            elif (one := known.get(id.of)) is None:
                table.add_row(name, hidden or "", "0", "", "", "0%")
            else:
                table.add_row(
                    name,
                    hidden or _replica_state(one),
                    f"{one.stable:,}",
                    tentative(one.tentative),
                    count(one.reconciliations),
                    f"{one.fill:.0%}",
                    _reads(one) if hidden is None else "",
                )
    return table


def partition_name(plan: Plan, id: PartitionId) -> str:
    """Its name; that of the unit where it has one."""
    return str(id) if plan.unit[id.unit].partitions > 1 else id.unit


def _loads(plan: Plan, sight: Sight) -> Table:
    """What each replica needed in the last sample's time, and each partition in the mean (L1)."""
    figures = ("cpu", "rows/s", "network/s", "memory", "state")
    table = columns("load", *figures, "", right=figures)
    for name, seen in sight.seen.items():
        if isinstance(seen.status, NodeStatus):
            for one in seen.status.replicas:
                if one.load is not None and one.load_age_us is not None:
                    of = partition_name(plan, PartitionId(UnitId(one.unit), one.partition))
                    age = "" if one.load_age_us < _LOAD_OLD_US else f"{one.load_age_us // SECOND:,} s ago"
                    table.add_row(Text.assemble((name, "bold"), f" {of}"), *_needs(one.load), Text(age, style="dim"))
    coordinator = last_of(sight.seen, COORDINATOR, CoordinatorStatus)
    for mean in () if coordinator is None else coordinator.loads:
        known = f"mean of {mean.samples} of {KEPT_US // SAMPLE_US} samples"
        table.add_row(mean.partition, *_needs(mean.mean), Text(known, style="dim"))
    return table


def _checkpoint_logs(plan: Plan, sight: Sight) -> Table:
    """How long each replica would take to recover from its checkpoint log now, what its share allows, and its size."""
    figures = ("recovery", "least", "last", "records", "bytes")
    table = columns("checkpoint log", *figures, "trouble", right=figures)
    for name, seen in sight.seen.items():
        for one in seen.status.replicas if isinstance(seen.status, NodeStatus) else ():
            if (log := one.log) is not None:
                of = partition_name(plan, PartitionId(UnitId(one.unit), one.partition))
                last = "" if log.recovered_us is None else show_duration(log.recovered_us)
                times = (show_duration(log.recovery_us), show_duration(log.least_us), last)
                kept = (f"{log.records:,}", f"{log.kept_bytes:,}", Text(log.trouble, style="yellow"))
                table.add_row(Text.assemble((name, "bold"), f" {of}"), *times, *kept)
    return table


def _x_used(plan: Plan, sight: Sight) -> Table:
    """How much of its X each replica has used since its process began: what the X costs, and whether it is enough."""
    figures = ("X", "waits", "99 %", "largest")
    table = columns("X used", *figures, right=figures)
    for name, seen in sight.seen.items():
        for one in seen.status.replicas if isinstance(seen.status, NodeStatus) else ():
            if one.x_us and one.x_used is not None and sum(one.x_used.counts):
                of = partition_name(plan, PartitionId(UnitId(one.unit), one.partition))
                shares = (one.waiting_us / one.x_us, at_most(one.x_used, 0.99), one.x_used.largest)
                shown = [Text(f"{share:.0%}", style=_style_of(share)) for share in shares]
                table.add_row(Text.assemble((name, "bold"), f" {of}"), show_duration(one.x_us), *shown)
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
    """What a node runs or stands by for: as the configuration says, until moves have changed it."""
    placed = [*directory.replicas_on(node), *directory.standbys_on(node)]
    if status is None:
        return placed
    runs = [(one.unit, one.partition) for one in status.replicas]
    stands_by = [(one.unit, one.partition) for one in status.standbys]
    told = [PartitionId(UnitId(unit), partition) for unit, partition in runs + stands_by]
    moved = status.directory is not None and status.directory.number > 0
    stay = [id for id in placed if not moved or id.of in told]
    return stay + [ReplicaId(*of, node) for of in told if all(of != id.of for id in placed)]


def _moves(sight: Sight) -> Table | None:
    """Moves that are under way, and the last ones that were; None: there was none."""
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
    """In which order lost partitions come back, and what waits; None: there is room for all."""
    status = last_of(sight.seen, COORDINATOR, CoordinatorStatus)
    if status is None or (recovery := status.recovery) is None:
        return None
    table = columns("recovery", "", "", title=f"{recovery.goal} {recovery.value:.0%}")
    for partition, node in recovery.under_way.items():
        table.add_row(partition, Text("is restored", style="cyan"), f"on {node}")
    for one in recovery.planned:
        table.add_row(one.partition, Text("comes next", style="cyan"), f"on {one.node}")
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
    """Which version of the directory counts, and who does not have it yet; None where there is the configuration's."""
    told = {name: seen.status.directory for name, seen in sight.seen.items()}
    versions = {name: Version(one.epoch, one.number) for name, one in told.items() if one is not None}
    newest = max(versions.values(), default=CONFIGURED)
    if newest == CONFIGURED:
        return None
    text = Text(f"directory    version {newest.number}")
    if behind := [f"{name} has {one.number}" for name, one in versions.items() if one != newest]:
        text.append(f"  {', '.join(behind)}", style="yellow")
    return text


def in_force_now(directory: Directory, sight: Sight) -> Directory:
    """With the X, α and policies that nodes say that they have now."""
    told = {name: last_of(sight.seen, name, NodeStatus) for name in directory.nodes}
    nodes = {
        name: node if (status := told[name]) is None or status.settings is None else in_force(node, status.settings)
        for name, node in directory.nodes.items()
    }
    return replace(directory, nodes=nodes)


def _settings(directory: Directory, now: Directory) -> Table | None:
    """Nodes whose X, α or policies are not those of the file; None: there are none."""
    changed = [node for name, node in now.nodes.items() if not same_waits(node, directory.nodes[name])]
    table = columns("settings", "now", "in the file")
    for node in changed:
        table.add_row(node.id, describe_waits(node), describe_waits(directory.nodes[node.id]))
    return table if changed else None


def _replica_state(one: ReplicaStatus) -> Text:
    if one.error:
        return Text("STOPPED", style="bold white on red")
    text = Text(one.state.name, style=STATE_STYLES[one.state])
    if one.missing:
        text.append(f" {one.missing[0]}", style="red")
    if others := [why for each in one.inputs for why in each.other_logs.values()]:
        text.append(f" {others[0]}", style="bold white on red")
    if one.skew:
        text.append(f" {one.skew[0]}", style="yellow")
    if one.differs:
        text.append(f" {one.differs[0]}", style="bold white on red")
    return text


def _reads(one: ReplicaStatus) -> Text:
    """Whom each input is read from: named where that is not obvious or where there is nobody."""
    text = Text()
    for each in one.inputs:
        stream = each.channel.rpartition("/")[0]
        if each.main == f"source:{stream}":
            continue
        text.append(f"{'  ' if text else ''}{each.channel} ← ")
        text.append(each.main or "nobody", style="" if each.main else "bold red")
        if each.corrections:
            text.append(f" + {each.corrections}", style="cyan")
    return text


def _clients(plan: Plan, directory: Directory, sight: Sight) -> Table:
    """One row per channel; the client's name stands before it where there are several."""
    right = ("stable", "tentative", "undone", "worst", "gap")
    title = "client" if len(directory.clients) > 1 else f"client {next(iter(directory.clients), '')}"
    table = columns(
        title, "stable", "tentative", "undone", _delay_title(plan, directory), "worst", "gap", "reads", right=right
    )
    for client in directory.clients:
        name = f"client:{client}"
        if not any(name in known for known in (sight.phases, sight.seen, sight.errors)):
            continue  # nobody can ask it: only a run's clients answer for themselves
        hidden = process_state(sight, name)
        status = last_of(sight.seen, name, ClientStatus)
        channels = () if status is None else status.channels
        for one in channels:
            stream = one.channel.rpartition("/")[0]
            bound = delay_bound_us(plan, directory, StreamId(stream))
            label = one.channel if plan.partitions_of(StreamId(stream)) > 1 else stream
            table.add_row(
                Text.assemble((f"{client} ", "bold") if len(directory.clients) > 1 else "", label),
                f"{one.position:,}",  # ids are ordinals, also after the client was restarted
                tentative(one.tentative),
                count(one.undone),
                _delay(one, bound, sight.now_us),
                "" if one.delay_max_us is None else _against(one.delay_max_us, bound),
                seconds(one.stable_gap_max_us),
                hidden or Text(one.producer or ("" if one.ended else "nobody")),
            )
        if not channels:
            table.add_row(Text(client, style="bold"), "", "", "", hidden or "", "", "", "")
    return table


def newest_rows(directory: Directory, sight: Sight) -> dict[str, NewestStatus]:
    """The last results of each output that a client has received, by stream; each by one client that has some."""
    newest: dict[str, NewestStatus] = {}
    for client in directory.clients:
        status = last_of(sight.seen, f"client:{client}", ClientStatus)
        for one in () if status is None else status.newest:
            newest.setdefault(one.stream, one)
    return newest


def _newest(directory: Directory, sight: Sight) -> list[RenderableType]:
    """The last rows of each output, the newest one last: fewer of each where there are more outputs."""
    newest, tables = newest_rows(directory, sight), []
    for stream, one in newest.items():
        table = columns(f"newest {stream}", *one.columns)
        for row in one.rows[-max(1, _RESULTS_SHOWN // len(newest)) :]:
            style = "yellow" if row.tentative else ""
            table.add_row("tentative" if row.tentative else "", *(Text(value) for value in row.values), style=style)
        tables.append(table)
    return [*tables]


def _delay_title(plan: Plan, directory: Directory) -> str:
    """``delay / X = 2s``: what the bars are measured against, where that is the same for all outputs."""
    allowed = {show_bound([us for _, us in slowest_way(plan, directory, s)]) for s in plan.query.outputs}
    return f"delay / {allowed.pop()}" if len(allowed) == 1 else "delay / kX"


def _delay(one: ChannelStatus, bound_us: int, now_us: int) -> Text:
    """A bar of the current delay against kX.  While nothing comes, the silence counts: the delay grows with it."""
    if one.ended:
        return Text("complete", style="green")
    if one.delay_us is None or one.last_arrival_us is None:
        return Text("")
    current = max(one.delay_us, now_us - one.last_arrival_us)
    share = current / bound_us
    filled = min(_BAR_CELLS, round(share * _BAR_CELLS))
    style = _style_of(share)
    return Text.assemble(("█" * filled, style), ("░" * (_BAR_CELLS - filled), "dim"), (f" {seconds(current)}", style))


def _against(us: int, bound_us: int) -> Text:
    return Text(seconds(us), style=_style_of(us / bound_us))


def _style_of(share: float) -> str:
    return "green" if share < 0.6 else "yellow" if share <= 1 else "bold red"


def _faults(sight: Sight) -> RenderableType:
    """The latest that have begun, and the next that are to come."""
    begun = [f for f in sight.faults if f.began_us is not None]
    coming = sorted((f for f in sight.faults if f.began_us is None), key=lambda f: f.planned_us or 0)
    shown = [*sorted(begun, key=lambda f: f.began_us or 0)[-(_FAULTS_SHOWN - 2) :], *coming][:_FAULTS_SHOWN]
    table = columns("at", "fault", "")
    table.show_header = False
    for one in shown:
        at = one.began_us if one.began_us is not None else one.planned_us or 0
        table.add_row(f"{seconds(at - (sight.begun_us or at))} s", one.fault, _fault_state(one, sight.now_us))
    hidden = len(sight.faults) - len(shown)
    if hidden > 0:
        table.add_row("", f"and {hidden} more", "")
    return table


def _fault_state(one: FaultStatus, now_us: int) -> Text:
    if one.errors:
        return Text("; ".join(one.errors), style="red")
    if one.began_us is None:
        return Text(f"in {seconds((one.planned_us or now_us) - now_us)} s", style="dim")
    if one.ended_us is not None:
        return Text(f"over after {seconds(one.ended_us - one.began_us)} s", style="dim")
    if one.for_us is not None:
        return Text(f"now, {seconds(one.began_us + one.for_us - now_us)} s left", style="bold red")
    return Text("done", style="red")


def seconds(us: int) -> str:
    """Seconds with as many digits as are of use."""
    value = us / 1e6
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def count(number: int) -> str:
    """Nothing for none: what is not there should not catch the eye."""
    return f"{number:,}" if number else ""


def tentative(number: int) -> Text:
    return Text(count(number), style="yellow")


def moment(us: int) -> str:
    """A point in tuple time, to the tenth of a second, without its year."""
    if us <= BEFORE_TIME:
        return ""
    if us >= END_OF_TIME:
        return "end"
    whole = format_timestamp(us - us % 1_000_000)
    return f"{whole[5:].replace('T', ' ')}.{us // 100_000 % 10}"
