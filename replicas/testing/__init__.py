"""Tests of queries, operators and aggregates, without processes and in virtual time.

* :func:`results`, :class:`QueryDriver`: a query without failures, for whole streams or step by step.
* :func:`run`: all its replicas and clients under faults, with every promise checked.
* :class:`OperatorHarness`, :func:`check_aggregate`: a user-defined operator or aggregate, and its contract.
* :func:`check_reader`, :func:`check_receiver`, :func:`check_sink`: a user-defined connector, crashed at each await.
* :func:`rows`, :func:`faults`: Hypothesis strategies.

Rows are a table as text, dicts, or tuples.  A text begins with a line of names; ``-`` is null, ``"…"`` a text with
spaces.  A time is ``2026-01-01T12:00:00``, ``12:00:00.5`` or ``1.5s`` (both of 2026-01-01), a datetime, or microseconds
since the epoch.  If no attribute has the tuple time, a column ``_time`` precedes all others.
"""

from replicas.testing.blame import PromiseBroken
from replicas.testing.cluster import run
from replicas.testing.connectors import check_reader, check_receiver, check_sink
from replicas.testing.driver import QueryDriver, results
from replicas.testing.operators import OperatorHarness, check_aggregate
from replicas.testing.played_run import ClientChange, ReplicaState, SimulatedRun
from replicas.testing.strategies import faults, rows

__all__ = [
    "ClientChange",
    "OperatorHarness",
    "PromiseBroken",
    "QueryDriver",
    "ReplicaState",
    "SimulatedRun",
    "check_aggregate",
    "check_reader",
    "check_receiver",
    "check_sink",
    "faults",
    "results",
    "rows",
    "run",
]
