"""Runs work in threads, so that Spark's tasks run while its next jobs are planned and small ones end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from threading import Thread
from typing import Final, Protocol, TypeVar

T = TypeVar("T")

#: Setting of a session whose threads may have their own scheduler pools.
OWN_POOLS: Final = "spark.spe.ownPools"


class BackgroundWork(Protocol):
    """Starts some work in a thread; the returned function waits for its result, and raises its error."""

    def __call__(self, work: Callable[[], T], /) -> Callable[[], T]: ...


@contextmanager
def background_threads() -> Iterator[BackgroundWork]:
    """Yields a function that starts work in threads; at the end of the block all of it has ended."""
    from pyspark import InheritableThread, SparkContext

    # Without a running session there is nothing to inherit, and InheritableThread fails where one has run.
    kind = Thread if SparkContext._active_spark_context is None else InheritableThread
    threads: list[Thread] = []

    def begin(work: Callable[[], T]) -> Callable[[], T]:
        context, result = copy_context(), Future[T]()

        pool = f"background-{len(threads)}"

        def run() -> None:
            try:
                _own_pool(pool)
                result.set_result(context.run(work))
            except BaseException as error:
                result.set_exception(error)

        thread = kind(target=run, name="proof", daemon=True)
        thread.start()
        threads.append(thread)
        return result.result

    try:
        yield begin
    finally:
        for thread in threads:
            thread.join()


def _own_pool(name: str) -> None:
    """Gives this thread's jobs a pool, so that they share processors fairly; not if the user configured Spark."""
    from pyspark import SparkContext

    sc = SparkContext._active_spark_context
    if sc is not None and sc.getConf().get(OWN_POOLS):
        sc.setLocalProperty("spark.scheduler.pool", name)


def at_once(work: Callable[[], T], /) -> Callable[[], T]:
    """Does the work at once, without a thread; used in place of :func:`background_threads`."""
    result = work()
    return lambda: result
