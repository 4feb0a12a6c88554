"""Changes that a client passes on (F7), the undo before stable tuples (P4), and the views."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replicas.client.view import ClientPort, CurrentView, StableView
from spe.errors import RemoteProtocolError
from spe.plan.plan import Plan, Source, Unit
from spe.query.query import Query
from spe.stream.batch import Batch, Boundary, Element, RecDone, Undo
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId, UnitId
from spe.stream.times import BEFORE_TIME
from tests.support.streams import PAYLOAD, parse, show

OUT = StreamId("out")
CHANNEL = Channel(OUT, 0)


class Received:
    """A port, and its output as text."""

    def __init__(self) -> None:
        self.elements: list[Element] = []
        self.port = ClientPort(CHANNEL, lambda _channel, element: self.elements.append(element))

    def feed(self, text: str) -> str:
        """Feeds the elements of a text; returns the output."""
        self.elements.clear()
        port = self.port
        for element in parse(text, position=port.position):
            if isinstance(element, Batch) and element.kind is Kind.STABLE:
                port.add_stable(element, 0)
            elif isinstance(element, Batch):
                port.add_tentative(element, 0)
            elif isinstance(element, Boundary):
                port.add_boundary(element, 0)
            elif isinstance(element, Undo):
                port.undo()
            else:
                port.rec_done(element)
        return show(self.elements)


def test_new_elements_are_passed_on_unchanged() -> None:
    assert Received().feed("S1/5a S2/7b B10(2) T/12c b20 U(2) S3/12d B20(3) R+") == (
        "S1/5a S2/7b B10(2) T/12c b20 U(2) S3/12d B20(3) R+"
    )


def test_stable_tuples_repeated_by_second_producer_are_dropped() -> None:
    client = Received()
    client.feed("S1/5a S2/7b B10(2)")
    client.port.add_stable(parse("S1/5a S2/7b S3/8c")[0], 0)  # type: ignore[arg-type]
    assert show(client.elements) == "S1/5a S2/7b B10(2) S3/8c"
    assert client.port.position == 3
    assert client.port.stable_count == 3


def test_a_repeated_boundary_only_covers_its_ids() -> None:
    client = Received()
    client.feed("S1/5a B10(1)")
    assert client.feed("B10(4)") == ""
    assert client.port.position == 4


def test_switch_between_tentative_producers_gives_no_duplicate() -> None:
    """r1 dies after T/24 T/31 b40; r2 repeats them before it goes on."""
    client = Received()
    client.feed("S1/19z B20(1) T/24a T/31b b40")
    client.port.main_changed()
    assert client.port.t_star() == 39
    assert client.feed("T/24a T/31b T/45c b50") == "T/45c b50"
    assert client.port.tentative_count == 3


def tentative_ids(client: Received) -> list[int]:
    return [i for e in client.elements if isinstance(e, Batch) and e.kind is Kind.TENTATIVE for i in e.row_ids()]


def test_tentative_ids_continue_the_clients_own_ids() -> None:
    """The producer counts from its last stable id, 1; an undo to the client's, 3, must remove all its tuples."""
    client = Received()
    client.feed("S1/5a S2/6b S3/7c B10(3)")
    behind = [e for e in parse("S1/5a T/12d T/13e b20") if not isinstance(e, Batch) or e.kind is Kind.TENTATIVE]
    client.elements.clear()
    client.port.add_tentative(behind[0], 0)  # type: ignore[arg-type]
    assert tentative_ids(client) == [4, 5]


def test_tentative_ids_continue_over_switch_until_undo() -> None:
    client = Received()
    client.feed("S1/5a T/12b T/13c")
    client.port.main_changed()
    client.feed("T/14d b20")
    assert tentative_ids(client) == [4]
    client.feed("U(1) T/12e")
    assert tentative_ids(client) == [2]


def test_tentative_tuples_below_the_stable_frontier_are_dropped() -> None:
    client = Received()
    client.feed("S1/19z B20(1)")
    assert client.feed("T/18a T/19b T/20c b30") == "T/20c b30"


def test_an_undo_names_the_clients_own_position() -> None:
    client = Received()
    client.feed("S1/5a B10(1)")
    assert client.feed("b20 U(1)") == "b20"
    assert client.feed("T/25a b30") == "T/25a b30"
    assert client.port.held
    assert client.feed("U(1)") == "U(1)"
    assert not client.port.held


def test_after_an_undo_the_same_times_may_be_tentative_again() -> None:
    client = Received()
    client.feed("B10(0) T/15a b20")
    client.port.main_changed()
    assert client.feed("U(0) T/15b b20") == "U(0) T/15b b20"


def test_a_stable_tuple_before_the_undo_is_an_error() -> None:
    client = Received()
    client.feed("S1/5a T/12b")
    with pytest.raises(RemoteProtocolError, match=r"out/0: stable tuples while tentative ones are live"):
        client.feed("S2/12c")


def test_a_new_subscription_names_position_boundary_and_t_star() -> None:
    client = Received()
    assert client.port.t_star() == BEFORE_TIME
    client.feed("S1/5a")
    assert client.port.t_star() == 5
    client.feed("B10(1)")
    assert client.port.t_star() == 9
    client.feed("T/12b b30")
    assert client.port.t_star() == 29


# --- views ---


def _plan(partitions: int) -> Plan:
    unit = Unit(UnitId("u"), "u", (), (), (OUT,), partitions)
    return Plan("test", Query({}, (), (OUT,)), 10, (unit,), {})


def _changes(partition: int, text: str) -> list[Change]:
    return [Change(Channel(OUT, partition), element, 0) for element in parse(text)]


def _text(view: StableView, changes: list[Change]) -> list[str]:
    """``time payload`` of each row as it becomes final."""
    out = []
    for change in changes:
        rows = view.apply(change)
        if rows is not None:
            out += [f"{t} {v[0]}" for t, v in zip(rows.time.tolist(), rows.to_tuples(), strict=True)]
    return out


def test_the_stable_view_merges_by_time_then_partition_then_id() -> None:
    """A row is final in the merged order only when every partition has passed it."""
    view = StableView(_plan(2), OUT)
    assert _text(view, _changes(1, "S1/5x S2/7y B10(2)")) == []
    assert _text(view, _changes(0, "S1/5a S2/6b S3/12c B8(3)")) == ["5 a", "5 x", "6 b", "7 y"]
    assert _text(view, _changes(1, "S3/12z Binf(3)")) == []
    assert _text(view, _changes(0, "Binf(3)")) == ["12 c", "12 z"]


def test_the_stable_view_ignores_tentative_elements() -> None:
    view = StableView(_plan(1), OUT)
    assert _text(view, _changes(0, "S1/5a B10(1) T/12b b20 U(1) R+ S2/12c B20(2)")) == ["5 a", "12 c"]


def test_the_stable_view_of_a_source_is_in_time_order() -> None:
    source = Source(OUT, PAYLOAD, 10, 10, None, None, {}, {}, "skip")
    plan = replace(_plan(1), units=(), sources={OUT: source})
    assert _text(StableView(plan, OUT), _changes(0, "S1/7a S2/5b B10(2)")) == ["5 b", "7 a"]


def _current(view: CurrentView) -> str:
    rows, tentative = view.rows(OUT)
    if rows is None:
        return ""
    cells = zip(tentative.tolist(), rows.time.tolist(), rows.to_tuples(), strict=True)
    return " ".join(f"{'T' if t else 'S'}/{time}{v[0]}" for t, time, v in cells)


def test_current_view_has_tentative_tuples_until_undo() -> None:
    view = CurrentView()
    assert _current(view) == ""
    for change in _changes(0, "S1/5a B10(1) T/12b") + _changes(1, "S1/11x"):
        view.apply(change)
    assert _current(view) == "S/5a S/11x T/12b"
    for change in _changes(0, "U(1) S2/12c"):
        view.apply(change)
    assert _current(view) == "S/5a S/11x S/12c"


def test_the_current_view_keeps_only_the_newest_stable_tuples() -> None:
    view = CurrentView(keep=2)
    for text in ("S1/1a S2/2b", "S3/3c", "S4/4d"):
        for change in _changes(0, text):
            view.apply(change)
    assert _current(view) == "S/3c S/4d"


def test_a_rec_done_changes_no_view() -> None:
    view = CurrentView()
    for change in _changes(0, "S1/5a T/7b R+"):
        view.apply(change)
    assert isinstance(parse("R+")[0], RecDone)
    assert _current(view) == "S/5a T/7b"
