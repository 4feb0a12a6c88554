"""Writes results to a Kafka topic: rows and their position in one transaction.

The state with the position is in a topic of positions, under the id of the transactions.  A new producer
(``init_transactions``) aborts the open transaction of an earlier one of this id, which can write no more; so a position
read afterwards stays valid until the next one begins.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

from replicas.connectors.formats.json_text import json_text
from replicas.connectors.kafka.client import (
    MISSING_S,
    MISSING_TIMES,
    REQUEST_S,
    Codes,
    in_words,
    library,
    made,
    settings,
)
from replicas.connectors.kafka.positions import read_position, topic_for_positions
from replicas.connectors.server_sink import ChannelEntry, ServerSink
from spe.connectors.declaration import CORRECTIONS
from spe.errors import ConfigError, ServerAway, SpeError
from spe.runtime.env import Env
from spe.stream.ids import Channel
from spe.stream.schema import Schema

#: Placeholder for the name of the stream in the name of a topic.
_STREAM: Final = "{stream}"
_SETTINGS: Final[Mapping[str, Any]] = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 5,
    "partitioner": "murmur2_random",  # as Kafka's own clients choose
}


class Outgoing(NamedTuple):
    """A message to send.

    Attributes:
      partition: partition of the topic; None: chosen by the key.
      row: the id of the row, or the last one before it.
    """

    topic: str
    value: bytes
    key: bytes | None
    partition: int | None
    row: int


class KafkaSink(ServerSink):
    """A Kafka topic as a sink; see the module.  Options are declared in ``spe.connectors.kafka``.

    Raises:
      ConfigError: several streams would be written to one topic, or the key is no attribute.
    """

    def __init__(self, schemas: Mapping[Channel, Schema], mode: str, options: Mapping[str, Any]) -> None:
        super().__init__(schemas, mode)
        self._topic = str(options["topic"])
        self._key: Sequence[str] = options.get("key") or ()
        self._options = options
        self._id = str(options.get("id") or f"spe-{self._topic}")
        self._check()
        self._producer: Any = None
        self._refused: SpeError | None = None
        #: State in the topic of positions, as long as our producer is the one of this id.
        self._state: bytes | None = None
        #: Number of partitions of each topic.
        self._counts: dict[str, int] = {}

    def _check(self) -> None:
        streams = {channel.stream for channel in self.schemas}
        problems = []
        if len(streams) > 1 and _STREAM not in self._topic:
            problems.append(f"kafka: {len(streams)} streams would go to {self._topic!r}; expected {_STREAM} in topic")
        for channel, schema in self.schemas.items():
            names = [n for n in self._key if n not in schema]
            problems += [f"kafka.key: stream {channel.stream!r} has no attribute {n!r}" for n in names]
        if problems:
            raise ConfigError(list(dict.fromkeys(problems)))

    # --- connecting ---

    async def load(self, env: Env) -> bytes:
        await self.disconnect()
        self._compute, self._kafka, self._codes = env.compute, library(), Codes()
        self._state = await self._compute.run(self._begin)
        return self._state

    async def disconnect(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:  # its last reference: its open transaction is aborted when the next one begins
            await self._compute.run(partial(_forget, [producer]))

    def _begin(self) -> bytes:
        """Takes over the id, and reads its position.  Blocks.  Raises as :meth:`load`."""
        common = settings(self._options)
        wanted = {**_SETTINGS, **common, "transactional.id": self._id, "error_cb": self._heard_error}
        producer = made(self._kafka.Producer, wanted)
        try:
            for topic in sorted({self._topic_of(channel) for channel in self.schemas}):
                self._counts[topic] = self._count(producer, topic)
            topic_for_positions(producer, common, self._options["positions"], self._codes)
            producer.init_transactions(REQUEST_S)
            state = read_position(common, self._options["positions"], self._id)
        except self._kafka.KafkaException as error:
            raise self._in_words(error.args[0]) from error
        self._producer = producer
        return state

    def _count(self, producer: Any, topic: str) -> int:
        for _ in range(MISSING_TIMES):
            metadata = producer.list_topics(topic, timeout=REQUEST_S).topics[topic]
            if metadata.error is None or metadata.error.code() not in self._codes.missing:
                break
            time.sleep(MISSING_S)
        else:
            raise SpeError(f"{self.name}: there is no topic {topic!r}; make it, or correct topic")
        if metadata.error is not None:
            raise self._in_words(metadata.error)
        return len(metadata.partitions)

    def _in_words(self, error: Any) -> SpeError:
        converted = in_words(error, self.name, self._codes)
        return converted if self._refused is None or not isinstance(converted, ServerAway) else self._refused

    def _heard_error(self, error: Any) -> None:
        """Notes an error; called in a thread, within a call of the client."""
        if error.code() in self._codes.credentials:
            self._refused = in_words(error, self.name, self._codes)

    # --- writing ---

    async def store(self, before: bytes, after: bytes, entries: Sequence[ChannelEntry]) -> bool:
        return await self._compute.run(partial(self._transact, before, after, entries))

    def _transact(self, before: bytes, after: bytes, entries: Sequence[ChannelEntry]) -> bool:
        """Runs a transaction.  Blocks.  Raises as :meth:`store`."""
        producer = self._producer
        if producer is None:
            raise ServerAway("not connected")
        if self._state != before:
            return False
        self._state = None  # unknown until the commit
        position = Outgoing(self._options["positions"], after, self._id.encode(), 0, 0)
        try:
            producer.begin_transaction()
            for message in self._messages(entries):
                self._send(producer, message)
            self._send(producer, position)
            producer.commit_transaction(REQUEST_S)
        except self._kafka.KafkaException as error:
            return self._failed(producer, error.args[0])
        except SpeError:
            self._give_up(producer)
            raise
        self._refused = None
        self._state = after
        return True

    def _failed(self, producer: Any, error: Any) -> bool:
        """Returns False if another producer of this id has begun.  Otherwise raises; the transaction is open, or
        unknown.
        """
        if error.code() in self._codes.fenced:
            return False
        converted = self._in_words(error)
        if (error.fatal() or error.txn_requires_abort()) and error.code() not in self._codes.final:
            # A new producer sends the same rows again, which helps if the error was of this producer alone.
            converted = ServerAway(str(converted))
        if not isinstance(converted, ServerAway):
            self._give_up(producer)
        raise converted

    def _give_up(self, producer: Any) -> None:
        """Aborts the open transaction: no producer of ours would end it, and readers of committed rows would wait for
        its time-out.
        """
        with suppress(self._kafka.KafkaException):
            producer.abort_transaction(REQUEST_S)

    def _send(self, producer: Any, message: Outgoing) -> None:
        more = {} if message.partition is None else {"partition": message.partition}
        while True:
            try:
                producer.produce(message.topic, value=message.value, key=message.key, **more)
                return
            except BufferError:
                producer.poll(0.05)
            except self._kafka.KafkaException as error:
                if error.args[0].code() != self._kafka.KafkaError.MSG_SIZE_TOO_LARGE:
                    raise
                raise SpeError(
                    f"{self.name}: row {message.row} has {len(message.value)} bytes as a message, more than the client "
                    "may send; raise message.max.bytes in properties, and in the topic"
                ) from error

    def _messages(self, entries: Sequence[ChannelEntry]) -> Iterator[Outgoing]:
        for entry in entries:
            topic = self._topic_of(entry.channel)
            home = entry.channel.partition % self._counts[topic]
            if entry.batch is not None:
                yield from self._row_messages(entry, topic, home)
                continue
            if self._key:  # withdrawn rows may be in partitions that were added since
                self._counts[topic] = self._count(self._producer, topic)
            marker = {"_partition": entry.channel.partition, "_kind": entry.kind, "_id": entry.id}
            value = json.dumps(marker).encode()
            for partition in range(self._counts[topic]) if self._key else (home,):
                yield Outgoing(topic, value, None, partition, entry.id)

    def _row_messages(self, entry: ChannelEntry, topic: str, home: int) -> Iterator[Outgoing]:
        batch, schema = entry.batch, self.schemas[entry.channel]
        assert batch is not None
        begin = f'{{"_partition": {entry.channel.partition}}}'
        texts = json_text(batch, schema, self.mode == CORRECTIONS, begin)
        lines = chain.from_iterable(text.splitlines() for text in texts)
        ids = batch.row_ids().tolist()
        if not self._key:
            for line, row in zip(lines, ids):
                yield Outgoing(topic, line, None, home, row)
            return
        columns = [batch.rows.columns[schema.index(name)].to_list() for name in self._key]
        for line, row, cells in zip(lines, ids, zip(*columns)):
            yield Outgoing(topic, line, _key(cells), None, row)

    def _topic_of(self, channel: Channel) -> str:
        return self._topic.replace(_STREAM, channel.stream)


def _key(cells: Sequence[Any]) -> bytes:
    """Encodes a key: one text unchanged; anything else as JSON, several in a list."""
    if len(cells) == 1:
        return cells[0].encode() if isinstance(cells[0], str) else json.dumps(cells[0]).encode()
    return json.dumps(list(cells), ensure_ascii=False, separators=(",", ":")).encode()


def _forget(holder: list[Any]) -> None:
    """Ends a producer, in the thread that drops it last: that waits for the client's own threads."""
    holder.clear()
