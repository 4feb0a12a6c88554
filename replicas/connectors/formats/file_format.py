"""Formats of files whose rows can be read from any row on; and a replay of one file."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO

from replicas.connectors.reader import FilePart, Replay, RowChunk
from spe.errors import SpeError
from spe.stream.schema import Schema

#: Size of a read; a remote read is a request, so it should be large.
_BLOCK: Final = 1 << 20
#: Largest decompressed size of a block or a page.  DuckDB writes pages of 100 MiB.
UNPACKED_BYTES_MAX: Final = 128 << 20


class FileFormat(ABC):
    """A file format, made with the schema, the name of the event time attribute, and the options of the reader."""

    @abstractmethod
    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def rows(self, file: BinaryIO, name: str, skip: int) -> Iterator[RowChunk]:
        """Yields chunks of an open file, from row ``skip`` on; rows are counted from the beginning of the file.
        Blocks.

        Args:
          file: a Python or an Arrow file; it is not closed.
          name: name for messages.

        Raises:
          SpeError: the file is torn, of another format, or of another schema; begins with its name.
          OSError: it cannot be read now (:func:`is_of_storage`).
        """

    def parts(self, file: BinaryIO, name: str, size: int) -> list[FilePart]:
        """Returns parts, as ``Replay.parts``."""
        return [FilePart(0, None)]

    def part(self, file: BinaryIO, name: str, file_part: FilePart) -> Iterator[RowChunk]:
        """Yields a part, as ``Replay.part``."""
        return self.rows(file, name, 0)


class FileReplay(Replay):
    """Replays one file, whose format is the kind of the reader."""

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._path = str(reader["path"])
        self._format = file_format(schema, time, {**reader, "format": reader["kind"]})

    def chunks(self, skip: int) -> Iterator[RowChunk]:
        with self._opened() as file:
            yield from self._format.rows(file, self._path, skip)

    def parts(self, size: int) -> list[FilePart]:
        with self._opened() as file:
            return self._format.parts(file, self._path, size)

    def part(self, file_part: FilePart) -> Iterator[RowChunk]:
        with self._opened() as file:
            yield from self._format.part(file, self._path, file_part)

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        try:
            with Path(self._path).open("rb") as file:
                yield file
        except OSError as error:
            raise SpeError(f"{self._path}: cannot be read: {error.strerror or error}") from error


#: Module and class of each format; imported on first use.
_FORMATS: Final = {
    "csv": ("replicas.connectors.formats.csv", "CsvFiles"),
    "jsonl": ("replicas.connectors.formats.jsonl", "JsonFiles"),
    "parquet": ("replicas.connectors.files.parquet_source", "ParquetFiles"),
    "arrow": ("replicas.connectors.files.arrow_source", "ArrowFiles"),
    "avro": ("replicas.connectors.files.avro_source", "AvroFiles"),
}


def file_format(schema: Schema, time: str | None, reader: Mapping[str, Any]) -> FileFormat:
    """Returns the format named by the option ``format``.  Raises SpeError: schema and options do not fit."""
    module, name = _FORMATS[reader.get("format", "jsonl")]
    made: FileFormat = getattr(import_module(module), name)(schema, time, reader)
    return made


def too_large(name: str, what: str) -> str:
    most = UNPACKED_BYTES_MAX >> 20
    return f"{name}: {what} becomes more than {most} MiB when it is decompressed; expected smaller ones"


def is_of_storage(error: BaseException) -> bool:
    """Returns whether an error means that bytes could not be read, rather than that they are invalid.

    Arrow raises OSErrors of both kinds: those of the operating system have its number, those of S3 its name.
    """
    return isinstance(error, OSError) and (error.errno is not None or "AWS Error" in str(error))


@contextmanager
def text_of(file: BinaryIO) -> Iterator[TextIO]:
    """Opens a file as UTF-8 text, with or without a byte order mark; the file stays open.

    Bytes that are not UTF-8 become lone surrogates, which make their row malformed instead of stopping the file.
    """
    text = io.TextIOWrapper(buffered(file), encoding="utf-8-sig", errors="surrogateescape", newline="")
    try:
        yield text
    finally:
        if not file.closed:  # an unfinished generator may end after its file
            text.detach()


def buffered(file: BinaryIO) -> io.BufferedReader:
    """Returns a file with a buffer, for many small reads."""
    return file if isinstance(file, io.BufferedReader) else io.BufferedReader(_Raw(file), _BLOCK)


class _Raw(io.RawIOBase):
    """Adapts an Arrow file to Python's buffers; it is not closed with them."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return int(self._file.readinto(buffer))

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())
