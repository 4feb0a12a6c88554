"""What a running cluster looks like, as tables and bars for a terminal.  Pure: statuses in, something to draw out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from replicas.faults.runner import Happening
from replicas.local.process import Phase
from spe.cli.polling import Seen
from spe.cli.story import failures_of
from spe.plan.delays import delay_bound_us, longest_path
from spe.plan.describe import show_duration
from spe.plan.directory import COORDINATOR, Directory
from spe.plan.plan import Plan
from spe.stream.names import NodeState, StreamId
from spe.stream.times import BEFORE_TIME, END_OF_TIME, format_timestamp

#: A status older than this says nothing about now.
STALE_US: Final = 1_500_000
_BAR_CELLS: Final = 8
_ELSEWHERE_COLUMNS: Final = 400
_FAULTS_SHOWN: Final = 8

STATE_STYLES: Final[Mapping[str, str]] = {
    NodeState.STABLE.name: "bold green",
    NodeState.UP_FAILURE.name: "bold yellow",
    NodeState.STABILIZATION.name: "bold cyan",
    NodeState.RECOVERING.name: "bold magenta",
}
_PHASE_STYLES: Final[Mapping[str, str]] = {
    Phase.STARTING: "dim",
    Phase.FROZEN: "bold blue",
    Phase.KILLED: "bold red",
    Phase.DIED: "bold white on red",
    Phase.ENDED: "dim",
}


@dataclass(frozen=True)
class Sight:
    """Everything that is shown, at one moment.

    Attributes:
      now_us, begun_us: wall time; None: the sources have not begun.
      phases: of each process, as its supervisor sees it; nothing where there is none (``spe status``).
      seen: the last status of each process.
      errors: why a process does not answer.
      happenings: faults, in order of planning.
      note: what the run is waiting for.
    """

    title: str
    now_us: int
    begun_us: int | None = None
    phases: Mapping[str, Phase] = field(default_factory=dict)
    seen: Mapping[str, Seen] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    happenings: Sequence[Happening] = ()
    note: str = ""


def make_console() -> Console:
    """The terminal; where the output goes elsewhere, wide enough for everything."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=_ELSEWHERE_COLUMNS)


def render(plan: Plan, directory: Directory, sight: Sight) -> RenderableType:
    """Replicas, sources, clients, faults."""
    parts: list[RenderableType] = [_title(sight), _sources(plan, sight), _replicas(plan, directory, sight)]
    if directory.standbys:
        parts.append(_coordinator(sight))
    clients = _clients(plan, directory, sight)
    if clients.row_count:
        parts.append(clients)
    if sight.happenings:
        parts.append(Panel(_faults(sight), title="faults", title_align="left", border_style="dim", expand=False))
    for name, seen in sight.seen.items():
        parts += [Text(f"{who} {text}", style="bold red") for who, text in failures_of(name, seen.data)]
    if sight.note:
        parts.append(Text(sight.note, style="dim"))
    return Group(*parts)


def _title(sight: Sight) -> Text:
    text = Text(sight.title, style="bold")
    if sight.begun_us is not None:
        text.append(f"   {seconds(sight.now_us - sight.begun_us)} s", style="not bold")
    return text


def columns(*names: str, right: Sequence[str] = (), title: str = "") -> Table:
    """An empty table with these columns; those of ``right`` hold figures."""
    table = Table(title=title or None, title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in names:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    return table


def process_state(sight: Sight, name: str) -> Text | None:
    """What hides whatever a process said last; None while it answers."""
    phase = sight.phases.get(name)
    if phase is not None and phase is not Phase.RUNNING:
        return Text(str(phase), style=_PHASE_STYLES[phase])
    seen = sight.seen.get(name)
    if seen is None:
        return Text(
            "starting" if phase is not None else "unreachable", style="dim" if phase is not None else "bold red"
        )
    if name in sight.errors and sight.now_us - seen.at_us > STALE_US:
        return Text("silent", style="bold red")
    return None


def _sources(plan: Plan, sight: Sight) -> Table:
    numbers = ("tuples", "late", "malformed", "refused")
    table = columns("source", "", "tuples", "at", "late", "malformed", "refused", right=numbers)
    for stream in plan.sources:
        name = f"source:{stream}"
        data = sight.seen[name].data if name in sight.seen else {}
        table.add_row(
            stream,
            process_state(sight, name) or _source_state(data),
            f"{data.get('last_id', 0):,}",
            moment(data.get("frontier", BEFORE_TIME)),
            count(data.get("late", 0)),
            count(data.get("malformed", 0)),
            count(data.get("refused_ahead", 0)),
        )
    return table


def _source_state(data: Mapping[str, Any]) -> Text:
    if data.get("fault"):
        return Text("failed", style="bold red")
    return Text("ended", style="dim") if data.get("ended") else Text("running", style="green")


def _replicas(plan: Plan, directory: Directory, sight: Sight) -> Table:
    right = ("stable", "tentative", "corrections", "buffer")
    table = columns("replica", "", "stable", "tentative", "corrections", "buffer", "reads", right=right)
    for node in directory.nodes:
        data = sight.seen[node].data if node in sight.seen else {}
        hidden = process_state(sight, node)
        known = {(r["unit"], r["partition"]): r for r in data.get("replicas", ())}
        passive = {(s["unit"], s["partition"]): s for s in data.get("standbys", ())}
        for id in directory.replicas_on(node) + directory.standbys_on(node):
            one: Mapping[str, Any] = known.get((id.unit, id.partition), {})
            unit = f"{id.unit}/{id.partition}" if plan.unit[id.unit].partitions > 1 else id.unit
            if (standby := passive.get((id.unit, id.partition))) is not None:
                state = hidden or Text("stands by", style="dim")
                taken = f"{standby['checkpoints']:,} checkpoints taken" if hidden is None else ""
                table.add_row(Text.assemble((str(id.node), "bold"), f" {unit}"), state, "", "", "", "", taken)
                continue
            table.add_row(
                Text.assemble((str(id.node), "bold"), f" {unit}"),
                hidden or _replica_state(one),
                f"{one.get('stable', 0):,}",
                tentative(one.get("tentative", 0)),
                count(one.get("reconciliations", 0)),
                f"{one.get('fill', 0.0):.0%}",
                _reads(one) if hidden is None else "",
            )
    return table


def _coordinator(sight: Sight) -> Text:
    text = Text("coordinator  ")
    if (hidden := process_state(sight, COORDINATOR)) is not None:
        return text.append_text(hidden)
    data = sight.seen[COORDINATOR].data
    text.append("running", style="green")
    if waiting := [p["partition"] for p in data.get("partitions", ()) if not p["served"]]:
        text.append(f"  nobody serves {', '.join(waiting)}", style="bold red")
    activation = data.get("activation", {})
    if activation.get("budget"):
        text.append(f"  active for a budget of {activation['budget']}: {', '.join(activation['active']) or 'none yet'}")
    return text


def _replica_state(one: Mapping[str, Any]) -> Text:
    if one.get("error"):
        return Text("STOPPED", style="bold white on red")
    name = str(one.get("state", ""))
    text = Text(name, style=STATE_STYLES.get(name, "dim"))
    if one.get("missing"):
        text.append(f" {one['missing'][0]}", style="red")
    if others := [why for each in one.get("inputs", ()) for why in each.get("other_logs", {}).values()]:
        text.append(f" {others[0]}", style="bold white on red")
    if one.get("skew"):
        text.append(f" {one['skew'][0]}", style="yellow")
    if one.get("differs"):
        text.append(f" {one['differs'][0]}", style="bold white on red")
    return text


def _reads(one: Mapping[str, Any]) -> Text:
    """Whom each input is read from: named where that is not obvious or where there is nobody."""
    text = Text()
    for each in one.get("inputs", ()):
        channel, main = str(each["channel"]), each["main"]
        stream = channel.rpartition("/")[0]
        if main == f"source:{stream}":
            continue
        text.append(f"{'  ' if text else ''}{channel} ← ")
        text.append(str(main or "nobody"), style="" if main else "bold red")
        if each.get("corrections"):
            text.append(f" + {each['corrections']}", style="cyan")
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
        data = sight.seen[name].data if name in sight.seen else {}
        for one in data.get("channels", ()):
            stream = str(one["channel"]).rpartition("/")[0]
            bound = delay_bound_us(plan, directory, StreamId(stream))
            label = one["channel"] if plan.partitions_of(StreamId(stream)) > 1 else stream
            table.add_row(
                Text.assemble((f"{client} ", "bold") if len(directory.clients) > 1 else "", label),
                f"{one['position']:,}",  # ids are ordinals, also after the client was restarted
                tentative(one["tentative"]),
                count(one["undone"]),
                _delay(one, bound, sight.now_us),
                "" if one["delay_max_us"] is None else _against(one["delay_max_us"], bound),
                seconds(one["stable_gap_max_us"]),
                hidden or Text(str(one["producer"] or ("" if one["ended"] else "nobody"))),
            )
        if not data.get("channels"):
            table.add_row(Text(client, style="bold"), "", "", "", hidden or "", "", "", "")
    return table


def _delay_title(plan: Plan, directory: Directory) -> str:
    """``delay / X 2s``: what the bars are measured against, where that is the same for all outputs."""
    allowed = {allowed_text(plan, directory, s) for s in plan.query.outputs}
    return f"delay / {allowed.pop()}" if len(allowed) == 1 else "delay / kX"


def allowed_text(plan: Plan, directory: Directory, stream: StreamId) -> str:
    """``X 2s``, ``4X 8s``: k SUnions on the longest path, and the time they may take."""
    k = longest_path(plan, stream)
    return f"{'' if k <= 1 else k}X {show_duration(delay_bound_us(plan, directory, stream))}"


def _delay(one: Mapping[str, Any], bound_us: int, now_us: int) -> Text:
    """A bar of the current delay against kX.  While nothing comes, the silence counts: the delay grows with it."""
    if one["ended"]:
        return Text("complete", style="green")
    last = one["last_arrival_us"]
    if one["delay_us"] is None or last is None:
        return Text("")
    current = max(one["delay_us"], now_us - last)
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
    begun = [h for h in sight.happenings if h.began_us is not None]
    coming = sorted((h for h in sight.happenings if h.began_us is None), key=lambda h: h.planned_us or 0)
    shown = [*sorted(begun, key=lambda h: h.began_us or 0)[-(_FAULTS_SHOWN - 2) :], *coming][:_FAULTS_SHOWN]
    table = columns("at", "fault", "")
    table.show_header = False
    for one in shown:
        at = one.began_us if one.began_us is not None else one.planned_us or 0
        table.add_row(f"{seconds(at - (sight.begun_us or at))} s", str(one.fault), _happening_state(one, sight.now_us))
    hidden = len(sight.happenings) - len(shown)
    if hidden > 0:
        table.add_row("", f"and {hidden} more", "")
    return table


def _happening_state(one: Happening, now_us: int) -> Text:
    if one.errors:
        return Text("; ".join(one.errors), style="red")
    if one.began_us is None:
        return Text(f"in {seconds((one.planned_us or now_us) - now_us)} s", style="dim")
    if one.ended_us is not None:
        return Text(f"over after {seconds(one.ended_us - one.began_us)} s", style="dim")
    if one.fault.for_us is not None:
        return Text(f"now, {seconds(one.began_us + one.fault.for_us - now_us)} s left", style="bold red")
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
