"""Work beside other work, so that Spark's tasks run while its next jobs are planned and small ones end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from threading import Thread
from typing import Final, Protocol, TypeVar

T = TypeVar("T")

#: The setting of a session whose threads may have pools of their own.
OWN_POOLS: Final = "spark.spe.ownPools"


class Meanwhile(Protocol):
    """Begins some work; what it gives asks for its result, and raises what it raised."""

    def __call__(self, work: Callable[[], T], /) -> Callable[[], T]: ...


@contextmanager
def meanwhile() -> Iterator[Meanwhile]:
    """All that was begun inside has ended with the block, whether or not its result was asked for."""
    from pyspark import InheritableThread, SparkContext

    # Without a session that runs, there is nothing to inherit, and asking for it fails where one has run.
    kind = Thread if SparkContext._active_spark_context is None else InheritableThread
    threads: list[Thread] = []

    def begin(work: Callable[[], T]) -> Callable[[], T]:
        context, result = copy_context(), Future[T]()

        pool = f"beside-{len(threads)}"

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
    """This thread's jobs take turns with others for free processors, unless Spark is set up by somebody else."""
    from pyspark import SparkContext

    sc = SparkContext._active_spark_context
    if sc is not None and sc.getConf().get(OWN_POOLS):
        sc.setLocalProperty("spark.scheduler.pool", name)


def at_once(work: Callable[[], T], /) -> Callable[[], T]:
    """As one of :func:`meanwhile`, without a thread: for one thing after another."""
    found = work()
    return lambda: found
