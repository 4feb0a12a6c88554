"""Checks the guarantees of connectors: with crashes at every await, against a server in memory or a real one."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Final

import trio

from replicas.connectors.server_sink import ServerSink
from replicas.connectors.sink import Sink
from replicas.connectors.sink_registry import open_sink
from replicas.testing.blame import PromiseBroken
from replicas.testing.crashes import Crash, PlayedServer, Stage, play_all
from replicas.testing.result_story import CHANNELS, SCHEMA, ResultStory
from replicas.testing.source_plays import QUERY, SOURCE, ReaderPlay, ReceiverPlay, SentRows
from replicas.testing.tables import GivenTable, moment, row_key
from spe.config import load_data
from spe.connectors.declaration import CORRECTIONS, STABLE
from spe.errors import ServerAway
from spe.runtime.env import Env
from spe.runtime.server_trouble import Backoff
from spe.stream.ids import Channel

__all__ = ["SCHEMA", "PlayedServer", "SentRows", "check_reader", "check_receiver", "check_sink"]

#: Time between two changes, and from the end of the story until it is safe.
_STEP_S: Final = 0.03
#: Rows in a transaction in a play: few, so that there are many transactions.
_ROWS_MAX: Final = 7


def check_reader(
    source: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]],
    rows: GivenTable | Callable[[Any], GivenTable],
    server: Callable[[], Any],
    *,
    order: Callable[[Mapping[str, Any]], Any] = lambda row: None,
    virtual: bool = True,
    most: int | None = None,
    seed: int = 0,
) -> int:
    """Checks that a reader brings every row exactly once, and in order, into the log of its source.

    At every await it is killed, its machine loses power, or its server is killed, or hangs longer than any time limit;
    half of the time once more soon afterwards.  A server that deletes acknowledged rows detects readers that
    acknowledge too early.

    ::

        check_reader({"schema": {"ts": "timestamp!", "n": "int64"}, "time": "ts", "from": {"redis": {…}}}, ROWS, Redis)

    Args:
      source: an entry of ``sources`` in the configuration; or a function of the server that returns it.
      rows: the rows of the server, or of a file, in order; or a function of the server.
      server: makes a server for each play; see :class:`PlayedServer`.  One that does not serve needs no method.
      order: rows with the same value are in order; others may come in any order among each other.
      virtual: in virtual time, over a network in memory; else in real time, over the real one.
      most: crashes of each kind; None: one at each await.
      seed: seed of all random choices.

    Returns:
      the number of plays.

    Raises:
      PromiseBroken: says after which crash, and what is wrong.
    """
    return play_all(
        lambda crash: ReaderPlay(source, rows, server(), order, crash, seed, virtual),
        serves=hasattr(server(), "serve"), virtual=virtual, most=most, seed=seed,
    )  # fmt: skip


def check_receiver(
    source: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]],
    rows: GivenTable | Callable[[Any], GivenTable],
    server: Callable[[], Any],
    *,
    virtual: bool = True,
    most: int | None = None,
    seed: int = 0,
) -> int:
    """Checks a reader that is sent each row once, and cannot ask for it again.

    The log may lack only the end of a connection: rows that were sent and not yet synced when the reader or the sender
    was killed.  Rows given to consumers stay the same; no row is there twice, out of order, or cut; and of a connection
    without a kill every row is there.  Crashes are those of :func:`check_reader`.

    The server sends; its ``connections`` is a list of ``replicas.testing.connectors.SentRows``, one for each connection
    that it has opened, and ``over`` says that it has sent all rows.

    Args:
      rows: the rows that it sends; no two are equal.
      source, server, virtual, most, seed: as in :func:`check_reader`.

    Returns:
      the number of plays.

    Raises:
      PromiseBroken: says after which crash, and what is wrong.
    """
    return play_all(
        lambda crash: ReceiverPlay(source, rows, server(), crash, seed, virtual),
        serves=hasattr(server(), "serve"), virtual=virtual, most=most, seed=seed,
    )  # fmt: skip


def check_sink(
    sink: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]],
    server: Callable[[], Any],
    *,
    virtual: bool = True,
    most: int | None = None,
    seed: int = 0,
) -> int:
    """Checks a sink's contents in its mode while results come, fail, are corrected, and come again after crashes.

    *stable*: at the end each stable row exactly once; never a tentative one.  *current*: never two rows of one result,
    nor a tentative row with a final one; at the end the stable rows.  *corrections*: a reader that applies them in
    order holds, at the end, the stable rows.  In each mode: all acknowledged rows exist after a crash.  Crashes are
    those of :func:`check_reader`.

    The rows have the schema :data:`SCHEMA`.  The server has a method ``rows()``, plain or async, that returns its
    current rows as dicts: ``_partition``, ``_id``, ``_tentative`` (mode current), or ``_kind``, and the attributes.

    Args:
      sink: an entry of ``sinks`` in the configuration; or a function of the server that returns it.
      server, virtual, most, seed: as in :func:`check_reader`.

    Returns:
      the number of plays.

    Raises:
      PromiseBroken: says after which crash, and what is wrong.
    """
    return play_all(
        lambda crash: _Writing(sink, server(), crash, seed, virtual),
        serves=hasattr(server(), "serve"), virtual=virtual, most=most, seed=seed,
    )  # fmt: skip


class _Writing:
    """Plays a sink once."""

    def __init__(self, sink: Any, server: Any, crash: Crash, seed: int, virtual: bool) -> None:
        entry = sink(server) if callable(sink) else sink
        config = {
            "sources": {SOURCE: {"from": {"generator": {"name": "orders", "count": 1}}}},
            **QUERY,
            "clients": {"c": {"sinks": [dict(entry)]}},
        }
        (self._spec,) = load_data(config, "the sink", ".").directory.clients["c"].sinks
        self._mode = str(self._spec["mode"])
        self._server = server
        self._virtual = virtual
        self._story = ResultStory(seed)
        self._found: list[Mapping[str, Any]] = []
        self._safe = dict.fromkeys(CHANNELS, 0)
        self.stage = Stage(server, crash, seed, virtual=virtual)

    async def play(self) -> None:
        await self.stage.play(self._process, self._is_over, self._look_at_all)

    def _is_over(self) -> bool:
        return self._story.over and all(self._safe[c] == len(rows) for c, rows in self._story.expected().items())

    async def _process(self, env: Env) -> None:
        """Runs the part of a client that writes one sink."""
        schemas = dict.fromkeys(CHANNELS, SCHEMA)
        sink = open_sink(self._spec, schemas, lambda folder: (env.storage, PurePosixPath(str(folder))))
        try:
            if isinstance(sink, ServerSink):
                sink.rows_max = _ROWS_MAX  # type: ignore[misc]
                await _patiently(env, partial(sink.open, env, dict.fromkeys(CHANNELS, "checked")))
                await self._look()
            await self._serve(env, sink)
        finally:
            sink.close()
            if isinstance(sink, ServerSink) and not self._virtual:
                with trio.move_on_after(1, shield=True):
                    await sink.disconnect()

    async def _serve(self, env: Env, sink: Sink) -> None:
        writing = trio.Lock()

        async def committing() -> None:
            while True:
                async with writing:
                    await self._commit(env, sink)
                await env.clock.sleep(min(sink.period_us, 300_000) / 1e6)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(committing)
            changes = list(self._story.begin({c: sink.reached(c) for c in CHANNELS}))
            while True:
                for change in changes:
                    async with writing:
                        sink.write(change)
                        if isinstance(sink, ServerSink) and sink.due:
                            await self._commit(env, sink)
                await env.clock.sleep(_STEP_S)
                if (more := self._story.more()) is None:
                    break
                changes = more

    async def _commit(self, env: Env, sink: Sink) -> None:
        await _patiently(env, partial(sink.commit, env.compute))
        for channel in CHANNELS:
            self._safe[channel] = sink.position(channel)
            self._story.safe(channel, sink.position(channel))
        await self._look()

    async def _look(self) -> None:
        """Checks the current rows at the server; those of a real server only at the end."""
        if self._virtual and self._mode != CORRECTIONS and not inspect.iscoroutinefunction(self._server.rows):
            self._check_now(self._server.rows())

    async def _look_at_all(self) -> None:
        rows = self._server.rows()
        self._found = list(await rows if isinstance(rows, Awaitable) else rows)

    def _check_now(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Checks what holds at any time, in modes in which rows are the newest answer."""
        ids = Counter((row["_partition"], row["_id"]) for row in rows)
        if twice := [key for key, count in ids.items() if count > 1]:
            raise PromiseBroken(f"row {twice[0][1]} of partition {twice[0][0]} is there twice")
        results = Counter(row["result"] for row in rows)
        if twice_ := [result for result, count in results.items() if count > 1]:
            two = [dict(row) for row in rows if row["result"] == twice_[0]]
            raise PromiseBroken(f"two live rows of one result: {two}")
        if self._mode == STABLE and any(row.get("_tentative") for row in rows):
            raise PromiseBroken("a tentative row in mode stable")
        last: dict[int, int] = {}
        for row in rows:
            if not row.get("_tentative"):
                last[row["_partition"]] = max(row["_id"], last.get(row["_partition"], 0))
        for row in rows:
            if row.get("_tentative") and row["_id"] < last.get(row["_partition"], 0):
                raise PromiseBroken(f"a tentative row before a final one: {dict(row)}")

    def check(self) -> None:
        held = _applied(self._found) if self._mode == CORRECTIONS else self._found
        self._check_now(held)
        for channel, wanted in self._story.expected().items():
            there = {row["_id"]: row for row in held if row["_partition"] == channel.partition}
            self._check_channel(channel, wanted, there)

    def _check_channel(
        self, channel: Channel, wanted: Sequence[tuple[int, tuple[Any, ...]]], there: Mapping[int, Mapping[str, Any]]
    ) -> None:
        for id_, (_, values) in enumerate(wanted, 1):
            row = there.get(id_)
            if row is None:
                raise PromiseBroken(f"{channel}: row {id_} is missing, {dict(zip(SCHEMA.names, values, strict=True))}")
            if row.get("_tentative"):
                raise PromiseBroken(f"{channel}: row {id_} is tentative at the end")
            written = tuple(_plain(name, row[name]) for name in SCHEMA.names)
            if row_key(written) != row_key(values):
                raise PromiseBroken(f"{channel}: row {id_} is {written}, expected {values}")
        if more := [i for i in there if not 1 <= i <= len(wanted)]:
            raise PromiseBroken(f"{channel}: row {more[0]} is too much, {dict(there[more[0]])}")


async def _patiently(env: Env, action: Callable[[], Awaitable[None]]) -> None:
    """Repeats an action while the server is away, as a client does."""
    backoff = Backoff(env)
    while True:
        try:
            await action()
        except ServerAway:
            await backoff.wait()
        else:
            return


def _applied(changes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the rows of a reader that applies corrections in order."""
    held: list[Mapping[str, Any]] = []
    for change in changes:
        if change["_kind"] == "insert":
            held.append(change)
        elif change["_kind"] == "undo":
            held = [r for r in held if r["_partition"] != change["_partition"] or r["_id"] <= change["_id"]]
    return held


def _plain(name: str, value: Any) -> Any:
    """Converts a value to our type: a timestamp may be a text or a datetime, a number a text."""
    if value is None:
        return None
    return moment(value) if name == "seen" else float(value) if name == "amount" else value
