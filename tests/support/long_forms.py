"""Tests that are marked ``long``: `make test` leaves them out, `make test-long` plays them, all or a part of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple
from zlib import crc32

import pytest


def long_but(short: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """The cases for ``parametrize``, in their order: those in ``short`` as they are, all others marked ``long``.

    A case of several arguments is a tuple.
    """
    short, cases = list(short), list(cases)
    assert short
    assert all(case in cases for case in short), f"{short} are not all among {cases}"
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=() if case in short else pytest.mark.long)
        for case in cases
    ]


class Part(NamedTuple):
    """One of ``of`` parts of the long tests, from 1; each test is in one of them, always the same."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Part:
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if not found or not 1 <= int(found[1]) <= int(found[2]):
            raise pytest.UsageError(f"PART={text}: expected which part and of how many, such as 2/4")
        return cls(int(found[1]), int(found[2]))

    def has(self, nodeid: str) -> bool:
        return crc32(nodeid.encode()) % self.of == self.number - 1


def leave_part(config: pytest.Config, items: list[pytest.Item], part: Part) -> None:
    """Deselects the long tests of the other parts."""
    others = [i for i in items if i.get_closest_marker("long") and not part.has(i.nodeid)]
    config.hook.pytest_deselected(items=others)
    gone = set(others)
    items[:] = [i for i in items if i not in gone]
