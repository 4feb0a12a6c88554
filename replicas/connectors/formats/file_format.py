"""Formats of files whose rows can be read from any row on; and one file as a replay."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final, TextIO

from replicas.connectors.reader import FilePart, Replay, RowChunk
from spe.errors import SpeError
from spe.stream.schema import Schema

#: A read of a file elsewhere is a request, so it should be large.
_BLOCK: Final = 1 << 20
#: Most that a block, or a page, becomes when it is decompressed.  DuckDB writes pages of 100 MiB.
UNPACKED_BYTES_MAX: Final = 128 << 20


class FileFormat(ABC):
    """A format, made with the schema, the name of the attribute with the event time, and the options of the reader."""

    @abstractmethod
    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def rows(self, file: BinaryIO, name: str, skip: int) -> Iterator[RowChunk]:
        """Chunks of an open file, from row ``skip`` on; rows are counted from the beginning of the file.  Blocks.

        Args:
          file: of Python, or of Arrow; it is not closed.
          name: for messages.

        Raises:
          SpeError: it is torn, of another format, or of another schema; begins with its name.
          OSError: it cannot be read now (:func:`is_of_storage`).
        """

    def parts(self, file: BinaryIO, name: str, size: int) -> list[FilePart]:
        """As ``Replay.parts``."""
        return [FilePart(0, None)]

    def part(self, file: BinaryIO, name: str, one: FilePart) -> Iterator[RowChunk]:
        """As ``Replay.part``."""
        return self.rows(file, name, 0)


class FileReplay(Replay):
    """One file of a format."""

    FORMAT: ClassVar[type[FileFormat]]

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._path = str(reader["path"])
        self._format = self.FORMAT(schema, time, reader)

    def chunks(self, skip: int) -> Iterator[RowChunk]:
        with self._opened() as file:
            yield from self._format.rows(file, self._path, skip)

    def parts(self, size: int) -> list[FilePart]:
        with self._opened() as file:
            return self._format.parts(file, self._path, size)

    def part(self, one: FilePart) -> Iterator[RowChunk]:
        with self._opened() as file:
            yield from self._format.part(file, self._path, one)

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        try:
            with Path(self._path).open("rb") as file:
                yield file
        except OSError as error:
            raise SpeError(f"{self._path}: cannot be read: {error.strerror or error}") from error


#: Module and class of each format; imported when a source reads it.
_FORMATS: Final = {
    "csv": ("replicas.connectors.formats.csv", "CsvFiles"),
    "jsonl": ("replicas.connectors.formats.jsonl", "JsonFiles"),
    "parquet": ("replicas.connectors.files.parquet_source", "ParquetFiles"),
    "arrow": ("replicas.connectors.files.arrow_source", "ArrowFiles"),
    "avro": ("replicas.connectors.files.avro_source", "AvroFiles"),
}


def file_format(schema: Schema, time: str | None, reader: Mapping[str, Any]) -> FileFormat:
    """By the option ``format``.  Raises SpeError where schema and options do not go together."""
    module, name = _FORMATS[reader.get("format", "jsonl")]
    found: FileFormat = getattr(import_module(module), name)(schema, time, reader)
    return found


def too_large(name: str, what: str) -> str:
    most = UNPACKED_BYTES_MAX >> 20
    return f"{name}: {what} becomes more than {most} MiB when it is decompressed; expected smaller ones"


def is_of_storage(error: BaseException) -> bool:
    """Does an error say that bytes could not be read?  Else it says that they are not what they should be.

    Arrow raises OSErrors of both kinds: those of the operating system have its number, those of S3 its name.
    """
    return isinstance(error, OSError) and (error.errno is not None or "AWS Error" in str(error))


@contextmanager
def text_of(file: BinaryIO) -> Iterator[TextIO]:
    """An open file as UTF-8, with or without a byte order mark; it stays open.

    Bytes that are no UTF-8 become lone surrogates, which make their row malformed instead of stopping the file.
    """
    text = io.TextIOWrapper(buffered(file), encoding="utf-8-sig", errors="surrogateescape", newline="")
    try:
        yield text
    finally:
        if not file.closed:  # a generator that nobody ends may end after its file
            text.detach()


def buffered(file: BinaryIO) -> io.BufferedReader:
    """An open file for many small reads."""
    return file if isinstance(file, io.BufferedReader) else io.BufferedReader(_Raw(file), _BLOCK)


class _Raw(io.RawIOBase):
    """A file of Arrow for Python's buffers; it is not closed with them."""

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
