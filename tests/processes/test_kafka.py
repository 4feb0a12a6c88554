"""What the reader of Kafka states, checked by the kit against brokers; runs: examples/kafka_to_postgres."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="Kafka is not tested: confluent-kafka is not installed")

from examples.servers.mock_kafka import PARTITIONS, brokers
from examples.servers.topics import Topics
from replicas.testing import check_reader, check_sink
from tests.support.kafka_servers import running_cluster

pytestmark = pytest.mark.processes

#: Crashes of each kind.
SOME = 4
ROWS = 40


@pytest.fixture(scope="module", params=["mock", "kafka"])
def broker(request: pytest.FixtureRequest) -> Iterator[Topics]:
    with brokers(2) if request.param == "mock" else running_cluster() as running:
        yield running


class Topic:
    """A topic for one play."""

    numbers = count()

    def __init__(self, broker: Topics) -> None:
        self.broker = broker
        self.name = f"play{next(self.numbers)}"

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(m.value()) for p in range(PARTITIONS) for m in self.broker.read_all(self.name, p)]


def message(n: int, ts: int) -> dict[str, Any]:
    return {"value": {"ts": ts, "n": n}, "key": f"c{n % 7}", "partition": n % PARTITIONS}


def test_kafka_reader_delivers_each_message_once_despite_kills(broker: Topics) -> None:
    def server() -> Topic:
        topic = Topic(broker)
        broker.send(topic.name, [message(n, n * 1_000) for n in range(ROWS)])
        return topic

    def source(topic: Topic) -> dict[str, Any]:
        reader = {"kafka": {"servers": list(broker.servers), "topics": topic.name}, "timestamps": "us"}
        return {"schema": {"ts": "timestamp!", "n": "int64!"}, "time": "ts", "from": reader}

    rows = [{"ts": n * 1_000, "n": n} for n in range(ROWS)]
    order = lambda row: row["n"] % PARTITIONS  # noqa: E731
    assert check_reader(source, rows, server, order=order, virtual=False, most=SOME) == 2 * (SOME + 1)


@pytest.mark.parametrize("mode", ["stable", pytest.param("corrections", marks=pytest.mark.long)])
def test_kafka_sink_keeps_guarantees_despite_kills(mode: str) -> None:
    with running_cluster() as broker:  # the mock delivers what aborted transactions have sent

        def server() -> Topic:
            topic = Topic(broker)
            broker.make(topic.name)
            return topic

        def sink(topic: Topic) -> dict[str, Any]:
            entry = {"servers": list(broker.servers), "topic": topic.name}
            return {"kafka": entry, "mode": mode}

        assert check_sink(sink, server, virtual=False, most=SOME) == 2 * (SOME + 1)
