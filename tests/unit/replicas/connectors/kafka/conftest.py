"""A broker that tests of Kafka share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("confluent_kafka", reason="Kafka is not tested: confluent-kafka is not installed")

from examples.servers.kafka import KafkaCluster
from examples.servers.mock_kafka import brokers
from examples.servers.topics import Topics
from tests.support.kafka_servers import running_cluster


@pytest.fixture(scope="package", params=["mock", "kafka"])
def broker(request: pytest.FixtureRequest) -> Iterator[Topics]:
    with brokers(2) if request.param == "mock" else running_cluster() as running:
        yield running


@pytest.fixture(autouse=True)
def _a_mock_has_no_ids(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mock never answers a question for them."""
    if "broker" in request.fixturenames and not isinstance(request.getfixturevalue("broker"), KafkaCluster):
        monkeypatch.setattr("replicas.connectors.kafka.topics.ID_S", 0.01)
