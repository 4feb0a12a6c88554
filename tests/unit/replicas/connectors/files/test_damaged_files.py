"""Files that are cut anywhere, or damaged, are said to be bad; they end no process, and give no row that never was."""

from __future__ import annotations

import bz2
import gc
import io
import lzma
import tracemalloc
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from replicas.connectors.files.file_rows import FileRows
from replicas.connectors.files.parquet_source import ParquetFiles
from replicas.connectors.formats import file_format, parquet_pages
from replicas.connectors.formats.avro_blocks import encoded
from replicas.connectors.formats.avro_rows import AvroRows
from spe.errors import SpeError
from spe.stream.schema import Schema
from tests.support.file_formats import AVRO, FORMATS, Row, avro, rows

SCHEMA = Schema.of(ts="timestamp!", n="int64!", name="string")
ROWS = rows(0, 30)


def read(form: str, data: bytes, skip: int = 0) -> tuple[list[Any], str]:
    """The rows, and why there are no more; "" where these are all."""
    found: list[Any] = []
    try:
        for chunk in FileRows(SCHEMA, "ts", FORMATS[form][1]).read(io.BytesIO(data), "f", skip):
            found += list(zip(*[c.to_list() for c in chunk.columns]))
    except SpeError as error:
        return found, str(error)
    return found, ""


def written(form: str) -> bytes:
    return FORMATS[form][0](ROWS)


@pytest.mark.parametrize("form", ["parquet", "arrow", "arrow_stream"])
def test_a_columnar_file_that_is_cut_gives_nothing(form: str) -> None:
    data = written(form)
    for size in range(0, len(data), 7):
        assert read(form, data[:size])[0] == []
        assert read(form, data[:size])[1]


def test_an_avro_file_that_is_cut_gives_whole_blocks() -> None:
    data, whole = written("avro"), 0
    for size in range(len(data)):
        found, why = read("avro", data[:size])
        assert found == ROWS[: len(found)]
        whole += not why
    assert whole < 30  # where a block ends; nothing in the file says that there are more


@pytest.mark.parametrize("form", ["parquet", "arrow", "arrow_stream", "avro"])
def test_a_damaged_file_ends_nothing(form: str) -> None:
    random, data = Random(1), written(form)
    bad = 0
    for _ in range(600):
        damaged = bytearray(data)
        for _ in range(random.choice((1, 1, 4))):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        bad += bool(read(form, bytes(damaged))[1])
    assert bad > 100


@pytest.mark.parametrize("form", FORMATS)
def test_reading_goes_on_at_any_row(form: str) -> None:
    data = written(form)
    for skip in range(len(ROWS) + 2):
        assert read(form, data, skip) == (ROWS[skip:], "")


def blocks(codec: str) -> bytes:
    """A file whose header names this codec, without its blocks, and the mark that ends a block."""
    out = io.BytesIO()
    fastavro.writer(out, AVRO, [], codec=codec if codec in ("deflate", "bzip2", "xz") else "null")
    return out.getvalue() if codec in ("deflate", "bzip2", "xz") else out.getvalue().replace(b"\x08null", _CODEC[codec])


def zigzag(number: int) -> bytes:
    return encoded((number << 1) ^ (number >> 63))


_CODEC = {"snappy": b"\x0csnappy", "lz4": b"\x06lz4"}
_BOMB = bytes(64 << 20)
_BOMBS: dict[str, Callable[[], bytes]] = {
    "deflate": lambda: zlib.compress(_BOMB, 9)[2:-4],
    "bzip2": lambda: bz2.compress(_BOMB),
    "xz": lambda: lzma.compress(_BOMB, preset=0),
    "snappy": lambda: b"\x80\x80\x80\x20" + bytes(100),  # says 64 MiB
    "lz4": lambda: len(_BOMB).to_bytes(4, "little") + bytes(100),
}


@pytest.mark.parametrize("codec", _BOMBS)
def test_avro_block_has_a_bound_on_its_unpacked_size(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_format, "UNPACKED_BYTES_MAX", 1 << 20)
    head, data = blocks(codec), _BOMBS[codec]()
    bomb = head + zigzag(1 << 24) + zigzag(len(data)) + data + head[-16:]
    assert len(bomb) < 100_000
    tracemalloc.start()
    try:
        assert read("avro", bomb) == (
            [], "f: a block becomes more than 1 MiB when it is decompressed; expected smaller ones"
        )  # fmt: skip
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("count", "size", "why"),
    [(1, 1 << 60, "becomes more than"), (-5, 10, "is negative"), (1, -10, "is negative"), (1, 1_000, "is cut")],
)
def test_a_block_of_avro_that_lies_about_its_size_is_bad(count: int, size: int, why: str) -> None:
    head = blocks("deflate")
    assert why in read("avro", head + zigzag(count) + zigzag(size) + b"0123456789" + head[-16:])[1]


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
@pytest.mark.parametrize("skip", [0, 7])
def test_compressed_blocks_of_avro_are_read(codec: str, skip: int) -> None:
    assert read("avro", avro(ROWS, codec=codec), skip) == (ROWS[skip:], "")


@pytest.mark.parametrize("compression", ["zstd", "gzip", "snappy", "none"])
@pytest.mark.parametrize("options", [{}, {"sort": "ts"}])
@pytest.mark.parametrize("file", ["of Python", "of Arrow"])
def test_parquet_page_has_a_bound_on_its_unpacked_size(
    compression: str, options: Mapping[str, Any], file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row group has a text of 64 MiB; without it the file is read."""
    names = ["a" * 1_000, "x" * (64 << 20)]
    table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us")), "n": [1, 2], "name": names})
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=1, compression=compression, use_dictionary=False, write_statistics=False)
    monkeypatch.setattr(file_format, "UNPACKED_BYTES_MAX", 1 << 20)

    def rows_of(schema: Schema) -> Iterator[Any]:
        opened: Any = io.BytesIO(out.getvalue()) if file == "of Python" else pa.BufferReader(out.getvalue())
        for chunk in ParquetFiles(schema, "ts", options).rows(opened, "f", 0):
            yield from zip(*[c.to_list() for c in chunk.columns])

    with pytest.raises(SpeError, match="f: a page of column name becomes more than 1 MiB when it is decompressed"):
        list(rows_of(SCHEMA))
    assert list(rows_of(Schema.of(ts="timestamp!", n="int64!"))) == [(1, 1), (2, 2)]


class _Bytes(io.BytesIO):
    """A file in memory that a weak reference can name."""


def test_a_file_with_a_refused_page_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow never frees an error that is raised while it reads, nor anything that the error refers to."""
    out = io.BytesIO()
    pq.write_table(pa.table({"ts": pa.array([1], pa.timestamp("us")), "n": [1], "name": ["x" * 4_096]}), out)
    monkeypatch.setattr(file_format, "UNPACKED_BYTES_MAX", 1_024)
    file = _Bytes(out.getvalue())
    freed = weakref.ref(file)
    with pytest.raises(SpeError, match="a page of column name becomes more than"):
        list(ParquetFiles(SCHEMA, "ts", {}).rows(file, "f", 0))
    del file
    gc.collect()
    assert freed() is None


@pytest.mark.parametrize("dictionary", [False, True])
def test_row_groups_without_rows_are_passed(dictionary: bool) -> None:
    """Writers of streams make them; what their metadata says of pages is nothing."""
    table = pq.read_table(io.BytesIO(written("parquet")))
    out = io.BytesIO()
    with pq.ParquetWriter(out, table.schema, use_dictionary=dictionary) as writer:
        for part in (table.slice(0, 0), table.slice(0, 10), table.slice(0, 0), table.slice(10), table.slice(0, 0)):
            writer.write_table(part)
    assert pq.ParquetFile(out).num_row_groups == 5
    assert read("parquet", out.getvalue()) == (ROWS, "")


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_headers_of_pages_are_understood(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dictionaries, statistics, checksums and nulls: each size is asked of the checker once, and is right."""
    table = pa.table({"a": [f"text {n % 50}" if n % 7 else None for n in range(30_000)], "b": range(30_000)})
    out = io.BytesIO()
    pq.write_table(
        table, out, row_group_size=10_000, data_page_size=4_000, data_page_version=version, compression="zstd",
        write_page_checksum=True, column_encoding=None,
    )  # fmt: skip
    sizes: list[int] = []
    plain = parquet_pages._Pages.unpacked
    monkeypatch.setattr(parquet_pages._Pages, "unpacked", lambda pages: sizes.append(plain(pages)) or sizes[-1])
    out.seek(0)
    checked = parquet_pages.PageCheckedFile(out, "f")
    with pq.ParquetFile(pa.PythonFile(checked, "r")) as opened:
        checked.learn(opened.metadata)
        assert opened.read().equals(table)
        groups = [opened.metadata.row_group(n) for n in range(3)]
    columns = [group.column(n) for group in groups for n in range(2)]
    assert len(sizes) > 20
    assert 0 < sum(sizes) < sum(c.total_uncompressed_size for c in columns)
    assert sum(c.total_uncompressed_size for c in columns) - sum(sizes) < 200 * len(sizes), "the rest is headers"


_LIST = {
    "type": "record",
    "name": "list",
    "fields": [{"name": "n", "type": "long"}, {"name": "next", "type": ["null", "list"]}],
}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (_LIST, "list contains itself"),
        ({"type": "record", "name": "a", "fields": [{"name": "n", "type": _LIST}]}, "list contains itself"),
        ({"type": "record", "name": "a", "fields": [{"name": "n", "type": "null"}]}, "each of which has bytes"),
        (
            {"type": "record", "name": "a", "fields": [
                {"name": "n", "type": "long"}, {"name": "m", "type": {"type": "array", "items": "null"}}]},
            "each of which has bytes",
        ),
    ],
)  # fmt: skip
def test_types_without_a_bound_are_refused(schema: Any, why: str) -> None:
    """A few bytes of such a type could fill the memory, or be nested deeper than fastavro can follow, which crashes."""
    with pytest.raises(SpeError, match=why):
        AvroRows(Schema.of(n="int64"), None, {}).of(schema, "f")
    plain = {"type": "record", "name": "b", "fields": [
        {"name": "n", "type": "long"}, {"name": "m", "type": {"type": "map", "values": "long"}},
        {"name": "e", "type": {"type": "enum", "name": "e", "symbols": ["x"]}}, {"name": "f", "type": "e"},
        {"name": "l", "type": {"type": "array", "items": "e"}},
    ]}  # fmt: skip
    AvroRows(Schema.of(n="int64", f="string"), None, {}).of(plain, "f")


def test_named_types_are_resolved() -> None:
    fields = [{"name": "ts", "type": "long"}, {"name": "n", "type": "long"},
              {"name": "first", "type": {"type": "enum", "name": "kind", "symbols": ["x", "y"]}},
              {"name": "name", "type": "kind"}]  # fmt: skip
    out, row = io.BytesIO(), {"ts": 1, "n": 2, "first": "x", "name": "y"}
    fastavro.writer(out, {"type": "record", "name": "r", "namespace": "a.b", "fields": fields}, [row])
    found: list[Row] = []
    for chunk in FileRows(SCHEMA, "ts", {"format": "avro", "timestamps": "s"}).read(io.BytesIO(out.getvalue()), "f", 0):
        found += list(zip(*[c.to_list() for c in chunk.columns]))
    assert found == [(1_000_000, 2, "y")]
