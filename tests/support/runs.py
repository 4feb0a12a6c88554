"""Directories of runs, made without running anything: what the proof reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio
import yaml

from replicas.client.recorder import Recorder
from spe import RUN_VERSION
from spe.config import load_data
from spe.log.announced_settings import RecordedAnnouncement
from spe.log.recording import client_folder
from spe.log.segmented import SegmentedLog
from spe.log.source_log import SourceState, encode_source_record, source_folder
from spe.plan.deploy import with_default_client
from spe.plan.plan import Plan
from spe.runtime.storage import DiskStorage
from spe.stream.batch import Batch, Boundary, Element
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from spe.stream.schema import Schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A source, and an output of it.
FILTERED: dict[str, Any] = {
    "sources": {
        "a": {
            "schema": {"ts": "timestamp", "n": "int64"},
            "time": "ts",
            "from": {"jsonl": "in.jsonl"},
            "replay": {"max": True},
        }
    },
    "query": {"out": {"filter": {"from": "a", "where": "n > 0"}}},
    "outputs": ["out"],
}


def make_run(
    path: Path,
    config: Mapping[str, Any],
    inputs: Mapping[StreamId, Iterable[Element]],
    received: Mapping[str, Iterable[Change]] | None = None,
    events: Sequence[Mapping[str, Any]] = (),
    *,
    segment_bytes: int = 1 << 20,
    begun: SourceState = SourceState(),  # noqa: B008
    announced: Sequence[RecordedAnnouncement] = (),
    data: Path | None = None,
    summary: Mapping[str, Any] | None = None,
) -> Plan:
    """A directory as ``spe run`` leaves it: configuration, logs of ``inputs``, recordings of ``received`` by client.

    Args:
      begun: state of each source before its first element.
      data: where files of sources lie; in the directory itself by default.
    """
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(dict(config), sort_keys=False))
    plan, directory = load_data(config, folder=data or path)
    directory = with_default_client(plan, directory)
    facts: dict[str, Any] = {"version": RUN_VERSION, "data": str(data or path), "fingerprint": plan.fingerprint}
    facts |= {"versions": {"spe": "0"}, "origins": {}}
    (path / "cluster.json").write_text(json.dumps(facts))
    (path / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    if summary is not None:
        (path / "summary.json").write_text(json.dumps(summary))
    for stream, elements in inputs.items():
        schema = plan.sources[stream].schema
        write_source_log(path, stream, schema, elements, segment_bytes=segment_bytes, begun=begun)
    for client in directory.clients.values():
        schemas = {Channel(s, p): plan.query.schema_of(s) for s in client.reads for p in range(plan.partitions_of(s))}
        for channel in schemas:
            (path / client_folder(client.name) / f"{channel.stream}.{channel.partition}").mkdir(parents=True)
        recorder = Recorder(DiskStorage(path), client_folder(client.name), schemas, segment_bytes=segment_bytes)
        for change in (received or {}).get(client.name, ()):
            recorder.write(change)
        for heard in announced:
            recorder.announced(*heard)
        recorder.close()
    return plan


def write_source_log(
    path: Path,
    stream: StreamId,
    schema: Schema,
    elements: Iterable[Element],
    *,
    segment_bytes: int = 1 << 20,
    begun: SourceState = SourceState(),  # noqa: B008
) -> None:
    """The log of a source that sent these elements, below the directory of a run."""

    def bodies() -> Iterator[bytes]:
        state = begun
        for element in elements:
            batch = element if isinstance(element, Batch) else None
            if isinstance(element, Boundary):
                state = state._replace(bound_us=element.time)
            elif batch is not None:
                state = state._replace(last_id=batch.upto_id, consumed=batch.upto_id)
            yield encode_source_record(state, batch, schema)

    write_source_records(path, stream, bodies(), segment_bytes=segment_bytes)


def write_source_records(
    path: Path, stream: StreamId, bodies: Iterable[bytes], *, segment_bytes: int = 1 << 20
) -> None:
    """The log of a source with these records."""

    async def write() -> None:
        log = await SegmentedLog.open(DiskStorage(path), source_folder(stream), segment_bytes=segment_bytes)
        for body in bodies:
            log.append(body)
            if log.last_sequence % 16 == 0:
                await log.sync()
        await log.sync()
        log.close()

    trio.run(write)


def mounted(spark: SparkSession, folder: Path, name: str) -> str:
    """URI of a folder on a file system of its own: Hadoop's ViewFs, with the folder mounted as /runs."""
    settings = spark._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
    settings.set(f"fs.viewfs.mounttable.{name}.link./runs", folder.as_uri())
    return f"viewfs://{name}/runs"
