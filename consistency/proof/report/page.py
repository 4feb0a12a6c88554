"""``report.html``: one self-contained page, inline SVG and script, nothing from a network.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from consistency.proof.losses import measure_of
from consistency.proof.report.figure import timeline
from consistency.proof.report.model import (
    Accuracy,
    DirectoryChange,
    Flaw,
    FlawCount,
    LogReport,
    Loss,
    MoveReport,
    Offender,
    OutputReport,
    Promise,
    RecoveryReport,
    RecoveryStep,
    Report,
    SourceFacts,
    Verdict,
)
from consistency.proof.report.summary import headline, sentence
from consistency.proof.report.words import count, plural, seconds, share

_MARKS = {
    Verdict.CONSISTENT: '<path d="M9 17.5l5.5 5.5L26 11.5"/>',
    Verdict.INCONSISTENT: '<path d="M11 11l13 13M24 11L11 24"/>',
    Verdict.UNKNOWN: '<path d="M12.5 13a5 5 0 1 1 7 4.6c-1.4.7-2 1.5-2 3.4M17.5 25.6v.6"/>',
}
FLAWS = {
    Flaw.UNDONE: "stable, then taken back",
    Flaw.MISSING: "missing",
    Flaw.EXTRA: "extra",
    Flaw.UNFOUNDED: "beyond the logs",
    Flaw.ALTERED: "altered",
    Flaw.DUPLICATED: "duplicated",
    Flaw.REORDERED: "out of order",
    Flaw.MISNUMBERED: "misnumbered",
    Flaw.BELATED: "behind their boundary",
    Flaw.OVERTAKEN: "tentative, overtaken by stable tuples",
    Flaw.UNCORRECTED: "tentative, never corrected",
}


def page(report: Report) -> str:
    """Returns the page of one run."""
    body = [
        f'<p class="eyebrow">{escape(report.name)} · began {escape(report.begun)} UTC · lasted '
        f"{seconds(report.duration_us)}</p>",
        _verdict(report),
        _tiles(report),
        "<h2>What happened</h2>",
        '<p class="sub">Wall time from left to right. Point at it for values; drag to look closer.</p>',
        _chips(report.outputs),
        f'<div class="card">{_legend(report)}{timeline(report)}</div>',
        "<h2>Was it right in the end?</h2>",
        '<p class="sub">What each client received as stable, against the truth: the same query, computed by Spark from '
        f"the sources' durable logs. {escape(report.tolerance)}</p>",
        _right(report.outputs),
        _offenders(report.outputs),
        "<h2>How wrong was it in between?</h2>",
        '<p class="sub">Tentative tuples against the truth. A wrong one stood from its receipt until it was taken '
        "back.</p>",
        _between(report.outputs, report.losses),
        "<h2>Did it keep X?</h2>",
        '<p class="sub">The delay of a new tuple, on first receipt, from the moment of its time. The model is that of '
        "DPC: αX and the ordinary delay, once per chain under <i>process</i>.</p>",
        _in_bound(report.outputs),
        _promises(report.promises),
        _logs(report.logs),
        _changes(report.changes),
        _moves(report.moves),
        _recovery(report.recovery),
        "<h2>What ran</h2>",
        _ran(report),
    ]
    return document(f"{report.verdict}: {report.name}", "".join(body))


def document(title: str, body: str) -> str:
    """Returns a whole HTML document around the body."""
    folder = files("consistency.proof.report")
    style, script = (folder.joinpath(name).read_text("utf-8") for name in ("style.css", "script.js"))
    hatch = (
        '<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs><pattern id="hatch" width="6" '
        'height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="2.5" height="6" '
        'style="fill:var(--idle)"/></pattern></defs></svg>'
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{style}</style></head>\n<body>{hatch}<main>{body}"
        "<footer>Made by spe report. What each figure means: docs/reference/report.md.</footer></main>"
        f'<div class="tip"></div><script>\n{script}</script></body></html>\n'
    )


def table(id_: str, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table: columns are (title, "r" for figures or ""); cells are HTML."""
    head = "".join(f'<th class="{side}">{title}</th>' for title, side in columns)
    lines = [
        "<tr>" + "".join(f'<td class="{side}">{cell}</td>' for cell, (_, side) in zip(row, columns)) + "</tr>"
        for row in rows
    ]
    named = f' id="{id_}"' if id_ else ""
    return (
        f'<div class="scroll"><table{named}><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
    )


# --- the answer ---


def _verdict(report: Report) -> str:
    mark = (
        '<svg class="mark" viewBox="0 0 35 35" fill="none" stroke="currentColor" stroke-width="3.4" '
        'stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><circle cx="17.5" cy="17.5" r="15.6" '
        f'stroke-width="2.2"/>{_MARKS[report.verdict]}</svg>'
    )
    reasons = "".join(f"<li>{escape(r)}</li>" for r in report.reasons[:8])
    return (
        f'<section class="verdict {report.verdict}"><h1>{mark}{report.verdict}</h1><p>{escape(sentence(report))}</p>'
        f"{f'<ul>{reasons}</ul>' if reasons else ''}</section>"
    )


def _tiles(report: Report) -> str:
    figures = headline(report)
    tiles = []
    for top in figures:
        meter = ""
        if top.filled is not None:
            over = ' class="over"' if top.filled > 1 else ""
            meter = f'<div class="meter"><i{over} style="width:{min(top.filled, 1) * 100:.1f}%"></i></div>'
        rest = f" <small>{escape(top.limit)}</small>" if top.limit else ""
        tiles.append(
            f'<div class="tile"><div class="what">{escape(top.what)}</div><div class="figure">{escape(top.figure)}'
            f'{rest}</div>{meter}<div class="note{" bad" if top.bad else ""}">{escape(top.note)}</div></div>'
        )
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _chips(outputs: Sequence[OutputReport]) -> str:
    if len(outputs) < 2:
        return ""
    buttons = "".join(
        f'<button aria-pressed="true" data-group="output-{at}">{escape(output.title)}</button>'
        for at, output in enumerate(outputs)
    )
    return f'<div class="chips" data-rows>{buttons}</div>'


def _legend(report: Report) -> str:
    entries = [("bg-fault", "fault")]
    states = {span.name for track in report.replicas for span in track.spans}
    entries += [
        (css, name)
        for css, name in (
            ("bg-band", "STABLE"),
            ("bg-tentative", "UP_FAILURE"),
            ("bg-undone", "STABILIZATION"),
            ("bg-idle", "RECOVERING"),
            ("bg-hatch", "down"),
        )
        if name in states
    ]
    entries += [("bg-stable", "stable tuples"), ("bg-tentative", "tentative tuples"), ("bg-undone", "taken back")]
    return (
        '<div class="legend">' + "".join(f'<span><i class="{c}"></i>{escape(n)}</span>' for c, n in entries) + "</div>"
    )


# --- right in the end ---


def _right(outputs: Sequence[OutputReport]) -> str:
    columns = [("client · output", ""), ("verdict", ""), ("truth", "r"), ("received", "r")]
    columns += [(name, "r") for name in FLAWS.values()]
    rows = []
    for output in outputs:
        counts = {f.flaw: f.count for f in output.findings}
        rows.append(
            [
                escape(output.title),
                f'<span class="word {output.verdict}">{output.verdict}</span>',
                count(output.truth),
                count(output.stable),
                *(_flawed(counts.get(flaw, 0)) for flaw in FLAWS),
            ]
        )
    return f'<div class="card">{table("", columns, rows)}</div>'


def _flawed(n: int) -> str:
    return f'<span class="no">{count(n)}</span>' if n else '<span class="dim">0</span>'


def _offenders(outputs: Sequence[OutputReport]) -> str:
    rows = [
        _offender(output, finding, offender)
        for output in outputs
        for finding in output.findings
        for offender in finding.offenders
    ]
    if not rows:
        return ""
    total = sum(f.count for o in outputs for f in o.findings)
    columns = [("what", ""), ("where", ""), ("tuple", ""), ("received", "r")]
    shown = "" if total == len(rows) else f" The first {len(rows)} of {count(total)}; all are in tables/."
    return (
        f'<h3>Offenders</h3><p class="sub">Each with what its client received around it.{shown}</p>'
        '<div class="chips"><input data-table="offenders" placeholder="filter" aria-label="filter offenders"></div>'
        f'<div class="card">{table("offenders", columns, rows)}</div>'
    )


def _offender(output: OutputReport, finding: FlawCount, offender: Offender) -> list[str]:
    where = f"{escape(output.title)}<br><span class='dim'>partition {offender.partition}, "
    where += f"{'number' if finding.flaw in (Flaw.UNCORRECTED, Flaw.OVERTAKEN) else 'id'} {count(offender.place)}<br>"
    where += f"time {escape(offender.time)}</span>"
    what = _tuple(offender.tuple, offender.expected)
    if offender.around:
        lines = "".join(
            f'<li class="{"here" if line.startswith("▸") else ""}">{escape(line)}</li>' for line in offender.around
        )
        what += f'<details><summary>around it</summary><ul class="around">{lines}</ul></details>'
    return [
        f'<span class="no">{FLAWS[finding.flaw]}</span>',
        where,
        what,
        "never" if offender.at_us is None else seconds(offender.at_us),
    ]


def _tuple(values: dict[str, object], expected: dict[str, object] | None) -> str:
    parts = []
    for name, value in values.items():
        text = f'<span class="key">{escape(name)}</span> {escape(_shown(value))}'
        if expected is not None and expected.get(name) != value:
            text = f'<span class="no">{text}</span> (true: {escape(_shown(expected.get(name)))})'
        parts.append(text)
    return "<code>" + ", ".join(parts) + "</code>"


def _shown(value: object) -> str:
    return "null" if value is None else str(value)


# --- wrong in between ---


def _between(outputs: Sequence[OutputReport], losses: Sequence[Loss]) -> str:
    columns = [("client · output", ""), ("tentative", "r"), ("right as they were", "r"), ("taken back", "r")]
    columns += [("corrections", "r"), ("wrong ones stood<br>(median)", "r"), ("longest", "r"), ("model expects", "r")]
    rows = []
    for output in outputs:
        t = output.tentative
        right = "–" if not t.count else f"{count(t.right)} <span class='dim'>({share(t.right / t.count)})</span>"
        stood = ["–" if us is None else seconds(us) for us in (t.stood_median_us, t.stood_max_us)]
        expected = "–" if t.predicted is None else f"≈ {count(t.predicted)}"
        rows.append(
            [escape(output.title), count(t.count), right, count(t.undone), count(t.corrections), *stood, expected]
        )
    parts = [f'<div class="card">{table("", columns, rows)}</div>']
    parts += [_accuracy(output, output.accuracy) for output in outputs if output.accuracy is not None]
    parts.append(_losses(losses, outputs))
    return "".join(parts)


def _accuracy(output: OutputReport, accuracy: Accuracy) -> str:
    key = (
        f"the same result: equal {', '.join(accuracy.key)}" if accuracy.key else "the same result: equal in everything"
    )
    columns = [("tuple time", ""), ("tentative", "r"), ("truth", "r"), *((escape(m), "r") for m in accuracy.measures)]
    rows = [["<b>all of them</b>", "", "", *(_measure(m, accuracy.overall.get(m)) for m in accuracy.measures)]]
    rows += [
        [
            escape(w.time),
            count(w.tentative),
            count(w.truth),
            *(_measure(m, w.measures.get(m)) for m in accuracy.measures),
        ]
        for w in accuracy.worst
    ]
    return (
        f"<h3>{escape(output.title)}</h3><p class='sub'>Accuracy, {escape(key)}; the worst windows below.</p>"
        f'<div class="card">{table("", columns, rows)}</div>'
    )


def _losses(losses: Sequence[Loss], outputs: Sequence[OutputReport]) -> str:
    """Returns the output that PPA's model expects while partitions are lost, next to the measured one."""
    if not losses:
        return ""
    measured = [(o.title, measure_of(o.accuracy)) for o in outputs if o.accuracy is not None]
    columns = [("nobody ran", ""), ("from", "r"), ("for", "r"), ("expected<br>fidelity (OF)", "r")]
    columns += [(f"{escape(name)} of<br>{escape(title)}", "r") for title, name in measured]
    rows = [
        [
            escape(", ".join(loss.partitions)),
            seconds(loss.from_us),
            seconds(loss.until_us - loss.from_us),
            share(loss.fidelity),
            *(_measure(name, loss.measured.get(title)) for title, name in measured),
        ]
        for loss in losses
    ]
    return (
        "<h3>While partitions were lost</h3><p class='sub'>What the model of PPA expects of the output, and what "
        "was measured of the windows of which tentative results came meanwhile; – where none came.</p>"
        f'<div class="card">{table("", columns, rows)}</div>'
    )


def _measure(name: str, value: float | None) -> str:
    if value is None:
        return '<span class="dim">–</span>'
    return f"{value:.4g}" if name.startswith("error") else share(value)


# --- kept X ---


def _in_bound(outputs: Sequence[OutputReport]) -> str:
    columns = [
        ("client · output", ""),
        ("k", "r"),
        ("allowed", "r"),
        ("longest delay", "r"),
        ("99 %", "r"),
        ("median", "r"),
    ]
    columns += [
        ("model expects", "r"),
        ("kept", ""),
        ("longest gap", "r"),
        ("in stable", "r"),
        ("heal to last correction", "r"),
    ]
    rows = []
    for output in outputs:
        d = output.delay
        unknown = f"unknown<br><span class='dim'>{escape(d.why)}</span>" if d.why else "unknown"
        in_bound = {True: '<span class="ok">yes</span>', False: '<span class="no">no</span>', None: unknown}[d.kept]
        rows.append(
            [
                escape(output.title),
                str(output.k),
                seconds(d.bound_us),
                seconds(d.max_us),
                seconds(d.p99_us),
                seconds(d.median_us),
                "–" if d.predicted_us is None else f"≈ {seconds(d.predicted_us)}",
                in_bound,
                seconds(output.gaps.any_us),
                seconds(output.gaps.stable_us),
                "–" if output.healing.took_us is None else seconds(output.healing.took_us),
            ]
        )
    return f'<div class="card">{table("", columns, rows)}</div>'


def _changes(rows: Sequence[DirectoryChange]) -> str:
    """Lists versions of the directory, and their causes."""
    if not rows:
        return ""
    lines = [[seconds(change.at_us), str(change.number), escape(change.why)] for change in rows]
    return (
        "<h3>Versions of the directory</h3><p class='sub'>Who runs what, and with which X, changed while the cluster "
        "ran; each result is judged by what was in force while it was on its way.</p>"
        f'<div class="card">{table("", [("at", "r"), ("version", "r"), ("who wanted it", "")], lines)}</div>'
    )


def _moves(rows: Sequence[MoveReport]) -> str:
    """Lists partitions that moved, and the output of clients during each move."""
    if not rows:
        return ""
    columns = [("move", "r"), ("partition", ""), ("from", ""), ("to", ""), ("wanted by", "")]
    columns += [("at", "r"), ("took", "r"), ("expected", "r")]
    columns += [("longest delay meanwhile", "r"), ("tentative meanwhile", "r"), ("", "")]
    lines = [
        [
            str(move.number),
            escape(move.partition),
            escape(move.source),
            escape(move.target),
            escape(move.reason),
            _maybe(move.from_us),
            "–" if move.from_us is None or move.until_us is None else seconds(move.until_us - move.from_us),
            _maybe(move.predicted_us),
            _maybe(move.delay_max_us),
            f"{move.tentative:,}",
            escape(f"{move.phase}: {move.why}" if move.why else move.phase),
        ]
        for move in rows
    ]
    return f'<h3>Moves</h3><div class="card">{table("", columns, lines)}</div>'


def _recovery(report: RecoveryReport | None) -> str:
    """Lists lost partitions in the order in which they came back, and the value gained."""
    if report is None:
        return ""
    columns = [("", "r"), ("partition", ""), ("on", ""), ("wanted", "r"), ("told", "r"), ("took", "r")]
    columns += [("expected", "r"), ("value", "r")]
    columns += [("longest delay meanwhile", "r"), ("tentative meanwhile", "r"), ("", "")]
    lines = [
        [
            str(number),
            escape(step.partition),
            escape(step.node) or "–",
            seconds(step.wanted_us),
            _maybe(step.assigned_us),
            "–" if step.assigned_us is None or step.back_us is None else seconds(step.back_us - step.assigned_us),
            _maybe(step.predicted_us),
            "–" if step.value is None else f"{share(step.value_before)} → {share(step.value)}",
            _maybe(step.delay_max_us),
            f"{step.tentative:,}",
            escape(step.why or _outcome(step)),
        ]
        for number, step in enumerate(report.steps, 1)
    ]
    worth = "queries that are complete" if report.goal == "complete" else "output fidelity"
    return (
        "<h3>Order of recovery</h3><p class='sub'>Nodes had too little room for all that was lost: "
        f"{plural(report.plans, 'plan')} said what comes back first. A plan wanted it, and its node was told, at the "
        "times shown; it took so long from then on. Value: of what ran before and after it came back, "
        f"{worth}, by priority; where that stays, it needs others that were lost.</p>"
        f'<div class="card">{table("", columns, lines)}</div>'
    )


def _outcome(step: RecoveryStep) -> str:
    if step.back_us is None:
        return "not restored" if step.node else "waited until the end"
    return f"ran at {seconds(step.back_us)}" + ("" if step.assigned_us is not None else ", without being told")


def _maybe(us: int | None) -> str:
    return "–" if us is None else seconds(us)


def _promises(rows: Sequence[Promise]) -> str:
    """Lists each node's announcement for each unit, and how long it let buckets wait."""
    head = "<h3>Node by node</h3><p class='sub'>"
    if not rows:
        return (
            f"{head}No client recorded an announcement of X: no node was reached. "
            "What is allowed above is what the copy of the configuration says, which proves nothing.</p>"
        )
    columns = [("node", ""), ("unit", ""), ("X", "r"), ("α", "r"), ("policy", ""), ("reconcile", ""), ("since", "r")]
    columns += [
        ("longest wait", "r"),
        ("share of X", "r"),
        ("used", "r"),
        ("99 %", "r"),
        ("kept", ""),
        ("config.yaml says", ""),
    ]
    lines = [
        [
            escape(promise.node),
            escape(promise.unit),
            seconds(promise.x_us),
            f"{promise.alpha:g}",
            escape(promise.policies),
            escape(promise.reconcile),
            seconds(promise.since_us),
            seconds(promise.waited_us),
            seconds(promise.share_us),
            f"{promise.waited_us / promise.share_us:.0%}",
            "–" if promise.used_p99 is None else f"{promise.used_p99:.0%}",
            '<span class="ok">yes</span>' if promise.kept else '<span class="no">no</span>',
            f'<span class="no">{escape(promise.differs)}</span>'
            if promise.differs
            else '<span class="dim">the same</span>',
        ]
        for promise in rows
    ]
    return (
        f"{head}As nodes announced it and clients recorded it: since when each setting held, and the longest time that "
        "a bucket waited from its first arrival to its release, by the node's own clock, and as "
        "a share of X; 99 % of the slices released in the whole run used at most the next figure.</p>"
        f'<div class="card">{table("", columns, lines)}</div>'
    )


def _logs(rows: Sequence[LogReport]) -> str:
    """Lists restarts from checkpoint logs, and the bytes written."""
    if not rows:
        return ""
    columns = [("replica", ""), ("restarts", "r"), ("longest", "r"), ("expected", "r"), ("at the end", "r")]
    columns += [("least", "r"), ("written", "r"), ("rewritten", "r"), ("kept", "r")]
    lines = [
        [
            escape(log.replica),
            f"{log.recoveries:,}",
            "–" if log.recovered_us is None else seconds(log.recovered_us),
            "–" if log.expected_us is None else seconds(log.expected_us),
            seconds(log.recovery_us),
            seconds(log.least_us),
            *(f"{size / 1e6:,.1f} MB" for size in (log.written_bytes, log.rewritten_bytes, log.kept_bytes)),
        ]
        for log in rows
    ]
    return (
        "<h3>Checkpoint logs</h3><p class='sub'>The longest restart from each log, without the start of the process, "
        "and what was expected of it; what one was expected to take at the end of the run, and the least that the "
        "share of the time for rewriting allowed then. Bytes are of one copy.</p>"
        f'<div class="card">{table("", columns, lines)}</div>'
    )


# --- what ran ---


def _log(source: SourceFacts) -> str:
    if source.flaws:
        return '<span class="no">wrong</span>'
    return "complete" if source.complete else '<span class="no">broken off</span>'


def _ran(report: Report) -> str:
    sources = table(
        "",
        [("source", ""), ("tuples", "r"), ("late", "r"), ("log", ""), ("input", "")],
        [
            [
                escape(s.name),
                count(s.tuples),
                "–" if s.late is None else count(s.late),
                _log(s),
                escape(s.compared),
            ]
            for s in report.sources
        ],
    )
    faults = table(
        "",
        [("fault", ""), ("from", "r"), ("until", "r")],
        [
            [escape(f.name), seconds(f.from_us), "the end" if f.until_us is None else seconds(f.until_us)]
            for f in report.faults
        ],
    )
    sinks = [
        [escape(s.sink), escape(s.text) if s.equal else f'<span class="no">{escape(s.text)}</span>']
        for s in report.sinks
    ]
    sinks_card = (
        f'<div class="card">{table("", [("sink", ""), ("against its recording", "")], sinks)}</div>' if sinks else ""
    )
    facts = [("cluster", report.cluster), ("plan", report.fingerprint), ("directory", report.folder)]
    facts += [(name, text) for name, text in report.versions.items()]
    facts += [(f"Spark: {what}", f"{took:.1f} s") for what, took in report.timings_s.items()]
    versions = table("", [("", ""), ("", "")], [[escape(a), escape(b)] for a, b in facts])
    nothing = '<p class="dim">No fault was injected.</p>'
    return (
        f'<div class="two"><div class="card">{sources}</div>'
        f'<div class="card">{faults if report.faults else nothing}</div></div>{sinks_card}'
        f"<details><summary>Configuration</summary><pre>{escape(report.configuration)}</pre></details>"
        f"<details><summary>Versions, and where the time went</summary><div class='card'>{versions}</div></details>"
    )


__all__ = ["document", "page", "plural", "table"]
