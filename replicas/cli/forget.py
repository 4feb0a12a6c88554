"""``spe forget``: makes the sinks of a process on servers begin anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from replicas.connectors.server_sink import GOODBYE_S, ServerSink
from replicas.connectors.sink_registry import Schemas, open_sink
from replicas.local.run_dir import Target, load_target
from replicas.local.run_over import refuse_running
from replicas.source.late_rows import late_schema
from replicas.source.own_sink import own_channel
from spe.connectors import find_sink
from spe.connectors.files import Folder
from spe.errors import SpeError
from spe.log.rejected_rows import REJECTED
from spe.problems import check_known
from spe.runtime.env import Env
from spe.runtime.storage import in_folder
from spe.stream.ids import Channel
from spe.stream.names import StreamId


def forget(path: Path, process: str) -> int:
    """Removes the rows and the positions of a client's or source's sinks from their servers.

    Raises:
      SpeError: there is no such process, it has no sinks on servers, a server does not answer, or the run goes on.
    """
    target = load_target(path)
    refuse_running(target)
    opened = (open_sink(*declared, in_folder) for declared in _sinks(target, process) if not _is_folder(declared[0]))
    sinks = [sink for sink in opened if isinstance(sink, ServerSink)]
    if not sinks:
        raise SpeError(f"{process} has no sinks on servers; of files, remove the folders")
    trio.run(_forget, target.env(), sinks)
    return 0


def _sinks(target: Target, process: str) -> Sequence[tuple[Mapping[str, Any], Schemas]]:
    plan, (kind, _, name) = target.plan, process.partition(":")
    if kind == "client":
        check_known("client", name, target.directory.clients)
        client = target.directory.clients[name]
        channels = [Channel(s, p) for s in client.reads for p in range(plan.partitions_of(s))]
        return [(spec, {c: plan.query.schema_of(c.stream) for c in channels}) for spec in client.sinks]
    if kind == "source":
        check_known("source", name, plan.sources)
        stream, source = StreamId(name), plan.sources[StreamId(name)]
        own = (("late", source.late, late_schema(source.schema)), ("rejected", source.rejected, REJECTED))
        return [(spec, {own_channel(stream, what): rows}) for what, spec, rows in own if spec is not None]
    raise SpeError(f"expected client:NAME or source:NAME, got {process!r}")


def _is_folder(spec: Mapping[str, Any]) -> bool:
    return isinstance(find_sink(str(spec["kind"])), Folder)


async def _forget(env: Env, sinks: Sequence[ServerSink]) -> None:
    for sink in sinks:
        try:
            print(f"{sink.name}: {await sink.forget(env)}")
        finally:
            with trio.move_on_after(GOODBYE_S, shield=True):
                await sink.disconnect()
