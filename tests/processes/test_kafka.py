"""What the reader of Kafka states, checked by the kit against brokers; runs: examples/kafka_to_postgres."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="Kafka is not tested: confluent-kafka is not installed")

from examples.servers.kafka import PARTITIONS, Brokers, brokers
from replicas.testing import check_reader

pytestmark = pytest.mark.processes

#: Crashes of each kind.
SOME = 4
ROWS = 40


@pytest.fixture(scope="module")
def mock() -> Iterator[Brokers]:
    with brokers(2) as running:
        yield running


class Topic:
    """A topic of its own for each play."""

    numbers = count()

    def __init__(self, mock: Brokers) -> None:
        self.name = f"play{next(self.numbers)}"
        mock.send(self.name, [message(n, n * 1_000) for n in range(ROWS)])


def message(n: int, ts: int) -> dict[str, Any]:
    return {"value": {"ts": ts, "n": n}, "key": f"c{n % 7}", "partition": n % PARTITIONS}


def test_kafka_reader_delivers_each_message_once_despite_kills(mock: Brokers) -> None:
    def source(topic: Topic) -> dict[str, Any]:
        reader = {"kafka": {"servers": mock.servers, "topics": topic.name}, "timestamps": "us"}
        return {"schema": {"ts": "timestamp!", "n": "int64!"}, "time": "ts", "from": reader}

    rows = [{"ts": n * 1_000, "n": n} for n in range(ROWS)]
    order = lambda row: row["n"] % PARTITIONS  # noqa: E731
    assert check_reader(source, rows, lambda: Topic(mock), order=order, virtual=False, most=SOME) == 2 * (SOME + 1)
