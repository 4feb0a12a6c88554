"""Looks at the table of results all the time, as a reader would, and says what must not be."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final, Protocol

LOOK_S: Final = 0.05
#: What names a result, and what it says.
KEY: Final = ("window_start", "product")
COLUMNS: Final = (*KEY, "orders", "revenue")

Row = Mapping[str, Any]
Key = tuple[Any, ...]


class Table(Protocol):
    """Where results are."""

    def rows(self) -> list[Row] | None:
        """All rows, with ``_tentative``; None: it does not answer, or is not there yet."""


class PostgresTable:
    """A table that a sink in mode ``current`` writes."""

    def __init__(self, connection: str, name: str) -> None:
        self._to, self._name = connection, name
        self._connection: Any = None

    def rows(self) -> list[Row] | None:
        import psycopg

        try:
            if self._connection is None:
                self.connect()
            rows: list[Row] = self._connection.execute(f'select * from "{self._name}"').fetchall()
            return rows
        except psycopg.errors.UndefinedTable:
            return None
        except psycopg.OperationalError:
            self.close()
            return None

    def connect(self) -> None:
        """Raises psycopg.Error."""
        import psycopg
        from psycopg.rows import dict_row

        self._connection = psycopg.connect(self._to, autocommit=True, row_factory=dict_row, connect_timeout=5)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class ChangesTable:
    """What a reader holds who applies the changes in files of JSON lines (mode ``corrections``), in order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def rows(self) -> list[Row] | None:
        found: list[Row] = []
        for file in sorted(self._folder.glob("*.jsonl")):
            live: list[Row] = []
            for line in file.read_text().splitlines(keepends=True):
                if not line.endswith("\n"):
                    break  # it is being written
                row = json.loads(line)
                if row["_kind"] == "undo":
                    live = [one for one in live if one["_id"] <= row["_id"]]
                elif row["_kind"] == "insert":
                    live.append(row | {k: datetime.fromisoformat(row[k]) for k in ("window_start", "window_end")})
            found += live
        return found or None


def key(row: Row) -> Key:
    return tuple(row[name] for name in KEY)


def shown(row: Row) -> str:
    values = [f"{row['window_start']:%H:%M:%S}", *(str(row[name]) for name in COLUMNS[1:])]
    return f"({', '.join(values)}{', tentative' if row.get('_tentative') else ''})"


class Watch(Thread):
    """Attributes:
    rows: of the last look.
    wrong: what must not be, as it was seen first; "": nothing.
    twice: how often two rows of one result were seen.
    looks: how many there were.
    final, tentative: rows of the last look.
    """

    def __init__(self, table: Table) -> None:
        super().__init__(daemon=True)
        self.over = Event()
        self.rows: list[Row] = []
        self.wrong = ""
        self.looks = self.twice = self.final = self.tentative = 0
        self.table = table
        self._final: dict[Key, Row] = {}
        self._newest_s = 0.0

    def run(self) -> None:
        while not self.over.wait(LOOK_S):
            if (rows := self.table.rows()) is not None:
                self.look(rows)

    def look(self, rows: list[Row]) -> None:
        """No result may be there twice, and no final row may go away or change."""
        self.rows, self.looks = rows, self.looks + 1
        by_key: dict[Key, Row] = {}
        for row in rows:
            if (other := by_key.setdefault(key(row), row)) is not row:
                self.twice += 1
                self.wrong = self.wrong or f"two live rows of one result: {shown(other)} and {shown(row)}"
        final = {k: row for k, row in by_key.items() if not row["_tentative"]}
        for k, row in self._final.items():
            if final.get(k) != row:
                now = shown(final[k]) if k in final else "gone"
                self.wrong = self.wrong or f"a final row changed: {shown(row)} is {now}"
        self._final, self.final, self.tentative = final, len(final), len(by_key) - len(final)
        if rows:
            self._newest_s = max(row["window_end"] for row in rows).timestamp()

    @property
    def age_s(self) -> float:
        """So old is the newest result: what a reader of the table knows about now."""
        return time.time() - self._newest_s if self._newest_s else 0.0


def first_difference(rows: Sequence[Row], expected: Sequence[Row]) -> str:
    """The first row of a table that is not as in the reference, by time; "": none."""
    there, wanted = sorted(rows, key=key), sorted(expected, key=key)
    for row, other in zip_longest(there, wanted):
        if row is None or (other is not None and key(row) > key(other)):
            return f"{shown(other)} of the reference is missing"
        if other is None or key(row) < key(other):
            return f"{shown(row)} is not in the reference, or is there twice"
        if row["_tentative"] or [row[c] for c in COLUMNS] != [other[c] for c in COLUMNS]:
            return f"{shown(row)} should be {shown(other)}"
    return ""


def reference_rows(lines: str) -> list[Row]:
    """What ``spe reference`` prints."""
    rows = [json.loads(line) for line in lines.splitlines()]
    return [row | {"window_start": datetime.fromisoformat(row["window_start"]).astimezone(UTC)} for row in rows]
