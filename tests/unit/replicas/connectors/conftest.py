"""Fixtures of tests against a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.servers.postgres import PostgresServer
from tests.support.postgres_server import environment, running_server


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_server() as one:
        yield one


@pytest.fixture
def connected(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Connections go to the server, as its environment says; it runs afterwards, whatever a test has done to it."""
    with environment(monkeypatch, server.environment):
        yield
    server.start()
