"""Checks custom operators and aggregates without a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import Any, Final

import numpy as np

from operators.aggregate.custom import Aggregator
from operators.custom import CustomHost, CustomOperator
from operators.keyed import hosted
from replicas.testing.blame import PromiseBroken, wrong
from replicas.testing.tables import GivenTable, Layout, Record, Timed, moment, records
from spe.errors import SpeError
from spe.problems import did_you_mean, one_of
from spe.stream.batch import Column, Rows
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.strings import StringDictionary, StringPool
from spe.stream.times import BEFORE_TIME, END_OF_TIME, format_timestamp
from spe.wire.state import decode_state, encode_state

#: A schema, or ``"sensor string, value float64!"``.
GivenSchema = Schema | str
#: Number of cuts of an input that are tried one by one and all at once; of more, so many are drawn from a seed.
_CUTS: Final = 24


class OperatorHarness:
    """Runs a custom operator alone, in the calling thread.

    ::

        records = OperatorHarness(Records, "sensor string, value float64", attribute="value")
        records.step("_time sensor value \\n 1s a 1 \\n 2s a 3", upto="5s")

    Rows have a column ``_time`` before the attributes of the schema.

    Args:
      operator: the class.
      inputs: schema of each port; a trailing ``!`` of a type means that it is never null.
      arguments: ``arguments`` of the query.

    Raises:
      ConfigError: a schema is invalid; or the operator refuses its inputs or arguments.
    """

    def __init__(self, operator: type[CustomOperator], *inputs: GivenSchema, **arguments: Any) -> None:
        self._class = operator
        self._arguments = arguments
        self._schemas = [read_schema(schema) for schema in inputs]
        self._layouts = [
            Layout(schema, None, f"{operator.__name__}: port {port}" if len(inputs) > 1 else operator.__name__)
            for port, schema in enumerate(self._schemas)
        ]
        self._host = self._new()
        self._upto = BEFORE_TIME

    @property
    def schema(self) -> Schema:
        """Schema of the output."""
        return self._host.schema

    def step(self, *rows: GivenTable, upto: str | int) -> list[Record]:
        """Gives the operator one slice; returns the rows that it releases, with ``_time``.

        Args:
          rows: rows of each port, in order of time; ports at the end may be left out.
          upto: the end of the slice, as a time in a table; all rows are before it.

        Raises:
          ConfigError: rows do not fit, or are outside of the slice.
          ValueError, TypeError: the output of the operator breaks the contract.  Errors of the operator are raised
            unchanged.
        """
        try:
            end = moment(upto)
        except (ValueError, TypeError):
            raise wrong(f"upto: expected a time such as 12:00:01.5, got {upto!r}") from None
        return self._records(self._slice(self._host, self._read(rows), end))

    def end(self) -> list[Record]:
        """Ends the input; returns the rows that the operator releases."""
        return self._records(self._slice(self._host, [[] for _ in self._layouts], END_OF_TIME))

    def check(self, *rows: GivenTable, seed: int = 0) -> list[Record]:
        """Checks the contract of a custom operator on new instances, and returns all its output.

        1. The same input gives the same output.
        2. So does input that is cut into slices: at each time alone, and at all of them.
        3. ``restore(snapshot())`` at each cut gives the rest of the output, also from a snapshot that was sent.
        4. A snapshot does not change when the operator goes on.

        Args:
          rows: rows of each port, in order of time.
          seed: chooses the cuts if there are more than 24.

        Raises:
          PromiseBroken: an AssertionError that says which, where, and the seed.
          ConfigError: as :meth:`step`.
        """
        ports = self._read(rows)
        whole = self._play(ports, [])
        if _differ(again := self._play(ports, []), whole):
            raise PromiseBroken(self._broken("makes other output of the same input", whole, again))
        for cuts in self._cuts(ports, seed):
            if _differ(cut := self._play(ports, cuts), whole):
                shown = ", ".join(map(format_timestamp, cuts))
                raise PromiseBroken(self._broken(f"makes other output when cut at {shown}", whole, cut, seed))
        self._check_snapshots(ports, whole, seed)
        return whole

    # --- slices ---

    def _new(self) -> CustomHost:
        try:
            return hosted(self._class(tuple(self._schemas), **self._arguments))
        except Exception as error:  # a user's code
            raise wrong(f"{self._class.__name__} cannot be made: {type(error).__name__}: {error}") from error

    def _read(self, rows: Sequence[GivenTable]) -> list[list[Timed]]:
        if len(rows) > len(self._layouts):
            raise wrong(f"{self._class.__name__} has {len(self._layouts)} ports, got rows of {len(rows)}")
        tables = [*rows, *[()] * (len(self._layouts) - len(rows))]
        ports = [layout.read(table) for layout, table in zip(self._layouts, tables, strict=True)]
        for layout, port in zip(self._layouts, ports, strict=True):
            for number, (before, after) in enumerate(pairwise(port), 2):
                if after[0] < before[0]:
                    raise wrong(f"{layout.name}: row {number} is before row {number - 1}; expected order of time")
        return ports

    def _slice(self, host: CustomHost, ports: Sequence[Sequence[Timed]], end: int) -> Rows | None:
        for layout, port in zip(self._layouts, ports, strict=True):
            for row in port:
                if not host.previous <= row[0] < end:
                    span = f"[{format_timestamp(host.previous)}, {format_timestamp(end)})"
                    raise wrong(f"{layout.name}: a row of {format_timestamp(row[0])} outside of the slice {span}")
        return host.step([self._rows(s, port, end) for s, port in zip(self._schemas, ports, strict=True)], end)

    def _rows(self, schema: Schema, port: Sequence[Timed], end: int) -> Rows | None:
        """Returns rows whose strings have other codes in each slice, as they may in a cluster."""
        if not port:
            return None
        pool = StringPool()
        pool.current().encode([f"other {i}" for i in range(end % 7)])
        return Rows.from_tuples(schema, [row[0] for row in port], [row[1:] for row in port], pool)

    def _play(
        self, ports: Sequence[Sequence[Timed]], cuts: Sequence[int], host: CustomHost | None = None
    ) -> list[Record]:
        host = self._new() if host is None else host
        output: list[Record] = []
        for end in [*cuts, END_OF_TIME]:
            slices = [[row for row in port if host.previous <= row[0] < end] for port in ports]
            output += self._records(self._slice(host, slices, end))
        return output

    def _records(self, rows: Rows | None) -> list[Record]:
        return [] if rows is None else records(rows, self.schema, time=True)

    # --- promises ---

    def _times(self, ports: Sequence[Sequence[Timed]], seed: int) -> list[int]:
        times = sorted({row[0] + after for port in ports for row in port for after in (0, 1)})
        return times if len(times) <= _CUTS else sorted(Random(seed).sample(times, _CUTS))

    def _cuts(self, ports: Sequence[Sequence[Timed]], seed: int) -> list[list[int]]:
        times = self._times(ports, seed)
        return [[t] for t in times] + ([times] if len(times) > 1 else [])

    def _check_snapshots(self, ports: Sequence[Sequence[Timed]], whole: list[Record], seed: int) -> None:
        for time in self._times(ports, seed):
            host = self._new()
            head = self._records(self._slice(host, [[r for r in port if r[0] < time] for port in ports], time))
            snapshot, at = host.snapshot(), format_timestamp(time)
            try:
                sent = encode_state(snapshot)
            except SpeError as error:
                raise PromiseBroken(f"{self._class.__name__}: a snapshot cannot be sent: {error}") from error
            self._play(ports, [], host)
            if encode_state(snapshot) != sent:
                raise PromiseBroken(f"{self._class.__name__}: the snapshot of {at} has changed as the operator went on")
            for how, state in (("", snapshot), (" that was sent", decode_state(sent))):
                other = self._new()
                other.restore(state)
                if _differ(output := head + self._play(ports, [], other), whole):
                    what = f"makes other output behind a snapshot{how} of {at}"
                    raise PromiseBroken(self._broken(what, whole, output, seed))

    def _broken(self, what: str, expected: list[Record], output: list[Record], seed: int | None = None) -> str:
        at = next(
            (i for i, (a, b) in enumerate(zip(expected, output)) if _differ([a], [b])), min(len(expected), len(output))
        )
        first = [rows[at] if at < len(rows) else "nothing" for rows in (expected, output)]
        again = "" if seed is None else f"\nthe same cuts again: seed={seed}"
        return f"{self._class.__name__} {what}: row {at + 1} is {first[1]}, was {first[0]}{again}"


def _differ(output: list[Record], other: list[Record]) -> bool:
    """Returns whether records differ in any bit; all NaNs are equal."""
    return repr(output) != repr(other)


def check_aggregate(aggregator: type[Aggregator], values: Sequence[Any], argument: str = "float64") -> Any:
    """Checks the contract of a user-defined aggregate function on these values, and returns its result.

    1. The result does not depend on how the values are divided among calls of ``add``, and parts joined by ``merge``.
    2. No state is changed in place, and each can be sent.

    Args:
      values: in order; None is left out.
      argument: its type, as in a schema.

    Raises:
      PromiseBroken: an AssertionError that says which, and where.
      ConfigError: there is no such type, a value is of another one, or the function refuses it.
    """
    name = aggregator.__name__
    kind = read_schema(f"value {argument}")["value"].type
    try:
        aggregator.check(kind)
        column = Column.from_list(list(values), kind, StringDictionary())
    except (TypeError, ValueError, OverflowError) as error:
        raise wrong(f"{name}: {error}") from error
    function = aggregator()
    array = _array(column)

    def sent(*states: Any) -> bytes:
        try:
            return encode_state({"states": list(states)})
        except SpeError as error:
            raise PromiseBroken(f"{name}: a state cannot be sent: {error}") from error

    def grown(state: Any, part: Any) -> Any:
        before = sent(state)
        grown_state = function.add(state, part) if len(part) else state
        if sent(state) != before:
            raise PromiseBroken(f"{name}.add has changed a state in place")
        return grown_state

    whole = grown(function.create(), array)
    expected = function.result(whole)
    for cut in range(1, len(array)):
        head = grown(function.create(), array[:cut])
        parts = {"add": grown(head, array[cut:]), "merge": None}
        tail = grown(function.create(), array[cut:])
        before = sent(head, tail)
        parts["merge"] = function.merge(head, tail)
        if sent(head, tail) != before:
            raise PromiseBroken(f"{name}.merge has changed a state in place")
        for how, state in parts.items():
            if not _same(result := function.result(state), expected):
                raise PromiseBroken(
                    f"{name}.{how} after {cut} of {len(array)} values gives {result!r}, not {expected!r}"
                )
    return expected


def _array(column: Column) -> Any:
    """Returns the argument of ``add``: no nulls; texts as objects."""
    if column.dictionary is not None:
        return np.array([t for t in column.to_list() if t is not None], np.object_)
    return column.values if column.valid is None else column.values[column.valid]


def _same(value: Any, other: Any) -> bool:
    return repr(value) == repr(other)


def read_schema(declaration: GivenSchema | Mapping[str, str]) -> Schema:
    """Parses a schema such as ``"sensor string, value float64!"``.  Raises ConfigError."""
    if isinstance(declaration, Schema):
        return declaration
    attributes = []
    for part in (
        declaration.split(",") if isinstance(declaration, str) else [f"{n} {t}" for n, t in declaration.items()]
    ):
        words = part.split()
        if len(words) != 2:
            raise wrong(f"expected a schema such as 'sensor string, value float64!', got {declaration!r}")
        name, kind = words
        if kind.rstrip("!") not in list(AttributeType):
            hint = did_you_mean(kind, [*AttributeType])
            raise wrong(f"{name}: no type {kind!r}{hint}; expected {one_of([*AttributeType])}, with ! if not null")
        attributes.append(Attribute(name, AttributeType(kind.rstrip("!")), nullable=not kind.endswith("!")))
    try:
        return Schema(tuple(attributes))
    except ValueError as error:
        raise wrong(str(error)) from error
