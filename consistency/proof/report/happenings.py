"""Tables of what nodes and the coordinator did in a run: promises, logs, versions, moves, recoveries.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from consistency.proof.report.html import Columns, bad, between, card, dim, duration, good, section
from consistency.proof.report.model import (
    DirectoryChange,
    LogReport,
    MoveReport,
    Promise,
    RecoveryReport,
    RecoveryStep,
)
from consistency.proof.report.words import plural, seconds, share

_PROMISES: Final[Columns[Promise]] = (
    ("node", "", lambda p: escape(p.node)),
    ("unit", "", lambda p: escape(p.unit)),
    ("X", "r", lambda p: seconds(p.x_us)),
    ("α", "r", lambda p: f"{p.alpha:g}"),
    ("policy", "", lambda p: escape(p.policies)),
    ("reconcile", "", lambda p: escape(p.reconcile)),
    ("since", "r", lambda p: seconds(p.since_us)),
    ("longest wait", "r", lambda p: seconds(p.waited_us)),
    ("share of X", "r", lambda p: seconds(p.share_us)),
    ("used", "r", lambda p: f"{p.waited_us / p.share_us:.0%}"),
    ("99 %", "r", lambda p: "–" if p.used_p99 is None else f"{p.used_p99:.0%}"),
    ("kept", "", lambda p: good("yes") if p.kept else bad("no")),
    ("config.yaml says", "", lambda p: bad(escape(p.differs)) if p.differs else dim("the same")),
)
_LOGS: Final[Columns[LogReport]] = (
    ("replica", "", lambda log: escape(log.replica)),
    ("restarts", "r", lambda log: f"{log.recoveries:,}"),
    ("longest", "r", lambda log: duration(log.recovered_us)),
    ("expected", "r", lambda log: duration(log.expected_us)),
    ("at the end", "r", lambda log: seconds(log.recovery_us)),
    ("least", "r", lambda log: seconds(log.least_us)),
    ("written", "r", lambda log: _megabytes(log.written_bytes)),
    ("rewritten", "r", lambda log: _megabytes(log.rewritten_bytes)),
    ("kept", "r", lambda log: _megabytes(log.kept_bytes)),
)
_CHANGES: Final[Columns[DirectoryChange]] = (
    ("at", "r", lambda change: seconds(change.at_us)),
    ("version", "r", lambda change: str(change.number)),
    ("who wanted it", "", lambda change: escape(change.why)),
)
_MOVES: Final[Columns[MoveReport]] = (
    ("move", "r", lambda m: str(m.number)),
    ("partition", "", lambda m: escape(m.partition)),
    ("from", "", lambda m: escape(m.source)),
    ("to", "", lambda m: escape(m.target)),
    ("wanted by", "", lambda m: escape(m.reason)),
    ("at", "r", lambda m: duration(m.from_us)),
    ("took", "r", lambda m: between(m.from_us, m.until_us)),
    ("expected", "r", lambda m: duration(m.predicted_us)),
    ("longest delay meanwhile", "r", lambda m: duration(m.delay_max_us)),
    ("tentative meanwhile", "r", lambda m: f"{m.tentative:,}"),
    ("", "", lambda m: escape(f"{m.phase}: {m.why}" if m.why else m.phase)),
)
_STEPS: Final[Columns[tuple[int, RecoveryStep]]] = (
    ("", "r", lambda row: str(row[0])),
    ("partition", "", lambda row: escape(row[1].partition)),
    ("on", "", lambda row: escape(row[1].node) or "–"),
    ("wanted", "r", lambda row: seconds(row[1].wanted_us)),
    ("told", "r", lambda row: duration(row[1].assigned_us)),
    ("took", "r", lambda row: between(row[1].assigned_us, row[1].back_us)),
    ("expected", "r", lambda row: duration(row[1].predicted_us)),
    ("value", "r", lambda row: _value(row[1])),
    ("longest delay meanwhile", "r", lambda row: duration(row[1].delay_max_us)),
    ("tentative meanwhile", "r", lambda row: f"{row[1].tentative:,}"),
    ("", "", lambda row: escape(row[1].why or _outcome(row[1]))),
)


def promises(rows: Sequence[Promise]) -> str:
    """Lists each node's announcement for each unit, and how long it let buckets wait."""
    head = "<h3>Node by node</h3><p class='sub'>"
    if not rows:
        return (
            f"{head}No client recorded an announcement of X: no node was reached. "
            "What is allowed above is what the copy of the configuration says, which proves nothing.</p>"
        )
    return (
        f"{head}As nodes announced it and clients recorded it: since when each setting held, and the longest time that "
        "a bucket waited from its first arrival to its release, by the node's own clock, and as "
        "a share of X; 99 % of the slices released in the whole run used at most the next figure.</p>"
        f"{card(_PROMISES, rows)}"
    )


def logs(rows: Sequence[LogReport]) -> str:
    """Lists restarts from checkpoint logs, and the bytes written."""
    about = (
        "The longest restart from each log, without the start of the process, "
        "and what was expected of it; what one was expected to take at the end of the run, and the least that the "
        "share of the time for rewriting allowed then. Bytes are of one copy."
    )
    return section("Checkpoint logs", about, _LOGS, rows)


def changes(rows: Sequence[DirectoryChange]) -> str:
    """Lists versions of the directory, and their causes."""
    about = (
        "Who runs what, and with which X, changed while the cluster "
        "ran; each result is judged by what was in force while it was on its way."
    )
    return section("Versions of the directory", about, _CHANGES, rows)


def moves(rows: Sequence[MoveReport]) -> str:
    """Lists partitions that moved, and the output of clients during each move."""
    return section("Moves", "", _MOVES, rows)


def recovery(report: RecoveryReport | None) -> str:
    """Lists lost partitions in the order in which they came back, and the value gained."""
    if report is None:
        return ""
    worth = "queries that are complete" if report.goal == "complete" else "output fidelity"
    return (
        "<h3>Order of recovery</h3><p class='sub'>Nodes had too little room for all that was lost: "
        f"{plural(report.plans, 'plan')} said what comes back first. A plan wanted it, and its node was told, at the "
        "times shown; it took so long from then on. Value: of what ran before and after it came back, "
        f"{worth}, by priority; where that stays, it needs others that were lost.</p>"
        f"{card(_STEPS, enumerate(report.steps, 1))}"
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _value(step: RecoveryStep) -> str:
    return "–" if step.value is None else f"{share(step.value_before)} → {share(step.value)}"


def _outcome(step: RecoveryStep) -> str:
    if step.back_us is None:
        return "not restored" if step.node else "waited until the end"
    return f"ran at {seconds(step.back_us)}" + ("" if step.assigned_us is not None else ", without being told")
