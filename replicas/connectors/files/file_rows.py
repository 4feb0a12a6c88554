"""Reads rows of files, adds the columns in their folders' names, and divides them into chunks that fit a log record."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, BinaryIO, Final
from urllib.parse import unquote

import numpy as np

from replicas.connectors.formats.file_format import file_format
from replicas.connectors.formats.text_columns import CellFormat, cell_parser, expected_timestamp
from replicas.connectors.reader import CHUNK_BYTES, RowChunk
from spe.errors import SpeError
from spe.stream.batch import Column, canonical
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.strings import StringDictionary

#: Null, as Hive and Spark write it.
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"


class FileRows:
    """Reads files of one format.

    Raises:
      SpeError: schema and options do not fit.
    """

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._schema = schema
        self._time = time
        self._unit = CellFormat.of(reader).timestamps
        mapping: Mapping[str, Any] = reader.get("columns") or {}
        folders = {a.name: str(mapping.get(a.name, a.name)) for a in schema}
        wanted: Sequence[str] = reader.get("partitions") or ()
        if stray := [name for name in wanted if name not in folders.values()]:
            raise SpeError(f"directory.partitions: no attribute has the column {', '.join(stray)}")
        #: Attributes whose values are folder names, and the column's name there.
        self._folders = {attribute: name for attribute, name in folders.items() if name in wanted}
        inside = Schema(tuple(a for a in schema if a.name not in self._folders))
        if not len(inside):
            raise SpeError("directory.partitions: all attributes are of folders; expected one at least of the files")
        self._format = file_format(inside, None if time in self._folders else time, reader)

    def read(self, file: BinaryIO, path: str, skip: int) -> Generator[RowChunk, None, None]:
        """Yields chunks from row ``skip`` on; raises as ``FileFormat.rows``."""
        folders = [self._of_folder(a, path) for a in self._schema if a.name in self._folders]
        for chunk in self._format.rows(file, path, skip):
            chunk.malformed = [row._replace(place=f"{path}, {row.where}") for row in chunk.malformed]
            for piece in pieces(chunk, CHUNK_BYTES):
                piece.where = partial(
                    _place, path, piece.first
                )  # the place in the file, which differs from the row's number
                yield self._with_folders(piece, folders) if folders else piece

    def _of_folder(self, attribute: Attribute, path: str) -> Column:
        """Returns a column of one value."""
        name = self._folders[attribute.name]
        values = [part.removeprefix(f"{name}=") for part in path.split("/")[:-1] if part.startswith(f"{name}=")]
        if len(values) != 1:
            raise SpeError(f"{path}: expected one folder {name}=… in its path")
        text = unquote(values[0])
        if values[0] == _NULL:
            if not attribute.nullable or attribute.name == self._time:
                raise SpeError(f"{path}: folder {name}: null; expected a value")
            dictionary = StringDictionary([""]) if attribute.type is AttributeType.STRING else None
            return Column(np.zeros(1, attribute.type.dtype), np.zeros(1, np.bool_), dictionary)
        if attribute.type is AttributeType.STRING:
            return Column(np.zeros(1, attribute.type.dtype), None, StringDictionary([text]))
        try:
            value = cell_parser(attribute.type, self._unit)(text)
            return Column(canonical(np.array([value], attribute.type.dtype)), None)
        except (ValueError, KeyError, OverflowError):
            is_time = attribute.type is AttributeType.TIMESTAMP
            expected = expected_timestamp(self._unit) if is_time else attribute.type.value
            raise SpeError(f"{path}: folder {name}: expected {expected}, got {text[:40]!r}") from None

    def _with_folders(self, chunk: RowChunk, folders: Sequence[Column]) -> RowChunk:
        zeros = np.zeros(len(chunk), np.int64)
        theirs, ours = iter([column.take(zeros) for column in folders]), iter(chunk.columns)
        chunk.columns = tuple([next(theirs if a.name in self._folders else ours) for a in self._schema])
        if self._time is not None and self._time in self._folders:
            chunk.events = chunk.columns[self._schema.index(self._time)].values
        return chunk


def _place(path: str, first: int, row: int) -> str:
    return f"{path}, row {first + row + 1}"


def pieces(chunk: RowChunk, size: int) -> Iterator[RowChunk]:
    """Divides a chunk into pieces of at most ``size`` bytes; a single larger row is a piece of its own."""
    count, at, begins = len(chunk), 0, chunk.first
    if chunk.stop_within(0, count, size) == count:
        yield chunk
        return
    missing = chunk.missing().tolist()
    while at < count:
        stop = chunk.stop_within(at, count, size)
        ends = chunk.consumed(stop)
        lies = range(begins - chunk.first, ends - chunk.first)
        yield RowChunk(
            begins,
            ends - begins,
            None if chunk.events is None else chunk.events[at:stop],
            chunk.slice(at, stop),
            [row for row, place in zip(chunk.malformed, missing) if place in lies],
            None if chunk.places is None else chunk.places[at:stop] - lies.start,
        )
        at, begins = stop, ends
