"""Kafka in a configuration: mistakes say what was expected, and no secret is shown or kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from spe.config import load_data
from spe.errors import ConfigError

SERVERS = "servers: 'b:1', topics: t"


def load(source: str, sink: str = "{jsonl: out}", schema: str = "{ts: timestamp!, n: int64}") -> Any:
    config = f"""
sources: {{s: {{schema: {schema}, time: ts, from: {source}}}}}
query: {{q: {{filter: {{from: s, where: n > 0}}}}}}
clients: {{c: {{sinks: [{sink}]}}}}
"""
    return load_data(yaml.safe_load(config), "test.yaml", "/data")


def problems(source: str, sink: str = "{jsonl: out}") -> str:
    with pytest.raises(ConfigError) as caught:
        load(source, sink)
    return "\n".join(caught.value.problems)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{kafka: {servers: 'b:1'}}", "sources.s.from.kafka.topics: is missing"),
        (f"{{kafka: {{{SERVERS}, topic: x}}}}", "unknown key (did you mean 'topics'?)"),
        (f"{{kafka: {{{SERVERS}, start: soon}}}}", "expected earliest, latest or an ISO 8601 timestamp, got 'soon'"),
        (f"{{kafka: {{{SERVERS}, partitions: [0, 0]}}}}", "a partition is listed twice"),
        ("{kafka: {servers: b, topics: [t, u], partitions: [0]}}", "partitions goes with a single topic"),
        (f"{{kafka: {{{SERVERS}, attributes: {{n: body}}}}}}", "expected timestamp, key, value, topic, partition"),
        (f"{{kafka: {{{SERVERS}, attributes: {{n: 'header '}}}}}}", "or header NAME, got 'header '"),
        (f"{{kafka: {{{SERVERS}, properties: {{acks: 1}}}}}}", "acks is set by the connector"),
        (f"{{kafka: {{{SERVERS}}}, header: false}}", "header does not go with kafka"),
        (f"{{kafka: {{{SERVERS}}}, quote: x}}", "does not go with format jsonl; expected format: csv"),
        (f"{{kafka: {{{SERVERS}}}, format: csv, columns: {{n: x}}}}", "columns: there is no header for n: x"),
        (f"{{kafka: {{{SERVERS}, security: {{protocol: ssl, key: k}}}}}}", "expected both certificate and key"),
        (f"{{kafka: {{{SERVERS}, security: {{protocol: sasl_ssl}}}}}}", "sasl_ssl needs username and password"),
        (f"{{kafka: {{{SERVERS}, security: {{protocol: ssl, key_password: {{}}}}}}}}", "expected {env: NAME} or"),
    ],
)
def test_mistakes_in_a_source_say_what_was_expected(source: str, said: str) -> None:
    assert said in problems(source)


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        ("{kafka: {servers: 'b:1'}}", "kafka.topic: is missing"),
        ("{kafka: {servers: 'b:1', topic: t}, mode: current}", "kafka has no mode 'current'; expected one of: stable"),
    ],
)
def test_mistakes_in_a_sink_say_what_was_expected(sink: str, said: str) -> None:
    assert said in problems("{tcp: 'localhost:1'}", sink)


SASL = "protocol: sasl_ssl, username: {env: KAFKA_USER}"


@pytest.mark.parametrize(
    "keys",
    [
        f"security: {{{SASL}, password: geheim}}",
        "properties: {sasl.password: geheim}",
        "properties: {ssl.key.pem: geheim}",
        "properties: {sasl.oauthbearer.client.secret: geheim}",
    ],
)
def test_a_secret_is_refused_and_not_repeated(keys: str) -> None:
    for said in (
        problems(f"{{kafka: {{{SERVERS}, {keys}}}}}"),
        problems("{tcp: 'localhost:1'}", f"{{kafka: {{servers: 'b:1', topic: t, {keys}}}}}"),
    ):
        assert "secret" in said
        assert "geheim" not in said


def test_stored_options_name_places_of_secrets_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "geheim")
    keys = f"security: {{{SASL}, password: {{env: KAFKA_PASSWORD}}, ca: ca.pem}}"
    loaded = load(f"{{kafka: {{{SERVERS}, {keys}}}}}", f"{{kafka: {{servers: 'b:1', topic: out, {keys}}}}}")
    (source,) = loaded.plan.sources.values()
    assert "geheim" not in repr(loaded)
    assert source.reader["security"]["password"] == {"env": "KAFKA_PASSWORD"}
    assert source.reader["security"]["ca"] == str(Path("/data/ca.pem"))
    assert source.live
