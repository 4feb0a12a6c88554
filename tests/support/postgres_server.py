"""A PostgreSQL server for tests, and connections that go to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from examples.servers import postgres
from examples.servers.postgres import PostgresServer


@contextmanager
def running_server(settings: str = "") -> Iterator[PostgresServer]:
    """Skips the test where no server can be started, and says what is missing."""
    if why := postgres.missing():
        pytest.skip(f"needs a PostgreSQL server: {why}")
    with postgres.running_server(settings) as server:
        yield server


@contextmanager
def environment(monkeypatch: pytest.MonkeyPatch, values: Mapping[str, str]) -> Iterator[None]:
    with monkeypatch.context() as patch:
        for name, value in values.items():
            patch.setenv(name, value)
        yield
