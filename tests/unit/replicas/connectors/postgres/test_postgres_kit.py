"""What the connectors for PostgreSQL state, checked by the kit against a real server that is killed."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

import pytest
import trio

from examples.servers.postgres import PostgresServer
from replicas.testing import check_reader, check_sink
from spe.runtime.env import Network

pytestmark = [pytest.mark.servers, pytest.mark.usefixtures("connected")]

#: Crashes of each kind.
FEW = 1
ROWS = [{"ts": f"2026-01-01T12:00:{n:02}", "n": n, "name": f"r{n}"} for n in range(1, 31)]
_NAMES = count()


class Played:
    """A table of its own for each play; the server is killed when this is."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.table = f"played_{next(_NAMES)}"
        self.started = 0

    async def serve(self, network: Network, *, task_status: trio.TaskStatus[str]) -> None:
        try:
            await trio.to_thread.run_sync(self._server.start)
            self.started += 1
            if self.started == 1:
                await trio.to_thread.run_sync(self._fill)
            task_status.started("")
            await trio.sleep_forever()
        finally:
            self._server.kill()

    def _fill(self) -> None:
        return


class PlayedInput(Played):
    """Rows are there before the source, or come beside its first steps."""

    def _fill(self) -> None:
        self._server.query(f"create table {self.table} (ts timestamptz, n bigint primary key, name text)")
        for first, last in ((1, 15), (16, 20), (21, 30)):
            moment = "'2026-01-01 12:00:00+00'::timestamptz + n * interval '1s'"
            rows = f"select {moment}, n, 'r' || n from generate_series({first}, {last}) n"
            self._server.query(f"insert into {self.table} {rows}")


class PlayedOutput(Played):
    async def rows(self) -> list[Mapping[str, Any]]:
        return await trio.to_thread.run_sync(self._rows)

    def _rows(self) -> list[Mapping[str, Any]]:
        with self._server.connect() as connection:
            if connection.execute("select to_regclass(%s)", [self.table]).fetchone() == (None,):
                return []
            names = [
                name
                for (name,) in connection.execute(
                    "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0", [self.table]
                ).fetchall()
            ]
            order = "order by _change" if "_change" in names else ""
            found = connection.execute(f"select * from {self.table} {order}").fetchall()
            return [dict(zip(names, row, strict=True)) for row in found]


def test_each_row_of_a_table_comes_once_into_the_log(server: PostgresServer) -> None:
    def source(played: PlayedInput) -> dict[str, Any]:
        schema = {"ts": "timestamp!", "n": "int64!", "name": "string"}
        return {"schema": schema, "time": "ts", "from": {"postgres": {"table": played.table}}}

    check_reader(source, ROWS, lambda: PlayedInput(server), virtual=False, most=FEW)


@pytest.mark.parametrize(
    "mode",
    [pytest.param("stable", marks=pytest.mark.long), "current", pytest.param("corrections", marks=pytest.mark.long)],
)
def test_postgres_table_holds_rows_of_its_mode(server: PostgresServer, mode: str) -> None:
    def sink(played: PlayedOutput) -> dict[str, Any]:
        return {"postgres": {"table": played.table}, "mode": mode}

    check_sink(sink, lambda: PlayedOutput(server), virtual=False, most=FEW)
