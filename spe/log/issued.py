"""The log of versions of the directory in the folder of a run: when each was issued, and who wanted it (rule X5).

It is a table of the coordinator's database, so that a version and its line are written together.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from spe.errors import LogCorrupt
from spe.plan.directory import Version
from spe.runtime.env import Storage

#: The coordinator's database.
PATH: Final = PurePosixPath("coordinator", "state.sqlite")
#: Its table of issued versions.
ISSUED: Final = """
CREATE TABLE IF NOT EXISTS issued (
    plan TEXT, epoch INTEGER, number INTEGER, at_us INTEGER, why TEXT, PRIMARY KEY (plan, epoch, number)
);
"""


class IssuedVersion(NamedTuple):
    """A version of the directory.

    Attributes:
      at_us: wall time at which it was issued, microseconds.
      why: who wanted it, for people.
    """

    at_us: int
    version: Version
    why: str


def issued_in(database: sqlite3.Connection, plan: str) -> list[IssuedVersion]:
    """The newest versions for the plan with this fingerprint, in the order of their numbers."""
    rows = database.execute(
        "SELECT epoch, number, at_us, why FROM issued WHERE plan = ? ORDER BY number, epoch", (plan,)
    )
    return [IssuedVersion(at_us, Version(epoch, number), why) for epoch, number, at_us, why in rows.fetchall()]


def read_issued(storage: Storage, plan: str) -> list[IssuedVersion]:
    """The same from the folder of a run; [] where there was no coordinator here.

    Raises:
      LogCorrupt: the database is damaged.
    """
    if not storage.exists(PATH):
        return []
    with closing(sqlite3.connect(":memory:")) as database:
        try:
            database.deserialize(storage.read(PATH))
            database.executescript(ISSUED)
            return issued_in(database, plan)
        except sqlite3.Error as error:
            raise LogCorrupt(f"{PATH}: {error}") from error
