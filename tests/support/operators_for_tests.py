"""User-defined operators that tests put into queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from operator import itemgetter
from typing import Any, ClassVar

import numpy as np

from operators.aggregate.custom import Aggregator
from operators.custom import CustomOperator
from operators.keyed import KeyedOperator
from spe.stream.batch import Column, Rows
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.times import SECOND


class PassThrough(CustomOperator):
    """Passes rows on."""

    @classmethod
    def output_schema(cls, inputs: Sequence[Schema], **arguments: Any) -> Schema:
        return inputs[0]

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        return ports[0]


class Counts(PassThrough):
    """Adds to ``n`` how many of its kind were made before it, as code that is not deterministic would."""

    made = count()

    def __init__(self, inputs: Sequence[Schema], **arguments: Any) -> None:
        super().__init__(inputs, **arguments)
        self._number = next(self.made)
        self._column = inputs[0].index("n")

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        if rows is None:
            return None
        columns = list(rows.columns)
        columns[self._column] = Column(columns[self._column].values + self._number)
        return Rows(rows.time, rows.t_max, tuple(columns))


class RaisesAt(PassThrough):
    """Passes rows on until one has ``n`` equal to ``at``; then raises, as a mistake in a user's code would."""

    def __init__(self, inputs: Sequence[Schema], **arguments: Any) -> None:
        super().__init__(inputs, **arguments)
        self._at = int(arguments["at"])
        self._column = inputs[0].index("n")

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        if rows is not None and (rows.columns[self._column].values == self._at).any():
            raise ZeroDivisionError(f"n is {self._at}")
        return rows


class Unstorable(PassThrough):
    """Its state is of a kind that no snapshot can hold, from the third slice with rows on."""

    def __init__(self, inputs: Sequence[Schema], **arguments: Any) -> None:
        super().__init__(inputs, **arguments)
        self._slices = 0

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        self._slices += ports[0] is not None
        return ports[0]

    def snapshot(self) -> Any:
        return {"seen": {1, 2}} if self._slices > 2 else {"slices": self._slices}


class TakesNoState(PassThrough):
    """Refuses its own state, as after a change of a user's code."""

    def snapshot(self) -> Any:
        return {"seen": 1}

    def restore(self, state: Any) -> None:
        raise KeyError("count")


class Recent(PassThrough):
    """Its state needs the last second of its input."""

    def __init__(self, inputs: Sequence[Schema], **arguments: Any) -> None:
        super().__init__(inputs, **arguments)
        self._boundary = 0

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        self._boundary = boundary
        return ports[0]

    def snapshot(self) -> Any:
        return {"boundary": self._boundary}

    def restore(self, state: Any) -> None:
        self._boundary = state["boundary"]

    def oldest_needed(self) -> int | None:
        return self._boundary - SECOND if self._boundary else None

    def clear(self, boundary: int) -> None:
        self._boundary = boundary


class CannotBeCleared(Recent):
    """Raises in ``clear``: the mistake shows only when tentative data are undone."""

    def clear(self, boundary: int) -> None:
        raise IndexError("nothing to clear")


class NeedsWhatItCannotSay(Recent):
    """Raises in ``oldest_needed`` after thirty slices."""

    slices = 0

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        self.slices += 1
        return super().step(ports, boundary)

    def oldest_needed(self) -> int | None:
        if self.slices > 30:
            raise IndexError("no oldest")
        return super().oldest_needed()


class CannotCount(PassThrough):
    """Raises in ``counters``: the mistake shows only when they are asked for."""

    def counters(self) -> Mapping[str, int]:
        raise KeyError("late")


class CountsWithNumPy(PassThrough):
    """Counts with NumPy's integers, as sums of masks do."""

    def counters(self) -> Mapping[str, int]:
        return {"seen": np.int64(7)}  # type: ignore[dict-item]


class NeedsAFile(PassThrough):
    """Needs a file that is not on every machine."""

    lacking: ClassVar[bool] = False

    def __init__(self, inputs: Sequence[Schema], **arguments: Any) -> None:
        super().__init__(inputs, **arguments)
        if self.lacking:
            raise FileNotFoundError("model.bin")


class Lagging(CustomOperator):
    """Adds ``seen``: the tuple time, of every ``late``-th ``n`` so much before, of every ``null``-th none at all."""

    def __init__(self, inputs: Sequence[Schema], **arguments: Any) -> None:
        super().__init__(inputs, **arguments)
        self._column = inputs[0].index("n")
        self._late, self._by_us, self._null = (arguments[name] for name in ("late", "by_us", "null"))

    @classmethod
    def output_schema(cls, inputs: Sequence[Schema], **arguments: Any) -> Schema:
        return Schema((*inputs[0], Attribute("seen", AttributeType.TIMESTAMP)))

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        if rows is None:
            return None
        n = rows.columns[self._column].values
        seen, present = np.where(n % self._late == 0, rows.time - self._by_us, rows.time), n % self._null != 0
        return rows.with_columns((*rows.columns, Column(np.where(present, seen, 0), present)))


class Picky(PassThrough):
    """Adds up ``n`` of the rows that it takes, in ``total``: none that is a multiple of ``bad``."""

    def __init__(self, inputs: Sequence[Schema], **arguments: Any) -> None:
        super().__init__(inputs, **arguments)
        self._bad = int(arguments["bad"])
        self._column = inputs[0].index("n")
        self._total = 0

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        if rows is None:
            return None
        totals = []
        for n in rows.columns[self._column].to_list():
            self._total += n
            if n % self._bad == 0:
                raise ValueError(f"{n} is a multiple of {self._bad}")
            totals.append(self._total)
        columns = list(rows.columns)
        columns[self._column] = Column(np.array(totals, np.int64))
        return rows.with_columns(tuple(columns))

    def snapshot(self) -> Any:
        return {"total": self._total}

    def restore(self, state: Any) -> None:
        self._total = state["total"]


class Choosy(PassThrough):
    """Adds up ``value``; takes no null and none below -1."""

    def __init__(self, inputs: Sequence[Schema], **arguments: Any) -> None:
        super().__init__(inputs, **arguments)
        self._column = inputs[0].index("value")
        self._total = 0.0

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        if rows is None:
            return None
        totals = []
        for value in rows.columns[self._column].to_list():
            self._total += value
            if value < -1:
                raise ValueError(f"{value} is below -1")
            totals.append(self._total)
        columns = list(rows.columns)
        columns[self._column] = Column(np.array(totals))
        return rows.with_columns(tuple(columns))

    def snapshot(self) -> Any:
        return {"total": self._total}

    def restore(self, state: Any) -> None:
        self._total = state["total"]


class Doubtful(Aggregator):
    """A sum that refuses values above 1, and has no results between two bounds."""

    returns = "float64"

    def create(self) -> Any:
        return 0.0

    def add(self, state: Any, values: Any) -> Any:
        for value in values.tolist():
            state += value
            if value > 1:
                raise ValueError(f"{value} is above 1")
        return state

    def merge(self, state: Any, later: Any) -> Any:
        return state + later

    def result(self, state: Any) -> Any:
        if 0 < state < 0.2:
            raise ArithmeticError(f"{state} says nothing")
        return state


class Places(PassThrough):
    """Replaces its second attribute, an integer, by how many rows of the first, and of all, came before.

    The state is all that came, so undo/redo cannot make it again from a part.
    """

    def __init__(self, inputs: Sequence[Schema], **arguments: Any) -> None:
        super().__init__(inputs, **arguments)
        self._seen: dict[Any, int] = {}
        self._rows = 0

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        if rows is None:
            return None
        places = []
        for key in rows.columns[0].to_list():
            places.append(100 * self._rows + self._seen.get(key, 0))
            self._seen[key] = self._seen.get(key, 0) + 1
            self._rows += 1
        return rows.with_columns((rows.columns[0], Column(np.array(places, np.int64)), *rows.columns[2:]))

    def snapshot(self) -> Any:
        return {"seen": list(self._seen.items()), "rows": self._rows}

    def restore(self, state: Any) -> None:
        self._seen, self._rows = dict(state["seen"]), state["rows"]

    def counters(self) -> Mapping[str, int]:
        return {"rows": self._rows}


class Visits(KeyedOperator):
    """One row per visit, on any port, of the attributes ``by``: it ends ``gap`` µs after its last row, and counts them.

    The visit that ends first is the first key, so all depends on the order of keys.
    """

    def __init__(self, inputs: Sequence[Schema], **arguments: Any) -> None:
        super().__init__(inputs, **arguments)
        self._by, self._gap = arguments["by"], int(arguments["gap"])
        self._bad = arguments.get("bad", ())

    @classmethod
    def output_schema(cls, inputs: Sequence[Schema], **arguments: Any) -> Schema:
        return Schema((*[inputs[0][name] for name in arguments["by"]], *Schema.of(n="int64!")))

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        over = list[tuple[int, tuple[Any, ...]]]()
        for time, _, key in sorted(self._given(ports), key=itemgetter(0, 1)):
            over += self._ended(time + 1)
            _, n = self.state.pop(key, (0, 0))
            self.state[key] = (time, n + 1)
            if key in self._bad:
                raise ValueError(f"{key} is bad")
        over += self._ended(boundary)
        return Rows.from_tuples(self.schema, [t for t, _ in over], [row for _, row in over]) if over else None

    def _given(self, ports: Sequence[Rows | None]) -> Iterator[tuple[int, int, Any]]:
        for port, rows in enumerate(ports):
            if rows is not None:
                columns = [rows.columns[self.inputs[port].index(name)].to_list() for name in self._by]
                for at, time in enumerate(rows.time.tolist()):
                    values = tuple(column[at] for column in columns)
                    yield time, port, values[0] if len(values) == 1 else values

    def _ended(self, before: int) -> Iterator[tuple[int, tuple[Any, ...]]]:
        while self.state:
            key, (last, n) = next(iter(self.state.items()))
            if last + self._gap >= before:
                return
            del self.state[key]
            yield last + self._gap, (*(key if len(self._by) != 1 else (key,)), n)


class Latest(KeyedOperator):
    """Rows of port 1 with the latest ``value`` that port 0 had for their ``key``; a null takes it away."""

    @classmethod
    def output_schema(cls, inputs: Sequence[Schema], **arguments: Any) -> Schema:
        return Schema.of(key="string", latest="int64")

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        given, found = list[tuple[int, int, str | None, int | None]](), list[tuple[int, tuple[Any, ...]]]()
        for port, (schema, rows) in enumerate(zip(self.inputs, ports, strict=True)):
            if rows is not None:
                key, value = (rows.columns[schema.index(name)].to_list() for name in ("key", "value"))
                given += [(t, port, k, v) for t, k, v in zip(rows.time.tolist(), key, value, strict=True)]
        for time, port, name, new in sorted(given, key=itemgetter(0, 1)):
            if port == 1:
                found.append((time, (name, self.state.get(name))))
            elif new is not None:
                self.state[name] = new
            else:
                self.state.pop(name, None)
        return Rows.from_tuples(self.schema, [t for t, _ in found], [row for _, row in found]) if found else None
