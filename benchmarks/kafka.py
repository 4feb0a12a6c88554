"""A Kafka source and the bare client, which reads the same messages in the same run, from brokers in memory.

A source reads, makes columns, merges partitions by event time, writes its log, syncs, and publishes.  The client hands
each message's value to Python, and for JSON parses it.  CPU counts all threads of the process, librdkafka's included;
brokers are another process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from benchmarks.tables import beside, demand, show, spread
from replicas.connectors.kafka.source import KafkaReader
from replicas.source.proxy import SourceProxy
from spe.plan.plan import Source, Watermark
from spe.runtime.production import production_env
from spe.stream.batch import Batch, Element
from spe.stream.names import StreamId
from spe.stream.schema import Schema

#: librdkafka's mock keeps some 5 MB of a partition, and makes topics of so many.
PARTITIONS = 4
ROWS = 160_000
LIMIT = 1.3
_BROKERS = """
import sys
from confluent_kafka import Producer
brokers = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0})
print(",".join(f"{b.host}:{b.port}" for b in brokers.list_topics(timeout=30).brokers.values()), flush=True)
sys.stdin.read()
"""
TOPIC = "bench"
JSON = Schema.of(ts="timestamp!", n="int64!")
TEXT = Schema.of(ts="timestamp!", line="string!")


@contextmanager
def brokers() -> Iterator[str]:
    command = [sys.executable, "-c", _BROKERS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def fill(servers: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "log_level": 0})
    for n in range(ROWS):
        value = json.dumps({"ts": n, "n": n}).encode()
        while True:
            try:
                producer.produce(TOPIC, value, partition=n % PARTITIONS, timestamp=1_000 + n // 1_000)
                break
            except BufferError:
                producer.poll(0.05)
        if not n % 1_000:
            producer.poll(0)
    demand(producer.flush(60) == 0, "messages were not taken")


def bare(servers: str, parse: bool) -> None:
    """The client alone."""
    from confluent_kafka import Consumer, TopicPartition

    wanted = {"bootstrap.servers": servers, "group.id": "bare", "enable.auto.commit": False, "check.crcs": True}
    consumer = Consumer({**wanted, "log_level": 0})
    consumer.assign([TopicPartition(TOPIC, p, 0) for p in range(PARTITIONS)])
    count = total = 0
    while count < ROWS:
        messages = consumer.consume(8192, 0.05)
        values = [m.value() for m in messages if m.error() is None]
        count += len(values)
        total += sum(json.loads(v or b"")["n"] for v in values) if parse else len(values)
    consumer.close()
    demand(total == (ROWS * (ROWS - 1) // 2 if parse else ROWS), "the client read something else")


def source_of(servers: str, schema: Schema, attributes: Mapping[str, str]) -> Source:
    reader = {
        "kind": "kafka", "servers": servers.split(","), "topics": [TOPIC], "format": "jsonl", "timestamps": "us",
        "attributes": attributes,
    }  # fmt: skip
    return Source(
        stream=StreamId("bench"), schema=schema, boundary_us=100_000, disorder_us=0, ahead_us=None, time="ts",
        reader=reader, replay={}, on_malformed="skip", watermark=Watermark.DATA,
    )  # fmt: skip


def ours(of: Source) -> None:
    """The source, with its log on the disk."""
    rows = total = 0

    async def main(folder: str) -> None:
        nonlocal rows, total
        proxy = await SourceProxy.open(production_env(Path(folder), 0), of)
        done = trio.Event()

        def publish(elements: list[Element]) -> None:
            nonlocal rows, total
            for element in elements:
                if isinstance(element, Batch):
                    rows += len(element)
                    total += int(element.rows.columns[1].values.sum()) if of.schema is JSON else len(element)
            if rows >= ROWS:
                done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(proxy.run, publish, lambda _: None, KafkaReader(of.schema, of.time, of.reader))
            await done.wait()
            nursery.cancel_scope.cancel()
        proxy.close()
        demand(proxy.status().late == 0, "rows came late")

    with tempfile.TemporaryDirectory() as folder:
        trio.run(main, folder)
    demand((rows, total) == (ROWS, ROWS * (ROWS - 1) // 2 if of.schema is JSON else ROWS), "the source lost rows")


def timed(function: Callable[[], None]) -> tuple[float, float]:
    """CPU seconds of all our threads, and seconds, for each row."""
    cpu, begin = time.process_time(), time.perf_counter()
    function()
    return (time.process_time() - cpu) / ROWS, (time.perf_counter() - begin) / ROWS


def run(arguments: argparse.Namespace) -> None:
    with brokers() as servers:
        fill(servers)
        compared: list[tuple[str, Callable[[], Any], Callable[[], Any]]] = [
            (
                "the value as a text",
                lambda: ours(source_of(servers, TEXT, {"ts": "timestamp", "line": "value"})),
                lambda: bare(servers, False),
            ),
            ("JSON", lambda: ours(source_of(servers, JSON, {})), lambda: bare(servers, True)),
        ]
        table = []
        for name, mine, its in compared:
            pairs = [(timed(mine), timed(its)) for _ in range(arguments.rounds + 1)][1:]  # the first warms up
            cpu = beside([p[0][0] for p in pairs], [p[1][0] for p in pairs], LIMIT)
            rates = [spread([1e-3 / p[i][1] for p in pairs], ".0f") for i in (1, 0)]
            table.append([name, *cpu[:2], cpu[2], cpu[3], *rates, cpu[4]])
    head = ["message", "client, ns of CPU", "source, ns", "ratio", "target", "client, 1000 rows/s", "source", ""]
    show("A Kafka source beside the bare client", head, table, [(__doc__ or "").split("\n\n", 1)[1]])
