"""Counts the situations of a run: events of replicas by state, and states of replicas when faults began."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from typing import Final

import numpy as np

from consistency.checking.counters import Counters
from spe.plan.directory import COORDINATOR, Directory
from spe.plan.plan import Plan
from spe.stream.batch import Batch, Boundary, Rows, Undo
from spe.stream.history import (
    Closed,
    Delivered,
    Event,
    FaultBegan,
    FaultEnded,
    History,
    Note,
    Opened,
    ProcessDown,
    Promoted,
    Received,
    StateChanged,
    host_of,
)
from spe.stream.ids import Channel
from spe.stream.names import Kind, NodeState

_LASTING_X: Final = 10
#: Progress of a standby by its number of checkpoints: it acknowledges the older of two (H2).
_STANDBY: Final = ("standby empty", "standby has one", "standby has two")
_INT64: Final = np.iinfo(np.int64)


def cover(history: History, plan: Plan, directory: Directory, counters: Counters) -> None:
    """Adds the situations of a run to the tables of ``counters``."""
    _Cover(plan, directory, counters).run(history)
    for name in (*_lasting_cuts(history, directory), *_nodes(directory)):
        counters.add(f"runs {name}")
    for event in history:
        if isinstance(event, Delivered) and isinstance(event.element, Batch):
            _cover_values(event.element.rows, counters)


def _cover_values(rows: Rows, counters: Counters) -> None:
    for column in rows.columns:
        values = column.values
        if column.valid is not None:
            counters.add("nulls delivered", int(np.count_nonzero(~column.valid)))
        if values.dtype == np.float64:
            counters.add("NaN delivered", int(np.count_nonzero(np.isnan(values))))
            counters.add("infinities delivered", int(np.count_nonzero(np.isinf(values))))
        elif values.dtype == np.int64 and len(values):
            ends = (values == _INT64.max) | (values == _INT64.min)
            counters.add("ends of int64 delivered", int(np.count_nonzero(ends)))


def _lasting_cuts(history: History, directory: Directory) -> Iterator[str]:
    least_us = _LASTING_X * max(node.x_us for node in directory.nodes.values())
    ended = {e.number: e.at_us for e in history if isinstance(e, FaultEnded)}
    cuts = [e for e in history if isinstance(e, FaultBegan) and e.kind == "cut"]
    lasting = [set(e.links) for e in cuts if ended.get(e.number, history.end_us) - e.at_us >= least_us]
    if lasting:
        yield "with links cut for 10 X"
    if any((b, a) not in links for links in lasting for a, b in links):
        yield "with links cut one way for 10 X"


def _nodes(directory: Directory) -> Iterator[str]:
    nodes = directory.nodes.values()
    if len({n.x_us for n in nodes}) > 1:
        yield "of nodes that differ in X"
    if len({(n.during_failure, n.during_stabilization) for n in nodes}) > 1:
        yield "of nodes that differ in policy"
    if len({n.reconcile for n in nodes}) > 1:
        yield "of nodes that differ in reconcile"
    if any((n.checkpoints.memory_us or 0) > n.x_us for n in nodes):
        yield "with checkpoints further apart than X"


class _Cover:
    def __init__(self, plan: Plan, directory: Directory, counters: Counters) -> None:
        self._counters = counters
        self._states = {
            f"{partition}@{n}": NodeState.RECOVERING
            for partition in directory.placement
            for n in directory.hosts(partition)
        }
        self._producers: dict[tuple[Channel, str], str] = {
            (Channel(stream, partition.partition), node): f"{partition}@{node}"
            for partition in directory.placement
            for stream in plan.unit[partition.unit].outputs
            for node in directory.hosts(partition)
        }
        #: Number of checkpoints of each standby; and the standbys that run.
        self._taken = Counter({f"{partition}@{n}": 0 for partition, s in directory.standbys.items() for n in s.nodes})
        self._helping: set[str] = set()
        #: Phase of each move that has not ended, and the processes that it needs.
        self._moves: dict[str, tuple[str, set[str]]] = {}
        self._on: dict[str, list[str]] = {}
        for replica in self._states:
            self._on.setdefault(host_of(replica), []).append(replica)

    def run(self, history: History) -> None:
        for event in history:
            self._take(event)

    def _take(self, event: Event) -> None:
        match event:
            case Received(_, consumer, _, _, _, mode):
                if mode:
                    self._met(consumer, _name(event))
            case Opened(_, consumer, channel, producer):
                self._met(consumer, "subscribes")
                self._met(self._producers.get((channel, producer), ""), "is subscribed to")
            case Closed(_, consumer):
                self._met(consumer, "loses a feed")
            case Promoted(_, consumer):
                self._met(consumer, "promotes")
            case StateChanged(_, replica, state, runs=runs):
                (self._helping.add if runs else self._helping.discard)(replica)
                before = self._states.get(replica)
                if before is not None and before is not state:
                    if state is not NodeState.RECOVERING:
                        self._met(replica, f"becomes {state.name}")
                        if before is NodeState.STABILIZATION:
                            self._counters.add("reconciliations")
                    self._states[replica] = state
            case ProcessDown(_, host):
                for replica in self._on.get(host, ()):
                    self._met(replica, "dies")
            case Note(_, _, "move_ordered" | "move", text):
                self._follow_move(_fields(text))
            case Note(_, _, "checkpoint_taken", text):
                self._taken[_fields(text)["replica"]] += 1
            case Note(_, host, "ask_partner"):
                self._at(host, "asks a partner")
            case Note(_, host, "partner_asks"):
                self._at(host, "partner asks")
            case FaultBegan(_, _, kind, hosts, links):
                self._fault(kind, {*hosts, *(end for link in links for end in link)})

    def _fault(self, kind: str, befallen: Set[str]) -> None:
        """Counts a fault by the states of the replicas, and by the situations, that it meets."""
        self._counters.add("faults")
        self._counters.add(f"fault {kind}")
        for host in sorted(befallen):
            for replica in self._on.get(host, ()):
                self._counters.faults[kind, self._states[replica].name] += 1
        for situation in self._situations(befallen):
            self._counters.faults[kind, situation] += 1

    def _situations(self, hosts: Set[str]) -> Iterator[str]:
        """Yields phases of moves and states of standbys that involve these processes."""
        for phase, needed in self._moves.values():
            if needed & hosts:
                yield f"move {phase}"
        for replica, taken in self._taken.items():
            if host_of(replica) in hosts:
                yield "standby runs" if replica in self._helping else _STANDBY[min(taken, 2)]

    def _follow_move(self, move: Mapping[str, str]) -> None:
        phase, number = move.get("phase", "wait"), move["number"]
        if phase in ("done", "dropped"):
            self._moves.pop(number, None)
        else:
            self._moves[number] = phase, {COORDINATOR, move.get("source", ""), host_of(move.get("target", ""))}

    def _met(self, replica: str, name: str) -> None:
        state = self._states.get(replica)
        if state is not None:
            self._counters.events[state.name, name] += 1

    def _at(self, host: str, name: str) -> None:
        """Counts an event for all replicas on a host: the trace names none if there is only one."""
        for replica in self._on.get(host, ()):
            self._met(replica, name)


def _fields(text: str) -> dict[str, str]:
    return dict(word.partition("=")[::2] for word in text.split(" "))


def _name(event: Received) -> str:
    element = event.element
    if isinstance(element, Batch):
        return "stable tuples" if element.kind is Kind.STABLE else "tentative tuples"
    if isinstance(element, Boundary):
        return "stable boundary" if element.kind is Kind.STABLE else "tentative boundary"
    return f"{'undo' if isinstance(element, Undo) else 'rec_done'} on {event.mode}"
