"""P3 on disk: in the end recordings and sinks hold the results of a run without failures, in each mode."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import Any

from consistency.checking.counters import Counters
from consistency.checking.finding import Finding
from consistency.checking.verdict import Premise
from consistency.comparison import ChannelRows, compare
from replicas.client.recorder import recorded_stable
from replicas.connectors.formats.json_text import json_lines
from replicas.simulation.features.retention import missing_copies, whole
from replicas.simulation.features.sinks import TABLES
from replicas.simulation.world.cluster import SimCluster, sink_folder
from replicas.simulation.world.disk import SimDisk
from replicas.source.retention import archived
from spe.connectors.declaration import STABLE
from spe.errors import LogCorrupt
from spe.log.origin import read_identity
from spe.log.recording import channel_folder, client_folder
from spe.stream.batch import Batch
from spe.stream.ids import Channel
from spe.stream.names import Kind
from spe.stream.schema import Schema


def check_kept(
    cluster: SimCluster, reference: Mapping[Channel, ChannelRows], premise: Premise, counters: Counters
) -> Iterator[Finding]:
    """Checks recordings and sinks, see the module; of clients that have sinks and are not dead."""
    if not (premise.healed and premise.survivors and premise.quiet):
        return
    plan, at_us = cluster.plan, cluster.history.end_us
    for name, client in cluster.directory.clients.items():
        host = f"client:{name}"
        if not client.sinks or host in premise.dead:
            continue
        disk = cluster.disks[host]
        channels = [Channel(s, p) for s in client.reads for p in range(plan.partitions_of(s))]
        schemas = {c: plan.query.schema_of(c.stream) for c in channels}
        counters.add("recordings compared")
        try:
            recorded = {
                c: recorded_stable(whole(disk, channel_folder(client_folder(name), c)), client_folder(name), {c: s})[c]
                for c, s in schemas.items()
            }
        except LogCorrupt as error:
            # The disk lost synced data; reading the recording reports it, and no more can be required.
            if host in cluster.lied_to:
                counters.add("recordings that tell of a disk that lied")
            else:
                yield Finding("P3", "a recording is complete", at_us, host, str(error))
        else:
            for difference in compare(recorded, {c: reference[c] for c in schemas}):
                yield Finding("P3", "a recording is complete", at_us, host, str(difference))
        for sink in client.sinks:
            counters.add(f"sinks compared, mode {sink['mode']}")
            counters.add(f"sinks compared, {sink['kind']}")
            for channel in channels:
                try:
                    what = _judge(disk, sink, channel, reference[channel], schemas[channel])
                except LogCorrupt as error:
                    what = "" if host in cluster.lied_to else str(error)
                if what:
                    place = f"{sink['kind']} {channel}: {what}"
                    yield Finding("P3", f"a sink is complete, mode {sink['mode']}", at_us, host, place)


def check_archive(cluster: SimCluster) -> Iterator[Finding]:
    """Checks E3: the archive has all segments that a source has deleted, if it has an archive."""
    for stream, source in cluster.plan.sources.items():
        host, folder = f"source:{stream}", PurePosixPath(stream)
        if source.retain is None or not source.retain.archive or stream in cluster.lost_logs:
            continue
        disk = cluster.disks[host]
        place = archived(stream, read_identity(disk, folder))
        for name in missing_copies(disk, folder, cluster.archive, place):
            yield Finding("E3", "what is deleted is archived", cluster.history.end_us, host, name)


def _judge(disk: SimDisk, sink: Mapping[str, Any], channel: Channel, expected: ChannelRows, schema: Schema) -> str:
    """Explains what is wrong with a sink's content of a channel; "" if it equals a run without failures."""
    ids, rows = expected
    if sink["kind"] == "jsonl":
        path = sink_folder(Path(str(sink["path"]))) / f"{channel.stream}.{channel.partition}.jsonl"
        return _lines(disk.read(path).decode() if disk.exists(path) else "", str(sink["mode"]), expected, schema)
    wanted: list[Any]
    if sink["kind"] == "parquet":
        lines: list[Any] = _parts(disk, sink_folder(Path(str(sink["path"]))) / channel.stream, channel.partition)
        held = lines if sink["mode"] == STABLE else _held(lines)
        names = ("_id", "_time", *schema.names)
        each = zip(ids.tolist(), rows.time.tolist(), rows.to_tuples(), strict=True)
        wanted = [dict(zip(names, (id_, time, *values), strict=True)) for id_, time, values in each]
    else:
        table = TABLES.get()[str(sink["table"])].rows
        held = sorted(((id_, *row) for (owner, id_), row in table.items() if owner == channel), key=itemgetter(0))
        wanted = [(id_, False, values) for id_, values in zip(ids.tolist(), rows.to_tuples(), strict=True)]
    for actual, other in zip(map(repr, held), map(repr, wanted), strict=False):  # NaN is NaN
        if actual != other:
            return f"{actual} is held, expected {other}"
    return "" if len(held) == len(wanted) else f"{len(held)} rows are held, expected {len(wanted)}"


def _parts(disk: SimDisk, folder: PurePosixPath, partition: int) -> list[dict[str, Any]]:
    """Returns the rows of complete Parquet parts, in the order of their names, timestamps in microseconds."""
    import pyarrow as pa  # an extra
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = []
    for name in disk.list(folder):
        if name.startswith(f"{partition:04d}-"):
            try:
                table = pq.read_table(io.BytesIO(disk.read(folder / name)))
            except pa.ArrowInvalid as error:
                raise LogCorrupt(f"{folder / name}: {error}") from error
            for at, column in enumerate(table.schema):
                if pa.types.is_timestamp(column.type):
                    table = table.set_column(at, column.name, table.column(at).cast(pa.int64()))
            rows += ({k: v for k, v in row.items() if k != "_partition"} for row in table.to_pylist())
    return rows


def _lines(text: str, mode: str, expected: ChannelRows, schema: Schema) -> str:
    """Explains what is wrong with the lines of a sink; "" if their reader holds exactly the reference."""
    ids, rows = expected
    count = len(ids)
    wanted = [json.loads(line) for line in json_lines(Batch(Kind.STABLE, 0, count, ids, rows), schema, False)]
    try:
        parsed: list[dict[str, Any]] = [json.loads(line) for line in text.split("\n")[:-1]]
    except ValueError as error:
        return f"no lines of JSON: {error}"
    held = parsed if mode == STABLE else _held(parsed)
    for at, (row, other) in enumerate(zip(held, wanted, strict=False)):
        if row != other:
            return f"line {at + 1} of what is held is {row}, expected {other}"
    return "" if len(held) == count else f"{len(held)} rows are held, expected {count}"


def _held(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the rows of a reader that applies corrections as in docs/how-to/read-results.md, with tentative ones
    marked.
    """
    held: list[dict[str, Any]] = []
    for line in lines:
        if line["_kind"] == "undo":
            held = [row for row in held if row["_id"] <= line["_id"]]
        elif line["_kind"] == "insert":
            row = {k: v for k, v in line.items() if k not in ("_kind", "_tentative")}
            held.append(row | {"_tentative": True} if line["_tentative"] else row)
    return held
