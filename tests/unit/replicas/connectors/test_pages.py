"""Examples of the pages of connectors, run as they stand there: only where servers are is another.

Those of docs/how-to/postgres.md are in tests/processes/test_postgres_page.py, that of HTTP requests in
test_http_source.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
import trio
import yaml
from deltalake import DeltaTable

pytest.importorskip("confluent_kafka", reason="Kafka is not tested: confluent-kafka is not installed")

from examples.servers.mock_kafka import brokers
from replicas.connectors.server_sink import ServerSink
from replicas.connectors.sink_registry import open_sink
from replicas.testing import check_reader, check_sink
from spe.config import load_data
from spe.plan.deploy import Deployed
from spe.runtime.production import ThreadCompute
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from tests.support import fake_kafka
from tests.support.fake_kafka import FakeKafka
from tests.support.http_peers import EventServer, WebhookServer
from tests.support.s3_server import running_s3
from tests.support.source_env import source_env
from tests.support.streams import parse
from tests.unit.replicas.connectors.kafka.test_source import Running

DOCS = Path(__file__).parents[4] / "docs" / "how-to"
TOTALS = Channel(StreamId("totals"), 0)
RESULT = Schema.of(customer="string!", revenue="float64")


def pieces(page: str) -> list[dict[str, Any]]:
    """The parts of a configuration on a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", text, re.M | re.S)]


def loaded(piece: Mapping[str, Any]) -> Deployed:
    """With results ``totals``, which the pages name, and leave open how they are computed."""
    schema = {"ts": "timestamp!", "customer": "string!", "price": "float64"}
    orders = {"schema": schema, "time": "ts", "from": {"jsonl": "orders.jsonl"}}
    sources = piece.get("sources", {"orders": orders})
    total = {"from": "orders", "window": "1s", "group_by": "customer", "compute": {"revenue": "sum(price)"}}
    return load_data({"query": {"totals": {"aggregate": total}}, **piece, "sources": sources}, "the page", ".")


async def written(piece: Mapping[str, Any], story: str) -> None:
    """What a client does that has the sink of the page, and gets a story."""
    (spec,) = loaded(piece).directory.clients["shop"].sinks
    sink = open_sink(spec, {TOTALS: RESULT}, lambda _: pytest.fail("no folder is needed"))
    assert isinstance(sink, ServerSink)
    await sink.open(source_env(), {TOTALS: "query"}, "shop")
    for element in parse(story, RESULT, position=0):
        sink.write(Change(TOTALS, element, 0))
    await sink.commit(ThreadCompute())
    await sink.disconnect()


@pytest.mark.servers
async def test_the_topic_of_the_page_is_read() -> None:
    piece = pieces("kafka.md")[0]
    with brokers() as mock:
        piece["sources"]["orders"]["from"]["kafka"]["servers"] = mock.servers
        (of,) = loaded(piece).plan.sources.values()
        mock.send(
            "orders",
            [
                {"timestamp": 1_000 * n, "key": customer, "value": {"price": n + 0.5}, "partition": n % 2}
                for n, customer in enumerate(["ada", "bob", "ada"], 1)
            ],
        )
        run = Running(of)
        await run.until(rows=3)
    assert [str(customer) for customer in run.rows] == ["ada", "bob", "ada"]


async def test_the_topic_of_the_page_gets_results(monkeypatch: pytest.MonkeyPatch) -> None:
    there = FakeKafka({"totals": 2, "spe-positions": 1})
    fake_kafka.use(monkeypatch, there)
    await written(pieces("kafka.md")[1], "S1/5:ada,1.5 B10(1) T/12:bob,2.5 b20 U(1) S2/12:bob,3.5 B20(2)")
    found = [one for p in range(2) for _, one in there.readable("totals", p)[0]]
    rows = {one.key: json.loads(one.value or b"") for one in found}
    assert {key: (row["_partition"], row["_id"], row["revenue"]) for key, row in rows.items()} == {
        b"ada": (0, 1, 1.5),
        b"bob": (0, 2, 3.5),
    }


@pytest.mark.servers
async def test_the_delta_table_of_the_page_gets_results(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_s3() as server:
        server.client().create_bucket(Bucket="lake")
        for name, value in {**server.environment, "AWS_ENDPOINT_URL": server.endpoint}.items():
            monkeypatch.setenv(name, value)
        await written(pieces("delta.md")[0], "S1/5:ada,1.5 B10(1) T/12:bob,2.5 b20")
        table = await trio.to_thread.run_sync(
            lambda: DeltaTable("s3://lake/totals", storage_options={"AWS_ALLOW_HTTP": "true"}).to_pyarrow_table()
        )
    final = table.filter(pc.invert(table["_tentative"]))  # as the page says it to Spark
    assert final.select(["_partition", "_id", "customer", "revenue"]).to_pylist() == [
        {"_partition": 0, "_id": 1, "customer": "ada", "revenue": 1.5}
    ]
    assert table["customer"].to_pylist() in (["ada", "bob"], ["bob", "ada"])


def test_the_events_of_the_page_come_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = pieces("http.md")[1]["sources"].values()
    keys = source["from"]["sse"]
    monkeypatch.setenv(keys["token"]["env"], "s3cret")
    keys["url"] = keys["url"].replace("https://prices.example", "http://events:8000")
    prices = [{"ts": f"2026-01-01T12:00:{n:02}", "symbol": "ab"[n % 2], "price": n + 0.5} for n in range(8)]
    check_reader(source, prices, lambda: EventServer("events:8000", prices, 3), most=1)


def test_the_webhook_of_the_page_has_each_result_once(monkeypatch: pytest.MonkeyPatch) -> None:
    (entry,) = pieces("http.md")[2]["clients"]["shop"]["sinks"]
    monkeypatch.setenv(entry["http"]["token"]["env"], "s3cret")
    entry["http"]["url"] = entry["http"]["url"].replace("https://shop.example", "http://receiver:8000")
    check_sink(entry, WebhookServer, most=1)
