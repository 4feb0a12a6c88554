"""Is every row of a source's input in its log?  Counted in the input itself, not by what the source says it read."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from consistency.proof.comparing.digests import COMPARED
from consistency.proof.recorded.query_file import SourceEntry, duration_us
from consistency.proof.recorded.run import Run
from consistency.proof.report.words import count, plural
from spe.log.source_log import SourceState
from spe.stream.names import StreamId
from spe.stream.times import END_OF_TIME

#: Malformed rows that a source keeps aside each time it is started; the others are counted in the summary only.
_KEPT: Final = 10_000
#: The upper limit where the number is not known.
_ANY: Final = 2**62


class _Range(NamedTuple):
    """How many rows, as far as is known: at least and at most, both included."""

    least: int
    most: int


class InputFindings(NamedTuple):
    """What is wrong with a log by its input, and how they were compared."""

    flaws: list[str]
    compared: str


def against_input(
    run: Run, stream: StreamId, source: SourceEntry, state: SourceState, ended_us: int, content: tuple[int, int]
) -> InputFindings:
    """Compares the log of a source with its input: by content where that can be read again, else by number.

    Args:
      content: sums of digests in the log.
    """
    from consistency.proof.comparing.source_contents import NotCompared, differences, read_file
    from consistency.proof.recorded.table_source import source_table

    table, ended = source_table(run, stream), state.bound_us >= END_OF_TIME
    try:
        if run.origin:
            raise NotCompared("the run is on another file system")
        file = None if source.kind == "generator" or source.live else _file(run, source, ended_us)
        if source.kind in COMPARED and file is None:
            raise NotCompared("its file is gone, or was changed after the run")
        found = read_file(file or Path(), source, table.schema)
    except Exception as error:  # libraries raise many types for a damaged file
        return InputFindings(unaccounted(run, stream, source, state, ended_us), f"not compared: {error}")
    flaws = unaccounted(run, stream, source, state, ended_us, len(found.plain))
    refused = _refused(run, stream).most
    flaws += differences(found, table, state.last_id, content, refused, ended=ended)
    odd = int((~found.plain).sum())
    return InputFindings(flaws, "compared by content" + (f", but for {plural(odd, 'row')}" if odd else ""))


def _file(run: Run, source: SourceEntry, ended_us: int) -> Path | None:
    """The file of a source, as it was in the run; None: it is gone or was changed."""
    return _unchanged(
        Path(str(run.facts.get("data", run.path))) / Path(source.reader[source.kind]).expanduser(), ended_us
    )


def _unchanged(file: Path, ended_us: int) -> Path | None:
    return file if file.is_file() and file.stat().st_mtime_ns // 1000 <= ended_us else None


def unaccounted(
    run: Run, stream: StreamId, source: SourceEntry, state: SourceState, ended_us: int, rows: int | None = None
) -> list[str]:
    """Rows that are neither in the log nor among those that were set aside; a sentence, if there are any.

    How many were set aside is not always known exactly; then only what no possible number explains is told.

    Args:
      state: of the log in the end.
      ended_us: wall time at which the run ended: a file that was changed later is not counted.
      rows: of the input, where they were counted.
    """
    if state.bound_us < END_OF_TIME:
        return []  # only the source itself knows how far it came in its input
    if rows is None:
        rows = input_rows(source, Path(str(run.facts.get("data", run.path))), ended_us)
    if rows is None:
        return []
    malformed, refused = _malformed(run, stream), _refused(run, stream)
    beside = rows - state.last_id
    lost = beside - malformed.most - refused.most
    if lost > 0:
        what = f"{plural(lost, 'row')} of its input {'is' if lost == 1 else 'are'} missing in its log"
        aside = (malformed.most, refused.most)
    elif beside < malformed.least + refused.least:
        what = "its log has too many tuples"
        aside = (malformed.least, refused.least)
    else:
        return []
    return [
        f"{what}: {count(rows)} rows, {count(state.last_id)} tuples, {count(aside[0])} malformed, "
        f"{count(aside[1])} refused"
    ]


def input_rows(source: SourceEntry, data: Path, ended_us: int) -> int | None:
    """Rows of a source's input, malformed ones included; None where they cannot be counted any more.

    Args:
      data: where relative paths start from.
      ended_us: a file that was changed later is another one.
    """
    given = source.reader
    if source.live:
        return None
    if source.kind == "generator":
        if given.get("count") is not None:
            return int(given["count"])
        if given.get("duration") is None:
            return None
        return round(duration_us(given["duration"]) * float(given.get("rate") or 1000.0) / 1e6)
    try:
        file = _unchanged(data / Path(given[source.kind]).expanduser(), ended_us)
        return None if file is None else _rows_of_file(file, source)
    except Exception:  # the readers of Parquet, Arrow and Avro raise many types for a damaged file, or are not here
        return None


def _rows_of_file(file: Path, source: SourceEntry) -> int:
    if source.kind == "parquet":
        from pyarrow.parquet import ParquetFile

        with ParquetFile(file) as opened:
            return int(opened.metadata.num_rows)
    if source.kind in ("arrow", "avro"):
        return _rows_of_batches(file, source.kind)
    given = source.reader
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
        if source.kind == "jsonl":
            return sum(1 for line in lines if not line.isspace())
        rows = csv.reader(
            lines, delimiter=given.get("delimiter") or ",", quotechar=given.get("quote") or '"', strict=True
        )
        if str(given.get("header")).lower() != "false":
            next(rows, None)  # also where it is blank, which is no record
        return _records(rows)


def _rows_of_batches(file: Path, kind: str) -> int:
    """Rows of an Avro container, by its blocks; or of Arrow IPC, a file or a stream."""
    with file.open("rb") as opened:
        if kind == "avro":
            import fastavro

            return sum(block.num_records for block in fastavro.block_reader(opened))
        from pyarrow import ipc

        if opened.read(6) == b"ARROW1":
            found = ipc.open_file(file)
            return sum(found.get_batch(n).num_rows for n in range(found.num_record_batches))
        opened.seek(0)
        return sum(batch.num_rows for batch in ipc.open_stream(opened))


def _records(rows: Any) -> int:
    """Records of a CSV reader: blank lines are none, and what is no CSV is one."""
    found = 0
    while True:
        try:
            for row in rows:
                found += bool(row)
            return found
        except csv.Error:
            found += 1


def _malformed(run: Run, stream: StreamId) -> _Range:
    """Rows that were set aside since they could not be understood.

    Each is kept with its line, so one that was read again after a restart is known.  Where not each was kept, there is
    the summary besides, which counts it once for each time that it was read.
    """
    lines, torn = _kept_lines(run.path / "malformed" / f"{stream}.jsonl")
    kept, counted, starts = len(set(lines)), _said(run, stream, "malformed"), _said(run, stream, "starts")
    if counted <= len(lines) < _KEPT and not torn:
        return _Range(kept, kept)
    most = max(kept, counted)
    if starts == 1:
        return _Range(most, most)
    # The last status of a start that was killed may be older than what it read: there may be more than were kept.
    return _Range(kept, _ANY if torn or len(lines) >= _KEPT else most)


def _kept_lines(file: Path) -> tuple[list[int], bool]:
    """Numbers of lines that were set aside; and whether some are lost, as a full disk or a power failure tears them."""
    try:
        texts = file.read_bytes().splitlines(keepends=True)
    except OSError:
        return [], False
    found = []
    for text in texts:
        try:
            found.append(int(json.loads(text)["line"]))
        except (ValueError, KeyError, TypeError):
            continue
    return found, len(found) < len(texts)


def _refused(run: Run, stream: StreamId) -> _Range:
    """Rows that were refused for their event times: counted by each start, and not kept."""
    counted = _said(run, stream, "refused_ahead")
    return _Range(counted if _said(run, stream, "starts") == 1 else 0, counted)


def _said(run: Run, stream: StreamId, what: str) -> int:
    """A number of the summary about a source; 0 where it does not say."""
    return sum(int(s.get(what) or 0) for s in run.summary.get("sources", ()) if s.get("source") == stream)
