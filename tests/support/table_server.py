"""A server in memory for sinks: a table, and a state beside it that changes with it or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import trio

from replicas.connectors.server_sink import ChannelEntry, ServerSink
from spe.connectors.declaration import CORRECTIONS, MODES, Guarantees, SinkDeclaration
from spe.runtime.env import Env
from spe.stream.ids import Channel
from spe.stream.names import Kind
from spe.stream.schema import Schema


class TableServer:
    """Attributes:
    rows: (channel, id) -> attributes and whether they are tentative; in mode corrections, of who applies the changes.
    changes: what came, in mode corrections.
    away: it answers nobody.
    delay_s: how long a request takes to arrive, and its answer as long again.
    """

    def __init__(self) -> None:
        self.state = b""
        self.rows: dict[tuple[str, int], tuple[bool, tuple[Any, ...]]] = {}
        self.changes: list[str] = []
        self.away = False
        self.delay_s = 0.001
        self.transactions = 0

    async def asked(self) -> None:
        await trio.sleep(self.delay_s)
        if self.away:
            raise ConnectionRefusedError(111, "Connection refused")

    def apply(self, before: bytes, after: bytes, entries: Sequence[ChannelEntry], mode: str) -> bool:
        if self.state != before:
            return False
        self.state = after
        self.transactions += 1
        for entry in entries:
            name = str(entry.channel)
            tentative = entry.batch is not None and entry.batch.kind is Kind.TENTATIVE
            if mode == CORRECTIONS:
                self.changes.append(f"{entry.kind} {name} {entry.id}{' tentative' if tentative else ''}")
            if entry.kind == "undo":
                self.rows = {k: v for k, v in self.rows.items() if k[0] != name or k[1] <= entry.id}
            if entry.batch is not None:
                for id_, row in zip(entry.batch.row_ids().tolist(), entry.batch.rows.to_tuples()):
                    assert (name, id_) not in self.rows, f"row {id_} of {name} came twice"
                    self.rows[name, id_] = (tentative, row)
        return True


class TableSink(ServerSink):
    """Writes to a TableServer."""

    def __init__(self, schemas: Mapping[Channel, Schema], mode: str, server: TableServer) -> None:
        super().__init__(schemas, mode)
        self._server = server
        self.disconnected = 0

    async def load(self, env: Env) -> bytes:
        await self._server.asked()
        return self._server.state

    async def store(self, before: bytes, after: bytes, entries: Sequence[ChannelEntry]) -> bool:
        await self._server.asked()
        done = self._server.apply(before, after, entries, self.mode)
        await self._server.asked()
        return done

    async def disconnect(self) -> None:
        self.disconnected += 1


#: By the option ``at`` of a sink.
SERVERS: dict[str, TableServer] = {}


class NamedTableSink(TableSink):
    """As a configuration names it."""

    def __init__(self, schemas: Mapping[Channel, Schema], mode: str, options: Mapping[str, Any]) -> None:
        super().__init__(schemas, mode, SERVERS[options["at"]])


TABLE = SinkDeclaration(
    "table",
    str,
    "NAME",
    "a table",
    {mode: "as it says" for mode in MODES},
    Guarantees("the table", "nothing is lost", "nothing is lost", {}),
    "tests.support.table_server:NamedTableSink",
)
