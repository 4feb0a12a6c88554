"""Applications read results here: ``connect`` in a Python program, ``spe client`` as a process."""

from replicas.client.session import Changes, StableRows, TentativeRows, UndoneRows, connect

__all__ = ["Changes", "StableRows", "TentativeRows", "UndoneRows", "connect"]
