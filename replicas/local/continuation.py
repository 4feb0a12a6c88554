"""``spe run --continue``: continues an earlier run in its directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from replicas.local.run_dir import CLUSTER, CONFIG, RunDirectory, load_target
from replicas.local.run_over import refuse_running
from spe.config import read_document
from spe.config.document import Document
from spe.errors import SpeError
from spe.plan.plan import Security


class EarlierRun(NamedTuple):
    """An earlier session of a run; times in microseconds, ``begun_us`` is None if no source ever began."""

    path: Path
    document: Document
    security: Security
    data: Path
    origins: Mapping[str, int]
    budget: int | None
    begun_us: int | None


def earlier_run(path: Path) -> EarlierRun:
    """Reads the directory of an earlier run; cuts a torn last line from its events.

    Raises:
      SpeError: it is no directory of a run, or the run still goes on.
    """
    if not path.is_dir():
        raise SpeError(f"--continue: expected the directory of a run, got {path}")
    target = load_target(path)
    refuse_running(target)
    facts, events = json.loads((path / CLUSTER).read_text()), RunDirectory(path).events
    text = events.read_bytes() if events.exists() else b""
    events.write_bytes(text[: text.rfind(b"\n") + 1])
    begins = (line for line in map(json.loads, events.read_text().splitlines()) if line["event"] == "begin")
    begun_us = next((int(line["begun_us"]) for line in begins), None)
    document, data, budget = read_document(path / CONFIG), Path(facts["data"]), facts.get("budget")
    return EarlierRun(path, document, target.plan.security, data, facts["origins"], budget, begun_us)
