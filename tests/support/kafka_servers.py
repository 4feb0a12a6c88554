"""Brokers of Kafka for tests: librdkafka's mock, and real ones where they can be started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from examples.servers import kafka
from examples.servers.kafka import KafkaCluster


@contextmanager
def running_cluster(count: int = 1) -> Iterator[KafkaCluster]:
    """Skips the test where no broker can be started, and says what is missing."""
    if (reason := kafka.missing()) is not None:
        pytest.skip(f"needs brokers of Kafka: {reason}")
    with kafka.running_cluster(count) as cluster:
        yield cluster
