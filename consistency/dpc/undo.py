"""Undo/redo: no snapshot; each stateful operator's own input makes its state again (docs/rules.md R9).

On the stable path an :class:`InputBuffer` per operator keeps what its state still owes something to.  A mark is the
stream markers of all operators.  Undo brings back those on affected paths, which have taken rows or released
something since, by giving them their input again with nobody listening; an operator that has only seen time pass keeps
its state.  (Paper, section 4.4.2: undo history up to the stream markers, along affected paths only.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from consistency.dpc.instance import Checkpoint, Instance, Mark
from operators.fragment import Watch
from operators.input_buffer import Given, InputBuffer, Marker
from spe.errors import blaming
from spe.plan.plan import Unit
from spe.stream.batch import Rows
from spe.stream.names import StreamId
from spe.stream.times import BEFORE_TIME, format_timestamp

_ASKED: Final = "being asked what it still needs of its input"


@dataclass(frozen=True, slots=True)
class StreamMarkers:
    """One marker per operator, and the outputs' counters there; a Mark."""

    restart: int
    operators: Mapping[StreamId, Marker]
    outputs: Sequence[Mapping[str, Any]]


class UndoInstance(Instance):
    """Operators, their input buffers, and the counters of their outputs."""

    def __init__(self, unit: Unit) -> None:
        super().__init__(unit)
        self._operators = self.fragment.operators
        self._buffers = self._new_buffers(BEFORE_TIME)
        #: Operators on affected paths: they took rows or released some since the last mark.
        self._affected: set[StreamId] = set()
        #: What is still to be given again: (operator, its marker, slices of it).
        self._again: deque[tuple[StreamId, Marker, deque[Given]]] = deque()

    @property
    def buffered_rows(self) -> int:
        """Rows that input buffers hold."""
        return sum(map(len, self._buffers.values()))

    def checkpoint(self, restart: int) -> Checkpoint:
        while self.rebuild(2**62):
            pass
        return super().checkpoint(restart)

    def install(self, checkpoint: Checkpoint) -> None:
        super().install(checkpoint)
        self._buffers = self._new_buffers(checkpoint.restart)

    def _new_buffers(self, end: int) -> dict[StreamId, InputBuffer]:
        made: dict[StreamId, InputBuffer] = {}
        for name, operator in self._operators.items():
            with blaming(name, _ASKED):
                made[name] = InputBuffer(operator, end)
        return made

    def mark(self, restart: int) -> Mark:
        self._affected.clear()
        markers = {}
        for name, buffer in self._buffers.items():
            with blaming(name, _ASKED):
                markers[name] = buffer.mark()
        return StreamMarkers(restart, markers, [o.snapshot() for o in self.outputs])

    def back(self, mark: Any) -> Instance:
        """The undo: unaffected operators as they are, the others cleared, their input still to be given (rebuild)."""
        assert isinstance(mark, StreamMarkers)
        redo = UndoInstance(self._unit)
        for name, marker in mark.operators.items():
            with blaming(name, "being brought back to where tentative data began"):
                redo._bring_back(name, marker, None if name in self._affected else self._operators[name].snapshot())
        self._put_back_outputs(redo, mark.outputs)
        return redo

    def _bring_back(self, name: StreamId, marker: Marker, unaffected: Mapping[str, Any] | None) -> None:
        operator = self._operators[name]
        self._buffers[name] = InputBuffer.at(marker, operator)
        if unaffected is not None:
            operator.restore(unaffected)
            if operator.rewind(marker.end):
                return
        marker.start(operator)
        self._again.append((name, marker, deque(marker.given)))

    @property
    def rebuilding(self) -> bool:
        return bool(self._again)

    def rebuild(self, max_rows: int) -> bool:
        while self._again:
            name, marker, given = self._again[0]
            operator = self._operators[name]
            with blaming(name, f"what it was given before {format_timestamp(marker.end)}, given again"):
                while given:
                    if max_rows <= 0:
                        return True
                    one = given.popleft()
                    max_rows -= len(one)
                    self.rebuilt += len(one)
                    operator.step(one.ports, one.end)
                marker.finish(operator, self.fragment.ports(name))
            self._again.popleft()
        return False

    def _watch_stable(self) -> Watch:
        return self._took

    def _watch_tentative(self) -> Watch:
        return self._touched

    def _took(self, name: StreamId, ports: Sequence[Rows | None], released: Rows | None, end: int) -> None:
        with blaming(name, _ASKED):
            self._buffers[name].took(ports, end)
        self._touched(name, ports, released, end)

    def _touched(self, name: StreamId, ports: Sequence[Rows | None], released: Rows | None, end: int) -> None:
        if released is not None or any(rows is not None for rows in ports):
            self._affected.add(name)
