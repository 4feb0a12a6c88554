"""What Spark says of executors and of jobs that failed, without a Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from replicas.on_spark.jobs import reason, registered
from replicas.on_spark.spots import Executor, Spot
from spe.errors import SpeError


def executor(name: str, address: str, tasks: int, *, active: bool = True) -> SimpleNamespace:
    facts = {"id": name, "hostPort": address, "maxTasks": tasks, "isActive": active}
    return SimpleNamespace(**{method: lambda value=value: value for method, value in facts.items()})


def context(*executors: SimpleNamespace, stopped: bool = False) -> Any:
    scala_sequence = SimpleNamespace(size=lambda: len(executors), apply=lambda i: executors[i])
    store = SimpleNamespace(executorList=lambda active: scala_sequence)
    scala = SimpleNamespace(isStopped=lambda: stopped, statusStore=lambda: store)
    return SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: scala))


def test_executors_are_identified_by_host_even_without_port() -> None:
    """Of these Spark knows no port yet: taken for another host, partners would wait for one for ever."""
    found = registered(
        context(
            executor("driver", "10.0.0.9:4000", 0),
            executor("0", "10.0.0.1:4001", 2),
            executor("1", "10.0.0.1", 2),
            executor("2", "10.0.0.2:4002", 2, active=False),
        )
    )
    assert found == [Executor(Spot("0", "10.0.0.1"), 2), Executor(Spot("1", "10.0.0.1"), 2)]


def test_stopped_spark_is_reported() -> None:
    with pytest.raises(SpeError, match="its master may be gone"):
        registered(context(stopped=True))


JOB_FAILED = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 1.0 (TID 6) (127.0.0.1 executor 0): org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "worker.py", line 1, in main
ModuleNotFoundError: No module named 'replicas'

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (JOB_FAILED, "ModuleNotFoundError: No module named 'replicas'"),
        (
            "An error occurred while calling o1.\n: java.lang.IllegalStateException: SparkContext was shut down\n\tat",
            "SparkContext was shut down",
        ),
        ("", "RuntimeError"),
    ],
)
def test_failed_job_is_reported_in_one_line(text: str, said: str) -> None:
    assert reason(RuntimeError(text)) == said
