"""How errors of Spark are reported, tested without Spark."""

from __future__ import annotations

import pytest

from consistency.proof.session.errors import advice, essence, explained
from replicas.cli.report import parse_conf
from spe.errors import SpeError

IN_A_WORKER = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/x/consistency/proof/source.py", line 71, in read
    yield from read_stretch(self._table, partition)
spe.errors.LogCorrupt: sources/a/0001.seg at offset 77: the checksum is wrong
"""


def test_an_error_of_spe_in_a_worker_keeps_its_text() -> None:
    assert advice(RuntimeError(IN_A_WORKER)) == "sources/a/0001.seg at offset 77: the checksum is wrong"


def test_too_little_memory_is_named_with_a_remedy() -> None:
    text = advice(RuntimeError("Job aborted: java.lang.OutOfMemoryError: Java heap space\n\tat x.Y"))
    assert "out of memory" in text
    assert "spark.driver.memory" in text


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "Connection refused"),
        EOFError(),
        # py4j's texts, by the moment at which the connection broke.
        RuntimeError("Answer from Java side is empty"),
        RuntimeError("Error while sending"),
        RuntimeError("Error while sending or receiving"),
        RuntimeError("An error occurred while trying to connect to the Java server (127.0.0.1:38213)"),
        RuntimeError("An error occurred while calling o110.collectToPython"),
    ],
    ids=str,
)
def test_a_java_that_has_ended_is_named(error: Exception) -> None:
    assert "Java process died" in advice(error)
    assert "ran out of memory" in advice(error, 52)


def test_an_error_in_an_answer_is_not_an_ended_java() -> None:
    text = "An error occurred while calling o110.pivot. Trace:\npy4j.Py4JException: Method pivot([]) does not exist\n"
    assert advice(RuntimeError(text)).startswith(
        "Spark failed, so there is no verdict: An error occurred while calling"
    )


def test_the_exit_status_of_java_gives_the_reason() -> None:
    gone = ConnectionResetError(104, "Connection reset by peer")
    assert "ran out of memory" in advice(gone, 52)
    assert "died by signal 9: no verdict" in advice(gone, -9)
    assert "died with status 1: no verdict" in advice(gone, 1)


def test_an_error_after_the_end_of_java_has_no_message() -> None:
    class Silent(RuntimeError):
        def __str__(self) -> str:
            raise RuntimeError("Error while sending or receiving")

    assert "Java process died" in advice(Silent())


def test_other_errors_are_reported_in_one_line() -> None:
    text = advice(RuntimeError("[TABLE_NOT_FOUND] there is none\n\tat org.apache.spark"))
    assert text == "Spark failed, so there is no verdict: [TABLE_NOT_FOUND] there is none"


def test_java_error_is_reported_without_its_stack() -> None:
    text = (
        "An error occurred while calling None.org.x.Context.\n: java.lang.IllegalArgumentException: too small\n\tat a.b"
    )
    assert essence(RuntimeError(text)) == "too small"


def test_errors_of_spe_pass_unchanged() -> None:
    pytest.importorskip("pyspark", reason="needs the extra spark")
    ours = SpeError("no such run")
    with pytest.raises(SpeError) as caught, explained():
        raise ours
    assert caught.value is ours


@pytest.mark.parametrize("text", ["", "memory", "=4g", "memory="])
def test_a_setting_needs_a_name_and_a_value(text: str) -> None:
    with pytest.raises(SpeError, match="expected NAME=VALUE"):
        parse_conf([text])
    assert parse_conf(["a.b=c=d"]) == {"a.b": "c=d"}


def test_a_directory_that_an_executor_does_not_see_is_named() -> None:
    text = IN_A_WORKER.replace(
        "spe.errors.LogCorrupt: sources/a/0001.seg at offset 77: the checksum is wrong",
        "FileNotFoundError: [Errno 2] No such file or directory: '/runs/a/sources/a/0001.seg'",
    )
    assert advice(RuntimeError(text)).startswith(
        "an executor of Spark does not see /runs/a/sources/a/0001.seg: no verdict"
    )


@pytest.mark.parametrize(("name", "told"), [("pyspark.sql", True), ("py4j", True), ("pandas", False)])
def test_missing_spark_is_reported_once_it_is_needed(name: str, told: bool) -> None:
    kind, text = (SpeError, "Spark is not installed") if told else (ModuleNotFoundError, name)
    with pytest.raises(kind, match=text), explained():
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    with pytest.raises(SpeError, match="no such directory"), explained():
        raise SpeError("nowhere: there is no such directory")
