"""Runs the unit and property tests on the other supported versions of Python that this machine has.

    make test-versions [SECONDS=N]

With a number of seconds, as in CI, the first failure ends the tests of a version, and what has not ended by then is
broken off and reported as that: it is no failure.

Interpreters are found on PATH and among pyenv's versions.  Of each minor version that pyproject.toml lists, the oldest
interpreter is used: users of a stock distribution have an old one, and what works there works on later ones.  The
interpreter that runs this module is the one of ``make test`` and is left out; an older one of its own minor version
runs the unit tests only.  Long tests, and those against servers of other projects, are left out.  One that cannot make
an environment is reported in one line and skipped; a test that fails fails the run.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
#: Environments stay here, one per version.
ENVIRONMENTS: Final = ROOT / ".venvs"
TESTS: Final = ("tests/unit", "tests/property")
_CLASSIFIER: Final = "Programming Language :: Python :: 3."
_PROBE: Final = "import sys; print(*sys.version_info[:3]); import ensurepip, venv"
_PROBE_S: Final = 60.0
_WORDS: Final = {True: "passed", False: "FAILED", None: "BROKEN OFF when the time was up, without a failure until then"}

Version = tuple[int, ...]


@dataclass(frozen=True)
class Interpreter:
    """An interpreter that can make an environment."""

    path: Path
    version: Version

    @property
    def name(self) -> str:
        return ".".join(map(str, self.version))


def supported_minors() -> list[int]:
    """11 for Python 3.11, and so on, as pyproject.toml lists them."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    return [int(c.removeprefix(_CLASSIFIER)) for c in classifiers if c.startswith(_CLASSIFIER)]


def candidates(minors: Iterable[int], environ: Mapping[str, str]) -> list[Path]:
    """Every file that could be an interpreter of one of these versions; each once, whatever links lead to it."""
    pyenv = Path(environ.get("PYENV_ROOT") or Path(environ.get("HOME", "/")) / ".pyenv")
    folders = [Path(f) for f in environ.get("PATH", "").split(os.pathsep) if f]
    folders += sorted(pyenv.glob("versions/*/bin"))
    paths = [folder / f"python3.{minor}" for minor in minors for folder in folders]
    return list({path.resolve(): path for path in reversed(paths) if os.access(path, os.X_OK)}.values())[::-1]


def probe(path: Path) -> Interpreter | str:
    """The interpreter, or why it cannot be used."""
    try:
        done = subprocess.run([path, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_S, cwd=ROOT)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if "No module named 'ensurepip'" in done.stderr:
        return f"it has no ensurepip; on Debian or Ubuntu: apt install {path.name}-venv"
    if done.returncode:
        return next(iter(done.stderr.strip().splitlines()), f"exit status {done.returncode}")
    return Interpreter(path, tuple(map(int, done.stdout.split())))


def others(found: Iterable[Interpreter], main: Version) -> list[Interpreter]:
    """The oldest of each minor version, without the main one and what is later than it in its own minor version."""
    oldest: dict[Version, Interpreter] = {}
    for one in sorted(found, key=lambda i: i.version):
        oldest.setdefault(one.version[:2], one)
    return [one for minor, one in oldest.items() if minor != main[:2] or one.version < main]


def folders_for(version: Version, main: Version) -> Sequence[str]:
    """What differs between two releases of one minor version shows in unit tests."""
    return TESTS[:1] if version[:2] == main[:2] else TESTS


def passes(interpreter: Interpreter, main: Version, until: float | None = None) -> bool | None:
    """Makes the environment where it is not there yet, and runs the tests in it.

    Args:
      until: in the terms of time.monotonic; the first failure ends the tests then.

    Returns:
      None: broken off at that time, without a failure so far.
    """
    folder = ENVIRONMENTS / interpreter.name
    environ = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    install = ["make", f"{folder}/.ready", f"VENV={folder}", f"PYTHON={interpreter.path}", "EXTRA=test"]
    pytest: list[str | Path] = [
        folder / "bin/python",
        "-m",
        "pytest",
        "-n",
        "2",
        "-p",
        "no:cacheprovider",
        "-m",
        "not servers and not long",
    ]
    pytest += folders_for(interpreter.version, main)
    if until is not None:
        pytest.append("-x")
    commands: Sequence[Sequence[str | Path]] = (install, pytest)
    return all_succeed(commands, environ, until)


def all_succeed(
    commands: Iterable[Sequence[str | Path]], environ: Mapping[str, str], until: float | None
) -> bool | None:
    """Runs commands in turn; None: the time was up.  What a command that is broken off has started ends with it."""
    for command in commands:
        with subprocess.Popen(command, cwd=ROOT, env=environ, start_new_session=until is not None) as running:
            try:
                left = None if until is None else max(0.0, until - time.monotonic())
                if running.wait(left) != 0:
                    return False
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                return None
            except KeyboardInterrupt:
                if until is not None:  # a session of its own is not reached by Ctrl-C
                    os.killpg(running.pid, signal.SIGKILL)
                raise
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Unit and property tests on the other versions of Python found here.")
    parser.add_argument("--seconds", type=float, help="after so long, what has not ended is broken off")
    given = parser.parse_args(arguments)
    until = None if given.seconds is None else time.monotonic() + given.seconds
    found: list[Interpreter] = []
    for path in candidates(supported_minors(), os.environ):
        match probe(path):
            case Interpreter() as interpreter:
                found.append(interpreter)
            case reason:
                print(f"{path}: skipped: {reason}", flush=True)
    results: dict[str, bool | None] = {}
    main_version = tuple(sys.version_info[:3])
    for one in others(found, main_version):
        print(f"Python {one.name}: {one.path}", flush=True)
        results[one.name] = passes(one, main_version, until)
    for name, passed in results.items():
        print(f"Python {name}: {_WORDS[passed]}")
    if not results:
        print("no other supported version of Python was found")
    return 1 if False in results.values() else 0


if __name__ == "__main__":
    sys.exit(main())
