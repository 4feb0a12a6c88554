"""The ``recovery`` section: what is worth most of what was lost (rule O2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from spe.config.validate import validated
from spe.plan.directory import RecoverySettings
from spe.problems import Problems, did_you_mean, one_of
from spe.stream.names import StreamId
from spe.values import Model, Positive


class RecoveryModel(Model):
    """What a recovery restores first."""

    value: Literal["fidelity", "complete"] = "fidelity"
    priorities: dict[str, Positive] = Field(default_factory=dict)

    def settings(self) -> RecoverySettings:
        return RecoverySettings(self.value, {StreamId(name): worth for name, worth in self.priorities.items()})


def read_recovery(section: Any, outputs: Sequence[StreamId], problems: Problems) -> RecoverySettings:
    """The settings; priorities are of outputs."""
    model = validated(RecoveryModel, {} if section is None else section, ("recovery",), problems) or RecoveryModel()
    for name in model.priorities:
        if name not in outputs:
            hint = did_you_mean(name, outputs)
            problems.add(
                ("recovery", "priorities", name), f"no output {name!r}{hint}; expected {one_of(list(outputs))}"
            )
    return model.settings()
