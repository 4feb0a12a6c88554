"""Optional dependencies that a configuration asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Final

from spe.plan.directory import Directory
from spe.plan.plan import Plan

#: Modules that show whether an extra is installed, of those that a configuration can ask for.
MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "avro": ("fastavro",),
    "delta": ("deltalake", "pyarrow"),
    "http": ("h11",),
    "kafka": ("confluent_kafka",),
    "parquet": ("pyarrow",),
    "postgres": ("psycopg",),
}
#: The extra of a kind of connector or a file format, where that has another name.
_OTHER: Final = {"sse": "http", "arrow": "parquet"}


def missing_extras(plan: Plan, directory: Directory) -> list[str]:
    """A line for each part of a configuration that needs an extra which is not installed here."""
    lines = []
    for where, name in _used(plan, directory):
        extra = _OTHER.get(name, name)
        if any(find_spec(module) is None for module in MODULES.get(extra, ())):
            lines.append(f"{where}: {name} needs the extra {extra}: pip install '.[{extra}]'")
    return list(dict.fromkeys(lines))


def _used(plan: Plan, directory: Directory) -> Iterator[tuple[str, str]]:
    """(place in the configuration, kind of connector or file format)."""
    for stream, source in plan.sources.items():
        yield f"sources.{stream}.from", str(source.reader.get("kind"))
        yield f"sources.{stream}.from", str(source.reader.get("format"))
        sinks = (source.late, source.rejected)
        yield from ((f"sources.{stream}", str(sink["kind"])) for sink in sinks if sink is not None)
    for name, client in directory.clients.items():
        yield from ((f"clients.{name}.sinks", str(sink["kind"])) for sink in client.sinks)
