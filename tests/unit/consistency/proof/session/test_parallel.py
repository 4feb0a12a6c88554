"""Work beside other work."""

from __future__ import annotations

from contextvars import ContextVar
from threading import Event, Thread

import pytest

pytest.importorskip("pyspark")

from consistency.proof.session.parallel import at_once, background_threads

SAID: ContextVar[str] = ContextVar("said", default="")


def test_background_work_runs_in_parallel_and_returns_result() -> None:
    told = Event()
    with background_threads() as background:
        found = background(lambda: told.wait(60))
        told.set()  # had it been done first, it would wait for this
        assert found()


def test_background_error_is_raised_where_result_is_used() -> None:
    with background_threads() as background:
        broken = background(lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            broken()


def test_background_work_ends_with_the_block_even_on_error() -> None:
    told, ended = Event(), []

    def work() -> None:
        told.wait(60)
        ended.append(True)

    def fails() -> None:
        with background_threads() as background:
            background(work)
            background(lambda: 1 // 0)  # nobody asks for it
            Thread(target=told.set).start()
            raise ValueError("elsewhere")

    with pytest.raises(ValueError, match="elsewhere"):
        fails()
    assert ended == [True]


def test_background_work_has_variables_of_its_caller() -> None:
    SAID.set("here")
    with background_threads() as background:
        assert background(SAID.get)() == at_once(SAID.get)() == "here"
