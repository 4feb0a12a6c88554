"""A finding of a checker, with the events around it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from spe.stream.batch import Batch, Boundary, Element, RecDone, Rows, Undo
from spe.stream.history import Closed, Delivered, Event, History, Opened, Received, host_of
from spe.stream.names import Kind
from spe.stream.times import format_timestamp

#: Number of events shown before and after a finding.
_BEFORE, _AFTER = 12, 3


@dataclass(frozen=True, slots=True)
class Finding:
    """A promise that a run broke.

    Attributes:
      property: P1 … P4, preferred, recovering, masked, steady, turns or quiet.
      rule: the broken part, in a few words that are the same in all runs.
      at_us: when.
      consumer: where; a replica, a client, or a process.
      what: the actual and the expected, with the first wrong tuple.
      around: the events around it, one line each.
    """

    property: str
    rule: str
    at_us: int
    consumer: str
    what: str
    around: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.property} ({self.rule}) at {self.at_us / 1e6:.3f} s, {self.consumer}: {self.what}"

    def to_data(self) -> dict[str, object]:
        return {
            "property": self.property,
            "rule": self.rule,
            "at_us": self.at_us,
            "consumer": self.consumer,
            "what": self.what,
            "around": list(self.around),
        }


def with_surroundings(findings: Sequence[Finding], history: History) -> list[Finding]:
    """Returns the findings, each with the events of its consumer and its process around that time."""
    if not findings:
        return []
    times = [e.at_us for e in history]
    return [replace(f, around=_around(f, history, times)) for f in findings]


def _around(finding: Finding, history: History, times: list[int]) -> tuple[str, ...]:
    names = {finding.consumer, host_of(finding.consumer)}
    low, high = bisect_left(times, finding.at_us), bisect_right(times, finding.at_us)

    def concerns(event: Event) -> bool:
        name = getattr(event, "consumer", None) or getattr(event, "replica", None) or getattr(event, "host", None)
        return name is None or name in names

    before: list[str] = []
    for at in range(high - 1, -1, -1):
        if concerns(history[at]):
            before.append(describe(history[at]))
            if len(before) >= _BEFORE and at < low:
                break
    after: list[str] = []
    for at in range(high, len(times)):
        if concerns(history[at]):
            after.append(describe(history[at]))
            if len(after) == _AFTER:
                break
    return tuple(before[::-1][-4 * _BEFORE :] + after)


def describe(event: Event) -> str:
    """Describes an event in one line."""
    at = f"{event.at_us / 1e6:9.3f}"
    match event:
        case Received(_, consumer, channel, producer, generation, mode, element):
            feed = f"{producer} #{generation} {mode or 'closed'}"
            return f"{at} {consumer} received {channel} from {feed}: {show_element(element)}"
        case Delivered(_, consumer, channel, element):
            return f"{at} {consumer} delivered {channel}: {show_element(element)}"
        case Opened(_, consumer, channel, producer, generation, mode, position, _, held, t_star):
            feed = f"{producer} #{generation} {mode}"
            return f"{at} {consumer} subscribes to {channel} at {feed}: position {position}, held {held}, T* {t_star}"
        case Closed(_, consumer, channel, generation, why):
            return f"{at} {consumer} closes {channel} #{generation}: {why}"
        case _:
            fields = [f"{n}={getattr(event, n)}" for n in type(event).__slots__ if n != "at_us"]
            return f"{at} {type(event).__name__} {' '.join(fields)}"


def show_element(element: Element) -> str:
    """Shows an element in the notation of tests/support/streams.py, long batches by their ends."""
    match element:
        case Undo(upto_id=upto):
            return f"U({upto})"
        case RecDone(state=state):
            return f"R({state.name})"
        case Boundary(kind=kind, time=time, upto_id=upto):
            return f"{'B' if kind is Kind.STABLE else 'b'}{format_timestamp(time)}({upto})"
        case Batch():
            mark = "S" if element.kind is Kind.STABLE else "T"
            if not len(element):
                return f"{mark}({element.from_id},{element.upto_id}] empty"
            ids = element.row_ids()
            first = f"{mark}{ids[0]}/{format_timestamp(int(element.rows.time[0]))}"
            last = f" … {mark}{ids[-1]}/{format_timestamp(int(element.rows.time[-1]))}" if len(element) > 1 else ""
            return f"({element.from_id},{element.upto_id}] {first}{last} ({len(element)} rows)"


def show_row(rows: Rows, at: int) -> str:
    """Shows one tuple."""
    row = rows.slice(at, at + 1)
    time, t_max = int(row.time[0]), int(row.t_max[0])
    stamp = format_timestamp(time) + (f" t_max {format_timestamp(t_max)}" if t_max != time else "")
    return f"{stamp} {row.to_tuples()[0]}"
