"""A connection to PostgreSQL, without a server."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("psycopg", reason="PostgreSQL is not tested: psycopg is not installed")

import psycopg

from replicas.connectors.postgres.session import Session
from spe.errors import ServerAway


class Lost:
    """A connection that a server gives, and then ends."""

    closed = False

    def execute(self, *args: Any) -> None:
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    def close(self) -> None:
        self.closed = True


async def test_a_session_that_cannot_be_set_up_leaves_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Lost()
    monkeypatch.setattr(psycopg, "connect", lambda *args, **more: made)
    with pytest.raises(ServerAway, match="server closed the connection"):
        await Session.connect("postgres results", "")
    assert made.closed
