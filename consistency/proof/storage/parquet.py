"""Writes Parquet files from Arrow, within tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet

from spe.errors import SpeError

#: Rows per row group, which has its own statistics.
_GROUP: Final = 1 << 19


def write_parquet(
    opened: Callable[[], Any], schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, at_all: bool = False
) -> int:
    """Writes a file; none without rows, unless ``at_all``.  Returns the number of rows.

    Args:
      opened: returns the file, called at the first row.
    """
    rows, held, some = 0, 0, list[pa.RecordBatch]()
    with ExitStack() as stack:
        writer: parquet.ParquetWriter | None = None

        def write() -> parquet.ParquetWriter:
            into = writer or stack.enter_context(parquet.ParquetWriter(stack.enter_context(opened()), schema))
            into.write_table(pa.Table.from_batches(some, schema), _GROUP)
            return into

        for batch in batches:
            if len(batch):
                some.append(batch)
                held, rows = held + len(batch), rows + len(batch)
            if held >= _GROUP:
                writer = write()
                held, some = 0, []
        if some or (at_all and writer is None):
            write()
    return rows


def write_file(file: Path, attempt: int, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Writes a file on a disk, as a whole or not at all, even if two attempts write it.  Raises SpeError."""
    aside = file.with_name(f".{file.name}.{attempt}")
    try:
        rows = write_parquet(lambda: aside.open("wb"), schema, batches)
        if rows:
            aside.replace(file)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise SpeError(f"{file} cannot be written: {error.strerror or error}") from error
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    return rows
