"""The command line.  It imports all packages; ``spe --help`` imports none of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command and exits: 0 done, 1 the result is wrong, 2 the user's mistake, 130 Ctrl-C."""
    from replicas.cli.app import execute

    sys.exit(execute(sys.argv[1:] if arguments is None else list(arguments)))
