"""A unit's operators, run synchronously in topological order, one slice at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from operators import steps
from operators.build import build_operator
from operators.operator import Operator, OperatorState
from operators.rejected import RejectedStream
from operators.rejections import Rejection
from operators.skipping import Rejected, Skipping
from operators.steps import Steps, finished
from operators.sunion.slice import Slice
from operators.union import Union
from spe.errors import OperatorFailed, blaming
from spe.plan.plan import Unit
from spe.stream.batch import Rows, concat_rows, in_order, merge_rows
from spe.stream.names import StreamId
from spe.stream.text_size import RowTooLarge, check_text
from spe.stream.times import format_timestamp

#: (operator, rows of each port, whether it released or rejected rows, end of the slice).
Watch = Callable[[StreamId, Sequence[Rows | None], bool, int], None]

#: A slice's rows of a stream: of an operator in one piece; of an input in parts, as in the SUnion (several, or not in
#: order of time), until an operator needs them in one piece.
_Stream = Rows | list[Rows] | None


class Pieces(list[Rows]):
    """Rows released by an operator, in consecutive portions, possibly cut between rows of the same time."""


class Fragment:
    """A running instance of a unit's operators.

    Args:
      unit: the unit; its operators are in topological order.
      partition: number of the unit's partition.

    Raises:
      OperatorFailed: a user-defined operator could not be made.
    """

    def __init__(self, unit: Unit, partition: int = 0) -> None:
        schemas = {i.stream: i.schema for i in unit.inputs}
        self._inputs: Sequence[StreamId] = [i.stream for i in unit.inputs]
        self._channels = unit.channels_in(partition)
        self._outputs = unit.outputs
        #: Rows rejected by operators since the last :meth:`take_rejections`.
        self._rejections: list[Rejection] = []
        #: During a replay, the time from which an operator takes input; other operators take all.
        self._takes_from: Mapping[StreamId, int] = {}
        self._steps: list[tuple[StreamId, tuple[StreamId, ...], Operator]] = []
        self._unit = unit
        for operator in unit.operators:
            ports = operator.spec.inputs
            with blaming(operator.name, "being made"):
                made = build_operator(operator, [schemas[p] for p in ports])
            self._steps.append((operator.name, ports, made))
            schemas[operator.name] = operator.schema

    @property
    def operators(self) -> Mapping[StreamId, Operator]:
        """Operators by name, in topological order."""
        return {name: operator for name, _, operator in self._steps}

    def another(self, name: StreamId) -> Operator:
        """Makes a new operator of this name, in its initial state.  Raises OperatorFailed."""
        declared = next(operator for operator in self._unit.operators if operator.name == name)
        schemas = {operator.stream: operator.schema for operator in self._unit.inputs}
        schemas |= {operator.name: operator.schema for operator in self._unit.operators}
        with blaming(name, "being made"):
            return build_operator(declared, [schemas[port] for port in declared.spec.inputs])

    def ports(self, name: StreamId) -> int:
        """Returns the number of ports of an operator."""
        return next(len(ports) for operator, ports, _ in self._steps if operator == name)

    def step(self, piece: Slice, watch: Watch | None = None) -> list[Rows | None]:
        """Runs one slice at once; returns the rows of each of the unit's outputs."""
        return [concat_rows(released) if released else None for released in finished(self.work(piece, watch))]

    def work(self, piece: Slice, watch: Watch | None = None) -> Steps[list[list[Rows]]]:
        """Runs one slice in portions; returns the rows of each of the unit's outputs, in consecutive pieces.

        Args:
          watch: called after each operator's part.

        Raises:
          OperatorFailed: an operator raised, or made a row that is too large to be sent; its state is then
            unusable.
        """
        streams: dict[StreamId, _Stream] = dict(zip(self._inputs, map(_divided, piece.parts), strict=True))
        calls: Sequence[tuple[Sequence[Rows | None], int]]
        rejected: dict[StreamId, list[Rejection]] = {}
        for name, ports, operator in self._steps:
            try:
                # A union takes parts, so that nothing is copied twice.  Undo/redo needs whole ports.
                if watch is None and type(operator) is Union:  # isinstance would check the abstract base, at each slice
                    streams[name] = operator.merge([rows for p in ports for rows in _parts(streams[p])])
                    continue
                if type(operator) is RejectedStream:
                    streams[name] = Pieces((yield from operator.made(rejected.get(ports[0], [])))) or None
                    continue
                pieces = streams[ports[0]]
                if isinstance(pieces, Pieces) and len(ports) == 1 and operator.takes_portions:
                    calls = [([rows], int(rows.time[-1])) for rows in pieces[:-1]] + [([pieces[-1]], piece.end)]
                else:
                    calls = [([_whole(streams, p) for p in ports], piece.end)]
                if (begin := self._takes_from.get(name)) is not None:
                    calls = [([_from(rows, begin) for rows in some], end) for some, end in calls if end > begin]
                streams[name] = yield from self._portions(name, operator, calls, watch)
                if type(operator) is Skipping:
                    rejected[name] = list(self._named(name, ports, operator.take_rejected(), piece))
                    self._rejections += rejected[name]
            except Exception as error:
                raise OperatorFailed(name, _slice_text(piece), error) from error
        out = [_released(streams, o) for o in self._outputs]
        self._check_text(out, piece)
        return out

    def _check_text(self, out: Sequence[Sequence[Rows]], piece: Slice) -> None:
        """Raises OperatorFailed for a row that is too large to be sent."""
        for name, released in zip(self._outputs, out):
            for rows in released:
                try:
                    check_text(rows.columns)
                except RowTooLarge as error:
                    raise OperatorFailed(name, _slice_text(piece), error) from error

    def _portions(
        self,
        name: StreamId,
        operator: Operator,
        calls: Sequence[tuple[Sequence[Rows | None], int]],
        watch: Watch | None,
    ) -> Steps[_Stream]:
        released: list[Rows] = []
        rejected = operator.rejected if type(operator) is Skipping else []
        for number, (ports, end) in enumerate(calls):
            if number:
                yield
            before = len(released) + len(rejected)
            for rows in operator.work(ports, end):
                if rows is None:
                    yield
                else:
                    released.append(rows)
            if watch is not None:
                watch(name, ports, len(released) + len(rejected) > before, end)
        if len(released) < 2:
            return released[0] if released else None
        return Pieces((yield from _of_good_size(released)))

    def _named(
        self, name: StreamId, ports: Sequence[StreamId], rejected: Sequence[Rejected], piece: Slice
    ) -> Iterator[Rejection]:
        """Yields an operator's rejections of a slice, with the ids of rows of the unit's inputs."""
        ids: dict[tuple[int, int], tuple[int, int]] = {}
        for port, stream in enumerate(ports):
            rows = [rejection.row for rejection in rejected if rejection.port == port]
            if rows and stream in self._inputs:
                row_ids = piece.ids_of(self._inputs.index(stream), rows)
                ids |= zip([(port, row) for row in rows], row_ids, strict=True)
        for rejection in rejected:
            made_inside = None if rejection.port is None else str(ports[rejection.port])
            at = None if rejection.port is None else ids.get((rejection.port, rejection.row))
            input_, id_ = (made_inside, None) if at is None else (str(self._channels[at[0]]), at[1])
            yield Rejection(
                name,
                rejection.port is None,
                rejection.number,
                input_,
                id_,
                rejection.time,
                rejection.values,
                rejection.reason,
            )

    def begin_replay(self, takes_from: Mapping[StreamId, int]) -> None:
        """Starts a replay of slices, of which some operators take only rows from a time on."""
        self._takes_from = takes_from

    def end_replay(self) -> None:
        """Ends a replay; its rejections are known already."""
        self._takes_from, self._rejections = {}, []

    def take_rejections(self) -> list[Rejection]:
        """Returns rows and results rejected since the last call; in order per operator and kind."""
        taken, self._rejections = self._rejections, []
        return taken

    def snapshot(self) -> OperatorState:
        """Returns the state of every operator, by reference.  Raises OperatorFailed."""
        states: dict[str, Any] = {}
        for name, _, operator in self._steps:
            with blaming(name, "being asked for its state"):
                states[name] = operator.snapshot()
        return states

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores a snapshot.  Raises OperatorFailed, for example if a user's operator cannot read an old format."""
        self._rejections = []
        for name, _, operator in self._steps:
            with blaming(name, "the state that it was given"):
                operator.restore(state[name])

    def load(self) -> bool:
        """Does a portion of the rest of a restore; returns whether there is more.  Raises OperatorFailed."""
        for name, _, operator in self._steps:
            with blaming(name, "the state that it was given"):
                if operator.load():
                    return True
        return False

    def counters(self) -> dict[str, int]:
        """Returns ``operator.counter`` -> count, e.g. tuples late for every window.  Raises OperatorFailed."""
        counts: dict[str, int] = {}
        for name, _, operator in self._steps:
            with blaming(name, "being asked what it counted"):
                counts |= {f"{name}.{key}": n for key, n in operator.counters().items()}
        return counts


def _from(rows: Rows | None, begin: int) -> Rows | None:
    """Removes rows before a time from sorted rows."""
    if rows is None:
        return None
    at = int(rows.time.searchsorted(begin))
    return rows.slice(at, len(rows)) if at < len(rows) else None


def _parts(stream: _Stream) -> Sequence[Rows]:
    if isinstance(stream, Rows):
        return [stream]
    return stream or []


def _divided(parts: list[Rows]) -> _Stream:
    """Divides rows of an input that are too many for one step (possibly within one time), if they are in order."""
    if sum(map(len, parts)) <= 4 * steps.RELEASED or not in_order(parts):
        return parts
    cut = [(rows, *ends) for rows in parts for ends in steps.portions(len(rows), steps.RELEASED)]
    return Pieces(finished(_of_good_size([rows.slice(start, stop) for rows, start, stop in cut])))


def _of_good_size(pieces: list[Rows]) -> Steps[list[Rows]]:
    """Joins small pieces, so that all but the last have at least half the rows that a step may release."""
    out: list[Rows] = []
    group: list[Rows] = []
    count = 0
    for rows in pieces:
        group.append(rows)
        count += len(rows)
        if 2 * count >= steps.RELEASED:
            if len(group) > 1 and out:
                yield
            out.append(concat_rows(group))
            group, count = [], 0
    return [*out, concat_rows(group)] if group else out


def _whole(streams: dict[StreamId, _Stream], name: StreamId) -> Rows | None:
    """Replaces the parts of a stream by one piece, and returns it."""
    stream = streams[name]
    if isinstance(stream, Pieces):
        stream = streams[name] = concat_rows(stream)
    elif isinstance(stream, list):
        stream = streams[name] = merge_rows(stream) if stream else None
    return stream


def _slice_text(piece: Slice) -> str:
    return f"the slice of {len(piece)} tuples that ends at {format_timestamp(piece.end)}"


def _released(streams: dict[StreamId, _Stream], name: StreamId) -> list[Rows]:
    stream = streams[name]
    if isinstance(stream, Pieces):
        return stream
    rows = _whole(streams, name)
    return [] if rows is None else [rows]
