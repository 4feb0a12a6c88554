"""``spe client --start``: prints the results of a running cluster, and stores nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import trio

from replicas.cli.view.json_lines import printer
from replicas.client import connect
from replicas.local.run_dir import load_target
from spe.errors import SpeError


def read(config: Path, client: str, start: str, streams: Sequence[str], print_: str) -> int:
    """Prints until all streams have ended.

    Raises:
      SpeError: the client is configured, so it records and writes sinks; or ``--print`` is missing.
    """
    if print_ == "no":
        raise SpeError("--start: a reader writes nothing but its output; expected --print stable or corrections too")
    if client in load_target(config).directory.clients:
        raise SpeError(f"--start: client {client} of the configuration goes on where it left; expected another name")
    trio.run(_print, config, client, start, streams, print_ == "corrections")
    return 0


async def _print(config: Path, client: str, start: str, streams: Sequence[str], corrections: bool) -> None:
    async with connect(config, client=client, start=start, streams=streams) as changes:
        show = printer(changes.plan, corrections=corrections)
        while (change := await changes.client.next_change()) is not None:
            show(change)
