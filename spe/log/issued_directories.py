"""The coordinator's records of a run: versions of the directory with time and reason (rule X5), and moves.

They are tables of its database, so that a version and its record are written together.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple, TypeVar

from spe.errors import LogCorrupt, other_version
from spe.plan.directory import Version
from spe.runtime.env import Storage

T = TypeVar("T")

#: The coordinator's database.
PATH: Final = PurePosixPath("coordinator", "state.sqlite")
#: Format of the database: ``PRAGMA user_version``.
DATABASE_VERSION: Final = 1
#: Table of issued versions.
ISSUED: Final = """
CREATE TABLE IF NOT EXISTS issued (
    plan TEXT, epoch INTEGER, number INTEGER, at_us INTEGER, why TEXT, PRIMARY KEY (plan, epoch, number)
);
"""


#: Table of moves, each as JSON.
MOVES: Final = "CREATE TABLE IF NOT EXISTS moves (plan TEXT, number INTEGER, move TEXT, PRIMARY KEY (plan, number));"


class MadeMove(NamedTuple):
    """A move of a partition, finished or not.

    Attributes:
      phases: (wall time at which the phase began, microseconds; phase), in order.
      predicted_us: expected duration; None: unknown.
      why: the reason why it was dropped, or for its last wait.
    """

    number: int
    partition: str
    source: str
    target: str
    reason: str
    phases: tuple[tuple[int, str], ...]
    predicted_us: int | None
    why: str


class IssuedVersion(NamedTuple):
    """An issued version of the directory.

    Attributes:
      at_us: wall time at which it was issued, microseconds.
      why: the request that led to it, for users.
    """

    at_us: int
    version: Version
    why: str


def issued_in(database: sqlite3.Connection, plan: str) -> list[IssuedVersion]:
    """Returns the newest versions for the plan with this fingerprint, in the order of their numbers."""
    rows = database.execute(
        "SELECT epoch, number, at_us, why FROM issued WHERE plan = ? ORDER BY number, epoch", (plan,)
    )
    return [IssuedVersion(at_us, Version(epoch, number), why) for epoch, number, at_us, why in rows.fetchall()]


def read_issued(storage: Storage, plan: str) -> list[IssuedVersion]:
    """Reads issued versions from the folder of a run; [] if it had no coordinator.

    Raises:
      LogCorrupt: the database is damaged.
    """
    return _read(storage, lambda database: issued_in(database, plan))


def read_moves(storage: Storage, plan: str) -> list[MadeMove]:
    """Reads the moves of a run, in the order of the commands; [] if it had no coordinator.

    Raises:
      LogCorrupt: the database is damaged.
    """
    return _read(storage, lambda database: _moves_in(database, plan))


def _moves_in(database: sqlite3.Connection, plan: str) -> list[MadeMove]:
    rows = database.execute("SELECT move FROM moves WHERE plan = ? ORDER BY number", (plan,)).fetchall()
    return [_move(json.loads(text)) for (text,) in rows]


def _move(data: Mapping[str, Any]) -> MadeMove:
    unit, partition = data["partition"]
    return MadeMove(
        int(data["number"]),
        f"{unit}/{partition}",
        data["source"],
        data["target"],
        data["reason"],
        tuple((int(at), phase) for phase, at in data["began_us"].items()),
        data["predicted_us"],
        data["why"],
    )


def load_database(database: sqlite3.Connection, data: bytes) -> None:
    """Fills an empty database.  Raises LogCorrupt: the data are of another version; sqlite3.Error: of none."""
    database.deserialize(data)
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if why := other_version(PATH, version, DATABASE_VERSION):
        raise LogCorrupt(why)


def _read(storage: Storage, rows: Callable[[sqlite3.Connection], list[T]]) -> list[T]:
    if not storage.exists(PATH):
        return []
    with closing(sqlite3.connect(":memory:")) as database:
        try:
            load_database(database, storage.read(PATH))
            return rows(database)
        except (sqlite3.Error, ValueError, KeyError, TypeError) as error:
            raise LogCorrupt(f"{PATH}: {error!r}") from error
