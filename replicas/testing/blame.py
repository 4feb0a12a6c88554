"""Errors of a test, with the line of the test that causes them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from spe.config.document import LineMark
from spe.config.script import mistake
from spe.errors import ConfigError

_HERE: Final = str(Path(__file__).parent)


class PromiseBroken(AssertionError):
    """The code under test broke a promise; the text says which, where, and how to repeat it."""


def caller() -> LineMark:
    """Returns the current line of the innermost frame outside of this package."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_HERE) and frame.f_back is not None:
        frame = frame.f_back
    return LineMark(frame.f_lineno, 1, file=frame.f_code.co_filename)


def wrong(message: str) -> ConfigError:
    """Returns an error about a call of this package, with the line of the call."""
    return mistake(caller(), message)
