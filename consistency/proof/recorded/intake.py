"""Checks that every row of a source's input is in its log; rows are counted in the input, not by the source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, NamedTuple

from consistency.proof.comparing.digests import COMPARED
from consistency.proof.comparing.source_contents import (
    NotCompared,
    csv_records,
    differences,
    opened_lines,
    read_file,
)
from consistency.proof.recorded.query_file import SourceEntry, duration_us
from consistency.proof.recorded.run import Run
from consistency.proof.recorded.table_source import source_table
from consistency.proof.report.words import count, plural
from spe.log.source_log import SourceState
from spe.stream.names import StreamId
from spe.stream.times import END_OF_TIME

#: Malformed rows that a source sets aside each time it is started; the others are only counted in the summary.
_SET_ASIDE: Final = 10_000
#: The upper limit of an unknown number.
_ANY: Final = 2**62


class _Range(NamedTuple):
    """A number of rows, as far as it is known: minimum and maximum, both included."""

    least: int
    most: int


class InputFindings(NamedTuple):
    """Flaws of a log by its input, and how they were compared."""

    flaws: list[str]
    compared: str


def against_input(
    run: Run, stream: StreamId, source: SourceEntry, state: SourceState, ended_us: int, content: tuple[int, int]
) -> InputFindings:
    """Compares the log of a source with its input: by content if the input can be read again, else by number.

    Args:
      content: sums of digests in the log.
    """
    table, ended = source_table(run, stream), state.bound_us >= END_OF_TIME
    try:
        if run.origin:
            raise NotCompared("the run is on another file system")
        file = None if source.kind == "generator" or source.live else _file(run, source, ended_us)
        if source.kind in COMPARED and file is None:
            raise NotCompared("its file is gone, or was changed after the run")
        read_again = read_file(file or Path(), source, table.schema)
    except Exception as error:  # libraries raise many types for a damaged file
        return InputFindings(unaccounted(run, stream, source, state, ended_us), f"not compared: {error}")
    flaws = unaccounted(run, stream, source, state, ended_us, len(read_again.plain))
    refused = _refused(run, stream).most
    flaws += differences(read_again, table, state.last_id, content, refused, ended=ended)
    odd = int((~read_again.plain).sum())
    return InputFindings(flaws, "compared by content" + (f", but for {plural(odd, 'row')}" if odd else ""))


def _file(run: Run, source: SourceEntry, ended_us: int) -> Path | None:
    """Returns the file of a source, as it was in the run; None: it is gone or was changed."""
    return _unchanged(
        Path(str(run.facts.get("data", run.path))) / Path(source.reader[source.kind]).expanduser(), ended_us
    )


def _unchanged(file: Path, ended_us: int) -> Path | None:
    return file if file.is_file() and file.stat().st_mtime_ns // 1000 <= ended_us else None


def unaccounted(
    run: Run, stream: StreamId, source: SourceEntry, state: SourceState, ended_us: int, rows: int | None = None
) -> list[str]:
    """Finds rows that are neither in the log nor among those set aside; a sentence, if there are any.

    The number of rows set aside is not always known exactly; then only a difference that no possible number explains
    is reported.

    Args:
      state: of the log in the end.
      ended_us: wall time at which the run ended: a file that was changed later is not counted.
      rows: number of rows of the input, if known.
    """
    if state.bound_us < END_OF_TIME:
        return []  # only the source itself knows its position in its input
    if rows is None:
        rows = input_rows(source, Path(str(run.facts.get("data", run.path))), ended_us)
    if rows is None:
        return []
    malformed, refused = _malformed(run, stream), _refused(run, stream)
    not_logged = rows - state.last_id
    lost = not_logged - malformed.most - refused.most
    if lost > 0:
        what = f"{plural(lost, 'row')} of its input {'is' if lost == 1 else 'are'} missing in its log"
        aside = (malformed.most, refused.most)
    elif not_logged < malformed.least + refused.least:
        what = "its log has too many tuples"
        aside = (malformed.least, refused.least)
    else:
        return []
    return [
        f"{what}: {count(rows)} rows, {count(state.last_id)} tuples, {count(aside[0])} malformed, "
        f"{count(aside[1])} refused"
    ]


def input_rows(source: SourceEntry, data: Path, ended_us: int) -> int | None:
    """Counts the rows of a source's input, malformed ones included; None where they can no longer be counted.

    Args:
      data: base of relative paths.
      ended_us: a file that was changed later is a different one.
    """
    options = source.reader
    if source.live:
        return None
    if source.kind == "generator":
        if options.get("count") is not None:
            return int(options["count"])
        if options.get("duration") is None:
            return None
        return round(duration_us(options["duration"]) * float(options.get("rate") or 1000.0) / 1e6)
    try:
        file = _unchanged(data / Path(options[source.kind]).expanduser(), ended_us)
        return None if file is None else _rows_of_file(file, source)
    except Exception:  # readers of Parquet, Arrow and Avro raise many types for a damaged file, or are not installed
        return None


def _rows_of_file(file: Path, source: SourceEntry) -> int:
    if source.kind == "parquet":
        from pyarrow.parquet import ParquetFile

        with ParquetFile(file) as opened:
            return int(opened.metadata.num_rows)
    if source.kind in ("arrow", "avro"):
        return _rows_of_batches(file, source.kind)
    with opened_lines(file) as lines:
        if source.kind == "jsonl":
            return sum(1 for line in lines if not line.isspace())
        return sum(1 for _ in csv_records(lines, source.reader)[1])


def _rows_of_batches(file: Path, kind: str) -> int:
    """Counts rows of an Avro container, by its blocks; or of Arrow IPC, a file or a stream."""
    with file.open("rb") as opened:
        if kind == "avro":
            import fastavro

            return sum(block.num_records for block in fastavro.block_reader(opened))
        from pyarrow import ipc

        if opened.read(6) == b"ARROW1":
            reader = ipc.open_file(file)
            return sum(reader.get_batch(n).num_rows for n in range(reader.num_record_batches))
        opened.seek(0)
        return sum(batch.num_rows for batch in ipc.open_stream(opened))


def _malformed(run: Run, stream: StreamId) -> _Range:
    """Counts malformed rows.

    Each is set aside with its line number, so a row that was read again after a restart counts once.  If some rows were
    not set aside, the summary gives an upper limit: it counts a row each time that it was read.
    """
    lines, torn = _lines_set_aside(run.path / "malformed" / f"{stream}.jsonl")
    aside, counted, starts = len(set(lines)), _number(run, stream, "malformed"), _number(run, stream, "starts")
    if counted <= len(lines) < _SET_ASIDE and not torn:
        return _Range(aside, aside)
    most = max(aside, counted)
    if starts == 1:
        return _Range(most, most)
    # The last status of a killed process may be older than the rows that it read: the number may be larger.
    return _Range(aside, _ANY if torn or len(lines) >= _SET_ASIDE else most)


def _lines_set_aside(file: Path) -> tuple[list[int], bool]:
    """Reads the numbers of lines set aside; and whether some are lost, after a full disk or a power failure."""
    try:
        texts = file.read_bytes().splitlines(keepends=True)
    except OSError:
        return [], False
    numbers = []
    for text in texts:
        try:
            numbers.append(int(json.loads(text)["line"]))
        except (ValueError, KeyError, TypeError):
            continue
    return numbers, len(numbers) < len(texts)


def _refused(run: Run, stream: StreamId) -> _Range:
    """Counts rows that were refused for their event times: each start counts them, none are set aside."""
    counted = _number(run, stream, "refused_ahead")
    return _Range(counted if _number(run, stream, "starts") == 1 else 0, counted)


def _number(run: Run, stream: StreamId, what: str) -> int:
    """Returns a number of the summary about a source; 0 if it is missing."""
    return sum(int(s.get(what) or 0) for s in run.summary.get("sources", ()) if s.get("source") == stream)
