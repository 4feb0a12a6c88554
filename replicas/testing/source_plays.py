"""Plays of a source's reader: one that can ask for rows again, and one that gets each row once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import trio

from replicas.source.process import SourceProcess
from replicas.source.proxy import SourceProxy
from replicas.testing.blame import PromiseBroken, wrong
from replicas.testing.crashes import Crash, Stage
from replicas.testing.tables import Layout, row_key
from spe.config import load_data
from spe.log.source_log import read_source_log, source_folder
from spe.plan.plan import Source
from spe.runtime.env import Env
from spe.stream.batch import Batch, Element

SOURCE: Final = "checked"
QUERY: Final = {"query": {"q": {"filter": {"from": SOURCE, "where": "true"}}}, "outputs": ["q"]}


class _SourcePlay(ABC):
    """Plays a source whose process is killed and restarted."""

    def __init__(self, source: Any, rows: Any, server: Any, crash: Crash, seed: int, virtual: bool) -> None:
        entry = source(server) if callable(source) else source
        self._deployed = load_data({"sources": {SOURCE: dict(entry)}, **QUERY}, "the source", ".")
        if hasattr(server, "deployed"):
            server.deployed = self._deployed
        self._source: Source = next(iter(self._deployed.plan.sources.values()))
        layout = Layout(self._source.schema, self._source.time, "rows")
        read = layout.read(rows(server) if callable(rows) else rows)
        self._expected = [row[1:] for row in read]
        self._proxy: SourceProxy | None = None
        self._process: SourceProcess | None = None
        latest_us = max((row[0] for row in read), default=0)
        self.stage = Stage(server, crash, seed, virtual=virtual, wall_us=latest_us)

    async def play(self) -> None:
        await self.stage.play(self._run, self._is_over, trio.lowlevel.checkpoint)

    @abstractmethod
    def _is_over(self) -> bool:
        """Returns whether all expected rows have come."""

    async def _run(self, env: Env) -> None:
        """Runs the process of a source; complete if writers push, otherwise without subscribers."""
        self._proxy = self._process = None
        if self._source.writers:
            plan, directory = self._deployed
            self._process = SourceProcess(env, plan, directory, self._source.stream)
            await self._process.run()
        self._proxy = proxy = await SourceProxy.open(env, self._source)
        await proxy.run(self._publish)
        if proxy.fault is not None:
            raise proxy.fault

    @abstractmethod
    def _publish(self, elements: list[Element]) -> None:
        """Takes elements that have just become durable."""

    def _logged(self) -> int:
        """Returns the number of logged rows.  Raises PromiseBroken: the source has stopped."""
        if self._process is not None and (log := self._process.status().log) is not None:
            if log.fault is not None:
                raise PromiseBroken(f"it ends: {log.fault}")
            return log.last_id
        return 0 if self._proxy is None else self._proxy.last_id

    def _found(self) -> list[tuple[Any, ...]]:
        """Returns the logged rows at the end."""
        disk, schema = self.stage.disk.restarted(), self._source.schema
        elements = read_source_log(disk, source_folder(self._source.stream), schema)
        return [row for element in elements if isinstance(element, Batch) for row in element.rows.to_tuples()]

    def _shown(self, row: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self._source.schema.names, row, strict=True))


class ReaderPlay(_SourcePlay):
    """Plays a reader that continues after the log, or counts its rows: each row is logged once, and in order."""

    def __init__(
        self,
        source: Any,
        rows: Any,
        server: Any,
        order: Callable[[Mapping[str, Any]], Any],
        crash: Crash,
        seed: int,
        virtual: bool,
    ) -> None:
        super().__init__(source, rows, server, crash, seed, virtual)
        self._order = order

    def _is_over(self) -> bool:
        return self._logged() >= len(self._expected)

    def _publish(self, elements: list[Element]) -> None:
        """Does nothing: the log is compared at the end."""

    def check(self) -> None:
        logged = self._found()
        wanted, got = Counter(map(row_key, self._expected)), Counter(map(row_key, logged))
        for what, there in (("is missing in the log", wanted - got), ("is in the log too often", got - wanted)):
            if there:
                row = next(r for r in [*self._expected, *logged] if row_key(r) in there)
                raise PromiseBroken(f"{self._shown(row)} {what}; {there.total()} such rows")
        lines: dict[Any, list[tuple[Any, ...]]] = {}
        for row in logged:
            lines.setdefault(self._order(self._shown(row)), []).append(row_key(row))
        for row in reversed(self._expected):
            if lines[self._order(self._shown(row))].pop() != row_key(row):
                raise PromiseBroken(f"{self._shown(row)} is not in its place in the log")


@dataclass
class SentRows:
    """Rows that a sender has sent over one connection, or into one pipe.

    Attributes:
      rows: their numbers, from 0, each noted before its first byte has left.
      whole: the sender has closed it, after the complete last row.
    """

    rows: list[int] = field(default_factory=list)
    whole: bool = False


class RowSender(Protocol):
    """Sends each row once, to a reader that cannot ask for it again; see :class:`PlayedServer`.

    Attributes:
      connections: all connections, in the order of opening.
      over: nothing more will be sent.
    """

    connections: list[SentRows]
    over: bool


class ReceiverPlay(_SourcePlay):
    """Plays a reader that may lose only rows that were sent and not yet synced when it, or the sender, was killed."""

    def __init__(self, source: Any, rows: Any, server: Any, crash: Crash, seed: int, virtual: bool) -> None:
        super().__init__(source, rows, server, crash, seed, virtual)
        if not self._source.live:
            raise wrong(f"nobody sends rows to {self._source.reader['kind']}: expected a live reader, or check_reader")
        self._sender: RowSender = server
        #: Number of connections that were open when the process was last started, which does not know them.
        self._earlier = 0
        #: Rows that consumers may have, by id.
        self._published: dict[int, tuple[Any, ...]] = {}
        self._numbers = {row_key(row): number for number, row in enumerate(self._expected)}

    async def _run(self, env: Env) -> None:
        self._earlier = len(self._sender.connections)
        await super()._run(env)

    def _publish(self, elements: list[Element]) -> None:
        for element in elements:
            if isinstance(element, Batch):
                self._published |= zip(element.row_ids().tolist(), element.rows.to_tuples(), strict=True)

    def _is_over(self) -> bool:
        there = {self._numbers.get(row_key(row)) for row in self._published.values()}
        return self._sender.over and all(there.issuperset(connection.rows) for connection in self._undisturbed())

    def _undisturbed(self) -> list[SentRows]:
        """Returns the connections during which no process was killed."""
        return [connection for connection in self._sender.connections[self._earlier :] if connection.whole]

    def check(self) -> None:
        logged = self._found()
        for id_, row in self._published.items():
            if id_ > len(logged) or row_key(logged[id_ - 1]) != row_key(row):
                raise PromiseBroken(f"{self._shown(row)} was given to consumers as row {id_}, and is not in the log")
        places: dict[int, int] = {}
        for place, row in enumerate(logged):
            number = self._numbers.get(row_key(row))
            if number is None:
                raise PromiseBroken(f"{self._shown(row)} is in the log, and was never sent")
            if number in places:
                raise PromiseBroken(f"{self._shown(row)} is in the log twice, and was sent once")
            places[number] = place
        for undisturbed in self._undisturbed():
            if missing := [number for number in undisturbed.rows if number not in places]:
                first = self._shown(self._expected[missing[0]])
                raise PromiseBroken(f"{first} is missing in the log, and nobody was killed since it was sent")
        for connection in self._sender.connections:
            self._check_beginning(connection, places)

    def _check_beginning(self, connection: SentRows, places: Mapping[int, int]) -> None:
        """Checks that the log has the first rows of a connection, in order."""
        there = [places[number] for number in connection.rows if number in places]
        missing = [number for number in connection.rows if number not in places]
        if missing and missing[0] != connection.rows[len(there)]:
            row = self._shown(self._expected[missing[0]])
            raise PromiseBroken(f"{row} is missing in the log, and what was sent behind it is there")
        if there != sorted(there):
            raise PromiseBroken("rows of one connection are not in the order in which they were sent")
