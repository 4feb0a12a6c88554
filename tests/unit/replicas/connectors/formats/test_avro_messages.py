"""Messages of Avro: with the id of a schema that a registry has, or all of one schema."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from replicas.connectors.formats.avro_messages import AvroMessages
from replicas.connectors.formats.schema_registry import SchemaRegistry
from spe.errors import ServerAway, SpeError
from spe.runtime.env import Env
from spe.stream.schema import Schema
from tests.support.schema_registry import record, registry, written
from tests.support.source_env import source_env

SCHEMA = Schema.of(ts="timestamp!", n="int64!", name="string")


def messages(keys: Mapping[str, Any], schema: Schema = SCHEMA, **reader: Any) -> AvroMessages:
    return AvroMessages(schema, "ts", reader, keys)


async def rows(of: AvroMessages, values: Sequence[bytes]) -> tuple[list[Any], dict[int, str]]:
    """Good rows; and why others are bad, by their number from 1."""
    if unknown := of.unknown(values, source_env().clock.monotonic_us()):
        await of.learn(source_env(), unknown)
    chunk = of.chunk(values)
    return list(zip(*[c.to_list() for c in chunk.columns])), {m.line: m.reason for m in chunk.malformed}


ROW = {"ts": 5, "n": 1, "name": "a"}


async def test_schemas_are_asked_for_once() -> None:
    async with registry() as one:
        one.add(7, record())
        of = messages({"registry": {"url": f"http://{one.address}"}})
        values = [written(record(), {**ROW, "n": n}, 7) for n in range(3)]
        assert await rows(of, values) == ([(5, n, "a") for n in range(3)], {})
        assert await rows(of, values[:1]) == ([(5, 0, "a")], {})
        assert [path for path, _ in one.asked] == ["/schemas/ids/7"]


async def test_messages_of_several_schemas_come_together() -> None:
    """Units of time differ, a field that may be null is missing, and another one is more."""
    schemas = [record(), record("millis", name=None), record("nanos", more="string")]
    async with registry() as one:
        for id_, schema in enumerate(schemas):
            one.add(id_, schema)
        of = messages({"registry": {"url": f"http://{one.address}"}})
        values = [
            written(schemas[0], ROW, 0),
            written(schemas[1], {"ts": 5, "n": 2}, 1),
            written(schemas[2], {**ROW, "ts": 5_000, "n": 3, "more": "x"}, 2),
        ]
        assert await rows(of, values) == ([(5, 1, "a"), (5_000, 2, None), (5, 3, "a")], {})
        assert await rows(of, values[1:2]) == ([(5_000, 2, None)], {})


async def test_invalid_message_is_malformed() -> None:
    async with registry() as one:
        one.add(1, record())
        one.add(2, record(n="string"))
        one.add(3, record(n=None))
        one.add(4, {}, schemaType="PROTOBUF")
        one.add(5, record(), references=[{"name": "x"}])
        one.add(6, "long")
        of = messages({"registry": {"url": f"http://{one.address}"}})
        good = written(record(), ROW, 1)
        heads = [struct.pack(">bI", 0, id_) for id_ in range(1, 10)]
        values = [good, b"", b"{}", good[:-1], good + b"x", *heads[1:6], heads[8], written(record(), ROW, 1)]
        found, bad = await rows(of, values)
        assert found == [(5, 1, "a")] * 2
        no_head = "expected a byte of zero and the id of a schema"
        assert bad == {
            2: no_head,
            3: no_head,
            4: bad[4],
            5: "1 bytes behind the record; was it written with another schema?",
            6: "schema 2: field n is string; int64 was expected",
            7: "schema 3: no field n; the schema has: ts, name",
            8: "schema 4 is of PROTOBUF; expected AVRO",
            9: "schema 5 refers to other schemas; expected one that has all of its types",
            10: "schema 6: expected records, got long",
            11: f"schema registry http://{one.address}/ has no schema 9",
        }
        assert bad[4].startswith("the record: cannot be read: ")


class Told(SchemaRegistry):
    """A registry that is asked in memory.

    Attributes:
      has: schemas by id.
      asked: ids, in order.
      answer_s: time that each answer takes.
    """

    def __init__(self, answer_s: float = 0.0) -> None:
        super().__init__({"url": "http://registry"})
        self.has: dict[int, Any] = {}
        self.asked: list[int] = []
        self.answer_s = answer_s

    async def _ask(self, env: Env, id_: int) -> tuple[Any] | str:
        self.asked.append(id_)
        await env.clock.sleep(self.answer_s)
        return (self.has[id_],) if id_ in self.has else f"no schema {id_}"


async def test_a_schema_that_was_missing_is_asked_for_again_later(autojump_clock: Any) -> None:
    """Also where no other one is asked for: whoever wrote the messages registers it a moment later."""
    of = messages({"registry": {"url": "http://registry"}})
    of._registry = there = Told()
    values = [written(record(), ROW, 7)]
    assert await rows(of, values) == ([], {1: "no schema 7"})
    there.has[7] = record()
    await trio.sleep(29)
    assert await rows(of, values) == ([], {1: "no schema 7"}), "not for each message"
    await trio.sleep(2)
    assert await rows(of, values) == ([(5, 1, "a")], {})
    assert there.asked == [7, 7]


async def test_unknown_schema_ids_are_requested_once(autojump_clock: Any) -> None:
    of = messages({"registry": {"url": "http://registry"}})
    of._registry = there = Told(answer_s=5.0)
    values = [struct.pack(">bI", 0, id_) for id_ in range(10)]
    assert await rows(of, values) == ([], {n + 1: f"no schema {n}" for n in range(10)})
    assert of.unknown(values, source_env().clock.monotonic_us()) == set(), "else they would wait for ever"
    assert there.asked == [*range(10)]


async def test_credentials_are_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "a-secret")
    monkeypatch.setenv("REGISTRY_USER", "me")
    keys = {"user": {"env": "REGISTRY_USER"}, "password": {"env": "REGISTRY_PASSWORD"}}
    async with registry() as one:
        one.add(1, record())
        of = messages({"registry": {"url": f"http://{one.address}", **keys}})
        assert await rows(of, [written(record(), ROW, 1)]) == ([(5, 1, "a")], {})
        assert one.asked[0][1]["authorization"] == "Basic " + base64.b64encode(b"me:a-secret").decode()
        for status in (401, 503):
            one.answers["/schemas/ids/2"] = status, {"message": "go away"}
            with pytest.raises(ServerAway, match=str(status)) as error:  # it has answered before
                await of.learn(source_env(), [2])
            assert "a-secret" not in str(error.value)


@pytest.mark.parametrize(
    ("status", "body", "error", "why"),
    [
        (401, {"message": "who?"}, SpeError, r"refuses to give schemas: 401.*who\?"),
        (503, {}, ServerAway, "503"),
        (404, b"<html>", SpeError, "expected a schema in JSON, got status 404: '<html>'"),
        (200, {"schema": "{"}, SpeError, "expected a schema in JSON, got status 200"),
    ],
)
async def test_invalid_registry_answer_is_reported(status: int, body: Any, error: type[SpeError], why: str) -> None:
    async with registry() as one:
        one.answers["/schemas/ids/1"] = status, body
        of = messages({"registry": {"url": f"http://{one.address}"}})
        with pytest.raises(SpeError, match=why) as found:
            await of.learn(source_env(), [1])
        assert type(found.value) is error


async def test_all_messages_may_have_the_schema_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "row.avsc"
    path.write_text(json.dumps(record("millis")))
    of = messages({"file": str(path)})
    assert await rows(of, [written(record("millis"), ROW)]) == ([(5_000, 1, "a")], {})
    path.write_text(json.dumps(record(ts="long")))
    with pytest.raises(SpeError, match=r"row\.avsc: field ts is long; timestamp was expected; for numbers since"):
        messages({"file": str(path)})
    assert await rows(messages({"file": str(path)}, timestamps="s"), [written(record(ts="long"), ROW)]) == (
        [(5_000_000, 1, "a")],
        {},
    )
    with pytest.raises(SpeError, match=r"avro\.file: .* cannot be read"):
        messages({"file": str(tmp_path / "nowhere")})
