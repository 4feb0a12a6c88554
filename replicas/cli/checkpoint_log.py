"""The part of ``spe check`` about checkpoint logs."""

from __future__ import annotations

from replicas.checkpoint.recovery_estimate import recovery_rows, show_speeds, too_short
from replicas.checkpoint.targets import ASSUMED, REPLAY_PART
from spe.config.document import Document
from spe.config.load import where_written
from spe.errors import ConfigError
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.problems import Problems
from spe.text_table import text_table


def refuse_logs(document: Document, plan: Plan, directory: Directory) -> None:
    """Raises ConfigError: a configured recovery time is too short."""
    problems = Problems()
    for path, message in too_short(plan, directory):
        problems.add(where_written(path, document.data), message)
    if problems:
        raise ConfigError(document.in_order(problems))


def recovery_text(plan: Plan, directory: Directory) -> str:
    """Returns the section of ``spe check`` about checkpoint logs; empty if none is written."""
    lines = text_table(recovery_rows(plan, directory), indent="  ")
    if not lines:
        return ""
    title = (
        f"RECOVERY FROM THE LOG   without the start of the process; {show_speeds(ASSUMED)}; as far as share allows, "
        f"{REPLAY_PART:.0%} of recovery replays rows that operators do not keep"
    )
    return "\n".join(line.rstrip() for line in [title, *lines]) + "\n"
