"""Configurations that are Python scripts: their environment, and the lines of their calls.

A script is executed, as by ``import``; code under ``if __name__ == "__main__":`` is not.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final, Protocol

from spe.config.document import Document, LineMark
from spe.errors import ConfigError

#: Variable that selects one of several environments.
NAME: Final = "env"
_API: Final = (__name__, "spe.api", "spe.api_streams")


class Described(Protocol):
    """An environment (spe.api), as this module uses it."""

    def document(self) -> Document: ...


#: Environments that a script has made so far; None if no script is being read.
_made: ContextVar[list[Described] | None] = ContextVar("made", default=None)


@contextmanager
def reading() -> Iterator[list[Described]]:
    """Collects the environments that are made in the block.  They cannot be run in it: it only reads."""
    made: list[Described] = []
    token = _made.set(made)
    try:
        yield made
    finally:
        _made.reset(token)


def is_reading() -> bool:
    """Is a script only being read, rather than run as a program?"""
    return _made.get() is not None


def note(environment: Described) -> None:
    """Notes a new environment."""
    if (made := _made.get()) is not None:
        made.append(environment)


def read_script(path: Path) -> Document:
    """Returns the document of the environment that a script makes.

    The environment is the variable ``env`` of the script, or else the only one.

    Raises:
      ConfigError: the script raises (the error has the line), or makes no environment, or several.
    """
    make_importable(path.parent)
    with reading() as made:
        try:
            names = runpy.run_path(str(path), run_name="spe_script")
        except ConfigError:
            raise  # the error names the line already
        except (Exception, SystemExit) as error:
            raise ConfigError([_blame(path, error)]) from error
    meant = [environment for environment in made if environment is names.get(NAME)] or made
    if len(meant) != 1:
        places = [_place(environment.document().marks[()]) for environment in made]
        what = f"makes {len(made)} environments ({', '.join(places)})" if made else "makes no environment"
        raise ConfigError([f"{path}: {what}; expected one spe.api.Environment, or one of the name `{NAME}`"])
    return meant[0].document()


def make_importable(folder: Path) -> None:
    """Makes modules of the script's folder importable, here and in child processes."""
    place = str(folder.absolute())
    if place not in sys.path:
        sys.path.insert(0, place)
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if place not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([place, *filter(None, known)])


def caller() -> LineMark:
    """Returns the current line of the innermost frame outside of the Python API."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__") in _API and frame.f_back is not None:
        frame = frame.f_back
    return LineMark(frame.f_lineno, 1, file=frame.f_code.co_filename)


def mistake(mark: LineMark, message: str) -> ConfigError:
    """Returns the error of a mistake in a call of the Python API."""
    return ConfigError([f"{_place(mark)}: {message}"])


def _place(mark: LineMark) -> str:
    return f"{mark.file}:{mark.line}"


def _blame(path: Path, error: BaseException) -> str:
    """Formats ``FILE:LINE: error``, with the innermost line of the script itself."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: not Python: {error.msg}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    what = "ends itself while it is read" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
    return f"{path}:{lines[-1] if lines else 1}: {what}"
