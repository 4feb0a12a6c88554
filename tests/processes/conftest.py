"""Real clusters have real time limits: one runs at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.in_turn import only_process


@pytest.fixture(scope="session", autouse=True)
def _in_turn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with only_process("processes", tmp_path_factory):
        yield
