"""The connectors that a configuration can name: a line for each reader, and for each sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spe.connectors.declaration import Reader
from spe.connectors.files import CSV, JSONL, PARQUET
from spe.connectors.generator import GENERATOR
from spe.connectors.lines import STDIN, TCP
from spe.connectors.push import PUSH

#: By the key below ``from``.
READERS: Final[Mapping[str, Reader]] = {one.kind: one for one in (CSV, JSONL, PARQUET, GENERATOR, TCP, STDIN, PUSH)}
#: By the key of an entry of ``sinks``, whose value is a folder: what it writes there.
SINKS: Final[Mapping[str, str]] = {
    "parquet": "Parquet files, one after the other",
    "jsonl": "a file of JSON lines for each channel",
}
