"""The reader of batches pushed by other programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from pydantic import BeforeValidator

from spe.connectors.declaration import Guarantees, Reader
from spe.values import names_of


def _writers(value: Any) -> tuple[str, ...]:
    names = names_of(value)
    if not names:
        raise ValueError("expected at least one name, of who may push")
    return names


@dataclass(frozen=True)
class Pushes(Reader):
    """Takes batches of named writers, each once."""

    live: ClassVar = True
    batches: ClassVar = True

    def reader(self, value: tuple[str, ...], data: Path) -> dict[str, Any]:
        return {"writers": value}

    def describe(self, reader: Mapping[str, Any]) -> str:
        return f"pushed by {', '.join(reader['writers'])}"


PUSH: Final = Pushes(
    "push",
    Annotated[tuple[str, ...], BeforeValidator(_writers)],
    "[NAME]",
    "batches that [a Spark query](../how-to/spark.md) of that name, or several, push to the source's address",
    guarantees=Guarantees(
        durable="the source's disk, before a batch is answered",
        own_crash="what was answered is there, once; what was not is sent again",
        other_crash="a batch is taken whole or not at all; parts of attempts that failed are no rows",
        failures={
            "an answer is lost": "the writer commits again; a batch that is known is not taken again",
            "the disk is full": "the writer waits",
            "a row does not fit the schema": "its part is refused, with the number of the row",
            "`spe end`": "when each writer has ended, the stream ends behind what was committed; later batches are "
            "refused, also after restarts",
        },
    ),
    opens="replicas.source.push:PushIntake",
    example="from: {push: [etl]}",
)
