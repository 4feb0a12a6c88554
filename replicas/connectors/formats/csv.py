"""Reads CSV: a file with or without a header, or live lines."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, BinaryIO, Final, NamedTuple, TextIO

from replicas.connectors.formats.file_format import FileFormat, text_of
from replicas.connectors.formats.text_columns import CellFormat, ColumnsOfCells
from replicas.connectors.formats.text_files import holds, text_of_part, text_parts
from replicas.connectors.reader import CHUNK_ROWS, FilePart, RowChunk
from spe.errors import SpeError
from spe.stream.schema import Schema
from spe.stream.strings import StringDictionary

#: Characters read from a file at once; a cell may have fewer.
_BLOCK: Final = 256 << 10


class NoCsv(NamedTuple):
    """Replaces the cells of an invalid row."""

    reason: str
    text: str


#: Stands for an empty line, which counts as a row, so that lines and rows have the same numbers.
_EMPTY: Final = NoCsv("no CSV: an empty line", "")


class CsvRows:
    """Converts CSV rows to chunks; options are declared in ``spe.connectors``.

    Attributes:
      quote: quotes a cell that has a delimiter or a line end.
    """

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._schema = schema
        self._mapping: Mapping[str, Any] = reader.get("columns") or {}
        self._cells = ColumnsOfCells(schema, time, CellFormat.of(reader))
        self._delimiter = str(reader.get("delimiter", ","))
        self.quote = str(reader.get("quote", '"'))
        #: Cell of each attribute, and the number of cells per row (None: any sufficient number); the header may set
        #: both.
        self._places = self._by_number()
        self._width: int | None = None

    def reader(self, lines: Iterable[str]) -> Any:
        try:
            return csv.reader(lines, delimiter=self._delimiter, quotechar=self.quote, strict=True)
        except TypeError as error:
            raise SpeError(f"reader.delimiter, reader.quote: {error}") from error

    def _by_number(self) -> list[int]:
        places = []
        for i, attribute in enumerate(self._schema):
            place = self._mapping.get(attribute.name, i)
            places.append(place if isinstance(place, int) else i)
        return places

    def use_header(self, names: Sequence[str], where: str) -> None:
        """Finds each attribute's cell by the header.  Raises SpeError with the columns that are missing."""
        index_of = {name.strip(): i for i, name in enumerate(names)}
        wanted = {a.name: self._mapping.get(a.name, a.name) for a in self._schema}
        missing = sorted(str(w) for w in wanted.values() if not isinstance(w, int) and w not in index_of)
        if missing:
            raise SpeError(f"{where}: no column {', '.join(missing)}; the header has: {', '.join(index_of)}")
        self._places = [w if isinstance(w, int) else index_of[w] for w in wanted.values()]
        self._width = len(names)

    def chunk(
        self,
        first: int,
        rows: Sequence[tuple[int, list[str] | NoCsv]],
        dictionary: StringDictionary | None = None,
        raw: Callable[[int], str] | None = None,
    ) -> RowChunk:
        """Makes a chunk.

        Args:
          first: number of the first row.
          rows: line number, and the cells or why the row is not CSV.
          dictionary: for texts; None: a new one.
          raw: returns the text of row i; None: its cells, joined again, or their replacement.
        """
        least, most = max(self._places, default=-1) + 1, self._width
        bad: dict[int, str] = {}
        cells: list[list[str]] = []
        for i, (_, row) in enumerate(rows):
            if isinstance(row, list) and least <= len(row) and (most is None or len(row) == most):
                cells.append(row)
                continue
            bad[i] = row.reason if isinstance(row, NoCsv) else f"expected {most or least} cells, got {len(row)}"
            cells.append([""] * least)
        by_place = list(zip(*(r[:least] for r in cells) if bad or most is None else cells)) or [()] * least
        return self._cells.chunk(
            first,
            [by_place[p] for p in self._places],
            [line for line, _ in rows],
            raw or (lambda i: self._text(rows[i][1])),
            StringDictionary() if dictionary is None else dictionary,
            bad,
        )

    def _text(self, row: list[str] | NoCsv) -> str:
        return row.text if isinstance(row, NoCsv) else self._delimiter.join(row)


class KeptLines:
    """The lines of a file for a csv.reader.  Stores the last ones: they are all that is known of a row that is not
    CSV.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        #: Two blocks, and the number of lines before them.
        self._older: list[str] = []
        self._newer: list[str] = []
        self._gone = 0

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._blocks())  # no Python step per line

    def _blocks(self) -> Iterator[list[str]]:
        while block := self._file.readlines(_BLOCK):
            self._gone += len(self._older)
            self._older, self._newer = self._newer, block
            yield block

    def text(self, first: int, last: int) -> str:
        """Returns lines, from 1, without the end of the last one; "" if they are no longer stored."""
        lines = [*self._older, *self._newer][max(0, first - 1 - self._gone) : last - self._gone]
        return "".join(lines).rstrip("\r\n") if first > self._gone else ""


def numbered(rows: Any, text: Callable[[int, int], str]) -> Iterator[tuple[int, list[str] | NoCsv]]:
    """Yields the output of a csv.reader: line number, and the cells or why the row is not CSV.  Skips blank lines.

    Args:
      text: returns the lines first … last.
    """
    line = rows.line_num
    while True:
        try:
            for row in rows:
                line = rows.line_num
                if row:
                    yield line, row
            return
        except csv.Error as error:
            first, line = line + 1, rows.line_num
            more = f", up to line {line}" if line > first else ""
            yield first, NoCsv(f"no CSV: {error}{more}", text(first, line))


class CsvFiles(FileFormat):
    """Reads CSV files, each with its own header, or none with one."""

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._header = bool(reader.get("header", True))
        self.table = CsvRows(schema, time, reader)

    def rows(self, file: BinaryIO, name: str, skip: int) -> Iterator[RowChunk]:
        with text_of(file) as text:
            stored = KeptLines(text)
            rows = self.table.reader(stored)
            self.read_header(rows, name)
            yield from self.chunks(rows, skip, stored)

    def parts(self, file: BinaryIO, name: str, size: int) -> list[FilePart]:
        """Returns one part if cells may be quoted, because a quoted cell may have several lines."""
        self._learn_header(file, name)
        return [FilePart(0, None)] if holds(file, self.table.quote) else text_parts(file, size)

    def part(self, file: BinaryIO, name: str, file_part: FilePart) -> Iterator[RowChunk]:
        if file_part == FilePart(0, None):
            yield from self.rows(file, name, 0)
            return
        self._learn_header(file, name)
        with text_of_part(file, file_part) as text:
            stored = KeptLines(text)
            rows = self.table.reader(stored)
            if file_part.first == 0:
                self.read_header(rows, name, use=False)
            yield from self.chunks(rows, 0, stored)

    def _learn_header(self, file: BinaryIO, name: str) -> None:
        with text_of(file) as text:
            self.read_header(self.table.reader(text), name)

    def read_header(self, rows: Any, name: str, *, use: bool = True) -> None:
        """Reads the header if the files have one.  Raises SpeError with the columns that are missing."""
        if not self._header:
            return
        try:
            names: list[str] = next(rows, [])
        except csv.Error as error:
            raise SpeError(f"{name}:1: the header is no CSV: {error}") from None
        if use:
            self.table.use_header(names, name)

    def chunks(self, rows: Any, skip: int, stored: KeptLines) -> Iterator[RowChunk]:
        lines = numbered(rows, stored.text)
        first = sum(1 for _ in islice(lines, skip))
        while taken := list(islice(lines, CHUNK_ROWS)):
            yield self.table.chunk(first, taken)
            first += len(taken)


class CsvLines:
    """Reads CSV from a live stream: one row per line, no header."""

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._rows = CsvRows(schema, time, reader)

    def chunk(self, first: int, lines: list[str], dictionary: StringDictionary | None = None) -> RowChunk:
        rows: list[tuple[int, list[str] | NoCsv]] = []
        for number, line in enumerate(lines, first + 1):
            # One reader per line, so that an open quote spoils only its own line.
            try:
                rows.append((number, next(self._rows.reader([line]), None) or _EMPTY))
            except csv.Error as error:
                rows.append((number, NoCsv(f"no CSV: {error}", line)))
        return self._rows.chunk(first, rows, dictionary, lines.__getitem__)
