"""``spe forget``: the sinks of a process on servers begin anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from replicas.connectors.server_sink import GOODBYE_S, ServerSink
from replicas.connectors.sink_registry import Schemas, open_sink
from replicas.source.late_rows import late_schema
from replicas.source.own_sink import own_channel
from spe.cli.run_dir import Target, load_target
from spe.connectors import find_sink
from spe.connectors.files import Folder
from spe.errors import SpeError
from spe.log.rejected import REJECTED
from spe.problems import check_known
from spe.runtime.storage import in_folder
from spe.stream.ids import Channel


def forget(path: Path, process: str) -> int:
    """Removes what is known of earlier results at the servers of a client's or source's sinks, and the rows.

    Raises:
      SpeError: there is no such process, it has no sinks on servers, or a server does not answer.
    """
    target = load_target(path)
    sinks = [(spec, schemas) for spec, schemas in _sinks(target, process) if not _is_folder(spec)]
    if not sinks:
        raise SpeError(f"{process} has no sinks on servers; of files, remove the folders")
    trio.run(_forget, target, sinks)
    return 0


def _sinks(target: Target, process: str) -> Sequence[tuple[Mapping[str, Any], Schemas]]:
    plan = target.plan
    kind, _, name = process.partition(":")
    if kind == "client":
        check_known("client", name, target.directory.clients)
        client = target.directory.clients[name]
        channels = [Channel(s, p) for s in client.reads for p in range(plan.partitions_of(s))]
        schemas = {c: plan.query.schema_of(c.stream) for c in channels}
        return [(spec, schemas) for spec in client.sinks]
    if kind == "source":
        check_known("source", name, plan.sources)
        source = next(one for stream, one in plan.sources.items() if stream == name)
        own = (("late", source.late, late_schema(source.schema)), ("rejected", source.rejected, REJECTED))
        return [(spec, {own_channel(source.stream, what): rows}) for what, spec, rows in own if spec is not None]
    raise SpeError(f"expected client:NAME or source:NAME, got {process!r}")


def _is_folder(spec: Mapping[str, Any]) -> bool:
    return isinstance(find_sink(str(spec["kind"])), Folder)


async def _forget(target: Target, sinks: Sequence[tuple[Mapping[str, Any], Schemas]]) -> None:
    for spec, schemas in sinks:
        sink = open_sink(spec, schemas, in_folder)
        assert isinstance(sink, ServerSink)
        try:
            print(f"{sink.name}: {await sink.forget(target.env())}")
        finally:
            with trio.move_on_after(GOODBYE_S, shield=True):
                await sink.disconnect()
