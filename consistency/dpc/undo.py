"""Undo/redo: no snapshot; each stateful operator's own input makes its state again (rule R9).

On the stable path an :class:`InputBuffer` per operator keeps the input that its state depends on.  A mark is the stream
markers of all operators.  Undo rolls back operators on affected paths, which have taken or released rows since, by
giving them their input again and dropping the results; an operator that has only seen time pass keeps its state.
(Paper, section 4.4.2: undo history up to the stream markers, along affected paths only.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from consistency.dpc.instance import Checkpoint, Instance, LogReplay, StateMark
from operators import steps
from operators.fragment import Watch
from operators.input_buffer import InputBuffer, Marker
from operators.steps import Steps
from spe.errors import blaming
from spe.plan.plan import Unit
from spe.stream.batch import Rows
from spe.stream.names import StreamId
from spe.stream.times import BEFORE_TIME, format_timestamp

_ASKED: Final = "being asked what it still needs of its input"


@dataclass(frozen=True, slots=True)
class StreamMarkers:
    """A mark: one marker per operator, and the outputs' counters there."""

    restart: int
    operators: Mapping[StreamId, Marker]
    outputs: Sequence[Mapping[str, Any]]
    replay: LogReplay | None = None


class UndoInstance(Instance):
    """Operators, their input buffers, and the counters of their outputs."""

    def __init__(self, unit: Unit, *, partition: int = 0, logs: bool = False) -> None:
        super().__init__(unit, partition=partition, logs=logs)
        self._operators = self.fragment.operators
        self._buffers = self._new_buffers(BEFORE_TIME)
        #: Operators on affected paths: they took rows or released some since the last mark.
        self._affected: set[StreamId] = set()
        #: Remakes the state of operators.
        self._again: Steps[None] | None = None
        self._max_rows = 0

    @property
    def buffered_rows(self) -> int:
        """Rows that input buffers hold."""
        return sum(map(len, self._buffers.values()))

    def validate_rows(self) -> None:
        assert self._buffers.keys() == self._operators.keys(), "R9: each operator has the buffer of its input"
        assert self._affected <= self._operators.keys(), "R9: affected paths are of operators"

    def checkpoint_at(self, mark: Any) -> Steps[Checkpoint]:
        redo = self.back(mark)
        while redo.rebuild(steps.RELEASED):
            yield
        return redo.checkpoint(mark.restart)

    def end_replay(self) -> None:
        assert self.replay is not None, "G4: a replay ends"
        end = self.replay.end
        super().end_replay()
        self._buffers = self._new_buffers(end, self.fragment.snapshot())

    def install(self, checkpoint: Checkpoint) -> None:
        super().install(checkpoint)
        self._buffers = self._new_buffers(checkpoint.restart, checkpoint.fragment)

    def _new_buffers(self, end: int, states: Mapping[str, Any] | None = None) -> dict[StreamId, InputBuffer]:
        made: dict[StreamId, InputBuffer] = {}
        for name, operator in self._operators.items():
            with blaming(name, _ASKED):
                made[name] = InputBuffer(operator, end, None if states is None else states[name])
        return made

    def mark(self, restart: int) -> StateMark:
        assert not self.rebuilding, "R9: a marker stands in a complete state"
        if self.replay is not None:  # buffers begin at its end
            return super().mark(restart)
        self._affected.clear()
        markers = {}
        for name, buffer in self._buffers.items():
            with blaming(name, _ASKED):
                markers[name] = buffer.mark()
        return StreamMarkers(restart, markers, [o.snapshot() for o in self.outputs])

    def back(self, mark: Any) -> Instance:
        """Returns the rolled-back copy: unaffected operators as they are, others empty until :meth:`rebuild`."""
        if isinstance(mark, Checkpoint):
            return super().back(mark)
        assert isinstance(mark, StreamMarkers)
        redo = self._empty()
        again: list[tuple[StreamId, Marker]] = []
        for name, marker in mark.operators.items():
            operator = redo._operators[name]
            with blaming(name, "being brought back to where tentative data began"):
                redo._buffers[name] = InputBuffer.at(marker, operator)
                if name not in self._affected:
                    operator.restore(self._operators[name].snapshot())
                    if operator.rewind(marker.end):
                        continue
                again.append((name, marker))
        if self.log is not None and redo.log is not None:
            redo.log.continues(self.log, mark.restart)
            if again:  # what its input makes again knows nothing of a log
                redo.log.forget()
        redo._again = redo._made_again(again)
        redo._unfinished = bool(again) or redo.fragment.load()
        self._put_back_outputs(redo, mark.outputs)
        return redo

    def _made_again(self, markers: Sequence[tuple[StreamId, Marker]]) -> Steps[None]:
        for name, marker in markers:
            with blaming(name, "being brought back to where tentative data began"):
                marker.start(self._operators[name])
            with blaming(name, f"what it was given before {format_timestamp(marker.end)}, given again"):
                again = marker.again(self._operators[name], self.fragment.ports(name), self._max_rows)
                self.rebuilt += yield from again
            yield

    def rebuild(self, max_rows: int) -> bool:
        assert max_rows > 0, "B8: a portion has rows"
        self._max_rows = max_rows
        if self._again is not None:
            for _ in self._again:
                return True
            self._again = None
        return super().rebuild(max_rows)

    def _watch_stable(self) -> Watch:
        return self._took

    def _watch_tentative(self) -> Watch:
        return self._touched

    def _took(self, name: StreamId, ports: Sequence[Rows | None], released: bool, end: int) -> None:
        with blaming(name, _ASKED):
            self._buffers[name].took(ports, end)
        self._touched(name, ports, released, end)

    def _touched(self, name: StreamId, ports: Sequence[Rows | None], released: bool, end: int) -> None:
        if released or any(rows is not None for rows in ports):
            self._affected.add(name)
