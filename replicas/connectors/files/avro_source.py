"""Reads Avro container files."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, BinaryIO, Final

from replicas.connectors.formats.avro_blocks import AvroBlocks, left_compressed
from replicas.connectors.formats.avro_rows import AvroRows, avro_reads, chunk_of_records, plain
from replicas.connectors.formats.file_format import FileFormat, buffered
from replicas.connectors.reader import CHUNK_BYTES, CHUNK_ROWS, RowChunk
from spe.errors import SpeError
from spe.problems import one_of
from spe.stream.schema import Schema

#: The first bytes of a file.
MAGIC: Final = b"Obj\x01"
_HEADER: Final = {
    "type": "record",
    "name": "header",
    "fields": [
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": "fixed", "name": "sync", "size": 16}},
    ],
}


class AvroFiles(FileFormat):
    """Reads each file with the schema in its header.  Blocks before the first requested row are not decoded."""

    def __init__(
        self, schema: Schema, time: str | None, reader: Mapping[str, Any], codecs: Sequence[str] | None = None
    ) -> None:
        self._codecs = codecs
        self._rows = AvroRows(schema, time, reader)

    def rows(self, file: BinaryIO, name: str, skip: int) -> Iterator[RowChunk]:
        with avro_reads(name):
            import fastavro

            source = buffered(file)
            schema, head, codec = _header(source, name)
            if self._codecs is not None and codec not in self._codecs:
                raise SpeError(f"{name}: it is compressed with {codec}; expected {one_of(self._codecs)}")
            made, _ = self._rows.of(schema, name)
            first, at, size, records = 0, 0, 0, list[Any]()
            for block in fastavro.block_reader(AvroBlocks(head, source, codec, name)):  # type: ignore[arg-type]
                begins, at = at, at + block.num_records
                if at <= skip:
                    continue
                if not records:
                    first, size = max(begins, skip), 0
                left, size = islice(block, max(0, skip - begins), None), size + block.size
                while more := list(islice(left, CHUNK_ROWS - len(records))):
                    records += more
                    if len(records) == CHUNK_ROWS or size > CHUNK_BYTES:
                        yield chunk_of_records(made, records, first)
                        first, size, records = first + len(records), 0, []
            if records:
                yield chunk_of_records(made, records, first)


def _header(file: io.BufferedReader, name: str) -> tuple[Any, bytes, str]:
    """Returns the schema of a file, a header for AvroBlocks without its logical types, and the compression of
    blocks.
    """
    import fastavro

    if file.read(len(MAGIC)) != MAGIC:
        raise SpeError(f"{name}: cannot be read: it is no Avro container file")
    header: Any = fastavro.schemaless_reader(file, _HEADER)
    schema = json.loads(header["meta"]["avro.schema"])
    codec = header["meta"].get("avro.codec", b"null").decode()
    header["meta"] |= {"avro.schema": json.dumps(plain(schema)).encode(), "avro.codec": left_compressed(codec).encode()}
    head = io.BytesIO()
    fastavro.schemaless_writer(head, _HEADER, header)
    return schema, MAGIC + head.getvalue(), codec
