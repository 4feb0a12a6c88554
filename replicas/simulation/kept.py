"""P3 on disk: in the end recordings and sinks hold what a run without failures gives, in each mode."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from consistency.checking.counters import Counters
from consistency.checking.finding import Finding
from consistency.checking.verdict import Premise
from consistency.comparison import ChannelRows, compare
from replicas.client.recorder import recorded_stable
from replicas.connectors.json_text import json_lines
from replicas.simulation.cluster import SimCluster, sink_folder
from replicas.simulation.retention import missing_copies, whole
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
    """See the module; of clients that have sinks, and are not dead."""
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
            # The disk lost what it said was synced; reading the recording says so, and no more can be asked for.
            if host in cluster.lied_to:
                counters.add("recordings that tell of a disk that lied")
            else:
                yield Finding("P3", "a recording is complete", at_us, host, str(error))
        else:
            for difference in compare(recorded, {c: reference[c] for c in schemas}):
                yield Finding("P3", "a recording is complete", at_us, host, str(difference))
        for sink in client.sinks:
            counters.add(f"sinks compared, mode {sink['mode']}")
            for channel in channels:
                path = sink_folder(Path(str(sink["path"]))) / f"{channel.stream}.{channel.partition}.jsonl"
                text = disk.read(path).decode() if disk.exists(path) else ""
                if what := _lines(text, str(sink["mode"]), reference[channel], schemas[channel]):
                    yield Finding("P3", f"a sink is complete, mode {sink['mode']}", at_us, host, f"{path}: {what}")


def check_archive(cluster: SimCluster) -> Iterator[Finding]:
    """E3: what a source has deleted lies in its archive, if it has one."""
    for stream, source in cluster.plan.sources.items():
        host, folder = f"source:{stream}", PurePosixPath(stream)
        if source.retain is None or not source.retain.archive or stream in cluster.lost_logs:
            continue
        disk = cluster.disks[host]
        place = archived(stream, read_identity(disk, folder))
        for name in missing_copies(disk, folder, cluster.archive, place):
            yield Finding("E3", "what is deleted is archived", cluster.history.end_us, host, name)


def _lines(text: str, mode: str, expected: ChannelRows, schema: Schema) -> str:
    """What is wrong with the lines of a sink; "" where a reader of them holds exactly the reference."""
    ids, rows = expected
    count = len(ids)
    wanted = [json.loads(line) for line in json_lines(Batch(Kind.STABLE, 0, count, ids, rows), schema, False)]
    try:
        found: list[dict[str, Any]] = [json.loads(line) for line in text.split("\n")[:-1]]
    except ValueError as error:
        return f"no lines of JSON: {error}"
    held = found if mode == STABLE else _held(found)
    for at, (one, other) in enumerate(zip(held, wanted, strict=False)):
        if one != other:
            return f"line {at + 1} of what is held is {one}, expected {other}"
    return "" if len(held) == count else f"{len(held)} rows are held, expected {count}"


def _held(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a reader holds who applies corrections as docs/how-to/read-results.md says; tentative rows are marked."""
    held: list[dict[str, Any]] = []
    for line in lines:
        if line["_kind"] == "undo":
            held = [row for row in held if row["_id"] <= line["_id"]]
        elif line["_kind"] == "insert":
            row = {k: v for k, v in line.items() if k not in ("_kind", "_tentative")}
            held.append(row | {"_tentative": True} if line["_tentative"] else row)
    return held
