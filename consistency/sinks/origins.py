"""Origins stored with a sink's rows (rule S6): they distinguish the runs that wrote them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from consistency.sinks.formats import SinkUnread, delta_table, postgres_server
from spe.connectors.postgres import STREAM, table_parts
from spe.log.provenance import PROVENANCE, read_provenance
from spe.runtime.storage import DiskStorage
from spe.stream.ids import Channel


def check_writer(spec: Mapping[str, Any], recorded: Mapping[Channel, str]) -> None:
    """Compares the origins stored in a sink with those of a recording; unknown ones are not compared.

    Raises SinkUnread: another run has written it, or its results were forgotten.
    """
    known = {channel: origin for channel, origin in recorded.items() if origin}
    read = _READERS.get(str(spec["kind"]))
    if known and read is not None:
        for channel, origin in read(spec, known).items():
            if origin and origin != known[channel]:
                raise SinkUnread(
                    f"written by another run (origin {origin}, that of {channel} here is {known[channel]})"
                )


def _of_folder(spec: Mapping[str, Any], known: Mapping[Channel, str]) -> dict[Channel, str]:
    provenance = read_provenance(DiskStorage(Path(str(spec["path"]))), PurePosixPath(PROVENANCE))
    return {channel: provenance[str(channel)].origin for channel in known if str(channel) in provenance}


def _of_delta(spec: Mapping[str, Any], known: Mapping[Channel, str]) -> dict[Channel, str]:
    with delta_table(spec) as table:
        newest = next(
            (commit_origins for commit in table.history() if (commit_origins := commit.get("tentative-spe"))), None
        )
    return _of_state("" if newest is None else json.loads(newest)["state"], known)


def _of_postgres(spec: Mapping[str, Any], known: Mapping[Channel, str]) -> dict[Channel, str]:
    from psycopg import sql

    owner, table = table_parts(str(spec["table"]))
    states = sql.Identifier(*([owner] if owner else []), "_spe_sinks")
    query = sql.SQL("select state from {} where name = %s").format(states)
    origins: dict[Channel, str] = {}
    with postgres_server(spec) as connection:
        for channel in known:
            row = connection.execute(query, [table.replace(STREAM, channel.stream)]).fetchone()
            origins |= _of_state("" if row is None else bytes(row[0]).decode(), {channel: known[channel]})
    return origins


def _of_state(state: str, known: Mapping[Channel, str]) -> dict[Channel, str]:
    if not state:
        raise SinkUnread("it was forgotten since")
    channels = json.loads(state)["channels"]
    return {channel: str(channels.get(str(channel), {}).get("origin", "")) for channel in known}


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any], Mapping[Channel, str]], dict[Channel, str]]]] = {
    "jsonl": _of_folder,
    "parquet": _of_folder,
    "delta": _of_delta,
    "postgres": _of_postgres,
}
