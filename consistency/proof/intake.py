"""Is every row of a source's input in its log?  Counted in the input itself, not by what the source says it read."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, Final

from consistency.proof.reading import Source, duration_us
from consistency.proof.report.words import count, plural
from consistency.proof.run import Run
from spe.log.source_log import SourceState
from spe.stream.names import StreamId
from spe.stream.times import END_OF_TIME

#: Malformed rows that a source keeps aside each time it is started; the others are counted in the summary only.
_KEPT: Final = 10_000


def unaccounted(run: Run, stream: StreamId, source: Source, state: SourceState, ended_us: int) -> list[str]:
    """Rows that are neither in the log nor among those that were set aside; a sentence, if there are any.

    Args:
      state: of the log in the end.
      ended_us: wall time at which the run ended: a file that was changed later is not counted.
    """
    if state.bound_us < END_OF_TIME:
        return []  # how far it came in its input, only the source itself can say
    rows = input_rows(source, Path(str(run.facts.get("data", run.path))), ended_us)
    if rows is None:
        return []
    malformed, all_kept = _malformed(run, stream)
    refused = _counted(run, stream, "refused")
    lost = rows - state.last_id - malformed - refused
    if lost == 0 or (lost > 0 and not all_kept):
        return []
    are = "is" if lost == 1 else "are"
    what = f"{plural(lost, 'row')} of its input {are} missing in its log" if lost > 0 else "its log has too many tuples"
    return [
        f"{what}: {count(rows)} rows, {count(state.last_id)} tuples, {count(malformed)} malformed, "
        f"{count(refused)} refused"
    ]


def input_rows(source: Source, data: Path, ended_us: int) -> int | None:
    """Rows of a source's input, malformed ones included; None where nobody can count them any more.

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
    file = data / Path(given[source.kind]).expanduser()
    try:
        if file.stat().st_mtime_ns // 1000 > ended_us:
            return None
        return _rows_of_file(file, source)
    except OSError:
        return None


def _rows_of_file(file: Path, source: Source) -> int:
    if source.kind == "parquet":
        from pyarrow.parquet import ParquetFile

        with ParquetFile(file) as opened:
            return int(opened.metadata.num_rows)
    given = source.reader
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
        if source.kind == "jsonl":
            return sum(1 for line in lines if not line.isspace())
        rows = csv.reader(
            lines, delimiter=given.get("delimiter") or ",", quotechar=given.get("quote") or '"', strict=True
        )
        header = str(given.get("header")).lower() != "false"
        return _records(rows) - (1 if header else 0)


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


def _malformed(run: Run, stream: StreamId) -> tuple[int, bool]:
    """(how many rows were set aside, as far as is known; are these all?)

    The summary counts since the source was started last; what is kept aside may hold rows twice that were read again.
    """
    file = run.path / "malformed" / f"{stream}.jsonl"
    try:
        lines = [json.loads(line)["line"] for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, KeyError):
        lines = []
    return max(len(set(lines)), _counted(run, stream, "malformed")), len(lines) < _KEPT


def _counted(run: Run, stream: StreamId, what: str) -> int:
    """From the summary; 0 where it does not say."""
    return sum(int(s.get(what) or 0) for s in run.summary.get("sources", ()) if s.get("source") == stream)
