"""Kafka topics as sources and sinks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from spe.connectors.avro import AvroKeys, placed_avro
from spe.connectors.declaration import (
    CORRECTIONS,
    KEPT_ASIDE,
    LIVE_OPTIONS,
    STABLE,
    Guarantees,
    LiveRows,
    SinkDeclaration,
)
from spe.connectors.secret import SecretKeys, placed
from spe.values import Model, Names, timestamp_of

#: Parts of a message for attributes, besides ``header NAME``.
OF_A_MESSAGE: Final = ("timestamp", "key", "value", "topic", "partition", "offset")
HEADER: Final = "header "
#: Settings of librdkafka that are reserved: the guarantees depend on them.
OURS: Final = (
    "bootstrap.servers", "group.id", "group.instance.id", "transactional.id", "enable.idempotence", "acks",
    "enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset", "enable.partition.eof",
    "allow.auto.create.topics", "security.protocol", "log_level", "statistics.interval.ms",
)  # fmt: skip
_SECRET: Final = ("password", "secret", "sasl.", "ssl.key", "ssl.keystore", "pem")


class KafkaSecurity(Model):
    """Encryption and authentication."""

    protocol: Literal["ssl", "sasl_ssl", "sasl_plaintext"] = Field(description="of the listener of the brokers")
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="SCRAM-SHA-512", description="of SASL"
    )
    username: SecretKeys | None = Field(default=None, description="of SASL: `{env: NAME}` or `{file: PATH}`")
    password: SecretKeys | None = Field(default=None, description="in the same way")
    ca: str | None = Field(default=None, description="file with certificates of authorities; none: those of the system")
    certificate: str | None = Field(default=None, description="file with our certificate, where brokers ask for one")
    key: str | None = Field(default=None, description="file with its private key")
    key_password: SecretKeys | None = Field(default=None, description="of that file")

    @model_validator(mode="after")
    def _complete(self) -> KafkaSecurity:
        sasl = self.protocol.startswith("sasl")
        if sasl and (self.username is None or self.password is None):
            raise ValueError(f"{self.protocol} needs username and password")
        if not sasl and (self.username is not None or self.password is not None):
            raise ValueError("username and password go with sasl_ssl and sasl_plaintext")
        if (self.certificate is None) != (self.key is None):
            raise ValueError("expected both certificate and key, or none")
        return self


def _start(value: Any) -> Any:
    if value in ("earliest", "latest"):
        return value
    try:
        return timestamp_of(value)
    except ValueError:
        raise ValueError(f"expected earliest, latest or an ISO 8601 timestamp, got {value!r}") from None


def _attributes(value: Any) -> dict[str, str]:
    parts = f"{', '.join(OF_A_MESSAGE)} or header NAME"
    if not isinstance(value, dict):
        raise ValueError(f"expected a mapping of attributes to {parts}, got {value!r}")
    for part in value.values():
        if part not in OF_A_MESSAGE and not (isinstance(part, str) and part.startswith(HEADER) and part[len(HEADER) :]):
            raise ValueError(f"expected {parts}, got {part!r}")
    return {str(attribute): part for attribute, part in value.items()}


def _properties(value: Any) -> dict[str, str | int | bool]:
    if not isinstance(value, dict) or not all(isinstance(v, str | int | bool) for v in value.values()):
        raise ValueError(f"expected a mapping of settings of librdkafka to values, got {value!r}")
    for name in value:
        if name in OURS:
            raise ValueError(f"{name} is set by the connector; expected no such property")
        if any(word in str(name) for word in _SECRET):
            raise ValueError(f"{name} may be a secret, and the configuration is shown; expected it in security")
    return {str(name): setting for name, setting in value.items()}


Properties = Annotated[dict[str, str | int | bool], BeforeValidator(_properties)]


class KafkaKeys(Model):
    """Topics."""

    servers: Names = Field(description="`host:port` of a broker, or of several")
    topics: Names = Field(description="one, or several")
    partitions: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        default=None,
        description="of a single topic: those to read; none given: all, and new ones",
        strict=False,
    )
    start: Annotated[Literal["earliest", "latest"] | int, BeforeValidator(_start)] = Field(
        default="earliest", description="where a new log begins: `earliest`, `latest`, or messages from a timestamp on"
    )
    until: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        default=None,
        description="offsets at which the partitions of a single topic end, from 0: behind them the stream ends",
        strict=False,
    )
    attributes: Annotated[dict[str, str], BeforeValidator(_attributes)] = Field(
        default_factory=dict,
        description="attribute → what it is of the message: `timestamp`, `key`, `value` (all of it, as text), `topic`, "
        "`partition`, `offset` or `header NAME`; the others are in the value, in the format",
    )
    avro: AvroKeys | None = Field(
        default=None,
        description="of `format: avro`: where schemas are, `{registry: URL}` or `{file: PATH}`; a registry may have "
        "`token`, `user`, `password`, `ca`",
    )
    group: str | None = Field(
        default=None, description="offsets are committed to it for lag monitors; we never read them"
    )
    gone: Literal["stop", "skip"] = Field(
        default="stop", description="what to do where the broker has removed messages that we have not read"
    )
    security: KafkaSecurity | None = Field(default=None, description="none: plain text, without credentials")
    properties: Properties = Field(default_factory=dict, description="further settings of librdkafka")

    @model_validator(mode="after")
    def _fits(self) -> KafkaKeys:
        if self.partitions is not None and len(self.topics) > 1:
            raise ValueError("partitions goes with a single topic")
        if self.until is not None and (len(self.topics) > 1 or self.partitions is not None):
            raise ValueError("until goes with a single topic, and with all of its partitions")
        if self.partitions is not None and len(set(self.partitions)) != len(self.partitions):
            raise ValueError("a partition is listed twice")
        return self


def dumped(keys: Model, data: Path | None) -> dict[str, Any]:
    """Returns the options of a client; paths of its files become relative to ``data``, if given."""
    options = keys.model_dump(exclude_none=True)
    if "security" in options:
        options["security"] = placed(options["security"], data, "ca", "certificate", "key")
    return {k: list(v) if isinstance(v, tuple) else v for k, v in options.items()}


@dataclass(frozen=True)
class Kafka(LiveRows):
    """Reads messages, one row each, by offset."""

    formats: tuple[str, ...] = ("jsonl", "csv", "avro")

    def fits(self, value: KafkaKeys, options: Mapping[str, Any]) -> None:
        if (value.avro is None) == (options.get("format") == "avro"):
            raise ValueError("expected avro: {registry: URL} or {file: PATH} with format: avro, and only there")

    def reader(self, value: KafkaKeys, data: Path) -> dict[str, Any]:
        return placed_avro(dumped(value, data), data)

    def describe(self, reader: Mapping[str, Any]) -> str:
        return f"kafka {', '.join(reader['topics'])} at {', '.join(reader['servers'])}"


KAFKA: Final = Kafka(
    "kafka",
    KafkaKeys,
    "{servers: HOST:PORT, topics: NAME}",
    "messages of [Kafka](../how-to/kafka.md) topics",
    LIVE_OPTIONS,
    Guarantees(
        durable="the topic, as long as it keeps a message; and the source's log, from the sync of a row on",
        own_crash="goes on at the offsets in the log: no message twice, none missing, whatever the group has committed",
        other_crash="what a broker acknowledged to a producer and still has is read; if a topic has lost messages "
        "that we had read, the source stops and says so",
        failures={
            "brokers do not answer": "waits and goes on; meanwhile no silence counts, and the status says so",
            "the leader of one partition is away": "while that has more messages, later ones of other partitions wait",
            "messages that we have not read were removed (retention)": "stops and says which; or says which and goes "
            "on (`gone: skip`)",
            "a topic or partition is missing, or was deleted": "stops and says so; what is logged is still served",
            "a topic was deleted and made again": "stops and says so within some seconds (its id is another "
            "one); what is logged is still served",
            "another cluster answers": "stops: its offsets mean other messages",
            "wrong credentials, or no right to read a topic": "stops at the start; during a run, waits and says so",
            "a message cannot be understood, or has no value": f"it is counted, {KEPT_ASIDE} with topic, partition "
            "and offset, and left out, or stops the source (`on_malformed`)",
            "a compressed batch becomes very large": "librdkafka decompresses it in memory: of zstd up to "
            "`receive.message.max.bytes`, otherwise without a bound. Limit `message.max.bytes` of the topic",
            "of Avro: the schema registry is away": "the same as when brokers do not answer",
            "of Avro: the registry does not have the schema, or it lacks a field that may not be null": (
                "as a message that cannot be understood"
            ),
            "consumers of `group` come and go, which rebalances it": "nothing: each source reads all of its "
            "partitions, and goes on by its own log. A broker may refuse our commits while another consumer is in the "
            "group, which we say once",
            "a partition is idle, or new": "an idle one holds nobody up; a new one is read from its beginning within "
            "30 s",
            "a partition is far behind others": "others wait for it while it has more, so its messages are not late",
            "a transaction was aborted": "its messages are left out (`read_committed`); librdkafka's mock, on which "
            "this was tested, has no such marks",
        },
    ),
    opens="replicas.connectors.kafka.source:KafkaReader",
    example="from: {kafka: {servers: broker-1:9092, topics: orders, attributes: {ts: timestamp}}, format: jsonl}",
)


class KafkaSinkKeys(Model):
    """A topic that takes results."""

    servers: Names = Field(description="`host:port` of a broker, or of several")
    topic: str = Field(description="it must be there; `{stream}` stands for the stream, where the client reads several")
    key: Names | None = Field(
        default=None,
        description="attributes that are the key of a message; none: no key, and a partition of the query goes to one "
        "of the topic",
    )
    id: str | None = Field(
        default=None, description="of the transactions; the topic's name if not given. Sinks with one id end each other"
    )
    positions: str = Field(
        default="spe-positions",
        description="a compacted topic that holds how far each sink is; made if it is missing",
    )
    security: KafkaSecurity | None = Field(default=None, description="none: plain text, without credentials")
    properties: Properties = Field(default_factory=dict, description="further settings of librdkafka")


class KafkaSinkDeclaration(SinkDeclaration):
    """Writes messages in transactions, each with the position of its rows."""

    def sink(self, value: KafkaSinkKeys) -> dict[str, Any]:
        return dumped(value, None)

    def place(self, sink: Mapping[str, Any]) -> str:
        text = f"{sink['topic']} at {', '.join(sink['servers'])}"
        return f"{text}, id {sink['id']}" if sink.get("id") else text


KAFKA_SINK: Final = KafkaSinkDeclaration(
    "kafka",
    KafkaSinkKeys,
    "{servers: HOST:PORT, topic: NAME}",
    "messages in a [Kafka](../how-to/kafka.md) topic, JSON objects",
    {
        STABLE: "final rows only, with `_partition`, `_id` and `_time`; who reads `read_committed` has each once",
        CORRECTIONS: "every insert, undo and done, with its `_kind`: applied in order they give the newest answer. "
        "With a `key`, undos and dones go to every partition of the topic",
    },
    Guarantees(
        durable="the topic, once a transaction is committed, with which the topic of positions says how far it goes; "
        "only then are rows acknowledged",
        own_crash="an open transaction is aborted at the next start, and what was not committed is written again. For "
        "readers with `read_committed` each row stands once; other readers see aborted ones as well",
        other_crash="what was committed is there, as the topic promises (`min.insync.replicas`); after an unknown "
        "commit the next producer of the same id finds out which it was. **Not proved with a real broker**: tests use "
        "a model of Kafka's rules, and librdkafka's mock, which neither aborts nor fences",
        failures={
            "brokers do not answer": "the client says so, tries again, and goes on where the positions end; its buffer "
            "fills, then it takes nothing more",
            "another process has the same id": "the one that came last goes on; the other one ends and says so",
            "the topic is missing": "the client ends and says so",
            "the topic of positions is lost, or not read to its end": "if lost, rows are written again from the "
            "first one that the cluster still has; if not read to its end, the sink waits",
            "a row is larger than a message may be": "the client ends and names the row; `message.max.bytes` in "
            "properties and in the topic",
            "the topic holds results of another query, mode or client": "the client refuses it and ends",
            "wrong credentials, or no right to write": "the client ends and says what to do",
        },
    ),
    opens="replicas.connectors.kafka.sink:KafkaSink",
    example="sinks: [{kafka: {servers: broker-1:9092, topic: totals, key: text}}]",
    not_current="a message that was read cannot be taken back, and a compacted topic removes messages later",
)
