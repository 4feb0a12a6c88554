"""The coordinator's store, a SQLite file: epoch, directories, moves, loads, and the standbys that are to run.

The database lives in memory and is written whole and atomically after each change (it is a few kilobytes): it goes
through the same storage as all other files, and a crash leaves the old or the new database.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, Self

from pydantic import TypeAdapter

from replicas.placement.deciders.move import Move
from spe.errors import LogCorrupt
from spe.log.issued_directories import DATABASE_VERSION, ISSUED, MOVES, PATH, IssuedVersion, issued_in, load_database
from spe.plan.revision import Revision
from spe.runtime.env import Env
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, UnitId

#: Orders kept for people, the newest.
ORDERS: Final = 1_000
#: Revisions of the directory that are kept; the newest counts, the others are for people.
REVISIONS: Final = 100
_MOVE: Final = TypeAdapter(Move)
_SCHEMA: Final = (
    ISSUED
    + MOVES
    + f"""
PRAGMA user_version = {DATABASE_VERSION};
CREATE TABLE IF NOT EXISTS epoch (number INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS actives (plan TEXT, unit TEXT, partition INTEGER, node TEXT);
CREATE TABLE IF NOT EXISTS directories (
    plan TEXT, epoch INTEGER, number INTEGER, revision BLOB, PRIMARY KEY (plan, epoch, number)
);
CREATE TABLE IF NOT EXISTS loads (plan TEXT, unit TEXT, partition INTEGER, cpu REAL);
CREATE TABLE IF NOT EXISTS memory (plan TEXT, unit TEXT, partition INTEGER, bytes REAL);
CREATE TABLE IF NOT EXISTS orders (
    number INTEGER PRIMARY KEY, epoch INTEGER, at_us INTEGER, verb TEXT, replica TEXT, answer TEXT
);
"""
)


class CoordinatorStore:
    """The store, a context manager that closes the database.

    Args:
      env: storage.

    Raises:
      LogCorrupt: the file exists and is not such a database.
    """

    def __init__(self, env: Env) -> None:
        self._storage = env.storage
        self._database = sqlite3.connect(":memory:", isolation_level=None)
        try:
            self._load()
        except LogCorrupt:
            self._database.close()
            raise
        except (sqlite3.Error, OSError) as error:
            self._database.close()
            raise LogCorrupt(f"{PATH}: {error}; to begin without it, move the file away") from error

    def _load(self) -> None:
        if self._storage.exists(PATH):
            load_database(self._database, self._storage.read(PATH))
            (verdict,) = self._database.execute("PRAGMA integrity_check(1)").fetchone()
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict)
        self._database.executescript(_SCHEMA)
        for table in ("epoch", "actives", "directories", "issued", "moves", "loads", "memory", "orders"):
            self._database.execute(f"SELECT * FROM {table}").fetchall()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    async def begin(self, at_least: int) -> int:
        """Begins an epoch, larger than all before and at least ``at_least``.  Raises OSError."""
        (before,) = self._database.execute("SELECT coalesce(max(number), 0) FROM epoch").fetchone()
        epoch = max(int(before) + 1, at_least)
        assert epoch > before, "H6: each start begins a larger epoch"
        await self.heard_of(epoch)
        return epoch

    async def heard_of(self, epoch: int) -> None:
        """Notes a later epoch, which the next own one must exceed.  Raises OSError."""
        self._database.execute("DELETE FROM epoch")
        self._database.execute("INSERT INTO epoch VALUES (?)", (epoch,))
        await self.write()

    def revision(self, plan: str) -> Revision | None:
        """Returns the newest readable version of the directory, for the plan with this fingerprint."""
        newest_first = "SELECT revision FROM directories WHERE plan = ? ORDER BY epoch DESC, number DESC"
        for (data,) in self._database.execute(newest_first, (plan,)).fetchall():
            with suppress(ValueError):
                return Revision.decode(data)
        return None

    async def keep(self, plan: str, revision: Revision, at_us: int = 0, why: str = "") -> None:
        """Stores a version of the directory, for the plan with this fingerprint.

        Args:
          at_us: wall time at which it is issued.
          why: reason, for people.

        Raises:
          OSError: the disk fails; it is not stored.
          ValueError: it is too large.
        """
        epoch, number = revision.version
        execute = self._database.execute
        execute("INSERT OR REPLACE INTO directories VALUES (?, ?, ?, ?)", (plan, epoch, number, revision.encode()))
        execute("DELETE FROM directories WHERE plan = ? AND number <= ?", (plan, number - REVISIONS))
        execute("INSERT OR REPLACE INTO issued VALUES (?, ?, ?, ?, ?)", (plan, epoch, number, at_us, why))
        execute("DELETE FROM issued WHERE plan = ? AND number <= ?", (plan, number - ORDERS))
        try:
            await self.write()
        except OSError:
            for table in ("directories", "issued"):
                where = "plan = ? AND epoch = ? AND number = ?"
                execute(f"DELETE FROM {table} WHERE {where}", (plan, epoch, number))
            raise

    def issued(self, plan: str) -> list[IssuedVersion]:
        """Returns the newest versions of the directory for the plan with this fingerprint, by number."""
        return issued_in(self._database, plan)

    def wanted(self, plan: str) -> Mapping[PartitionId, frozenset[NodeId]]:
        """Returns the standbys that are to run all the time, of the plan with this fingerprint."""
        standbys: dict[PartitionId, set[NodeId]] = {}
        rows = self._database.execute("SELECT unit, partition, node FROM actives WHERE plan = ?", (plan,)).fetchall()
        for unit, partition, node in rows:
            standbys.setdefault(PartitionId(UnitId(unit), partition), set()).add(NodeId(node))
        return {id: frozenset(nodes) for id, nodes in standbys.items()}

    def want(self, plan: str, wanted: Mapping[PartitionId, Iterable[NodeId]]) -> None:
        """Replaces the wanted standbys; :meth:`write` stores them."""
        self._database.execute("DELETE FROM actives WHERE plan = ?", (plan,))
        rows = [(plan, id.unit, id.partition, node) for id, nodes in wanted.items() for node in sorted(nodes)]
        self._database.executemany("INSERT INTO actives VALUES (?, ?, ?, ?)", rows)

    def moves(self, plan: str) -> list[Move]:
        """Returns the newest moves of the plan with this fingerprint, in the order of their orders."""
        rows = self._database.execute("SELECT move FROM moves WHERE plan = ? ORDER BY number", (plan,)).fetchall()
        return [_MOVE.validate_json(text) for (text,) in rows]

    async def keep_moves(self, plan: str, moves: Iterable[Move]) -> None:
        """Replaces and stores the moves.  On OSError they are noted, and the next write stores them."""
        self.note_moves(plan, moves)
        await self.write()

    def note_moves(self, plan: str, moves: Iterable[Move]) -> None:
        """Replaces the moves; :meth:`write` stores them."""
        rows = [(plan, move.number, _MOVE.dump_json(move).decode()) for move in moves]
        self._database.execute("DELETE FROM moves WHERE plan = ?", (plan,))
        self._database.executemany("INSERT INTO moves VALUES (?, ?, ?)", rows)

    def loads(self, plan: str) -> dict[PartitionId, float]:
        """Returns the shares of a core that partitions need, of the plan with this fingerprint."""
        return self._needs("cpu", "loads", plan)

    def memory(self, plan: str) -> dict[PartitionId, float]:
        """Returns the bytes that partitions need."""
        return self._needs("bytes", "memory", plan)

    def _needs(self, column: str, table: str, plan: str) -> dict[PartitionId, float]:
        rows = self._database.execute(f"SELECT unit, partition, {column} FROM {table} WHERE plan = ?", (plan,))
        return {PartitionId(UnitId(unit), partition): needed for unit, partition, needed in rows.fetchall()}

    def note_loads(self, plan: str, loads: Mapping[PartitionId, float], memory: Mapping[PartitionId, float]) -> None:
        """Replaces loads and memory; :meth:`write` stores them."""
        for table, needs in (("loads", loads), ("memory", memory)):
            self._database.execute(f"DELETE FROM {table} WHERE plan = ?", (plan,))
            rows = [(plan, id.unit, id.partition, needed) for id, needed in needs.items()]
            self._database.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", rows)

    def ordered(self, number: int, epoch: int, at_us: int, verb: str, replica: str, answer: str) -> None:
        """Notes an order and its answer, for people; :meth:`write` stores it."""
        self._database.execute(
            "INSERT OR REPLACE INTO orders VALUES (?, ?, ?, ?, ?, ?)", (number, epoch, at_us, verb, replica, answer)
        )
        self._database.execute("DELETE FROM orders WHERE number <= ?", (number - ORDERS,))

    def last_number(self) -> int:
        (last,) = self._database.execute("SELECT coalesce(max(number), 0) FROM orders").fetchone()
        return int(last)

    async def write(self) -> None:
        """Writes the database to disk.  Raises OSError."""
        await self._storage.write_atomic(PATH, self._database.serialize())
