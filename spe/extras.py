"""Optional dependencies that a configuration needs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

from spe.plan.directory import Directory
from spe.plan.plan import Plan

#: Modules of each extra that a configuration can need; they show whether it is installed.
MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "avro": ("fastavro",),
    "delta": ("deltalake", "pyarrow"),
    "http": ("h11",),
    "kafka": ("confluent_kafka",),
    "parquet": ("pyarrow",),
    "postgres": ("psycopg",),
}
#: Extras of connectors and file formats with other names.
_OTHER: Final = {"sse": "http", "arrow": "parquet"}


def missing_extras(plan: Plan, directory: Directory) -> list[str]:
    """Returns a line for each part of a configuration that needs an extra that is not installed here."""
    used = [(f"sources.{n}.from", s.reader.get(key)) for n, s in plan.sources.items() for key in ("kind", "format")]
    used += [(f"sources.{n}", sink["kind"]) for n, s in plan.sources.items() for sink in (s.late, s.rejected) if sink]
    used += [(f"clients.{n}.sinks", sink["kind"]) for n, c in directory.clients.items() for sink in c.sinks]
    lines = []
    for where, name in used:
        extra = _OTHER.get(str(name), str(name))
        if any(find_spec(module) is None for module in MODULES.get(extra, ())):
            lines.append(f"{where}: {name} needs the extra {extra}: pip install '.[{extra}]'")
    return list(dict.fromkeys(lines))
