"""``report.html``: one self-contained page, inline SVG and script, nothing from a network.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from typing import Final

from consistency.proof.losses import measure_of
from consistency.proof.report.figure import timeline
from consistency.proof.report.happenings import changes, logs, moves, promises, recovery
from consistency.proof.report.html import (
    Columns,
    bad,
    between,
    card,
    dim,
    document,
    duration,
    good,
    section,
    table,
    verdict_word,
)
from consistency.proof.report.model import (
    Accuracy,
    Delay,
    FaultSpan,
    Flaw,
    FlawCount,
    Loss,
    Offender,
    OutputReport,
    Report,
    SinkFacts,
    SourceFacts,
    Tentative,
    Verdict,
    WindowAccuracy,
)
from consistency.proof.report.summary import headline, sentence
from consistency.proof.report.words import count, seconds, share

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

#: The first column of a table of outputs.
_TITLE: Final[tuple[str, str, Callable[[OutputReport], str]]] = ("client · output", "", lambda o: escape(o.title))


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
        card(_IN_BOUND, report.outputs),
        promises(report.promises),
        logs(report.logs),
        changes(report.changes),
        moves(report.moves),
        recovery(report.recovery),
        "<h2>What ran</h2>",
        _ran(report),
    ]
    return document(f"{report.verdict}: {report.name}", "".join(body))


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
    columns: Columns[OutputReport] = [
        _TITLE,
        ("verdict", "", lambda o: verdict_word(o.verdict)),
        ("truth", "r", lambda o: count(o.truth)),
        ("received", "r", lambda o: count(o.stable)),
        *((name, "r", partial(_flawed, flaw)) for flaw, name in FLAWS.items()),
    ]
    return card(columns, outputs)


def _flawed(flaw: Flaw, output: OutputReport) -> str:
    n = {finding.flaw: finding.count for finding in output.findings}.get(flaw, 0)
    return bad(count(n)) if n else dim("0")


def _offenders(outputs: Sequence[OutputReport]) -> str:
    rows = [
        (output, finding, offender)
        for output in outputs
        for finding in output.findings
        for offender in finding.offenders
    ]
    if not rows:
        return ""
    total = sum(f.count for o in outputs for f in o.findings)
    shown = "" if total == len(rows) else f" The first {len(rows)} of {count(total)}; all are in tables/."
    return (
        f'<h3>Offenders</h3><p class="sub">Each with what its client received around it.{shown}</p>'
        '<div class="chips"><input data-table="offenders" placeholder="filter" aria-label="filter offenders"></div>'
        f"{card(_OFFENDERS, rows, 'offenders')}"
    )


def _where(output: OutputReport, finding: FlawCount, offender: Offender) -> str:
    number = "number" if finding.flaw in (Flaw.UNCORRECTED, Flaw.OVERTAKEN) else "id"
    return (
        f"{escape(output.title)}<br><span class='dim'>partition {offender.partition}, {number} {count(offender.place)}"
        f"<br>time {escape(offender.time)}</span>"
    )


def _with_surroundings(offender: Offender) -> str:
    what = _tuple(offender.tuple, offender.expected)
    if not offender.around:
        return what
    lines = "".join(
        f'<li class="{"here" if line.startswith("▸") else ""}">{escape(line)}</li>' for line in offender.around
    )
    return f'{what}<details><summary>around it</summary><ul class="around">{lines}</ul></details>'


def _tuple(values: dict[str, object], expected: dict[str, object] | None) -> str:
    parts = []
    for name, value in values.items():
        text = f'<span class="key">{escape(name)}</span> {escape(_shown(value))}'
        if expected is not None and expected.get(name) != value:
            text = f"{bad(text)} (true: {escape(_shown(expected.get(name)))})"
        parts.append(text)
    return "<code>" + ", ".join(parts) + "</code>"


def _shown(value: object) -> str:
    return "null" if value is None else str(value)


_OFFENDERS: Final[Columns[tuple[OutputReport, FlawCount, Offender]]] = (
    ("what", "", lambda row: bad(FLAWS[row[1].flaw])),
    ("where", "", lambda row: _where(*row)),
    ("tuple", "", lambda row: _with_surroundings(row[2])),
    ("received", "r", lambda row: "never" if row[2].at_us is None else seconds(row[2].at_us)),
)


# --- wrong in between ---

_TENTATIVE: Final[Columns[OutputReport]] = (
    _TITLE,
    ("tentative", "r", lambda o: count(o.tentative.count)),
    ("right as they were", "r", lambda o: _right_as_they_were(o.tentative)),
    ("taken back", "r", lambda o: count(o.tentative.undone)),
    ("corrections", "r", lambda o: count(o.tentative.corrections)),
    ("wrong ones stood<br>(median)", "r", lambda o: duration(o.tentative.stood_median_us)),
    ("longest", "r", lambda o: duration(o.tentative.stood_max_us)),
    ("model expects", "r", lambda o: "–" if o.tentative.predicted is None else f"≈ {count(o.tentative.predicted)}"),
)


def _right_as_they_were(t: Tentative) -> str:
    return f"{count(t.right)} <span class='dim'>({share(t.right / t.count)})</span>" if t.count else "–"


def _between(outputs: Sequence[OutputReport], losses: Sequence[Loss]) -> str:
    accuracies = [_accuracy(output, output.accuracy) for output in outputs if output.accuracy is not None]
    return "".join([card(_TENTATIVE, outputs), *accuracies, _losses(losses, outputs)])


def _accuracy(output: OutputReport, accuracy: Accuracy) -> str:
    key = f"equal {', '.join(accuracy.key)}" if accuracy.key else "equal in everything"
    columns: Columns[WindowAccuracy | None] = [
        ("tuple time", "", lambda w: "<b>all of them</b>" if w is None else escape(w.time)),
        ("tentative", "r", lambda w: "" if w is None else count(w.tentative)),
        ("truth", "r", lambda w: "" if w is None else count(w.truth)),
        *(
            (escape(m), "r", lambda w, m=m: _measure(m, (accuracy.overall if w is None else w.measures).get(m)))
            for m in accuracy.measures
        ),
    ]
    return (
        f"<h3>{escape(output.title)}</h3><p class='sub'>Accuracy, the same result: {escape(key)}; the worst "
        f"windows below.</p>{card(columns, [None, *accuracy.worst])}"
    )


def _losses(losses: Sequence[Loss], outputs: Sequence[OutputReport]) -> str:
    """Returns the output that PPA's model expects while partitions are lost, next to the measured one."""
    measured = [(o.title, measure_of(o.accuracy)) for o in outputs if losses and o.accuracy is not None]
    columns: Columns[Loss] = [
        ("nobody ran", "", lambda loss: escape(", ".join(loss.partitions))),
        ("from", "r", lambda loss: seconds(loss.from_us)),
        ("for", "r", lambda loss: between(loss.from_us, loss.until_us)),
        ("expected<br>fidelity (OF)", "r", lambda loss: share(loss.fidelity)),
        *(
            (
                f"{escape(m)} of<br>{escape(title)}",
                "r",
                lambda loss, m=m, title=title: _measure(m, loss.measured.get(title)),
            )
            for title, m in measured
        ),
    ]
    about = (
        "What the model of PPA expects of the output, and what "
        "was measured of the windows of which tentative results came meanwhile; – where none came."
    )
    return section("While partitions were lost", about, columns, losses)


def _measure(name: str, value: float | None) -> str:
    if value is None:
        return dim("–")
    return f"{value:.4g}" if name.startswith("error") else share(value)


# --- kept X ---

_IN_BOUND: Final[Columns[OutputReport]] = (
    _TITLE,
    ("k", "r", lambda o: str(o.k)),
    ("allowed", "r", lambda o: seconds(o.delay.bound_us)),
    ("longest delay", "r", lambda o: seconds(o.delay.max_us)),
    ("99 %", "r", lambda o: seconds(o.delay.p99_us)),
    ("median", "r", lambda o: seconds(o.delay.median_us)),
    ("model expects", "r", lambda o: "–" if o.delay.predicted_us is None else f"≈ {seconds(o.delay.predicted_us)}"),
    ("kept", "", lambda o: _kept(o.delay)),
    ("longest gap", "r", lambda o: seconds(o.gaps.any_us)),
    ("in stable", "r", lambda o: seconds(o.gaps.stable_us)),
    ("heal to last correction", "r", lambda o: duration(o.healing.took_us)),
)


def _kept(delay: Delay) -> str:
    if delay.kept is None:
        return f"unknown<br><span class='dim'>{escape(delay.why)}</span>" if delay.why else "unknown"
    return good("yes") if delay.kept else bad("no")


# --- what ran ---

_SOURCES: Final[Columns[SourceFacts]] = (
    ("source", "", lambda s: escape(s.name)),
    ("tuples", "r", lambda s: count(s.tuples)),
    ("late", "r", lambda s: "–" if s.late is None else count(s.late)),
    ("log", "", lambda s: bad("wrong") if s.flaws else "complete" if s.complete else bad("broken off")),
    ("input", "", lambda s: escape(s.compared)),
)
_FAULTS: Final[Columns[FaultSpan]] = (
    ("fault", "", lambda f: escape(f.name)),
    ("from", "r", lambda f: seconds(f.from_us)),
    ("until", "r", lambda f: "the end" if f.until_us is None else seconds(f.until_us)),
)
_SINKS: Final[Columns[SinkFacts]] = (
    ("sink", "", lambda s: escape(s.sink)),
    ("against its recording", "", lambda s: escape(s.text) if s.equal else bad(escape(s.text))),
)
_FACTS: Final[Columns[tuple[str, str]]] = (
    ("", "", lambda fact: escape(fact[0])),
    ("", "", lambda fact: escape(fact[1])),
)


def _ran(report: Report) -> str:
    faults = table(_FAULTS, report.faults) if report.faults else '<p class="dim">No fault was injected.</p>'
    facts = [("cluster", report.cluster), ("plan", report.fingerprint), ("directory", report.folder)]
    facts += report.versions.items()
    facts += [(f"Spark: {what}", f"{took:.1f} s") for what, took in report.timings_s.items()]
    return (
        f'<div class="two">{card(_SOURCES, report.sources)}<div class="card">{faults}</div></div>'
        f"{card(_SINKS, report.sinks) if report.sinks else ''}"
        f"<details><summary>Configuration</summary><pre>{escape(report.configuration)}</pre></details>"
        "<details><summary>Versions, and where the time went</summary>"
        f"<div class='card'>{table(_FACTS, facts)}</div></details>"
    )
