"""Watches brokers while messages are read: do they answer, and are there new partitions, or replaced topics?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import trio

from replicas.connectors.kafka.client import MISSING_TIMES, Codes, in_words, library
from replicas.connectors.kafka.offsets import Gone, Offsets, Partition, check_ids
from replicas.connectors.kafka.topics import TopicMissing, Topics
from spe.errors import ServerAway, SpeError
from spe.runtime.env import Env
from spe.runtime.server_trouble import Backoff

T = TypeVar("T")

#: Silence after which brokers are asked for their state, and the time after which an answer is slow.
SILENCE_S: Final = 1.0
PATIENCE_S: Final = 0.4
#: Time between two looks for new partitions.
LOOK_S: Final = 30.0
#: Time between two looks at the ids of topics.
ID_S: Final = 5.0


class Brokers:
    """Watches brokers; see the module.

    Args:
      topics: asks brokers.
      where: the brokers, for messages.
      changed: called when ``down`` may have changed.

    Attributes:
      down: why brokers give nothing; "" while they answer.
      heard_s: time of the last message.
      new: new partitions, and their first offsets, until the reader takes them.
      ids: the ids of topics, as far as brokers have said them.
    """

    def __init__(self, topics: Topics, where: str, changed: Callable[[], None]) -> None:
        self._topics = topics
        self._where = where
        self._changed = changed
        self.down = ""
        self.heard_s = 0.0
        self.new: list[tuple[Partition, int]] = []
        self.ids: Mapping[str, str] = {}
        self._known: set[Partition] = set()
        self._reached = False
        #: A permanent error that a callback of the client reported.
        self._fatal: SpeError | None = None

    def use(self, env: Env) -> None:
        self._env, self._kafka, self.codes = env, library(), Codes()

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Runs a function in a thread.  Raises our errors in place of the client's, and errors reported by
        callbacks.
        """
        try:
            return await trio.to_thread.run_sync(function)
        except self._kafka.KafkaException as error:
            raise self.in_words(error.args[0]) from error
        finally:
            if self._fatal is not None:
                raise self._fatal

    def in_words(self, error: Any) -> SpeError:
        return in_words(error, self._where, self.codes)

    def heard(self, down: str = "") -> None:
        """Notes that brokers answer, or do not."""
        self.down = f"{down}; trying again" if down else ""
        self._changed()

    def heard_error(self, error: Any) -> None:
        """Notes an error; called in a thread, within a call of the client."""
        if error.code() == self._kafka.KafkaError._ALL_BROKERS_DOWN:
            self.heard(down=f"{self._where} does not answer: {error.str()}")
            return
        converted = self.in_words(error)
        if isinstance(converted, ServerAway):
            return  # one of several brokers; the client continues with others
        if self._reached and error.code() in self.codes.credentials | self.codes.rights:
            self.heard(down=str(converted))
        else:
            self._fatal = self._fatal or converted

    async def begin(self, offsets: Offsets) -> tuple[Offsets, list[Partition], list[Gone]]:
        """Waits until brokers have reported the partitions; returns as :meth:`Topics.begin`.

        Raises:
          SpeError: permanent.
        """
        backoff, missing = Backoff(self._env), 0
        while True:
            try:
                beginning = await self.in_thread(partial(self._topics.begin, offsets))
                break
            except ServerAway as error:
                self.heard(down=str(error))
            except TopicMissing as error:
                missing += 1
                if missing == MISSING_TIMES:
                    raise
                self.heard(down=str(error))
            await backoff.wait()
        self.ids = beginning[0].ids
        self._known = set(beginning[1])
        self._reached = True
        self.heard()
        return beginning

    async def watch(self, offsets: Callable[[], Offsets]) -> None:
        """Asks brokers for their state while no messages come, and looks for new partitions.

        Args:
          offsets: returns the offsets now.
        """
        missing, looked_s = 0, trio.current_time()
        while True:
            await self._env.clock.sleep(SILENCE_S)
            now_s = trio.current_time()
            if not self.down and now_s - self.heard_s < SILENCE_S and now_s - looked_s < LOOK_S:
                continue
            looked_s = now_s
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._lose_patience)
                    _, partitions = await self.in_thread(partial(self._topics.partitions, offsets()))
                    nursery.cancel_scope.cancel()
            except* ServerAway as group:
                self.heard(down=str(group.exceptions[0]))
            except* TopicMissing as group:
                missing += 1
                if missing == MISSING_TIMES:
                    raise
                self.heard(down=str(group.exceptions[0]))
            else:
                missing = 0
                self.heard()
                await self._find_new(partitions, offsets())

    async def _lose_patience(self) -> None:
        await self._env.clock.sleep(PATIENCE_S)
        self.heard(down=f"{self._where} does not answer")

    async def _find_new(self, partitions: list[Partition], offsets: Offsets) -> None:
        new = [p for p in partitions if p not in self._known]
        if new and not self.new:
            with suppress(ServerAway):  # retried at the next look
                firsts = [(p, await self.in_thread(partial(self._topics.first, p, offsets))) for p in new]
                self.new = firsts
                self._known.update(new)

    async def identify(self) -> None:
        """Asks whether topics are those of before.  Raises SpeError: one was deleted and made again."""
        while True:
            await self._env.clock.sleep(ID_S)
            self.ids = check_ids(self.ids, await self.in_thread(self._topics.ids))
