"""User-defined operators with state by key: a checkpoint log gets only changes (rules G2 to G4).

Each key is a cell.  The state of a changed cell is written at the end of the slice, so its newest footprint is final,
and nothing is replayed for it: rows before the commit are in the state already.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from itertools import chain
from typing import Any, Final, final

import numpy as np

from operators import steps
from operators.columns import sorted_order
from operators.custom import CustomHost, CustomOperator
from operators.footprints import UNWRITTEN, CellRecord, Footprints, KeepsCells, LiveFootprints, Rewriting, Tree
from operators.steps import Steps
from spe.errors import LogCorrupt
from spe.stream.batch import Rows
from spe.stream.frozen import Derived
from spe.stream.schema import Schema
from spe.stream.times import BEFORE_TIME

#: Ordinal of the key by arrival; the key; its state.
_Cell = tuple[int, Any, Any]
_AS_THEY_ARE: Final = frozenset({str, int, bool, bytes, type(None)})


def _named(key: Any) -> Any:
    """Normalizes a key: one NaN, one zero, and no NumPy types."""
    kind = type(key)
    if kind in _AS_THEY_ARE:
        return key
    if kind is float:
        return key + 0.0 if key == key else math.nan
    if kind is tuple:
        return tuple(map(_named, key))
    if isinstance(key, np.generic):
        return _named(key.item())
    raise TypeError(f"a key is None, bool, int, float, str, bytes or a tuple of these; got {key!r}, a {kind.__name__}")


class KeyedState(MutableMapping[Any, Any]):
    """State by key, used like a dict; tracks changed keys.

    A key is None, a bool, int, float, str, bytes, or a tuple of these; every NaN is one key, and so are 1, 1.0 and
    True.  The state of a key consists of values allowed in a snapshot, and is never changed in place: assign a new one,
    ``state[key] = …``.  Keys are in order of arrival, also after a restart; a deleted key that returns is new.  All
    keys of a partition, with their states except arrays, must fit 32 MiB, as in any snapshot.
    """

    __slots__ = ("_cells", "_changed", "_is_whole", "_next", "_written")

    def __init__(self) -> None:
        #: Not a dict, in which finding the first entry takes longer the more were deleted before it.
        self._cells: OrderedDict[Any, _Cell] = OrderedDict()
        self._next = 0
        #: Time of the newest valid footprint of each key, the oldest first.
        self._written: dict[Any, int] = {}
        #: Keys changed or deleted since the last logged slice; None: there is no log.
        self._changed: dict[Any, None] | None = None
        self._is_whole = True

    def __getitem__(self, key: Any) -> Any:
        return self._cells[_named(key)][2]

    def __setitem__(self, key: Any, state: Any) -> None:
        key = _named(key)
        old = self._cells.get(key)
        if old is None:
            self._cells[key] = (self._next, key, state)
            self._next += 1
        else:
            self._cells[key] = (old[0], old[1], state)
        if self._changed is not None:
            self._changed[key] = None

    def __delitem__(self, key: Any) -> None:
        key = _named(key)
        del self._cells[key]
        if self._changed is not None:
            if key in self._written:
                self._changed[key] = None
            else:
                self._changed.pop(key, None)

    def get(self, key: Any, default: Any = None, /) -> Any:
        cell = self._cells.get(_named(key))
        return default if cell is None else cell[2]

    def __contains__(self, key: object) -> bool:
        return _named(key) in self._cells

    def __iter__(self) -> Iterator[Any]:
        return (cell[1] for cell in self._cells.values())

    def __len__(self) -> int:
        return len(self._cells)

    def clear(self) -> None:
        """Deletes all keys."""
        self._cells = OrderedDict()
        if self._changed is not None:
            self._changed = dict.fromkeys(self._written)

    # For the engine: users do not need these.

    def _snapshot(self) -> Tree:
        """Returns the state by reference."""
        state: dict[str, Any] = {"next": self._next, "cells": list(self._cells.values())}
        if self._changed is not None:
            state["log"] = Derived((dict(self._written), dict(self._changed)))
        return state

    def _restore(self, state: Tree) -> None:
        self._cells = OrderedDict()
        for cell in state["cells"]:
            key = _named(cell[1])
            self._cells[key] = cell if key is cell[1] else (cell[0], key, cell[2])
        self._next = state["next"]
        if self._changed is None:
            return
        if isinstance(log := state.get("log"), Derived):
            written, changed = log.value
            self._written, self._changed = dict(written), dict(changed)
        else:  # from another process, or from one without a log
            self._written, self._changed = {}, dict.fromkeys(self._cells)
        self._is_whole = not self._written

    def _begin_log(self) -> None:
        self._changed = {}

    def _forget(self) -> None:
        """Invalidates all footprints."""
        self._written, self._changed, self._is_whole = {}, dict.fromkeys(self._cells), True

    def _footprints(self, end: int, again: Rewriting) -> Steps[Footprints]:
        assert self._changed is not None, "there is a log"
        footprints = Footprints(whole=self._is_whole)
        self._is_whole = False
        old = yield from self._old(again)
        changed, self._changed = self._changed, {}
        records: list[_Cell] = []
        if not self._written:
            records = list(self._cells.values())
            self._written = dict.fromkeys(self._cells, end)
        else:
            closed, replaced = list[Any](), list[int]()
            for number, key in enumerate(chain(old, changed), 1):
                if number % steps.RELEASED == 0:
                    yield
                if (time := self._written.pop(key, UNWRITTEN)) != UNWRITTEN:
                    replaced.append(time)
                if (cell := self._cells.get(key)) is None:
                    closed.append(key)
                else:
                    records.append(cell)
                    self._written[key] = end
            footprints.replaced = [_final(replaced)] if replaced else []
            footprints.closings = [{"keys": closed}] if closed else []
        footprints.records = [{"cells": records}] if records else []
        footprints.count, footprints.rewritten = len(records), len(old)
        return footprints

    def _old(self, again: Rewriting) -> Steps[list[Any]]:
        """Returns unchanged keys that are to be rewritten."""
        assert self._changed is not None, "there is a log"
        keys, times = list[Any](), list[int]()
        if again.below != UNWRITTEN:
            for number, (key, time) in enumerate(self._written.items(), 1):
                if time > again.below:
                    break
                if number % steps.INDEXED == 0:
                    yield
                if key not in self._changed:
                    keys.append(key)
                    times.append(time)
        chosen = yield from again.chosen(np.array(times, np.int64))
        return [keys[at] for at in chosen.tolist()]

    def _live(self) -> LiveFootprints:
        return _final(list(self._written.values()))

    def _log_state(self) -> Tree:
        return {"next": self._next, "keys": len(self._cells)}


def _final(times: Sequence[int]) -> LiveFootprints:
    return LiveFootprints(np.array(times, np.int64), np.zeros(len(times), np.bool_))


class KeyedOperator(CustomOperator):
    """Base of user-defined operators with state by key, all of it in :attr:`state`; other state needs a key of its own.

    A subclass defines ``output_schema`` and ``step``.  A checkpoint log gets only changed keys, while it gets the whole
    state of another :class:`CustomOperator`.  Data derived from the state, such as an index, is rebuilt in ``restore``,
    after ``super().restore(state)``.
    """

    def __init__(self, inputs: Sequence[Schema], **arguments: Any) -> None:
        super().__init__(inputs, **arguments)
        self._by_key = KeyedState()

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if cls.snapshot is not KeyedOperator.snapshot:
            raise TypeError(
                f"{cls.__qualname__} defines snapshot, but a KeyedOperator has all of its state in self.state; "
                "expected a CustomOperator, or no snapshot"
            )

    @property
    def state(self) -> KeyedState:
        """The state of the operator, by key."""
        return self._by_key

    @classmethod
    def keeps_cells(cls) -> bool:
        """Does a checkpoint log store its state by key?"""
        return True

    @final
    def snapshot(self) -> Tree:
        return self._by_key._snapshot()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._by_key._restore(state)

    def clear(self, boundary: int) -> None:
        self._by_key.clear()


class KeyedHost(CustomHost, KeepsCells):
    """Runs a :class:`KeyedOperator`."""

    def __init__(self, operator: KeyedOperator) -> None:
        super().__init__(operator)
        self._by_key = operator.state
        #: G4: rows before this time are in the state already.
        self._begin = BEFORE_TIME

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        if self._previous >= self._begin:
            return super().step(ports, boundary)
        assert boundary <= self._begin, "G4: a slice of a replay does not end after it"
        self._previous = boundary
        return None

    def snapshot(self) -> Tree:
        state = {**super().snapshot()}
        if self._previous < self._begin:
            state["begin"] = self._begin
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._begin = state.get("begin", BEFORE_TIME)

    def clear(self, boundary: int) -> None:
        super().clear(boundary)
        self._begin = BEFORE_TIME

    # --- the checkpoint log ---

    def begin_log(self) -> None:
        self._by_key._begin_log()

    def footprints(self, end: int, again: Rewriting) -> Steps[Footprints]:
        return (yield from self._by_key._footprints(end, again))

    def forget_footprints(self) -> Steps[None]:
        yield from ()
        self._by_key._forget()

    def live_footprints(self) -> Steps[list[LiveFootprints]]:
        yield from ()
        return [self._by_key._live()]

    def log_state(self) -> Tree:
        return {"previous": self._previous, **self._by_key._log_state()}

    def reconstruct(self, state: Tree, start: Tree, logged: Sequence[CellRecord]) -> Steps[None]:
        newest: dict[Any, tuple[int, _Cell]] = {}
        done = 0
        for record in logged:
            for key in record.tree["keys"] if record.closes else ():
                newest.pop(_named(key), None)
            for cell in () if record.closes else record.tree["cells"]:
                key = _named(cell[1])
                newest.pop(key, None)  # keeps the order of times
                newest[key] = record.time, cell
                done += 1
                if done % steps.RELEASED == 0:
                    yield
        if len(newest) != state["keys"]:
            raise LogCorrupt(f"the checkpoint log has footprints of {len(newest)} keys, expected {state['keys']}")
        cells = [cell for _, cell in newest.values()]
        order = yield from sorted_order(np.array([cell[0] for cell in cells], np.int64))
        written = {key: time for key, (time, _) in newest.items()}
        made = {"next": state["next"], "cells": [cells[at] for at in order.tolist()], "log": Derived((written, {}))}
        self._operator.restore(made)
        self._previous, self._begin = start["previous"], state["previous"]

    def replays_on(self) -> None:
        """Does nothing: the state has the time from which rows count."""

    def gave_up(self, state: Tree) -> None:
        self._previous = state["previous"]

    def replayed(self, state: Tree) -> None:
        self._previous = state["previous"]


def hosted(operator: CustomOperator) -> CustomHost:
    """Returns the host of a user-defined operator."""
    return KeyedHost(operator) if isinstance(operator, KeyedOperator) else CustomHost(operator)
