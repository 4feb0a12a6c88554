"""The commands and their options.  Each command imports what it needs when it is called."""

from replicas.cli.app import experiments, operation, preparation, processes, proofs, views  # noqa: F401
from replicas.cli.app.application import app
from replicas.cli.app.execution import INTERRUPTED, execute, run_command

__all__ = ["INTERRUPTED", "app", "execute", "run_command"]
