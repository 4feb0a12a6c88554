"""Short texts for errors of Spark, whose own are pages long and name none of our files."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final

from spe.errors import SpeError

#: Errors of ours that were raised in a worker of Spark, as text of their traceback.
_OURS: Final = re.compile(r"^(?:spe\.errors\.)(\w+): (.*?)(?=^\S*\s*at |\Z)", re.MULTILINE | re.DOTALL)
#: A file that a worker of Spark did not find.
_UNSEEN: Final = re.compile(r"FileNotFoundError: \[Errno 2\] No such file or directory: '([^'\n]+)'")
#: Number of lines of Java's output that an error quotes.
_LINES: Final = 8
#: Message of Java after py4j's own text, before the stack.
_JAVAS: Final = re.compile(r"^: [\w.$]+: (.+)$", re.MULTILINE)
#: py4j's text if no answer came.
_NO_ANSWER: Final = "Answer from Java side is empty"
#: py4j's text if Java is gone: the connection ended, broke while it was used, or cannot be made; for a call
#: without any answer it has no reason.
_GONE: Final = re.compile(
    f"{_NO_ANSWER}|Error while (sending|receiving)|trying to connect to the Java server"
    r"|An error occurred while calling \S+\Z"
)
#: Exit status of Java when its heap is full: by Spark (its SparkExitCode.OOM), and by itself.
_OUT_OF_MEMORY: Final = (52, 3)
#: Time for Java to end after the connection broke.
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


#: Text of Spark above the traceback of a worker.
_OF_A_WORKER: Final = "An exception was thrown from the Python worker"
#: Packages of the extra ``spark``.
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
    """Turns errors of Spark inside into SpeError, with advice.  Errors of ours pass unchanged.

    Args:
      noise: Java's output; its end goes into the error.
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
        raise SpeError("\n".join([advice(error, status), *_end_of(noise)])) from error


def _is_gone(error: BaseException) -> bool:
    return isinstance(error, ConnectionError | EOFError) or _GONE.search(_text(error)) is not None


def _text(error: BaseException) -> str:
    """Returns the text of an error; that of a Java error is fetched from Java, which may be gone."""
    try:
        return f"{error}\n{getattr(error, 'java_exception', '')}".strip()
    except Exception:
        return _NO_ANSWER


def _status_of_java() -> int | None:
    """Returns the exit status of Spark's process, as ``subprocess`` does; None while it runs, or if it is not ours."""
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


def advice(error: BaseException, status: int | None = None) -> str:
    """Describes an error; by the last line of Spark's text, where nothing better is known.

    Args:
      status: exit status of Java, if it ended.
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
    """Returns the decisive line: of a Java error its message, of a worker's error the last line, else the first."""
    text = str(error)
    if java := _JAVAS.search(text):
        return java[1].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1] if lines[0].startswith(_OF_A_WORKER) else lines[0]
