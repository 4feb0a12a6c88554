"""Files of a directory and messages of Kafka as a source, beside the bare libraries on the same input."""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import trio
from confluent_kafka import Consumer, TopicPartition

from benchmarks.tables import benchmark, beside, chosen, demand, ratio, spread
from examples.servers import kafka, mock_kafka
from examples.servers.topics import Topics
from replicas.connectors.files.file_rows import FileRows
from replicas.connectors.kafka.source import KafkaReader
from replicas.source.proxy import SourceProxy
from spe.plan.plan import Source, Watermark
from spe.runtime.production import production_env
from spe.stream.batch import Batch, Element
from spe.stream.names import StreamId
from spe.stream.schema import Schema

#: Rows, and how they are written.
SHAPES = [(4_000_000, "parquet"), (4_000_000, "arrow"), (200_000, "avro"), (200_000, "jsonl")]
FILES = 4
ROUNDS = 5
LIMIT = 1.3
SCHEMA = Schema.of(ts="timestamp!", n="int64!", price="float64!", shop="string!")


@benchmark(
    "files",
    "rows | format | bare, ns/row | columns, ns/row | source, ns/row | columns / bare | target | source / bare | "
    "target",
)
def _file_rows(arguments: argparse.Namespace) -> Iterator[list[str]]:
    """Files of a directory.

    CPU of all threads of the process.  Four files; a timestamp, an integer, a number and a text of 1,000 different
    ones.  Bare: pyarrow to NumPy (texts as its dictionary), fastavro's records, json.loads of each line.  Columns: our
    columns of the same files, without a log.  Source: also stamps, log, sync and publishing.  Rounds: median (min-max).
    """
    for rows, form in chosen(SHAPES, arguments):
        with tempfile.TemporaryDirectory() as folder:
            for n in range(FILES):
                (Path(folder) / f"{n}").write_bytes(_FORMATS[form][0](_columns(rows // FILES, n)))
            cpu = _measured(folder, form, rows)
        ratios = [*ratio(cpu["columns"], cpu["bare"], LIMIT), *ratio(cpu["source"], cpu["bare"], LIMIT)]
        yield [f"{rows:,}", form, *(spread(values, ".0f", 1e9) for values in cpu.values()), *ratios]


def _measured(folder: str, form: str, rows: int) -> dict[str, list[float]]:
    """CPU seconds per row of each way to read the folder, round by round."""
    cpu: dict[str, list[float]] = {"bare": [], "columns": [], "source": []}
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as log:  # the time to delete it is not measured
            ways: Mapping[str, Callable[[], int]] = {
                "bare": lambda: sum(map(_FORMATS[form][1], _paths(folder))),
                "columns": lambda: sum(_chunks(path, form) for path in _paths(folder)),
                "source": partial(trio.run, _source, folder, form, rows, Path(log)),
            }
            for name, work in ways.items():
                began = time.process_time()
                demand(work() == rows * (rows - 1) // 2, f"{name} read something else")
                cpu[name].append((time.process_time() - began) / rows)
    return cpu


def _declared(schema: Schema, reader: dict[str, Any]) -> Source:
    return Source(
        stream=StreamId("bench"), schema=schema, boundary_us=100_000, disorder_us=0, ahead_us=None, time="ts",
        reader=reader, replay={}, on_malformed="skip", watermark=Watermark.DATA,
    )  # fmt: skip


def _paths(folder: str) -> list[Path]:
    return sorted(Path(folder).iterdir())


def _columns(rows: int, part: int) -> dict[str, Any]:
    n = np.arange(part * rows, (part + 1) * rows)
    at = 1_700_000_000_000_000 + 1_000 * n
    return {"ts": at, "n": n, "price": n / 7, "shop": [f"shop {i % 1_000}" for i in range(rows)]}


def _arrow(columns: Mapping[str, Any]) -> Any:
    table = pa.table(dict(columns))
    return table.set_column(0, "ts", table.column("ts").cast(pa.timestamp("us")))


def _write_parquet(columns: Mapping[str, Any]) -> bytes:
    out = io.BytesIO()
    pyarrow.parquet.write_table(_arrow(columns), out)
    return out.getvalue()


def _write_arrow(columns: Mapping[str, Any]) -> bytes:
    out, table = io.BytesIO(), _arrow(columns)
    with pyarrow.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=65_536)
    return out.getvalue()


def _write_avro(columns: Mapping[str, Any]) -> bytes:
    types = {"ts": {"type": "long", "logicalType": "timestamp-micros"}, "n": "long", "price": "double"}
    fields = [{"name": name, "type": types.get(name, "string")} for name in columns]
    out = io.BytesIO()
    fastavro.writer(out, {"type": "record", "name": "r", "fields": fields}, pa.table(dict(columns)).to_pylist())
    return out.getvalue()


def _write_jsonl(columns: Mapping[str, Any]) -> bytes:
    return "".join(f"{json.dumps(record)}\n" for record in pa.table(dict(columns)).to_pylist()).encode()


def _bare_parquet(path: Path) -> int:
    with pyarrow.parquet.ParquetFile(path) as file:
        return sum(map(_taken, file.iter_batches(8_192)))


def _bare_arrow(path: Path) -> int:
    with path.open("rb") as file:
        reader = pyarrow.ipc.open_file(file)
        return sum(
            _taken(reader.get_batch(i).slice(at, 8_192))
            for i in range(reader.num_record_batches)
            for at in range(0, reader.get_batch(i).num_rows, 8_192)
        )


def _taken(batch: Any) -> int:
    columns = [batch.column(i).to_numpy(zero_copy_only=False) for i in range(3)]
    batch.column(3).dictionary_encode().indices.to_numpy(zero_copy_only=False)
    return int(columns[1].sum())


def _bare_avro(path: Path) -> int:
    with path.open("rb") as file:
        return sum(record["n"] for record in fastavro.reader(file))  # type: ignore[misc,call-overload]


def _bare_jsonl(path: Path) -> int:
    with path.open() as file:
        return sum(json.loads(line)["n"] for line in file)


#: How columns are written, and what the bare library sums up of a file.
_FORMATS: Mapping[str, tuple[Callable[[Mapping[str, Any]], bytes], Callable[[Path], int]]] = {
    "parquet": (_write_parquet, _bare_parquet),
    "arrow": (_write_arrow, _bare_arrow),
    "avro": (_write_avro, _bare_avro),
    "jsonl": (_write_jsonl, _bare_jsonl),
}


def _options(form: str) -> dict[str, Any]:
    return {"format": form, **({"timestamps": "us"} if form == "jsonl" else {})}


def _chunks(path: Path, form: str) -> int:
    with path.open("rb") as file:
        chunks = FileRows(SCHEMA, "ts", _options(form)).read(file, path.name, 0)
        return sum(int(chunk.columns[1].values.sum()) for chunk in chunks)


async def _source(folder: str, form: str, rows: int, log: Path) -> int:
    """The source, with its log; the sum of its column n."""
    reader = {"kind": "directory", "folder": folder, "follow": False, **_options(form)}
    source, count, total = _declared(SCHEMA, reader), 0, 0

    def publish(elements: list[Element]) -> None:
        nonlocal count, total
        for element in elements:
            if isinstance(element, Batch):
                count += len(element)
                total += int(element.rows.columns[1].values.sum())

    proxy = await SourceProxy.open(production_env(log, 0), source)
    await proxy.run(publish)
    proxy.close()
    demand((count, proxy.fault) == (rows, None), f"the source read {count} rows: {proxy.fault}")
    return total


# --- Kafka ---

#: librdkafka's mock keeps some 5 MB of a partition.
PARTITIONS = 4
MESSAGES = 160_000
#: Sent at one go.
PORTION = 20_000
TOPIC = "bench"
JSON = Schema.of(ts="timestamp!", n="int64!")
TEXT = Schema.of(ts="timestamp!", line="string!")


@contextmanager
def filled_brokers() -> Iterator[tuple[Topics, str]]:
    """Brokers with the messages, and a note on them; real ones where they can be started."""
    if (reason := kafka.missing()) is None:
        with kafka.running_cluster() as cluster:
            cluster.make(TOPIC, PARTITIONS, retention_ms="-1")  # the messages are old
            fill(cluster)
            yield cluster, f"Broker: one of Apache Kafka {kafka.VERSION}."
    else:
        with mock_kafka.brokers() as mock:
            mock.make(TOPIC)
            fill(mock)
            yield mock, f"Broker: librdkafka's mock, which has everything in memory; no real one: {reason}."


def fill(brokers: Topics) -> None:
    for first in range(0, MESSAGES, PORTION):
        numbers = range(first, first + PORTION)
        where = [{"partition": n % PARTITIONS, "timestamp": 1_000 + n // 1_000} for n in numbers]
        brokers.send(TOPIC, [{"value": {"ts": n, "n": n}, **at} for n, at in zip(numbers, where)])


def bare(brokers: Topics, parse: bool) -> None:
    """The client alone."""
    consumer = Consumer(brokers.address | {"group.id": "bare", "enable.auto.commit": False, "check.crcs": True})
    consumer.assign([TopicPartition(TOPIC, p, 0) for p in range(PARTITIONS)])
    count = total = 0
    while count < MESSAGES:
        messages = consumer.consume(8192, 0.05)
        values = [m.value() for m in messages if m.error() is None]
        count += len(values)
        total += sum(json.loads(v or b"")["n"] for v in values) if parse else len(values)
    consumer.close()
    demand(total == wanted(parse), "the client read something else")


def wanted(parse: bool) -> int:
    """The sum of the column n; of texts their count."""
    return MESSAGES * (MESSAGES - 1) // 2 if parse else MESSAGES


def declared(brokers: Topics, schema: Schema, attributes: Mapping[str, str]) -> Source:
    reader = {
        "kind": "kafka", "servers": list(brokers.servers), "topics": [TOPIC], "format": "jsonl", "timestamps": "us",
        "attributes": attributes,
    }  # fmt: skip
    return _declared(schema, reader)


def ours(source: Source) -> None:
    """The source, with its log on the disk."""
    rows = total = 0

    async def main(folder: str) -> None:
        nonlocal rows, total
        proxy = await SourceProxy.open(production_env(Path(folder), 0), source)
        done = trio.Event()

        def publish(elements: list[Element]) -> None:
            nonlocal rows, total
            for element in elements:
                if isinstance(element, Batch):
                    rows += len(element)
                    total += int(element.rows.columns[1].values.sum()) if source.schema is JSON else len(element)
            if rows >= MESSAGES:
                done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                proxy.run, publish, lambda _: None, KafkaReader(source.schema, source.time, source.reader)
            )
            await done.wait()
            nursery.cancel_scope.cancel()
        demand(proxy.status().late == 0, "rows came late")
        proxy.close()

    with tempfile.TemporaryDirectory() as folder:
        trio.run(main, folder)
    demand((rows, total) == (MESSAGES, wanted(source.schema is JSON)), "the source lost rows")


def timed(function: Callable[[], None]) -> tuple[float, float]:
    """CPU seconds of all our threads, and seconds, for each row."""
    cpu, begin = time.process_time(), time.perf_counter()
    function()
    return (time.process_time() - cpu) / MESSAGES, (time.perf_counter() - begin) / MESSAGES


@benchmark("kafka", "message | client, ns of CPU | source, ns | ratio | target | client, 1000 rows/s | source")
def _kafka_rows(arguments: argparse.Namespace) -> Iterator[list[str] | str]:
    """A Kafka source beside the bare client.

    Both read the same messages from a broker.  A source reads, makes columns, merges partitions by event time,
    writes its log, syncs, and publishes.  The client hands each message's value to Python, and for JSON parses it.  CPU
    counts all threads of the process, librdkafka's included; the broker is another process.
    """
    with filled_brokers() as (brokers, note):
        for name, schema, attributes in (
            ("the value as a text", TEXT, {"ts": "timestamp", "line": "value"}),
            ("JSON", JSON, {}),
        ):
            mine = partial(ours, declared(brokers, schema, attributes))
            its = partial(bare, brokers, schema is JSON)
            pairs = [(*timed(mine), *timed(its)) for _ in range(arguments.rounds + 1)][1:]  # the first warms up
            cpu, seconds, bare_cpu, bare_seconds = zip(*pairs)
            rates = [spread([1e-3 / s for s in values], ".0f") for values in (bare_seconds, seconds)]
            yield [name, *beside(cpu, bare_cpu, LIMIT), *rates]
        yield note
