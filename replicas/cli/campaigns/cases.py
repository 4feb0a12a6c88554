"""A failing scenario in a file with its findings, which ``spe simulate`` writes and replays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from replicas.local.run_dir import made_by
from replicas.simulation.scenarios.scenario import Scenario
from spe.errors import ConfigError


def write_case(path: Path, scenario: Scenario, findings: Sequence[str], *, about: str) -> None:
    """Writes a case; creates its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {"about": about, "made_by": made_by(), "replay": f"spe simulate --replay {path}", "found": list(findings)}
    path.write_text(json.dumps(data | {"scenario": scenario.to_data()}, indent=1, ensure_ascii=False) + "\n")


def read_case(path: Path) -> Scenario:
    """Reads the scenario of a case, or of a file with only a scenario.

    Raises:
      ConfigError: not a scenario.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Scenario.from_data(data.get("scenario", data))
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error}"]) from error
    except (ValueError, TypeError, AttributeError, ConfigError) as error:
        raise ConfigError([f"{path}: expected a scenario as spe simulate writes it: {error}"]) from error
