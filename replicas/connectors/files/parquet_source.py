"""Reads Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from replicas.connectors.formats.arrow_columns import ArrowColumns, arrow_reads, chunk_rows
from replicas.connectors.formats.file_format import FileFormat
from replicas.connectors.formats.parquet_pages import PageCheckedFile
from replicas.connectors.reader import FilePart, RowChunk
from spe.errors import SpeError
from spe.stream.schema import Schema

if TYPE_CHECKING:
    import pyarrow

#: Largest number of columns for one thread: passing a column to another thread takes a fifth of its decoding time.
_THREADED_COLUMNS: Final = 8


class ParquetFiles(FileFormat):
    """Reads Parquet; row groups before the first requested row are skipped."""

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._columns = ArrowColumns(schema, time, reader)
        self._sort: str | None = reader.get("sort")

    def rows(self, file: BinaryIO, name: str, skip: int) -> Iterator[RowChunk]:
        with self._opened(file, name) as opened:
            if self._sort is None:
                first, groups = _behind(opened, skip)
                batches = self._batches(opened, groups)
            else:
                first, table = 0, opened.read(columns=self._names(self._sort))
                count = chunk_rows(table.num_rows, table.nbytes)
                batches = table.sort_by(self._sort).to_batches(max_chunksize=count)
            for batch in batches:
                start = max(0, skip - first)
                if start < batch.num_rows:
                    yield self._columns.chunk(first + start, batch.slice(start))
                first += batch.num_rows

    def parts(self, file: BinaryIO, name: str, size: int) -> list[FilePart]:
        """Returns parts of whole row groups; ``sort`` makes no difference."""
        with self._opened(file, name) as opened:
            groups = [opened.metadata.row_group(n).total_byte_size for n in range(opened.metadata.num_row_groups)]
        parts, first, held = [], 0, 0
        for n, bytes_ in enumerate(groups):
            if n > first and held + bytes_ > size:
                parts.append(FilePart(first, n))
                first, held = n, 0
            held += bytes_
        return [*parts, FilePart(first, len(groups))]

    def part(self, file: BinaryIO, name: str, file_part: FilePart) -> Iterator[RowChunk]:
        first = 0
        with self._opened(file, name) as opened:
            for batch in self._batches(opened, range(file_part.first, file_part.until or 0)):
                yield self._columns.chunk(first, batch)
                first += batch.num_rows

    def _batches(self, opened: pyarrow.parquet.ParquetFile, groups: range) -> Iterator[pyarrow.RecordBatch]:
        if not groups:
            return iter(())
        group, names = opened.metadata.row_group(groups[0]), self._names()
        columns = (group.column(n) for n in range(group.num_columns))
        size = sum(c.total_uncompressed_size for c in columns if c.path_in_schema in names)
        batches: Iterator[pyarrow.RecordBatch] = opened.iter_batches(
            chunk_rows(group.num_rows, size),
            row_groups=groups,
            columns=names,
            use_threads=len(names) > _THREADED_COLUMNS,
        )
        return batches

    def _names(self, *more: str) -> list[str]:
        return [*dict.fromkeys([*self._columns.names, *more])]

    @contextmanager
    def _opened(self, file: BinaryIO, name: str) -> Iterator[pyarrow.parquet.ParquetFile]:
        with arrow_reads(name):
            import pyarrow.parquet

            # The dictionaries of texts as stored in the file; a column to sort by must be decoded.
            texts = self._columns.texts if self._sort is None else None
            options = {"read_dictionary": texts, "page_checksum_verification": True}
            checked = PageCheckedFile(file, name)
            try:
                with pyarrow.parquet.ParquetFile(pyarrow.PythonFile(checked, "r"), **options) as opened:
                    checked.learn(opened.metadata)
                    self._columns.check(opened.schema_arrow, name, () if self._sort is None else (self._sort,))
                    yield opened
            except Exception:
                if checked.fault is not None:
                    raise SpeError(checked.fault) from None
                raise


def _behind(opened: pyarrow.parquet.ParquetFile, skip: int) -> tuple[int, range]:
    """Returns where reading for a row begins: the number of a group's first row, and the groups from it on."""
    first, count = 0, opened.metadata.num_row_groups
    for n in range(count):
        rows = opened.metadata.row_group(n).num_rows
        if first + rows > skip:
            return first, range(n, count)
        first += rows
    return first, range(0)
