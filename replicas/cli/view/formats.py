"""Formats of figures for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from spe.figures.cluster_figures import STANDS_BY, STARTING, STOPPED
from spe.stream.names import NodeState
from spe.stream.times import BEFORE_TIME, END_OF_TIME, format_timestamp

#: Styles of states and of phases that replace them; others are errors.
_STATE_STYLES: Final[Mapping[str, str]] = {
    NodeState.STABLE.name: "bold green",
    NodeState.UP_FAILURE.name: "bold yellow",
    NodeState.STABILIZATION.name: "bold cyan",
    NodeState.RECOVERING.name: "bold magenta",
    STOPPED: "bold white on red",
    STANDS_BY: "dim",
    STARTING: "dim",
    "running": "green",
    "ended": "dim",
    "frozen": "bold blue",
    "stopped": "bold magenta",
    "died": "bold white on red",
}


def columns(*names: str, right: Sequence[str] = (), title: str = "") -> Table:
    """Returns an empty table; the columns of ``right`` are aligned to the right."""
    table = Table(title=title or None, title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in names:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    return table


def seconds(us: int) -> str:
    """Formats seconds, with two decimals below 10 and one above."""
    value = us / 1e6
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def count(number: int) -> str:
    """Formats a count; zero is empty, so that it does not catch the eye."""
    return f"{number:,}" if number else ""


def tentative(number: int) -> Text:
    return Text(count(number), style="yellow")


def moment(us: int) -> str:
    """Formats a point in tuple time, to the tenth of a second, without the year."""
    if us <= BEFORE_TIME:
        return ""
    if us >= END_OF_TIME:
        return "end"
    whole = format_timestamp(us - us % 1_000_000)
    return f"{whole[5:].replace('T', ' ')}.{us // 100_000 % 10}"


def state_text(state: str) -> Text:
    """Draws the state of a process or a replica."""
    return Text(state, style=_STATE_STYLES.get(state, "bold red") if state else "")


def style_of(share: float) -> str:
    """Returns the style of a share of what is allowed; 1 is all of it."""
    return "green" if share < 0.6 else "yellow" if share <= 1 else "bold red"


def size(number: int) -> str:
    """Formats a number of bytes."""
    for unit, least in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= least:
            return f"{number / least:.1f} {unit}"
    return f"{number} B"
