"""The reader of batches that other programs push."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from pydantic import BeforeValidator

from spe.connectors.declaration import Reader
from spe.values import names_of


def _writers(value: Any) -> tuple[str, ...]:
    names = names_of(value)
    if not names:
        raise ValueError("expected at least one name, of who may push")
    return names


@dataclass(frozen=True)
class Pushes(Reader):
    """Batches of named writers, each taken once."""

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
)
