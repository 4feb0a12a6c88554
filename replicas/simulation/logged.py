"""Clusters whose replicas write a checkpoint log instead of whole checkpoints (rules G1 to G8)."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Final

from spe.config import load_data
from spe.plan.log_use import log_use

#: Share of the fragments that can write a log and do.
_LOGGED: Final = 0.8
#: Times to recover, and what else bounds it: short ones have much rewritten.
_SETTINGS: Final = (
    {"recovery": "2s"},
    {"recovery": "1ms", "share": "20%"},
    {"recovery": "100us", "share": "100%"},
    {"records": 20, "share": "50%"},
    {"rows": 10, "interval": "10ms", "period": "25ms"},
    {"records": 5, "rows": 40, "share": "100%"},
)


def with_logs(random: Random, config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration in which fragments that can write a log do so, but for a few."""
    plan, _ = load_data(config)
    cannot = {unit.fragment for unit in plan.units if log_use(plan, unit).on_one_path is not None}
    fragments = {
        name: {**one, "checkpoint": {"continuous": True, **random.choice(_SETTINGS)}}
        if name not in cannot and random.random() < _LOGGED
        else one
        for name, one in config["fragments"].items()
    }
    return {**config, "fragments": fragments}
