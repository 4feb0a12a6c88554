"""The summary of a run: figures for summary.json, and the text printed at the end.  Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from replicas.cli.view.formats import columns, count, seconds
from replicas.faults.runner import Happening
from replicas.local.history import EventList
from spe.figures.cluster_figures import used_x
from spe.figures.histogram import merged
from spe.plan.delays import slowest_way
from spe.plan.describe import show_bound, show_lateness
from spe.plan.directory import Directory
from spe.plan.plan import Plan, Source
from spe.status import ClientStatus, HistogramStatus, LogStatus, NodeStatus, ReplicaStatus, SourceStatus
from spe.stream.ids import Channel, ReplicaId
from spe.stream.names import NodeId

#: State of a replica whose process did not run at the end, whatever its last status.
DOWN: Final = "DOWN"


def figures(
    plan: Plan, directory: Directory, history: EventList, happenings: Sequence[Happening], begun_us: int,
    ended_us: int, *, down: Collection[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Returns all measurements as plain data; times in microseconds.

    Args:
      down: processes that did not run at the end.
    """
    ran = _as_run(directory, history)
    channels = [
        _channel(plan, ran, history, client.name, Channel(stream, p))
        for client in directory.clients.values()
        for stream in client.reads
        for p in range(plan.partitions_of(stream))
    ]
    return {
        "duration_us": ended_us - begun_us,
        **{name: sum(c[name] for c in channels) for name in ("stable", "tentative", "undone")},
        "worst": _worst(channels),
        "stable_gap_max_us": max((c["stable_gap_max_us"] for c in channels), default=0),
        "channels": channels,
        "switches": [
            {**asdict(switch), "at_us": switch.at_us - begun_us, "client": client}
            for client in directory.clients
            for status in history.over(f"client:{client}", ClientStatus)
            for switch in status.switches
        ],
        "replicas": [
            _replica(history, id) | ({"state": DOWN} if node in down else {})
            for node in directory.nodes
            for id in _ran(directory, history, node)
        ],
        "sources": [_source(history, source) for source in plan.sources.values()],
        "faults": [_fault(h, begun_us) for h in happenings],
    }


def _worst(channels: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Returns the channel with the longest delay relative to its bound."""
    measured = [c for c in channels if c["delay_max_us"] is not None]
    worst = max(measured, key=lambda c: c["delay_max_us"] / c["bound_us"], default=None)
    return None if worst is None else {k: worst[k] for k in ("channel", "delay_max_us", "bound_us", "shares_us")}


def _as_run(directory: Directory, history: EventList) -> Directory:
    """Returns the directory with the longest X that each node had."""
    nodes = {
        n: replace(settings, x_us=history.longest_x_us.get(n, settings.x_us)) for n, settings in directory.nodes.items()
    }
    return replace(directory, nodes=nodes)


def _channel(plan: Plan, directory: Directory, history: EventList, client: str, channel: Channel) -> dict[str, Any]:
    starts = history.over(f"client:{client}", ClientStatus)
    parts = [part for status in starts for part in status.channels if part.channel == str(channel)]
    delays = [p.delay_max_us for p in parts if p.delay_max_us is not None]
    shares_us = [us for _, us in slowest_way(plan, directory, channel.stream)]
    return {
        "client": client,
        "channel": str(channel),
        "stable": max((p.position for p in parts), default=0),  # ids are ordinals
        "tentative": sum(p.tentative for p in parts),
        "undone": sum(p.undone for p in parts),
        "delay_max_us": max(delays, default=None),
        "bound_us": sum(shares_us),
        "shares_us": shares_us,
        "gap_max_us": max((p.gap_max_us for p in parts), default=0),
        "stable_gap_max_us": max((p.stable_gap_max_us for p in parts), default=0),
        "switches": sum(p.switches for p in parts),
        "complete": bool(parts) and parts[-1].ended,
    }


def _ran(directory: Directory, history: EventList, node: NodeId) -> list[ReplicaId]:
    """Returns the replicas that a node ran: placed ones that did not move, and moved or activated ones."""
    moved = any(status.directory is not None and status.directory.number for status in history.over(node, NodeStatus))
    placed = {id.of for id in directory.replicas_on(node)} if not moved else set()
    candidates = (ReplicaId(*partition, node) for partition in directory.roles)
    return [id for id in candidates if id.of in placed or _parts(history, id)]


def _parts(history: EventList, id: ReplicaId) -> list[ReplicaStatus]:
    starts = history.over(id.node, NodeStatus)
    return [replica for status in starts for replica in status.replicas if replica.id == id.of]


def _replica(history: EventList, id: ReplicaId) -> dict[str, Any]:
    parts = _parts(history, id)
    # Counters are operator state: a restarted replica gets them with its partner's snapshot, so the last are totals.
    counters = parts[-1].counters if parts else {}
    return {
        "replica": str(id),
        "starts": history.starts(id.node),
        "state": parts[-1].state.name if parts else None,
        "stable": max((p.stable for p in parts), default=0),
        "tentative": sum(p.tentative for p in parts),
        "reconciliations": sum(p.reconciliations for p in parts),
        "switches": sum(i.switches for p in parts for i in p.inputs),
        "error": next((p.error for p in reversed(parts) if p.error), None),
        "differs": list(dict.fromkeys(text for p in parts for text in p.differs)),
        "counters": {k: v for k, v in counters.items() if v},
        "x_used": _x_used([p.x_used for p in parts]),
        "log": _log([p.log for p in parts if p.log is not None]),
    }


def _log(each: Sequence[LogStatus]) -> dict[str, Any] | None:
    """Returns figures of a checkpoint log, with its longest restart and that one's expected time; None without a
    log.
    """
    if not each:
        return None
    recovered = [(log.recovered_us, log.expected_us) for log in each if log.recovered_us is not None]
    longest_us, expected_us = max(recovered, default=(None, None))
    return {
        "recoveries": len(recovered),
        "recovered_us": longest_us,
        "expected_us": expected_us,
        "recovery_us": each[-1].recovery_us,
        "least_us": each[-1].least_us,
        "written_bytes": sum(log.written_bytes for log in each),
        "rewritten_bytes": sum(log.rewritten_bytes for log in each),
        "kept_bytes": each[-1].kept_bytes,
    }


def _x_used(each: Sequence[HistogramStatus | None]) -> dict[str, float] | None:
    """Returns the share of X that a replica used, 1 is all of it; None if it released nothing."""
    used = used_x(merged(each))
    return None if used is None else used._asdict()


def _source(history: EventList, source: Source) -> dict[str, Any]:
    name = f"source:{source.stream}"
    logs = [status.log for status in history.over(name, SourceStatus)]
    opened = [log for log in logs if log is not None]
    last = logs[-1] if logs else None
    return {
        "source": str(source.stream),
        "tuples": 0 if last is None else last.last_id,
        "ended": last is not None and last.ended,
        "fault": None if last is None else last.fault,
        "starts": history.starts(name),
        "late": sum(log.late for log in opened),
        "malformed": sum(log.malformed for log in opened),
        "refused_ahead": sum(log.refused_ahead for log in opened),
        "late_by_us": max((log.late_by_us for log in opened), default=0),
        "disorder_us": source.disorder_us,
    }


def _fault(happening: Happening, begun_us: int) -> dict[str, Any]:
    """Returns a fault with its real times, relative to the beginning."""
    return {
        **{k: v for k, v in happening.fault.to_data().items() if k != "at"},
        "text": str(happening.fault),
        "planned_us": None if happening.planned_us is None else happening.planned_us - begun_us,
        "began_us": None if happening.began_us is None else happening.began_us - begun_us,
        "ended_us": None if happening.ended_us is None else happening.ended_us - begun_us,
        "errors": happening.errors,
    }


def failures(summary: Mapping[str, Any]) -> list[str]:
    """Lists processes that failed or stopped by themselves, with the reason; a good run has none."""
    sources = [f"source:{s['source']}: {s['fault']}" for s in summary["sources"] if s["fault"]]
    stopped = [f"{r['replica']}: {r['error']}" for r in summary["replicas"] if r["error"]]
    differing = [f"{r['replica']}: {text}" for r in summary["replicas"] for text in r["differs"]]
    away = [
        f"{replica} never returned: RECOVERING at the end; what it did: trace/{replica.rpartition('@')[2]}.jsonl"
        for replica in summary.get("never_returned", ())
    ]
    logged = [
        f"{name}: {e['count']:,} error{'s' if e['count'] > 1 else ''} in logs/{e['log']}, the first: {e['first']}"
        for name, e in summary.get("errors", {}).items()
    ]
    sinks = [f"sink {s['sink']}: {s['text']}" for s in summary.get("sinks", ()) if s["equal"] is False]
    return sources + stopped + differing + away + logged + sinks


#: Style by whether a sink equals its recording.
_SINK_STYLES: Final = {True: "green", False: "bold red", None: "yellow"}


# --- as text ---


def summary_text(summary: Mapping[str, Any]) -> RenderableType:
    """Returns the printed summary: the promise first, then the contribution of each process."""
    parts: list[RenderableType] = [Text("")]
    parts += [_channels_table(summary), Text(""), _headline(summary)]
    if summary["switches"]:
        parts += [Text(""), _switches(summary)]
    parts += [Text(""), _processes(summary), Text(""), verdict_text(summary["verdict"], failures(summary))]
    parts += [Text(f"sink {s['sink']}: {s['text']}", _SINK_STYLES[s["equal"]]) for s in summary.get("sinks", ())]
    parts += [Text(text, style="yellow") for text in summary["verdict"].get("late", ())]
    parts += [Text(f"{name}: {text}", style="bold red") for name, text in summary.get("died", {}).items()]
    parts += [
        Text(f"{s['source']}: {show_lateness(s['late'], s['late_by_us'], s['disorder_us'])}", style="yellow")
        for s in summary["sources"]
        if s["late"]
    ]
    parts += [
        Text(
            f"{r['replica']} was {r['state']} at the end; what it did: trace/{r['replica'].rpartition('@')[2]}.jsonl",
            "yellow",
        )
        for r in summary["replicas"]
        if r["state"] not in (None, "STABLE") and not r["error"] and r["replica"] not in summary["never_returned"]
    ]
    parts += [
        Text(
            f"{s['source']}: {s['malformed']:,} malformed (first: {s['first_malformed']})",
            style="yellow" if s["tuples"] else "bold red",
        )
        for s in summary["sources"]
        if s.get("first_malformed")
    ]
    if any(r.get("log") for r in summary["replicas"]):
        parts += [Text(""), _logs(summary)]
    parts.append(Text(f"recorded in {summary['run_dir']}", style="dim"))
    return Group(*parts)


def _channels_table(summary: Mapping[str, Any]) -> Table:
    several = len({channel["client"] for channel in summary["channels"]}) > 1
    figures = ("\nstable", "\ntentative", "\nundone", "largest\ndelay", "longest\ngap", "\nswitches")
    names = ("\nstream", *figures[:4], "\nallowed", *figures[4:])
    table = columns(*(["\nclient"] if several else []), *names, right=figures)
    for channel in summary["channels"]:
        late = channel["delay_max_us"] is not None and channel["delay_max_us"] > channel["bound_us"]
        table.add_row(
            *([channel["client"]] if several else []),
            channel["channel"],
            f"{channel['stable']:,}",
            f"{channel['tentative']:,}",
            f"{channel['undone']:,}",
            Text(
                "unknown" if channel["delay_max_us"] is None else f"{seconds(channel['delay_max_us'])} s",
                "red" if late else "",
            ),
            show_bound(channel["shares_us"]),
            f"{seconds(channel['stable_gap_max_us'])} s",
            count(channel["switches"]),
        )
    return table


#: Shown where P1 found nothing wrong although a delay was longer: P1 claims nothing without a path, and allows for
#: work.
_NO_PROMISE_BROKEN: Final = (
    "  no promise is broken: nothing led from the sources to the client at that time, or the rest was\n"
    "  work and a busy machine (docs/explanation/guarantees.md, P1)\n"
)


def _headline(summary: Mapping[str, Any]) -> Text:
    worst, text = summary["worst"], Text()
    if worst is not None and worst["delay_max_us"] < 0:
        text.append("longest delay of a new tuple   unknown: all came before their time\n", style="yellow")
    elif worst is not None:
        within = worst["delay_max_us"] <= worst["bound_us"]
        delay, allowed = seconds(worst["delay_max_us"]), show_bound(worst["shares_us"])
        text.append(f"longest delay of a new tuple   {delay} s, allowed {allowed}: ")
        text.append("kept" if within else "EXCEEDED", style="green" if within else "bold red")
        text.append("\n")
        if not within and summary["verdict"].get("late") == []:
            text.append(_NO_PROMISE_BROKEN, style="yellow")
    text.append(
        f"tentative tuples received      {summary['tentative']:,}, of which {summary['undone']:,} were undone\n"
    )
    text.append(f"longest gap in stable output   {seconds(summary['stable_gap_max_us'])} s")
    return text


def _switches(summary: Mapping[str, Any]) -> Table:
    table = columns("at", "switched", "", "silence", right=("at", "silence"))
    for switch in summary["switches"][-8:]:
        table.add_row(
            f"{seconds(switch['at_us'])} s",
            switch["channel"],
            f"{switch['before']} → {switch['after']}",
            f"{seconds(switch['silence_us'])} s",
        )
    return table


def _logs(summary: Mapping[str, Any]) -> Table:
    """Lists restarts from checkpoint logs, without the start of the process, and the logs' sizes."""
    figures = ("restarts", "longest", "expected", "now", "least", "written", "rewritten", "kept")
    table = columns("checkpoint log", *figures, right=figures)
    for replica in summary["replicas"]:
        if (log := replica.get("log")) is not None:
            times = [log[k] for k in ("recovered_us", "expected_us", "recovery_us", "least_us")]
            sizes = [f"{log[k] / 1e6:,.1f} MB" for k in ("written_bytes", "rewritten_bytes", "kept_bytes")]
            shown = ["" if us is None else f"{seconds(us)} s" for us in times]
            table.add_row(replica["replica"], count(log["recoveries"]), *shown, *sizes)
    return table


def _processes(summary: Mapping[str, Any]) -> Group:
    figures = ("starts", "tentative", "corrections")
    replicas = columns("replica", "state", *figures, "", right=figures)
    for replica in summary["replicas"]:
        replicas.add_row(
            replica["replica"],
            Text("STOPPED", "bold red") if replica["error"] else replica["state"] or "never heard",
            str(replica["starts"]),
            count(replica["tentative"]),
            count(replica["reconciliations"]),
            Text(", ".join(f"{k} {v:,}" for k, v in replica["counters"].items()), "dim"),
        )
    amounts = ("tuples", "late", "malformed", "refused")
    sources = columns("source", *amounts, "", right=amounts)
    for source in summary["sources"]:
        state = "failed" if source["fault"] else "" if source["ended"] else "not ended"
        numbers = [count(source[k]) for k in ("late", "malformed", "refused_ahead")]
        sources.add_row(
            source["source"], f"{source['tuples']:,}", *numbers, Text(state, "red" if source["fault"] else "dim")
        )
    return Group(replicas, Text(""), sources)


def verdict_text(verdict: Mapping[str, Any], failed: Sequence[str] = ()) -> Text:
    """Returns the final line: whether the stable stream equals the reference.  Failures come first."""
    reasons = [*failed, *([verdict["reason"]] if verdict["reason"] else [])]
    reasons = [r for r in reasons if not any(r != other and r in other for other in reasons)]
    why = "\n  ".join(dict.fromkeys(reasons))
    if verdict.get("reference"):
        prefix = f"NOT COMPLETE: {why}\n" if why else ""
        where = f"\n{verdict['where']}" if verdict["where"] else ""
        return Text(f"{prefix}the reference run fails too: {verdict['reference']}{where}", style="bold red")
    if verdict["equal"] is None:
        return Text(f"not compared with the reference: {why}", style="bold red" if failed else "bold yellow")
    if not verdict["equal"]:
        differences = "\n".join(f"  {d}" for d in verdict["differences"])
        prefix = f"{why}\n" if failed else ""
        return Text(f"{prefix}STABLE STREAM DIFFERS FROM THE REFERENCE RUN:\n{differences}", style="bold red")
    rows = verdict["rows"]
    if not verdict["complete"]:
        so_far = f"the {rows:,} tuples so far agree with the reference" if rows else "no stable tuple has come"
        return Text(f"NOT COMPLETE: {why}; {so_far}", style="bold red" if failed else "bold yellow")
    equal = f"stable stream equals the reference run, tuple for tuple ({rows:,} tuples)"
    if failed:
        return Text(f"FAILED ON THE WAY: {why}\n{equal}", style="bold red")
    return Text(equal, style="bold green")
