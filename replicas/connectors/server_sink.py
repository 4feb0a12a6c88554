"""The common part of sinks on servers that take rows and a state in one transaction.

A connector implements :meth:`ServerSink.load` and :meth:`ServerSink.store`, with one small state that the server stores
with the rows.  The state has the position and the query of each channel, and the last writer.  Each transaction names
the state that it expects and the state that it leaves, so

* after a lost answer, the state shows whether the transaction was done;
* unfinished transactions of an earlier process are refused once a later one has begun.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from operator import attrgetter
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

import numpy as np
import trio

from replicas.connectors.sink import ChannelEntry as ChannelEntry
from replicas.connectors.sink import SinkCursor
from spe.connectors.declaration import CURRENT
from spe.errors import LinkBroken, LinkClosed, ServerAway, SpeError, other_version
from spe.runtime.env import Compute, Env
from spe.stream.batch import Batch, Boundary, Element, Int64Array, RecDone
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind
from spe.stream.schema import Schema
from spe.stream.text_size import row_bytes
from spe.stream.times import END_OF_TIME

T = TypeVar("T")

#: Rows, and bytes of them, that are buffered before they are sent; one more change at most.
ROWS_MAX: Final = 20_000
BYTES_MAX: Final = 16 << 20
#: Time between two transactions while few rows come.
PERIOD_US: Final = 100_000
#: Longest time for an answer, before the server counts as away.
ANSWER_S: Final = 30.0
#: Longest time that an ending process waits for a server to close the connection.
GOODBYE_S: Final = 1.0
#: Rows of a correction are waited for so long, to go in one transaction with the rows that they replace (mode current).
CORRECTION_US: Final = 1_000_000
SINK_VERSION: Final = 1
#: The command that makes a sink begin anew, for messages.
FORGET: Final = "spe forget CONFIG PROCESS"

#: Result of :meth:`ServerSink.forget` for a sink without state.
NOTHING_KEPT: Final = "it holds nothing of ours"
#: Errors of a lost connection, or of a missing answer.
GONE: Final = (
    *(LinkBroken, LinkClosed, OSError, EOFError),
    *(trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError),
)


def without_withdrawn(entries: Sequence[ChannelEntry]) -> list[ChannelEntry]:
    """Leaves out tentative rows that a later undo withdraws; the undos stay."""
    remaining: list[ChannelEntry] = []
    for entry in entries:
        if entry.kind == "undo":
            remaining = [e for e in remaining if e.channel != entry.channel or not e.tentative]
        remaining.append(entry)
    return remaining


def in_groups(entries: Sequence[ChannelEntry]) -> list[list[ChannelEntry]]:
    """Groups entries that are encoded together, in order: adjacent inserts, or markers of one kind."""
    return [list(group) for _, group in groupby(entries, attrgetter("kind"))]


def ids_of(group: Sequence[ChannelEntry]) -> Int64Array:
    """Returns the ids of the rows of a group."""
    batches = [e.batch.row_ids() for e in group if e.batch is not None]
    return np.concatenate(batches) if batches else np.array([e.id for e in group], np.int64)


class ServerSink(ABC):
    """A sink on a server; see the module.

    By mode, :meth:`store` gets: *stable*, inserts of stable batches only.  *current*, inserts and undos, to be applied:
    an undo deletes rows.  *corrections*, inserts, undos and dones, to be written as they are.

    Args:
      schemas: schemas of the channels that will be written.
      mode: a mode that the declaration names.

    Attributes:
      name: name in messages; a connector sets it to the destination, without secrets.
      period_us: longest time between two transactions while changes come.
      answer_s: longest time for :meth:`load` or :meth:`store`, before the server counts as away.
    """

    period_us: int = PERIOD_US
    answer_s: float = ANSWER_S
    name: str = "a server"
    rows_max: ClassVar[int] = ROWS_MAX
    bytes_max: ClassVar[int] = BYTES_MAX

    def __init__(self, schemas: Mapping[Channel, Schema], mode: str) -> None:
        self.schemas = schemas
        self.mode = mode
        self._cursors = {channel: SinkCursor(channel, mode) for channel in schemas}
        self._known = _State()
        #: Last known state of the server; None: not asked yet.
        self._stored: bytes | None = None
        self._safe: dict[Channel, int] = dict.fromkeys(schemas, 0)
        self._entries: list[ChannelEntry] = []
        self._rows = self._bytes = 0
        #: A transaction with an unknown result: the state that it leaves, positions, entries.
        self._sent: tuple[bytes, dict[Channel, int], list[ChannelEntry]] | None = None
        self._connected = False
        #: Time of each undo whose correction is not complete.
        self._corrections: dict[Channel, int] = {}
        self._origins: dict[str, str] = {}

    # --- what a connector implements ---

    @abstractmethod
    async def load(self, env: Env) -> bytes:
        """Connects, makes what must exist (a table), and returns the state that the server stores; b"": none yet.

        Called at the start, and again after each :exc:`ServerAway`: close an existing connection.

        Raises:
          ServerAway: the server does not answer; tried again later.  The errors of GONE count as such as well.
          SpeError: a retry will not help: wrong credentials, another schema.  The client ends.
        """

    @abstractmethod
    async def store(self, before: bytes, after: bytes, entries: Sequence[ChannelEntry]) -> bool:
        """Runs one transaction: if the state is ``before`` (b"": there is none), applies ``entries`` in order and sets
        the state to ``after``; if it is another one, changes nothing and returns False.

        Raises:
          ServerAway: the connection was lost; whether the transaction was done need not be known.
          SpeError: as :meth:`load`.
        """

    async def disconnect(self) -> None:
        """Closes the connection, if there is one; called at the end, and after a failure."""
        return

    async def forget(self, env: Env) -> str:
        """Lets the next session begin anew: removes the state, and the rows if the server can delete them.

        Returns:
          what was done, in words.

        Raises:
          ServerAway, SpeError: as :meth:`load`.
        """
        self._env = env
        stored = await self._asked(self.load(env))
        if not stored:
            return NOTHING_KEPT
        if not await self._asked(self.store(stored, b"", [])):
            raise ServerAway("another process is writing to it")
        return "its position is removed; rows that were sent stay"

    # --- what the client calls ---

    async def open(self, env: Env, queries: Mapping[Channel, str], client: str = "") -> None:
        """Asks the server for its position, and takes the sink over: no other process can write until it does the same.

        Args:
          queries: fingerprint of the query of each channel (rule U14).
          client: name of the writer: two clients that took one sink over from each other would never end.

        Raises:
          ServerAway: call again later.
          SpeError: permanent; also if the sink holds results of another query, mode or client.
        """
        self._env = env
        stored = await self._asked(self.load(env))
        known = _State.decode(stored, self.name)
        known.check(self.name, self.mode, queries, client)
        self._origins = {name: origin for name, entry in known.channels.items() if (origin := entry["origin"])}
        cursors = {c: SinkCursor(c, self.mode, *known.reached(c)) for c in self.schemas}
        undone = [entry for cursor in cursors.values() if (entry := cursor.begin()) is not None]
        self._known = known.taken_over(env.random.getrandbits(64), self.mode, queries, client)
        self._cursors = cursors
        after = self._encoded()
        if not await self._asked(self.store(stored, after, undone)):
            raise ServerAway("another process is writing to it")
        self._stored, self._connected = after, True
        self._safe = {c: cursor.position for c, cursor in cursors.items()}

    def reached(self, channel: Channel) -> int:
        """Returns the id up to which every stable tuple of the channel is at the server, or buffered."""
        return self._cursors[channel].position

    def position(self, channel: Channel) -> int:
        """Returns the id up to which every stable tuple of the channel is at the server, as it has confirmed."""
        return self._safe[channel]

    def origin(self, channel: Channel) -> str:
        """Returns the origin of the channel's results at the server (rule S6); "" where it is unknown."""
        return self._origins.get(str(channel), "")

    async def keep(self, origins: Mapping[Channel, str]) -> None:
        """Takes the origins of channels; they go to the server with the next rows."""
        self._origins.update((str(channel), origin) for channel, origin in origins.items())

    def write(self, change: Change) -> None:
        """Takes a change; tuples that the sink already has are skipped."""
        if (entry := self._cursors[change.channel].take(change)) is not None:
            self._entries.append(entry)
            self._rows += entry.rows
            self._bytes += 0 if entry.batch is None else _bytes(entry.batch)
            if entry.kind == "undo":
                self._corrections.setdefault(change.channel, self._env.clock.monotonic_us())
        if _ends_correction(change.element):
            self._corrections.pop(change.channel, None)

    @property
    def due(self) -> bool:
        """Whether so many rows are buffered that they should be committed before more are taken."""
        return self._rows >= self.rows_max or self._bytes >= self.bytes_max

    async def commit(self, compute: Compute) -> None:
        """Sends the buffered changes; when it returns, the server has them.  May be cancelled.

        In mode current nothing is sent between an undo and the end of the correction, unless that takes long.

        Raises:
          ServerAway: call again later; whether the server has the changes will be found out.
          SpeError: permanent: another process has taken over, or the server refuses the rows.
        """
        if not self._connected:
            await self._again()
        if self._sent is None:
            if not self._entries and self._encoded() == self._stored:
                return
            if self._waits_for_correction():
                return
            self._corrections.clear()
            positions = {c: cursor.position for c, cursor in self._cursors.items()}
            self._known = self._known._replace(number=self._known.number + 1)
            self._sent = self._encoded(), positions, self._entries
            self._entries, self._rows, self._bytes = [], 0, 0
        after, _, entries = self._sent
        assert self._stored is not None
        if await self._asked(self.store(self._stored, after, entries)):
            self._settle()
            return
        await self._again()  # a transaction that was given up may have been done since
        if self._sent is not None:
            raise ServerAway("the server refused a transaction, and would do it now")

    def _waits_for_correction(self) -> bool:
        if self.mode != CURRENT or self.due or not self._corrections:
            return False
        return self._env.clock.monotonic_us() - min(self._corrections.values()) < CORRECTION_US

    def close(self) -> None:
        """Drops the unsent changes, which come again; :meth:`disconnect` closes the connection."""
        self._entries, self._rows, self._bytes = [], 0, 0

    async def _again(self) -> None:
        """Connects after a failure, and finds out whether the last transaction was done."""
        stored = await self._asked(self.load(self._env))
        self._connected = True
        if self._sent is not None and stored == self._sent[0]:
            self._settle()
        elif stored != self._stored:
            raise SpeError(f"{self.name}: another process writes to it since; this one ends")

    def _settle(self) -> None:
        assert self._sent is not None
        (self._stored, self._safe, _), self._sent = self._sent, None

    async def _asked(self, question: Awaitable[T]) -> T:
        """Awaits an answer.  Raises ServerAway: the connection is gone, or no answer comes."""
        try:
            with self._gone_is_away(), trio.fail_after(self.answer_s):
                return await question
        except ServerAway:
            self._connected = False
            with trio.move_on_after(1), suppress(ServerAway, *GONE):
                await self.disconnect()
            raise

    @contextmanager
    def _gone_is_away(self) -> Iterator[None]:
        try:
            yield
        except trio.TooSlowError as error:
            raise ServerAway(f"no answer within {self.answer_s:g} s") from error
        except GONE as error:
            raise ServerAway(str(error) or type(error).__name__) from error

    def _encoded(self) -> bytes:
        cursors = {str(c): (cursor.position, cursor.held) for c, cursor in self._cursors.items()}
        return self._known.encode(cursors, self._origins)


def _bytes(batch: Batch) -> int:
    each = row_bytes(batch.rows.columns)
    return each * len(batch) if isinstance(each, int) else int(each.sum())


def _ends_correction(element: Element) -> bool:
    """Returns whether an element ends a correction: no final rows follow before other tentative ones."""
    if isinstance(element, Boundary):
        return element.time >= END_OF_TIME
    return isinstance(element, RecDone) or (isinstance(element, Batch) and element.kind is Kind.TENTATIVE)


class _State(NamedTuple):
    """The state that the server stores.

    Attributes:
      session: session of the last writer.
      number: number of its transactions.
      channels: by name: ``id`` of the last stable row, ``held``: tentative ones follow, ``query``, ``origin``.
      client: name of the writer; "" without a name.
    """

    session: int = 0
    number: int = 0
    mode: str = ""
    channels: Mapping[str, Any] = {}
    client: str = ""

    @classmethod
    def decode(cls, data: bytes, name: str) -> _State:
        """Decodes a state.  Raises SpeError: another program or another version wrote it."""
        if not data:
            return cls()
        try:
            state = json.loads(data)
            if why := other_version(f"{name}: its state of the last session", state["version"], SINK_VERSION):
                raise SpeError(why)
            channels, client = dict(state["channels"]), str(state["client"])
            return cls(int(state["session"]), int(state["number"]), str(state["mode"]), channels, client)
        except (ValueError, KeyError, TypeError) as error:
            raise SpeError(f"{name}: what it keeps of the last session is no state of a sink: {error}") from error

    def check(self, name: str, mode: str, queries: Mapping[Channel, str], client: str) -> None:
        """Raises SpeError: the state is of another mode, query or client."""
        if self.client not in ("", client):
            raise SpeError(
                f"{name} is written by {self.client}; give {client or 'this client'} another place, or remove what is "
                f"there: {FORGET}"
            )
        if self.mode not in ("", mode):
            raise SpeError(f"{name} was written in the mode {self.mode}; the configuration has {mode}")
        for channel, query in queries.items():
            known = self.channels.get(str(channel))
            if known is not None and known["query"] != query:
                raise SpeError(
                    f"{name} holds {channel} of another query: it was made for {known['query']}, and the plan now has "
                    f"{query}. Give the client another place, or remove what is there: {FORGET}"
                )

    def reached(self, channel: Channel) -> tuple[int, bool]:
        """Returns (last stable id, tentative tuples follow)."""
        known = self.channels.get(str(channel))
        return (0, False) if known is None else (int(known["id"]), bool(known["held"]))

    def taken_over(self, session: int, mode: str, queries: Mapping[Channel, str], client: str) -> _State:
        channels = dict(self.channels)
        for channel, query in queries.items():
            channels[str(channel)] = {
                "id": 0,
                "held": False,
                "origin": "",
                **channels.get(str(channel), {}),
                "query": query,
            }
        return _State(session, 0, mode, channels, client)

    def encode(self, cursors: Mapping[str, tuple[int, bool]], origins: Mapping[str, str]) -> bytes:
        channels = {
            name: {**entry, "origin": origins.get(name, "")}
            | ({"id": cursors[name][0], "held": cursors[name][1]} if name in cursors else {})
            for name, entry in self.channels.items()
        }
        whole = {
            "version": SINK_VERSION,
            "session": self.session,
            "number": self.number,
            "mode": self.mode,
            "client": self.client,
            "channels": channels,
        }
        return json.dumps(whole, separators=(",", ":")).encode()
