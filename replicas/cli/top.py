"""``spe top``: a live view of a running cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import trio
from rich.live import Live

from replicas.cli.view.view import make_console, render
from replicas.cli.view.watching import Watch
from spe.errors import SpeError

_DRAW_S: Final = 0.2


def top(path: Path) -> int:
    """Draws until a signal comes or the run is over.

    Raises:
      SpeError: the output is not a terminal.
    """
    watch = Watch(path)
    if not make_console().is_terminal:
        raise SpeError("spe top needs a terminal; spe status prints the same once")
    if trio.run(_draw, watch):
        print(f"the run in {path} is over")
    return 0


async def _draw(watch: Watch) -> bool:
    """Returns True when the run has ended, False after a signal."""
    with Live(console=make_console(), auto_refresh=False) as live:
        async with watch.running():
            while not watch.over:
                live.update(render(watch.target.plan, watch.target.directory, watch.sight()), refresh=True)
                await trio.sleep(_DRAW_S)
    return watch.over
