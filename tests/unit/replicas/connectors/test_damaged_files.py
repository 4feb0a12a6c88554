"""Files that are cut anywhere, or damaged, are said to be bad; they end no process, and give no row that never was."""

from __future__ import annotations

import io
from random import Random
from typing import Any

import fastavro
import pytest

from replicas.connectors.avro_rows import AvroRows
from replicas.connectors.file_rows import FileRows
from spe.errors import SpeError
from spe.stream.schema import Schema
from tests.support.file_formats import FORMATS, Row, rows

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


def test_named_types_are_found() -> None:
    fields = [{"name": "ts", "type": "long"}, {"name": "n", "type": "long"},
              {"name": "first", "type": {"type": "enum", "name": "kind", "symbols": ["x", "y"]}},
              {"name": "name", "type": "kind"}]  # fmt: skip
    out, row = io.BytesIO(), {"ts": 1, "n": 2, "first": "x", "name": "y"}
    fastavro.writer(out, {"type": "record", "name": "r", "namespace": "a.b", "fields": fields}, [row])
    found: list[Row] = []
    for chunk in FileRows(SCHEMA, "ts", {"format": "avro", "timestamps": "s"}).read(io.BytesIO(out.getvalue()), "f", 0):
        found += list(zip(*[c.to_list() for c in chunk.columns]))
    assert found == [(1_000_000, 2, "y")]
