"""Runs a command line; turns errors into messages and exit statuses."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from cyclopts import CycloptsError

from replicas.cli.app.application import app
from spe.errors import ConfigError, OperatorFailed, SpeError

DONE: Final = 0
USERS_MISTAKE: Final = 2
INTERRUPTED: Final = 130
#: Errors of a disk that is full or read-only, or of a name that is too long: the user's to solve.
_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG})


def run_command(command: Callable[[], Any]) -> int:
    """Runs a command; prints a short message for a user's mistake, and a traceback for any other error."""
    try:
        return int(command())
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except BaseException as error:
        if _is_interrupt(error):
            print("spe: interrupted", file=sys.stderr)
            return INTERRUPTED
        mistakes = list(_mistakes(error))
        if not mistakes:
            raise
        from spe.runtime.log_line import Level, is_configured, say

        for text in dict.fromkeys(mistakes):
            say(text if is_configured() else f"spe: {text}", Level.ERROR, event="ended")
        return USERS_MISTAKE


def execute(arguments: Sequence[str]) -> int:
    """Parses and runs a command line; returns the exit status."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # to find user-defined operators in the current directory
    try:
        command, bound, _ = app.parse_args(list(arguments), exit_on_error=False, print_error=False, help_on_error=False)
    except CycloptsError as error:
        print(f"spe: {error}\nTry: {' '.join(('spe', *(error.command_chain or ()), '--help'))}", file=sys.stderr)
        return USERS_MISTAKE
    if not getattr(command, "__module__", "").startswith(f"{__package__}."):  # --help and --version print by themselves
        command(*bound.args, **bound.kwargs)
        return DONE
    from spe.config.script import reading

    with reading():  # a user's module that a process imports must not run a cluster
        return run_command(lambda: command(*bound.args, **bound.kwargs))


def _is_interrupt(error: BaseException) -> bool:
    """Returns whether an error is Ctrl-C; inside a nursery, trio raises it as part of a group."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)


def _mistakes(error: BaseException) -> Iterator[str]:
    """Yields the messages for an error that was caused outside of this program; nothing if the program is at fault."""
    if isinstance(error, BaseExceptionGroup):
        parts = [list(_mistakes(e)) for e in error.exceptions]
        if all(parts):
            yield from (text for part in parts for text in part)
    elif isinstance(error, ConfigError):
        yield "\n  ".join(
            ["the configuration has mistakes:", *error.problems] if len(error.problems) > 1 else error.problems
        )
    elif isinstance(error, OperatorFailed):
        yield f"{error}\n{error.where()}".rstrip()
    elif isinstance(error, SpeError | FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
        yield str(error)
    elif isinstance(error, OSError) and error.errno in _DISK:
        yield f"{error.filename}: {error.strerror}" if error.filename is not None else str(error.strerror)
