"""Readers of files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final

from spe.connectors.declaration import CELLS, Reader, check_numbered


@dataclass(frozen=True)
class File(Reader):
    """A file, whose path may start from the folder of the data."""

    def check(self, given: Mapping[str, Any]) -> None:
        super().check(given)
        if given.get("header") is False:
            check_numbered(given)

    def reader(self, value: Any, data: Path) -> dict[str, Any]:
        return {"path": str((data / Path(value).expanduser()).absolute())}

    def describe(self, reader: Mapping[str, Any]) -> str:
        return f"{self.kind} {PurePath(str(reader['path'])).name}"


CSV: Final = File("csv", str, "PATH", "a file with a row per line", CELLS)
JSONL: Final = File("jsonl", str, "PATH", "a file with a JSON object per line", ("columns", "timestamps"))
PARQUET: Final = File("parquet", str, "PATH", "a Parquet file", ("columns", "timestamps", "sort"))
