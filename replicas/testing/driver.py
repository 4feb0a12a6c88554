"""Runs a query without a cluster: rows in, final results out, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from replicas.client.view import StableView
from replicas.reference import ReferenceRun
from replicas.testing.blame import wrong
from replicas.testing.queries import Query, layout_of_output, layout_of_source, read_query
from replicas.testing.tables import GivenTable, Record, compare, moment, records
from spe.errors import OperatorFailed
from spe.stream.batch import Batch, Boundary, Element, Rows, concat_rows
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from spe.stream.times import BEFORE_TIME, END_OF_TIME, format_timestamp


class QueryDriver:
    """Runs a query in the calling thread, without failures, processes or a clock: the test sets the time.

    ::

        driver = QueryDriver("shop.yaml")
        driver.send("orders", [{"ts": "12:00:00", "product": "tea", "price": 3.5}])
        driver.advance("12:00:02")
        assert driver.read("revenue") == [{"product": "tea", "revenue": 3.5}]

    Results are those that every client holds in the end; :func:`run` adds replicas and failures.
    """

    def __init__(self, query: Query) -> None:
        self._plan = read_query(query)[1].plan
        self._run = ReferenceRun(self._plan)
        self._last_id = {str(name): 0 for name in self._plan.sources}
        self._reached = {str(name): BEFORE_TIME for name in self._plan.sources}
        self._views = {str(name): StableView(self._plan, name) for name in self._plan.query.outputs}
        self._made: dict[str, list[Rows]] = {str(name): [] for name in self._plan.query.outputs}

    def send(self, source: str, rows: GivenTable) -> None:
        """Gives rows to a source, in any order of time.

        Raises:
          ConfigError: there is no such source; or rows do not fit its schema, or are before the time that it has
            reached.
        """
        layout = layout_of_source(self._plan, source)
        timed = layout.read(rows)
        for row in timed:
            if row[0] < self._reached[source]:
                reached = format_timestamp(self._reached[source])
                raise wrong(f"{layout.name}: a row of {format_timestamp(row[0])} after it has reached {reached}")
        if timed:
            first = self._last_id[source]
            self._last_id[source] = first + len(timed)
            made = Rows.from_tuples(layout.schema, [row[0] for row in timed], [row[1:] for row in timed])
            self._feed(source, Batch(Kind.STABLE, first, first + len(timed), None, made))

    def advance(self, to: str | int, source: str | None = None) -> None:
        """Advances time to ``to`` in one source, or in all: no row before it will come.

        Args:
          to: a time as in a table, or microseconds since the epoch.

        Raises:
          ConfigError: not a time.
          OperatorFailed: an operator raised; its notes have the line.
        """
        try:
            time = moment(to)
        except (ValueError, TypeError):
            raise wrong(f"expected a time such as 12:00:01.5, got {to!r}") from None
        if source is not None:
            layout_of_source(self._plan, source)
        self._pass(time, self._reached if source is None else [source])

    def end(self) -> None:
        """Ends all sources.  Raises OperatorFailed."""
        self._pass(END_OF_TIME, self._reached)

    def read(self, output: str) -> list[Record]:
        """Returns results that have become final since the last call, in order of time."""
        layout = layout_of_output(self._plan, output)
        parts, self._made[output] = self._made[output], []
        return records(concat_rows(parts), layout.schema) if parts else []

    def expect(self, output: str, rows: GivenTable) -> None:
        """Compares the result of :meth:`read` with a table; columns that the table lacks may have any value.

        Raises:
          PromiseBroken: an AssertionError with both tables.
        """
        layout = layout_of_output(self._plan, output)
        parts, self._made[output] = self._made[output], []
        compare(records(concat_rows(parts), layout.schema, time=True) if parts else [], rows, layout)

    def _pass(self, time: int, sources: Iterable[str]) -> None:
        for source in list(sources):
            if time > self._reached[source]:
                self._reached[source] = time
                self._feed(source, Boundary(Kind.STABLE, time, self._last_id[source]))
        try:
            for channel, element in self._run.run():
                self._take(channel, element)
        except OperatorFailed as error:
            error.add_note(error.where())
            raise

    def _feed(self, source: str, element: Element) -> None:
        for channel, out in self._run.feed(Channel(StreamId(source), 0), element):
            self._take(channel, out)

    def _take(self, channel: Channel, element: Element) -> None:
        rows = self._views[channel.stream].apply(Change(channel, element, 0))
        if rows is not None and len(rows):
            self._made[channel.stream].append(rows)


def results(query: Query, sources: Mapping[str, GivenTable]) -> dict[str, list[Record]]:
    """Returns the final results of whole streams, by output: those that every client holds in the end, whatever fails.

    Args:
      sources: the rows of each source; other sources have none.

    Raises:
      ConfigError: query or rows have mistakes.
      OperatorFailed: an operator raised.
    """
    driver = QueryDriver(query)
    for source, rows in sources.items():
        driver.send(source, rows)
    driver.end()
    return {output: driver.read(output) for output in driver._made}
