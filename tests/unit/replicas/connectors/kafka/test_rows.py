"""Messages of Kafka to rows: what is in the message, what is in its value, and what fits no row."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from replicas.connectors.kafka.merge import Arrived
from replicas.connectors.kafka.rows import MessageRows
from spe.errors import SpeError
from spe.stream.schema import Attribute, AttributeType, Schema

INT, TEXT, TIME = AttributeType.INT64, AttributeType.STRING, AttributeType.TIMESTAMP


class Sent(NamedTuple):
    """As the client gives it."""

    value_: bytes | None
    key_: bytes | None = None
    ms: int | None = 1_000
    headers_: list[tuple[str, bytes | None]] | None = None
    offset_: int = 7

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 2

    def offset(self) -> int:
        return self.offset_

    def key(self) -> bytes | None:
        return self.key_

    def value(self) -> bytes | None:
        return self.value_

    def timestamp(self) -> tuple[int, int]:
        return (0, -1) if self.ms is None else (1, self.ms)

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.headers_


def schema(**types: tuple[AttributeType, bool]) -> Schema:
    return Schema(tuple(Attribute(name, type_, nullable) for name, (type_, nullable) in types.items()))


def rows(schema: Schema, messages: list[Sent], time: str | None = None, **options: Any) -> tuple[list[Any], Arrived]:
    numbers = np.arange(len(messages))
    found = MessageRows(schema, time, options).arrived(messages, numbers * 0, numbers)
    return list(zip(*[c.to_list() for c in found.columns])), found


def reasons(found: Arrived) -> dict[int, str]:
    return {i: m.reason for i, m in found.malformed.items()}


def test_attributes_are_in_the_value_or_are_parts_of_the_message() -> None:
    of = schema(at=(TIME, False), who=(TEXT, True), n=(INT, False), t=(TEXT, True), p=(INT, True), o=(INT, True))
    parts = {"at": "timestamp", "who": "key", "t": "header trace", "p": "partition", "o": "offset"}
    messages = [
        Sent(b'{"n": 1}', b"ann", 5, [("trace", b"old"), ("x", b""), ("trace", b"new")]),
        Sent(b'{"n": 2}', None, 6),
    ]
    got, found = rows(of, messages, "at", attributes=parts)
    assert got == [(5_000, "ann", 1, "new", 2, 7), (6_000, None, 2, None, 2, 7)]
    assert found.events is not None
    assert found.events.tolist() == [5_000, 6_000]


def test_message_that_fits_no_row_is_rejected_alone() -> None:
    of = schema(at=(TIME, False), who=(TEXT, False), n=(INT, False))
    messages = [
        Sent(b'{"n": 1}', b"ann"),
        Sent(None, b"ann"),
        Sent(b"", b"ann"),
        Sent(b'{"n": 1', b"ann"),
        Sent(b'{"n": 2}', None),
        Sent(b'{"n": 3}', b"\xff"),
        Sent(b'{"n": 4}', b"bob", None),
        Sent(b'{"n": "\xff"}', b"bob"),
        Sent(b'{"n": 5}', b"bob", offset_=9),
    ]
    got, found = rows(of, messages, "at", attributes={"at": "timestamp", "who": "key"})
    assert [(who, n) for _, who, n in got] == [("ann", 1), ("bob", 5)]
    assert found.row.tolist() == [0, -1, -1, -1, -1, -1, -1, -1, 1]
    said = reasons(found)
    assert said.pop(3).startswith("no JSON: ")
    assert said == {
        1: "no value: it deletes a key",
        2: "an empty value",
        4: "who: null, but the attribute is not nullable",
        5: "who: not UTF-8",
        6: "at: null, but the attribute is not nullable",
        7: "n: expected int64, got '\\udcff'",
    }
    assert found.malformed[3].where == "orders/2 offset 7"
    assert all(c.valid is None for c in found.columns)


def test_csv_is_one_row_per_message() -> None:
    of = schema(a=(TEXT, True), n=(INT, True))
    messages = [Sent(b"x,1\r\n"), Sent(b"y,2"), Sent(b"z,3\nzz,4"), Sent(b"\n"), Sent(None), Sent(b"y")]
    got, found = rows(of, messages, format="csv")
    assert got == [("x", 1), ("y", 2)]
    assert sorted(found.malformed) == [2, 3, 4, 5]


def test_a_deleting_message_is_no_row_of_any_csv() -> None:
    """Whatever stands for it while the others are read: here it would be a good cell."""
    got, found = rows(schema(a=(TEXT, True)), [Sent(None), Sent(b"x"), Sent(b"")], format="csv", quote="'")
    assert got == [("x",)]
    assert sorted(found.malformed) == [0, 2]


def test_the_whole_value_may_be_an_attribute() -> None:
    got, found = rows(schema(line=(TEXT, True)), [Sent(b"a\n"), Sent(None), Sent(b"")], attributes={"line": "value"})
    assert got == [("a\n",), ("",)]
    assert reasons(found) == {1: "no value: it deletes a key"}


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"m": "key"}, "from.kafka.attributes: no attribute 'm'; expected one of: n"),
        ({"n": "key"}, "from.kafka.attributes.n: the key of a message is string, got int64"),
        ({"n": "timestamp"}, "from.kafka.attributes.n: the timestamp of a message is timestamp, got int64"),
    ],
)
def test_attributes_that_do_not_fit_are_refused(attributes: dict[str, str], said: str) -> None:
    with pytest.raises(SpeError) as caught:
        MessageRows(schema(n=(INT, True)), None, {"attributes": attributes})
    assert str(caught.value) == said
