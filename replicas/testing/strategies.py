"""Hypothesis strategies for rows of a schema, and for faults of a cluster.  Hypothesis is imported on first use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from replicas.faults.model import processes_of
from replicas.testing.operators import GivenSchema, read_schema
from replicas.testing.queries import Query, read_query
from replicas.testing.tables import DAY_US, Timed, seconds
from spe.errors import SpeError
from spe.plan.describe import show_duration
from spe.stream.schema import Attribute, AttributeType

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

#: Few texts, so that keys repeat; one is empty, one beyond ASCII, one as long as a line.
_TEXTS: Final = ("a", "b", "c", "", "ü", "x" * 80)
_SHORTEST_US: Final = 100_000


def rows(
    schema: GivenSchema,
    *,
    most: int = 20,
    span: str | float = "10s",
    values: Mapping[str, SearchStrategy[Any]] | None = None,
) -> SearchStrategy[list[Timed]]:
    """Returns rows for :class:`OperatorHarness`: a time in microseconds, then a value per attribute, in order of time.

    Rows with the same time are frequent, as are nulls where a schema allows them, equal texts, and numbers at the ends
    of their types.  Floats are finite.

    Args:
      schema: schema of the rows.
      most: largest number of rows.
      span: range of the times.
      values: strategies for some attributes.

    Raises:
      SpeError: Hypothesis is not installed.
    """
    st = _hypothesis()
    step_us = 250_000
    times = st.integers(0, max(0, round(seconds(span) * 1e6) // step_us - 1)).map(lambda n: DAY_US + n * step_us)
    strategies = values or {}
    cells = [strategies[a.name] if a.name in strategies else _values(st, a) for a in read_schema(schema)]
    table: SearchStrategy[list[Timed]] = st.lists(st.tuples(times, *cells), max_size=most).map(
        lambda made: sorted(made, key=lambda row: row[0])
    )
    return table


def faults(query: Query, *, most: int = 3, within: str | float = "10s") -> SearchStrategy[list[dict[str, Any]]]:
    """Returns faults for :func:`run` with ``must_happen=False``: processes killed and frozen, links cut, all temporary.

    Args:
      query: query whose processes are the targets.
      most: largest number of faults.
      within: time by which all have ended.

    Raises:
      SpeError: Hypothesis is not installed.
      ConfigError: the query has mistakes.
    """
    st = _hypothesis()
    _, (_, directory) = read_query(query)
    kinds = st.sampled_from(["cut", "freeze", "kill"])
    targets = st.sampled_from(processes_of(directory))
    end_us = round(seconds(within) * 1e6)
    at = st.integers(0, max(0, end_us - 2 * _SHORTEST_US) // _SHORTEST_US).map(lambda n: n * _SHORTEST_US)

    def one(begin: int) -> SearchStrategy[dict[str, Any]]:
        left = st.integers(1, max(1, (end_us - begin) // _SHORTEST_US)).map(lambda n: show_duration(n * _SHORTEST_US))
        when = {"at": st.just(show_duration(begin)), "for": left}
        fault: SearchStrategy[dict[str, Any]] = st.fixed_dictionaries({**when, "kind": kinds, "target": targets})
        return fault

    entries: SearchStrategy[list[dict[str, Any]]] = st.lists(at.flatmap(one), max_size=most)
    return entries


def _values(st: Any, attribute: Attribute) -> Any:
    match attribute.type:
        case AttributeType.INT64:
            ends = st.sampled_from([0, -1, 2**63 - 1, -(2**63)])
            strategy = st.one_of(st.integers(-3, 3), st.integers(-(10**6), 10**6), ends)
        case AttributeType.FLOAT64:
            strategy = st.one_of(st.integers(-3, 3).map(float), st.floats(allow_nan=False, allow_infinity=False))
        case AttributeType.BOOL:
            strategy = st.booleans()
        case AttributeType.STRING:
            strategy = st.sampled_from(_TEXTS)
        case AttributeType.TIMESTAMP:
            strategy = st.integers(0, 10_000).map(lambda n: DAY_US + n * 1_000)
    return st.one_of(strategy, st.none()) if attribute.nullable else strategy


def _hypothesis() -> Any:
    try:
        from hypothesis import strategies
    except ImportError as error:
        raise SpeError("replicas.testing.rows and faults need Hypothesis: pip install hypothesis") from error
    return strategies
