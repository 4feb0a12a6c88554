"""Short texts for errors of Spark: its own are pages long and name none of our files."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final

from spe.errors import SpeError

#: Errors of ours that were raised in a worker of Spark and come back as the text of their traceback.
_OURS: Final = re.compile(r"^(?:spe\.errors\.)(\w+): (.*?)(?=^\S*\s*at |\Z)", re.MULTILINE | re.DOTALL)
#: A file that a worker of Spark did not find.
_UNSEEN: Final = re.compile(r"FileNotFoundError: \[Errno 2\] No such file or directory: '([^'\n]+)'")
#: Lines of Java's output that an error quotes.
_LINES: Final = 8
#: What py4j puts between its own words and the stack.
_JAVAS: Final = re.compile(r"^: [\w.$]+: (.+)$", re.MULTILINE)
#: What py4j says if no answer came.
_NO_ANSWER: Final = "Answer from Java side is empty"
#: What py4j says if Java is gone: the connection ended, broke while it was used, or cannot be made; for a call
#: without any answer it gives no reason.
_GONE: Final = re.compile(
    f"{_NO_ANSWER}|Error while (sending|receiving)|trying to connect to the Java server"
    r"|An error occurred while calling \S+\Z"
)
#: The status with which a Java whose heap is full ends: by Spark (its SparkExitCode.OOM), and by itself.
_OUT_OF_MEMORY: Final = (52, 3)
#: Time for a Java that broke the connection to end.
_ENDS_S: Final = 20.0
#: Errors that mean too little memory: of the heap, of Netty's and Arrow's buffers, and of a task's share.
_MEMORY: Final = (
    "OutOfMemoryError",
    "GC overhead limit",
    "Java heap space",
    "SparkOutOfMemory",
    "OutOfDirectMemoryError",
    "OutOfMemoryException",
)


#: What Spark writes above the traceback of a worker.
_OF_A_WORKER: Final = "An exception was thrown from the Python worker"
#: Of the extra ``spark``.
_PACKAGES: Final = ("pyspark", "py4j")


def _is_of_spark(error: Exception) -> bool:
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
    except ImportError:
        return False
    return isinstance(error, PySparkException | Py4JError | ConnectionError | EOFError)


@contextmanager
def explained(noise: IO[str] | None = None) -> Iterator[None]:
    """Errors of Spark inside leave as SpeError, with what to do about them.  Ours leave as they are.

    Args:
      noise: what Java said meanwhile; its end goes into the error.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in _PACKAGES:
            raise
        raise SpeError(f"Spark is not installed ({error}); pip install '.[spark]'") from error
    except Exception as error:
        if not _is_of_spark(error):
            raise
        status = _status_of_java() if _is_gone(error) else None
        raise SpeError("\n".join([said(error, status), *_end_of(noise)])) from error


def _is_gone(error: BaseException) -> bool:
    return isinstance(error, ConnectionError | EOFError) or _GONE.search(_text(error)) is not None


def _text(error: BaseException) -> str:
    """The text of an error; an error of Java asks Java for it, which may be gone."""
    try:
        return f"{error}\n{getattr(error, 'java_exception', '')}".strip()
    except Exception:
        return _NO_ANSWER


def _status_of_java() -> int | None:
    """How the process of Spark ended, as ``subprocess`` tells it; None where it goes on, or is not ours."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    try:
        return None if process is None else int(process.wait(_ENDS_S))
    except subprocess.TimeoutExpired:
        return None


def _end_of(noise: IO[str] | None) -> list[str]:
    if noise is None:
        return []
    noise.seek(0)
    return [f"  {line}" for line in noise.read().splitlines()[-_LINES:]]


def said(error: BaseException, status: int | None = None) -> str:
    """In words; the last line of the text that Spark gives, where nothing better is known.

    Args:
      status: with which Java ended, where it did.
    """
    text = _text(error)
    if status in _OUT_OF_MEMORY or any(word in text for word in _MEMORY):
        return "Spark ran out of memory: no verdict; give it more, such as --conf spark.driver.memory=8g"
    if ours := _OURS.search(text):
        return ours[2].strip()
    if _is_gone(error):
        how = "" if status is None else f" by signal {-status}" if status < 0 else f" with status {status}"
        return (
            f"Spark's Java process died{how}: no verdict; the system may have been out of memory, or somebody ended it "
            "(less: --conf spark.driver.memory=1g)"
        )
    if unseen := _UNSEEN.search(text):
        return (
            f"an executor of Spark does not see {unseen[1]}: no verdict; the run must be on a file system that "
            "driver and executors see at the same path, or be given as a URI that Spark reads"
        )
    if "No space left on device" in text:
        return "the disk is full: Spark has no room for its intermediate data; no verdict"
    return f"Spark failed, so there is no verdict: {essence(error)}"


def essence(error: BaseException) -> str:
    """The line that says what is wrong: of an error of Java its message, of a worker's the last, else the first."""
    text = str(error)
    if java := _JAVAS.search(text):
        return java[1].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1] if lines[0].startswith(_OF_A_WORKER) else lines[0]
