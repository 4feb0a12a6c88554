"""Where orders come from and results go: servers that are given, or our own, which can be broken."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

from examples.kafka_to_postgres.orders import PARTITIONS
from examples.kafka_to_postgres.watch import ChangesTable, PostgresTable, Table
from examples.servers import kafka as brokers
from examples.servers import postgres
from examples.servers.mock_kafka import brokers as mock_brokers

NOT_OURS = "not ours, so it is not broken"


class Break(NamedTuple):
    """A server is broken: when, seconds after the first order, and for how long."""

    at_s: float
    for_s: float
    name: str
    broken: Callable[[], AbstractContextManager[None]]

    def at(self, pace: float) -> Break:
        return self._replace(at_s=self.at_s / pace, for_s=self.for_s / pace)

    @property
    def text(self) -> str:
        return f"{self.name} for {self.for_s:g}s"


class Kafka(NamedTuple):
    """``make`` makes a topic."""

    name: str
    servers: str
    make: Callable[[str], Any]
    breaks: Sequence[Break] = ()


class Results(NamedTuple):
    """``sink`` is for the configuration."""

    name: str
    sink: dict[str, Any]
    table: Table
    breaks: Sequence[Break] = ()


def kafka(servers: str, stack: ExitStack) -> Kafka:
    """Brokers at ``servers``; where these are "", a broker or a mock, started here until the stack is closed."""
    if servers:
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})

        def make(topic: str) -> None:
            try:
                admin.create_topics([NewTopic(topic, PARTITIONS)], request_timeout=10)[topic].result()
            except Exception as error:
                sys.exit(f"Kafka at {servers} makes no topic {topic}: {error}")

        return Kafka(f"{servers} ({NOT_OURS})", servers, make)
    print("Kafka       none is given; looking for one that can be started here", flush=True)
    if (reason := brokers.missing()) is None:
        cluster = stack.enter_context(brokers.running_cluster())
        name = f"Apache Kafka {brokers.VERSION}, started here, until the end"
        breaks = [Break(35, 4, "freeze Kafka", cluster.stopped), Break(40, 2, "kill Kafka", cluster.down)]
        return Kafka(name, ",".join(cluster.servers), cluster.make, breaks)
    mock = stack.enter_context(mock_brokers())
    name = f"librdkafka's mock cluster, in memory ({reason})"
    return Kafka(name, ",".join(mock.servers), mock.make, [Break(35, 4, "freeze Kafka", mock.stopped)])


def results(connection: str, files: bool, table: str, folder: Path, stack: ExitStack) -> Results:
    """A table of the database; where ``connection`` is "", of a server of our own, or files where there is none."""
    why = "as asked" if files else "" if connection else postgres.missing()
    if why:
        name = f"none ({why}), so files of all changes;\n            the table is what a reader of them holds"
        return Results(name, {"jsonl": str(folder), "mode": "corrections"}, ChangesTable(folder))
    sink = {"postgres": {"table": table, "connection": connection}, "mode": "current"}
    if connection:
        name, breaks = f"table {table} at {connection} ({NOT_OURS})", []
    else:
        server = stack.enter_context(postgres.running_server())
        os.environ.update(server.environment)  # so that all find it
        name = "none is given, so a server of our own, until the end"
        breaks = [Break(43, 2, "kill PostgreSQL", server.down), Break(49, 2, "freeze PostgreSQL", server.stopped)]
    there = stack.enter_context(closing(PostgresTable(connection, table)))
    try:
        there.connect()
    except Exception as error:
        sys.exit(f"PostgreSQL at {connection!r}: {error}")
    return Results(name, sink, there, breaks)
