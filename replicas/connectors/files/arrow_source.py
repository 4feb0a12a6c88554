"""Reads Arrow IPC: files, and streams that were written to files."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from replicas.connectors.formats.arrow_columns import ArrowColumns, arrow_file, arrow_reads
from replicas.connectors.formats.file_format import FileFormat, buffered
from replicas.connectors.reader import RowChunk
from spe.errors import SpeError
from spe.stream.schema import Schema

if TYPE_CHECKING:
    import pyarrow

#: Mark at the beginning of a file; and mark at the end of a stream, its only sign of being whole.
_MAGIC: Final = b"ARROW1"
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"


class ArrowFiles(FileFormat):
    """Reads record batches; columns that are not needed are not decoded."""

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._columns = ArrowColumns(schema, time, reader)

    def rows(self, file: BinaryIO, name: str, skip: int) -> Iterator[RowChunk]:
        with arrow_reads(name):
            first = 0
            for batch in self._batches(file, name):
                batch.validate(full=True)  # damaged offsets could point anywhere in memory
                start = max(0, skip - first)
                if start < batch.num_rows:
                    yield from self._columns.chunks(first + start, batch.slice(start))
                first += batch.num_rows

    def _batches(self, file: BinaryIO, name: str) -> Iterator[pyarrow.RecordBatch]:
        from pyarrow import ipc

        source = arrow_file(buffered(file))  # each batch is read in many small pieces
        is_file = bytes(source.read(len(_MAGIC))) == _MAGIC
        if not is_file:
            size = source.seek(0, io.SEEK_END)
            source.seek(max(0, size - len(_END_OF_STREAM)))
            if bytes(source.read(len(_END_OF_STREAM))) != _END_OF_STREAM:
                raise SpeError(f"{name}: cannot be read: expected the end mark of an Arrow stream, so it is not whole")
        opens = ipc.open_file if is_file else ipc.open_stream
        source.seek(0)
        schema_of_file = opens(source).schema
        self._columns.check(schema_of_file, name)
        source.seek(0)
        wanted = sorted({schema_of_file.get_field_index(column) for column in self._columns.names})
        reader = opens(source, options=ipc.IpcReadOptions(included_fields=wanted))
        if is_file:
            yield from (reader.get_batch(n) for n in range(reader.num_record_batches))
        else:
            yield from reader
