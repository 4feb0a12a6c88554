"""The ``recovery`` section: the order in which lost partitions are recovered (rule O2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from spe.config.validate import validated
from spe.plan.directory import ExpectedLoad, RecoverySettings
from spe.problems import Problems, did_you_mean, one_of
from spe.stream.names import StreamId, UnitId
from spe.values import Length, Model, Positive


def _each(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _load(value: Any) -> Any:
    return value if isinstance(value, dict) else {"load": value}


_Cores = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class LoadModel(Model):
    """Load of a unit's partitions: one number for all, or one for each."""

    load: Annotated[tuple[_Cores, ...], BeforeValidator(_each)] = ()
    work: Annotated[tuple[Length, ...], BeforeValidator(_each)] = ()


class RecoveryModel(Model):
    """Order of recoveries.

    Attributes:
      value: partial results count; `complete`: only outputs of which nothing is missing.
      priorities: what outputs are worth against each other. Default: 1 each.
      loads: by unit, cores that are kept for each partition, and how long an install takes (`work`); one for all or
        a list. Default: as measured.
    """

    value: Literal["fidelity", "complete"] = "fidelity"
    priorities: dict[str, Positive] = Field(default_factory=dict)
    loads: dict[str, Annotated[LoadModel, BeforeValidator(_load)]] = Field(default_factory=dict)

    def settings(self) -> RecoverySettings:
        return RecoverySettings(
            self.value,
            {StreamId(name): worth for name, worth in self.priorities.items()},
            {UnitId(name): ExpectedLoad(load.load, load.work) for name, load in self.loads.items()},
        )


def read_recovery(section: Any, outputs: Sequence[StreamId], problems: Problems) -> RecoverySettings:
    """Reads the settings, and checks that priorities name outputs."""
    model = validated(RecoveryModel, {} if section is None else section, ("recovery",), problems) or RecoveryModel()
    for name in model.priorities:
        if name not in outputs:
            hint = did_you_mean(name, outputs)
            problems.add(
                ("recovery", "priorities", name), f"no output {name!r}{hint}; expected {one_of(list(outputs))}"
            )
    return model.settings()
