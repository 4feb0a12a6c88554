"""Limits the decompressed size of a Parquet file's pages, which is only in their own headers."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

from replicas.connectors.formats import file_format

if TYPE_CHECKING:
    import pyarrow

#: Fields of a header, in Thrift's compact protocol: bytes of the page when decompressed, and before.
_UNPACKED, _PACKED = 2, 3
#: Types of the protocol; and sizes of those of fixed size: flags, a byte, a double.
_BYTE, _INTEGERS, _BYTES, _LISTS, _STRUCT = 3, (4, 5, 6), 8, (9, 10), 12
_SIZES: Final = {1: 0, 2: 0, _BYTE: 1, 7: 8}


class PageCheckedFile:
    """An open file, of Python or of Arrow, that checks the pages in each read.

    Arrow reads a column of a row group as a whole, perhaps with its neighbours.

    Attributes:
      fault: why the file is refused; its reader then gets no bytes.  Arrow never frees an error that is raised while it
        reads, nor the bytes that the error refers to.
    """

    def __init__(self, file: Any, name: str) -> None:
        self._file = file
        self._name = name
        self.fault: str | None = None
        #: Offsets of columns; and the name and size of each.
        self._starts: list[int] = []
        self._columns: dict[int, tuple[str, int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def learn(self, metadata: pyarrow.parquet.FileMetaData) -> None:
        """Learns the offsets of columns; called before the first column is read."""
        for n in range(metadata.num_row_groups):
            group = metadata.row_group(n)
            for column in (group.column(i) for i in range(group.num_columns)):
                if not column.num_values:
                    continue  # Arrow reads none of its pages, and their offset may be missing
                start = min(column.dictionary_page_offset or column.data_page_offset, column.data_page_offset)
                self._columns[start] = column.path_in_schema, column.total_compressed_size
        self._starts = sorted(self._columns)

    def read(self, size: int = -1) -> bytes:
        """Reads bytes; returns none if a page would become too large."""
        begin = self._file.tell()
        data: bytes = self._file.read(size)
        starts = self._starts
        for start in starts[bisect_left(starts, begin) : bisect_left(starts, begin + len(data))]:
            name, packed = self._columns[start]
            pages = _Pages(memoryview(data)[start - begin :][:packed])
            while pages.at < len(pages.data):
                if pages.unpacked() > file_format.UNPACKED_BYTES_MAX:
                    self.fault = file_format.too_large(self._name, f"a page of column {name}")
                    return b""
        return data

    read_buffer = read


class _Pages:
    """The pages of a column in a row group.

    Attributes:
      at: offset of the next header.
    """

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0

    def unpacked(self) -> int:
        """Returns the decompressed size of a page; advances to the next one."""
        header = self._struct()
        self.at += max(0, header[_PACKED])
        return header[_UNPACKED]

    def _struct(self) -> dict[int, int]:
        """Returns values by field number; values other than integers are 0."""
        values, field = dict[int, int](), 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._integer()
            values[field] = self._value(head & 15)
        return values

    def _value(self, kind: int) -> int:
        if kind in _INTEGERS:
            return self._integer()
        if kind == _STRUCT:
            self._struct()
        elif kind in _LISTS:
            head = self._byte()
            for _ in range(head >> 4 if head >> 4 < 15 else self._varint()):
                self._value(head & 15 if head & 15 > 2 else _BYTE)
        else:
            size = self._varint() if kind == _BYTES else _SIZES[kind]
            self.at += size
        return 0

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _varint(self) -> int:
        number = shift = 0
        while (byte := self._byte()) > 127:
            number, shift = number | (byte & 127) << shift, shift + 7
        return number | byte << shift

    def _integer(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)
