"""Compares each sink of a run with its recording: the client's; for late and rejected rows the log of the source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from consistency.comparison import ChannelRows, compare
from consistency.sinks.entries import Entries
from consistency.sinks.formats import FORMATS, SinkUnread
from consistency.sinks.origins import check_writer
from spe.connectors import find_sink
from spe.connectors.files import Folder
from spe.errors import SpeError
from spe.log import read_log
from spe.log.log_start import need_judged, read_kept
from spe.log.origin import read_identity
from spe.log.provenance import PROVENANCE, read_provenance
from spe.log.recording import channel_folder, client_folder, read_recorded
from spe.log.rejected_rows import REJECTED
from spe.log.source_log import decode_rejected, decode_source_batch, source_folder
from spe.plan.directory import Directory
from spe.plan.plan import Plan, Source
from spe.runtime.storage import DiskStorage
from spe.stream.batch import Batch, Column, Int64Array, Rows, concat_rows
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.strings import StringPool


class SinkFound(NamedTuple):
    """Result of a comparison: kind, place and owner of the sink, final rows, whether they equal the recording (None:
    not compared), and a text."""

    sink: str
    rows: int
    equal: bool | None
    text: str


class _Recording(NamedTuple):
    """The expected rows of a client's or a source's sinks, and their origins (S6); "" if unknown."""

    rows: Mapping[Channel, ChannelRows]
    origins: Mapping[Channel, str]


def judge_sinks(
    plan: Plan, directory: Directory, folder: Path, *, complete: bool, root: Path | None = None
) -> Iterator[SinkFound]:
    """Yields a result for every sink that the configuration names, except those that nodes write.

    Args:
      folder: of the run.
      complete: False for a run that was broken off: rows that a sink has not reached yet are not missing.
      root: base of relative paths of sinks; None: as in ``spe run``.
    """
    storage, root = DiskStorage(folder), folder / "output" if root is None else root
    for name, client in directory.clients.items():
        schemas = {Channel(s, p): plan.query.schema_of(s) for s in client.reads for p in range(plan.partitions_of(s))}
        of_client = partial(_recorded, storage, client_folder(name), schemas)
        yield from _judged_all(client.sinks, f"client {name}", schemas, of_client, root, complete)
    for source in plan.sources.values():
        late = Schema((*source.schema, Attribute("_late_us", AttributeType.INT64, nullable=False)))
        for what, own, schema in (("late", source.late, late), ("rejected", source.rejected, REJECTED)):
            schemas = {Channel(StreamId(f"{source.stream}.{what}"), 0): schema}
            of_source = partial(_logged, storage, source, what, schemas)
            yield from _judged_all(
                () if own is None else (own,), f"{what} rows of {source.stream}", schemas, of_source, root, complete
            )


def _judged_all(
    specs: Sequence[Mapping[str, Any]],
    owner: str,
    schemas: Mapping[Channel, Schema],
    recording: Callable[[], _Recording],
    root: Path,
    complete: bool,
) -> Iterator[SinkFound]:
    """Judges the sinks of one recording, which is read if there are any."""
    try:
        recorded = recording() if specs else _Recording({}, {})
    except SpeError as error:
        yield from (SinkFound(_name(spec, owner), 0, None, f"not compared: {error}") for spec in specs)
    else:
        yield from (_judged(spec, owner, schemas, recorded, root, complete) for spec in specs)


def _judged(
    spec: Mapping[str, Any],
    owner: str,
    schemas: Mapping[Channel, Schema],
    recorded: _Recording,
    root: Path,
    complete: bool,
) -> SinkFound:
    name = _name(spec, owner)
    if isinstance(find_sink(str(spec["kind"])), Folder):
        spec = {**spec, "path": str(root / str(spec["path"]))}
    read = FORMATS.get(str(spec["kind"]))
    if read is None:
        return SinkFound(
            sink=name, rows=0, equal=None, text=f"not compared: what {spec['kind']} has got is not read again"
        )
    wrong: list[str] = []
    rows, left = 0, 0
    try:
        check_writer(spec, recorded.origins)
        for channel, entries in read(spec, schemas):
            count, tentative, differing = _compared(channel, entries, schemas[channel], recorded, complete)
            rows, left = rows + count, left + tentative
            wrong += differing
    except (ImportError, SpeError) as error:
        return SinkFound(sink=name, rows=0, equal=None, text=f"not compared: {error}")
    except (ValueError, KeyError, TypeError, OSError) as error:
        return SinkFound(sink=name, rows=rows, equal=False, text=f"cannot be read: {type(error).__name__}: {error}")
    if not (rows or complete):
        text = "not compared: nothing is there yet that its recording has, too"
        return SinkFound(sink=name, rows=0, equal=None, text=text)
    if wrong and isinstance(find_sink(str(spec["kind"])), Folder) and not Path(spec["path"]).is_dir():
        wrong.insert(0, f"there is no {spec['path']}")
    if left and complete:
        wrong.append(f"{left:,} tentative left")
    result = f"not as recorded: {'; '.join(wrong)}" if wrong else "equal to its recording"
    result += "" if complete or wrong else ", as far as both go"
    return SinkFound(sink=name, rows=rows, equal=not wrong, text=f"{rows:,} row{'' if rows == 1 else 's'}, {result}")


def _compared(
    channel: Channel, entries: Entries, schema: Schema, recorded: _Recording, complete: bool
) -> tuple[int, int, list[str]]:
    """Returns the numbers of stable and of tentative rows of a channel in a sink, and how the stable ones differ."""
    ids, final_rows, tentative = entries.answer()
    ids, final_rows = _within(ids, final_rows, recorded.rows[channel][0], complete=complete)
    names, true = {str(channel.stream): schema.names}, {channel: recorded.rows[channel]}
    differing = compare({channel: (ids, final_rows)}, true, complete=complete, names=names, other="recording")
    return len(ids), tentative, [str(difference) for difference in differing]


def _name(spec: Mapping[str, Any], owner: str) -> str:
    declared = find_sink(str(spec["kind"]))
    return f"{spec['kind']} {'' if declared is None else declared.place(spec)} of {owner}"


def _within(ids: Int64Array, rows: Rows, recorded: Int64Array, *, complete: bool) -> ChannelRows:
    """Selects rows that the recording can have: ``retain`` deletes its beginning, and a kill may lose its end."""
    if not len(recorded):
        return (ids, rows) if complete else (ids[:0], rows.slice(0, 0))
    inside = ids >= recorded.min()
    if not complete:
        inside &= ids <= recorded.max()
    return ids[inside], rows.select(inside)


def _recorded(storage: DiskStorage, folder: PurePosixPath, schemas: Mapping[Channel, Schema]) -> _Recording:
    """Reads a recording.  Raises SpeError: it is damaged, or all of a channel was deleted."""
    rows_of = {}
    for channel, schema in schemas.items():
        place = channel_folder(folder, channel)
        elements = (record.element for record in read_recorded(storage, place, schema))
        rows_of[channel] = _joined((e for e in elements if isinstance(e, Batch) and e.kind is Kind.STABLE), schema)
        if not len(rows_of[channel][0]) and read_kept(storage, place).last_id:
            raise SinkUnread(f"`retain` has deleted {place}")
    known = read_provenance(storage, folder / PROVENANCE)
    return _Recording(rows_of, {c: known[str(c)].origin for c in schemas if str(c) in known})


def _joined(batches: Iterator[Batch], schema: Schema) -> ChannelRows:
    """Returns ids and rows; a sink has no ``t_max``."""
    some = [batch for batch in batches if len(batch)]
    if not some:
        return np.empty(0, np.int64), Rows.empty(schema)
    rows = concat_rows([batch.rows for batch in some])
    return np.concatenate([batch.row_ids() for batch in some]), Rows(rows.time, rows.time, rows.columns)


def _logged(storage: DiskStorage, source: Source, what: str, schemas: Mapping[Channel, Schema]) -> _Recording:
    """Reads late or rejected rows from the log of their source.  Raises SpeError: it is damaged, or incomplete."""
    need_judged(storage, source_folder(source.stream), source_folder(source.stream))
    pool, bodies = StringPool(), (record.body for record in read_log(storage, source_folder(source.stream)))
    ((channel, schema),) = schemas.items()
    origins = {channel: read_identity(storage, source_folder(source.stream))}
    if what == "rejected":
        rejected = (batch for body in bodies if (batch := decode_rejected(body, pool)) is not None)
        return _Recording({channel: _joined(rejected, schema)}, origins)
    assert source.time is not None
    at = source.schema.index(source.time)
    logged = (decode_source_batch(body, source.schema, pool) for body in bodies)
    rows = _joined((_late(batch, at) for batch in logged if batch is not None), schema)
    return _Recording({channel: rows}, origins)


def _late(batch: Batch, at: int) -> Batch:
    """Returns the rows whose stamp lies behind their event time."""
    by_us = batch.rows.time - batch.rows.columns[at].values
    late = batch.select(by_us > 0)
    rows = late.rows.with_columns((*late.rows.columns, Column(by_us[by_us > 0])))
    return Batch(late.kind, late.from_id, late.upto_id, late.ids, rows)
