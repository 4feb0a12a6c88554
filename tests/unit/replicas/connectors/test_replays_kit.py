"""What files and generators state, checked by the kit: each row is in the log once, wherever their source dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from replicas.connectors.formats.file_format import FileReplay
from replicas.connectors.reader import RowChunk
from replicas.source.reference_stream import reference_elements
from replicas.testing import PromiseBroken, check_reader
from spe.config import load_data
from spe.stream.batch import Batch
from tests.support.file_formats import FORMATS, SCHEMA, rows

COUNT, SOME = 15, 6
#: Lines that are no rows, in front of the row of this number: what was left out counts as read.
BAD: Final = {"csv": (b"nonsense\n", 6), "jsonl": (b"nonsense\n", 6)}
#: Ten rows in a second.
SPEED: Final = {"replay": {"speed": 10}}


class Nobody:
    """For the kit: nothing serves."""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "formats.jsonl.CHUNK_ROWS",
        "formats.csv.CHUNK_ROWS",
        "files.avro_source.CHUNK_ROWS",
        "formats.arrow_columns.COLUMN_ROWS",
    ):
        monkeypatch.setattr(f"replicas.connectors.{name}", 4)


def entry_of(path: Path, form: str) -> dict[str, Any]:
    """A source of a file with bad lines, in the formats that have lines."""
    write, options = FORMATS[form]
    data = write(rows(0, COUNT))
    if form in BAD:
        line, before = BAD[form]
        lines = data.splitlines(keepends=True)
        at = before + (form == "csv")  # behind the names of columns
        data = b"".join([*lines[:at], line, *lines[at:]])
    path.write_bytes(data)
    kind = str(options["format"])
    more = {key: value for key, value in options.items() if key != "format"}
    return {"schema": SCHEMA, "time": "ts", "from": {kind: str(path), **more}, **SPEED}


@pytest.mark.parametrize("form", FORMATS)
def test_rows_of_a_file_come_once_wherever_its_source_dies(tmp_path: Path, form: str) -> None:
    assert check_reader(entry_of(tmp_path / "rows", form), rows(0, COUNT), Nobody, most=SOME) == 2 * (SOME + 1)


def test_rows_of_a_generator_come_once_wherever_its_source_dies() -> None:
    options = {"name": "orders", "rate": 1, "count": COUNT, "start": "2026-01-01T12:00:00", "disorder": "2s"}
    entry = {"from": {"generator": options}, **SPEED}
    query = {"query": {"q": {"filter": {"from": "made", "where": "true"}}}, "outputs": ["q"]}
    (source,) = load_data({"sources": {"made": entry}, **query}, "the source", ".").plan.sources.values()
    made = [row for one in reference_elements(source) if isinstance(one, Batch) for row in one.rows.to_tuples()]
    assert len(made) == COUNT
    assert check_reader(entry, made, Nobody, most=SOME) == 2 * (SOME + 1)


def test_replay_that_resumes_too_far_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = FileReplay.chunks

    def too_far(reader: FileReplay, skip: int) -> Iterator[RowChunk]:
        return chunks(reader, skip + (skip > 0))

    monkeypatch.setattr(FileReplay, "chunks", too_far)
    with pytest.raises(PromiseBroken, match=r"^the process is killed at step \d.* is missing in the log"):
        check_reader(entry_of(tmp_path / "rows", "csv"), rows(0, COUNT), Nobody, most=SOME)
