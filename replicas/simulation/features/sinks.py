"""Sinks of simulated clients besides JSON lines: Parquet, and a table on a server that is sometimes away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from replicas.connectors.server_sink import ChannelEntry, ServerSink
from spe.connectors.declaration import CURRENT, MODES, Guarantees, SinkDeclaration
from spe.connectors.installed_connectors import SINKS_GROUP, register
from spe.runtime.env import Env
from spe.stream.ids import Channel
from spe.stream.names import Kind
from spe.stream.schema import Schema
from spe.values import Model

#: Share of the requests without an answer; half of these were carried out.
_LOST: Final = 0.1
#: Duration of a request.
_REQUEST_S: Final = 0.002


@dataclass
class SimTable:
    """A table, and the state that changes with it.

    Attributes:
      rows: by channel and id: whether a row is tentative, and its attributes.
    """

    state: bytes = b""
    rows: dict[tuple[Channel, int], tuple[bool, tuple[Any, ...]]] = field(default_factory=dict)

    def apply(self, entry: ChannelEntry) -> None:
        if entry.kind == "undo":
            self.rows = {key: row for key, row in self.rows.items() if key[0] != entry.channel or key[1] <= entry.id}
        if entry.batch is not None:
            tentative = entry.batch.kind is Kind.TENTATIVE
            for id_, row in zip(entry.batch.row_ids().tolist(), entry.batch.rows.to_tuples(), strict=True):
                if (entry.channel, id_) in self.rows:
                    raise ValueError(f"{entry.channel}: row {id_} came twice")
                self.rows[entry.channel, id_] = tentative, row


#: Tables of the simulated run, by the option ``table`` of their sinks.
TABLES: ContextVar[dict[str, SimTable]] = ContextVar("TABLES")


class TableSink(ServerSink):
    """Writes to a :class:`SimTable`."""

    def __init__(self, schemas: Mapping[Channel, Schema], mode: str, options: Mapping[str, Any]) -> None:
        super().__init__(schemas, mode)
        self._table = TABLES.get().setdefault(str(options["table"]), SimTable())

    async def load(self, env: Env) -> bytes:
        self._lost = env.random
        await self._ask()
        return self._table.state

    async def store(self, before: bytes, after: bytes, entries: Sequence[ChannelEntry]) -> bool:
        await self._ask()
        if self._table.state != before:
            return False
        self._table.state = after
        for entry in entries:
            self._table.apply(entry)
        await self._ask()
        return True

    async def _ask(self) -> None:
        await trio.sleep(_REQUEST_S)
        if self._lost.random() < _LOST / 2:
            raise ConnectionResetError("the simulated server is away")


class _Place(Model):
    table: str


register(
    SINKS_GROUP,
    SinkDeclaration(
        "simulated",
        _Place,
        "{table: NAME}",
        "a table of a simulated run",
        dict.fromkeys(MODES, "as it says"),
        Guarantees("the table", "nothing is lost", "nothing is lost", {}),
        f"{__name__}:TableSink",
    ),
)


def with_all_sinks(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the configuration with sinks of each kind and mode of the simulation for all clients."""
    files = [{"jsonl": "lines"}, {"parquet": "final"}, {"parquet": "changes", "mode": "corrections"}]
    clients = {
        name: {**client, "sinks": [*files, {"simulated": {"table": name}, "mode": CURRENT}]}
        for name, client in config["clients"].items()
    }
    return {**config, "clients": clients}
