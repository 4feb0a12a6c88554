"""Reads Kafka topics; the source's log holds the offsets, so a restart continues exactly (rule S9).

librdkafka fetches in its own threads.  Blocking calls of the client run in threads, too: one at a time takes messages,
and one more asks brokers for their state (:class:`~replicas.connectors.kafka.brokers.Brokers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import trio

from replicas.connectors.kafka.brokers import Brokers
from replicas.connectors.kafka.client import admin, library, made, settings
from replicas.connectors.kafka.merge import PartitionMerge
from replicas.connectors.kafka.offsets import Gone, Offsets, array
from replicas.connectors.kafka.rows import MessageRows, place_of
from replicas.connectors.kafka.topics import Topics
from replicas.connectors.reader import CHUNK_ROWS, Accept, Resumable, RowChunk
from spe.errors import ServerAway, SpeError
from spe.runtime.env import Env
from spe.runtime.log_line import Level, say
from spe.runtime.server_trouble import Backoff
from spe.stream.batch import BoolArray, Rows
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME

#: Longest time that a call waits for a message; the end of the source waits for it.
WAIT_S: Final = 0.1
#: After a pause in reading, the ends of partitions are unknown for so long.
UNSURE_S: Final = 1.0
#: Time in which messages wait for a partition, before that is reported.
BLOCKED_S: Final = 5.0
#: Number of messages, and their bytes, that wait for other partitions; beyond these, partitions that are ahead are not
#: read.
WAITING_MAX: Final = 8 * CHUNK_ROWS
WAITING_BYTES_MAX: Final = 64 << 20
#: Time between two commits to the group.
_COMMIT_S: Final = 1.0
#: Group name for librdkafka, which needs one even without commits.
_NO_GROUP: Final = "tentative-spe"
_SETTINGS: Final[Mapping[str, Any]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
    "check.crcs": True,
    "fetch.wait.max.ms": 100,
    "queued.max.messages.kbytes": 32 << 10,
}


class KafkaReader(Resumable):
    """Reads Kafka topics; see the module.  Options are declared in ``spe.connectors.kafka``."""

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._schema = schema
        self._rows = MessageRows(schema, time, reader)
        self._where = f"kafka at {', '.join(reader['servers'])}"
        self._topics = Topics(reader, self._where)
        self._brokers = Brokers(self._topics, self._where, self._say_away)
        self._group: str | None = reader.get("group")
        self._options = reader
        self._durable = b""
        #: Troubles: a schema registry that is away; a partition that delays others.
        self._blocked = self._asking = ""
        #: Messages whose schemas are asked for: until these are there nothing more is read.
        self._held: list[Any] = []
        self._commit_refused = False
        #: Times of the last rows given to the source, and of the last poll.
        self._gave_s = self._polled_s = self._unsure_until_s = 0.0
        #: The source refuses rows with later event times.
        self._refused_us = END_OF_TIME
        #: Offset after the arrived messages, by index of the partition, if it is beyond that of the given ones.
        self._arrived: dict[int, int] = {}
        #: The offset at which a partition ended, and when.
        self._end: dict[int, tuple[int, float]] = {}
        #: Partitions that are not read because they are too far ahead, and those without a message at our offset.
        self._waits: set[int] = set()
        self._out_of_range: set[int] = set()

    def durable(self, cursor: bytes) -> None:
        self._durable = cursor

    async def read(self, env: Env, accept: Accept) -> None:
        self._env, self._kafka = env, library()
        self._brokers.use(env)
        wanted = {**_SETTINGS, **settings(self._options), "group.id": self._group or _NO_GROUP}
        callbacks = {"error_cb": self._brokers.heard_error, "on_commit": self._heard_commit}
        self._consumer = await trio.to_thread.run_sync(made, self._kafka.Consumer, {**wanted, **callbacks})
        try:
            self._topics.use(self._consumer, admin(settings(self._options)))
            await self._begin(Offsets.decode(self.cursor))
            if (cursor := self._offsets.encode()) != self.cursor:  # the beginning is fixed before the first message
                await accept(RowChunk(0, 0, None, Rows.empty(self._schema).columns, [], None, cursor))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._brokers.watch, self._current)
                nursery.start_soon(self._brokers.identify)
                if self._group is not None:
                    nursery.start_soon(self._commit)
                await self._play(accept)
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._consumer.close)

    async def _begin(self, offsets: Offsets) -> None:
        """Begins to fetch, as soon as brokers have reported the partitions.  Raises SpeError: permanent."""
        self._offsets, self._partitions, skipped = await self._brokers.begin(offsets)
        for removed in skipped:
            self._tell_of(removed)
        self._index = {tuple(p): i for i, p in enumerate(self._partitions)}
        self._at = [self._kafka.TopicPartition(*p) for p in self._partitions]
        self._merge = PartitionMerge(array([self._offsets.of(p) or 0 for p in self._partitions]))
        self._fetch(range(len(self._partitions)))

    def _current(self) -> Offsets:
        return self._offsets

    def _tell_of(self, lost: Gone) -> None:
        self._env.trace.event("messages_gone", partition=str(lost.partition), first=lost.first, until=lost.until)
        say(f"{self._where}: {lost}; going on at offset {lost.until}", Level.WARNING, event="messages_gone")

    # --- messages ---

    async def _play(self, accept: Accept) -> None:
        """Reads until all partitions have reached their ends."""
        self._polled_s = self._gave_s = trio.current_time()
        registry = Backoff(self._env)
        while not self._is_over():
            if self.ahead_us is not None:
                self._refused_us = self._env.clock.wall_us() + self.ahead_us
            try:
                chunks = await self._brokers.in_thread(partial(self._poll, trio.current_time()))
            except ServerAway as error:
                self._brokers.heard(down=str(error))
                continue
            for chunk in chunks:
                await accept(chunk)
            if self._held:
                await self._learn(registry)

    async def _learn(self, backoff: Backoff) -> None:
        """Fetches the schemas of held messages."""
        avro = self._rows.avro
        assert avro is not None
        try:
            await avro.learn(self._env, self._unknown(self._held, trio.current_time()))
        except ServerAway as error:
            self._asking = f"{error}; trying again"
            self._say_away()
            await backoff.wait()
        else:
            backoff.over()
            self._asking = ""

    def _is_over(self) -> bool:
        until = self._topics.until
        return (
            until is not None and not (self._merge.count or self._held) and all(map(self._is_behind, range(len(until))))
        )

    def _is_behind(self, index: int) -> bool:
        """Returns whether a partition has reached its end."""
        until = self._topics.until
        return until is not None and self._position(index) >= until[index]

    def _poll(self, now_s: float) -> list[RowChunk]:
        """Returns the chunks that can be passed on now; waits a little for messages.  Blocks."""
        if now_s - self._polled_s > UNSURE_S or self._brokers.down:
            self._unsure_until_s = now_s + UNSURE_S
        self._polled_s = now_s
        self._mend()
        messages = self._held or self._consumer.consume(1, WAIT_S)
        if messages:
            if not self._held:
                messages += self._consumer.consume(CHUNK_ROWS - 1, 0)
            good = [m for m in messages if m.error() is None]
            # The end of a partition after them is held as well: messages taken later must not seem to lie before it.
            self._held = messages if self._unknown(good, now_s) else []
            if good:
                self._brokers.heard_s = now_s
                self._brokers.heard()
            if self._held:
                return self._given(now_s)
            if good:
                self._take(good)
            if len(good) < len(messages):
                for message in messages:
                    if message.error() is not None:
                        self._told(message, message.error(), now_s)
        return self._given(now_s)

    def _unknown(self, messages: list[Any], now_s: float) -> set[int]:
        """Returns the ids of unknown schemas of these messages."""
        avro = self._rows.avro
        if avro is None:
            return set()
        return avro.unknown([m.value() for m in messages if m.error() is None], round(now_s * 1e6))

    def _take(self, messages: list[Any]) -> None:
        """Takes new messages; those of a partition that waits will be read again."""
        if len(self._topics.names) == 1:
            (topic,) = self._topics.names
            numbers = {n: i for (t, n), i in self._index.items() if t == topic}
            partition = array([numbers[m.partition()] for m in messages])
        else:
            partition = array([self._index[m.topic(), m.partition()] for m in messages])
        offset = array([m.offset() for m in messages])
        fresh = np.ones(len(messages), np.bool_)
        for i in np.unique(partition).tolist():
            own = partition == i
            known = self._position(i)
            fresh[own] = (offset[own] >= known) & (i not in self._waits)
            if self._topics.until is not None:
                fresh[own] &= offset[own] < self._topics.until[i]
                if i not in self._waits and offset[own][-1] >= self._topics.until[i]:
                    known = max(known, self._topics.until[i])
            self._arrived[i] = int(offset[own & fresh].max(initial=known - 1)) + 1
        if not fresh.all():
            messages = [m for m, new in zip(messages, fresh.tolist()) if new]
            partition, offset = partition[fresh], offset[fresh]
        if messages:
            self._merge.add(self._rows.arrived(messages, partition, offset), self._refused_us)

    def _told(self, message: Any, error: Any, now_s: float) -> None:
        """Handles an event that comes in place of a message."""
        i = self._index.get((message.topic(), message.partition()))
        if error.code() == self._kafka.KafkaError._PARTITION_EOF:
            if i is not None and i not in self._waits:
                self._arrived[i] = max(self._position(i), message.offset())
                self._end[i] = self._arrived[i], now_s
                self._brokers.heard()
        elif error.code() in (self._kafka.KafkaError._AUTO_OFFSET_RESET, self._kafka.KafkaError.OFFSET_OUT_OF_RANGE):
            if i is not None:
                self._out_of_range.add(i)
        elif error.code() in self._brokers.codes.missing:
            self._brokers.heard(
                down=f"{self._where} has no {message.topic()}/{message.partition()} any more; looking again"
            )
        else:
            self._brokers.heard_error(error)

    def _given(self, now_s: float) -> list[RowChunk]:
        chunks = []
        if self._merge.count:
            ended = self._at_their_end(now_s)
            for merged in self._merge.give(ended):
                moved = self._offsets.moved(self._partitions, merged.next_offset)
                self._offsets = moved._replace(ids=self._brokers.ids)
                merged.chunk.cursor = self._offsets.encode()
                merged.chunk.where = partial(self._place, merged.origin)
                chunks.append(merged.chunk)
            self._hold_back()
        if chunks or not self._merge.count:
            self._gave_s, self._blocked = now_s, ""
        elif now_s - self._gave_s > BLOCKED_S:
            slow = [str(p) for p, newest, end in zip(self._partitions, self._merge.newest.tolist(), ended) if not end]
            self._blocked = f"{self._where}: later messages wait for {', '.join(slow[:3])}, which gives none"
        self._say_away()
        return chunks

    def _place(self, origin: Callable[[int], tuple[int, int]], place: int) -> str:
        """Describes the place of a message of a chunk."""
        partition, offset = origin(place)
        return place_of(*self._partitions[partition], offset)

    def _say_away(self) -> None:
        self.away = self._brokers.down or self._asking or self._blocked

    def _position(self, index: int) -> int:
        """Returns the offset after the arrived messages."""
        return max(self._arrived.get(index, 0), int(self._merge.next_offset[index]))

    def _at_their_end(self, now_s: float) -> BoolArray:
        """Returns which partitions have no more messages, as brokers reported with the last ones."""
        if len(self._partitions) == 1:
            return np.ones(1, np.bool_)
        ended = np.array([self._is_behind(i) for i in range(len(self._partitions))], np.bool_)
        if now_s < self._unsure_until_s:
            return ended
        cached = self._consumer.get_watermark_offsets
        for i, at in enumerate(self._at):
            if i in self._waits or ended[i]:
                continue
            position, extent, (end, since_s) = self._position(i), cached(at, cached=True), self._end.get(i, (-1, 0.0))
            # With an open transaction there are more messages, which cannot be read yet.
            ended[i] = (extent and 0 <= extent[1] <= position) or (end == position and now_s - since_s > UNSURE_S)
        return ended

    def _hold_back(self) -> None:
        """Pauses partitions that are far ahead of others, until these have come closer."""
        merge, waiting = self._merge, set(self._merge.waiting().tolist())
        if self._waits:
            few = merge.count <= WAITING_MAX // 2 and merge.size <= WAITING_BYTES_MAX // 2
            # A partition without waiting messages is not ahead any more: now others wait for it.
            again = sorted(self._waits if few else self._waits - waiting)
            self._waits -= set(again)
            self._fetch(again)
        if merge.count > WAITING_MAX or merge.size > WAITING_BYTES_MAX:
            ahead = sorted(waiting - self._waits)
            self._consumer.incremental_unassign([self._at[i] for i in ahead])
            self._waits.update(ahead)

    def _fetch(self, indexes: Iterable[int]) -> None:
        """Begins to read after the arrived messages."""
        make = self._kafka.TopicPartition
        self._consumer.incremental_assign([make(*self._partitions[i], self._position(i)) for i in indexes])

    def _mend(self) -> None:
        """Adds new partitions, and asks about those without a message at our offset.  Raises SpeError."""
        if self._brokers.new:
            new, self._brokers.new = self._brokers.new, []
            first = len(self._partitions)
            for partition, offset in new:
                self._index[tuple(partition)] = len(self._partitions)
                self._partitions.append(partition)
                self._at.append(self._kafka.TopicPartition(*partition))
                self._merge.grow(array([offset]))
            self._fetch(range(first, len(self._partitions)))
        for i in sorted(self._out_of_range):
            if (lost := self._topics.lost(self._partitions[i], self._position(i))) is not None:
                self._tell_of(lost)
                self._arrived[i] = lost.until
            self._out_of_range.discard(i)
            self._consumer.incremental_unassign([self._at[i]])
            self._fetch([i])

    # --- the group ---

    def _heard_commit(self, error: Any, partitions: Any) -> None:
        """Notes the result of a commit; called as :meth:`_heard_error`."""
        if error is not None:
            self._say_not_committed(self._brokers.in_words(error))

    def _say_not_committed(self, error: SpeError) -> None:
        if not self._commit_refused and not isinstance(error, ServerAway):
            self._commit_refused = True
            text = f"offsets cannot be committed to group {self._group}, and the source does not need them: {error}"
            say(text, Level.WARNING, event="offsets_not_committed")

    async def _commit(self) -> None:
        """Commits the position of the log to the group, for monitoring."""
        committed = b""
        while True:
            await self._env.clock.sleep(_COMMIT_S)
            if self._durable == committed:
                continue
            committed, offsets = self._durable, Offsets.decode(self._durable)
            known = [(p, offset) for p in self._partitions if (offset := offsets.of(p)) is not None]
            at = [self._kafka.TopicPartition(*p, offset) for p, offset in known]
            try:
                await self._brokers.in_thread(partial(self._consumer.commit, offsets=at, asynchronous=True))
            except SpeError as error:
                self._say_not_committed(error)
