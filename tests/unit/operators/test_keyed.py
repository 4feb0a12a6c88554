"""Operators of one's own with state by key: the state, and what a checkpoint log gets of it; small cases by hand."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from operators.custom import CustomOperator
from operators.footprints import Rewriting
from operators.fragment import Fragment
from operators.fragment_log import FragmentLog, LoggedSlice
from operators.keyed import KeyedHost, KeyedOperator, KeyedState
from operators.steps import finished
from spe.config import load_text
from spe.errors import ConfigError, LogCorrupt, OperatorFailed
from spe.query.declaration import OnError
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.operators.custom import CustomSpec
from spe.query.windows import CountWindow
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from spe.stream.times import BEFORE_TIME, END_OF_TIME
from spe.wire.state import decode_state, encode_state
from tests.support.logged import LoggedRun, digest, given, live_of, unit_of
from tests.support.operators import Tuple, check_contract, lines, make, text, tuples
from tests.support.operators_for_tests import Latest, PassThrough

SCHEMA = Schema.of(key="string", value="int64")
OWN = "tests.support.operators_for_tests"
IN, OTHER = StreamId("in"), StreamId("other")
VISITS = CustomSpec((IN,), f"{OWN}:Visits", {"by": ["key"], "gap": 10})
LATEST = CustomSpec((IN, OTHER), f"{OWN}:Latest", {})


class Run(LoggedRun):
    """Remembers what each slice added."""

    def __init__(self, spec: CustomSpec, *ports: Sequence[Tuple], **more: Any) -> None:
        names = ["in", "other"][: len(ports)]
        super().__init__(unit_of({"out": spec, **more}, dict.fromkeys(names, SCHEMA)), ports)
        self.below, self.most = BEFORE_TIME, 0
        self.rewrites = lambda end, extent: (self.below, self.most)

    def added(self, end: int) -> str:
        """What a slice puts into the log: ``b=4`` the state of a key, ``-a`` a key that has none any more."""
        self.slice(end)
        tree = decode_state(self.written[-1].records)
        closed = [f"-{key}" for one in tree["closings"].get("out", ()) for key in one["keys"]]
        found = [f"{k}={v}" for one in tree["footprints"].get("out", ()) for _, k, v in one["cells"]]
        return " ".join(closed + found)

    def held(self) -> tuple[int, int]:
        """T, and how many footprints are live."""
        return self.extent.replay_from(), len(live_of(self.log).times)


def settings(rows: str) -> Run:
    """Port 0 says the values of keys."""
    return Run(LATEST, tuples(SCHEMA, rows), [])


# --- the state ---


def test_each_kind_of_key_can_be_looked_up() -> None:
    state = KeyedState()
    keys = [None, "", "é", b"", 0, 2**70, -0.5, math.nan, math.inf, ("a", None, math.nan), (), ((1,),)]
    for number, key in enumerate(keys):
        state[key] = number
    again = KeyedState()
    again._restore(decode_state(encode_state(state._snapshot())))
    for one in (state, again):
        assert [one[key] for key in keys] == list(range(len(keys)))
        assert one[float("nan")] == one[np.float64("nan")] == keys.index(math.nan)
        assert one[("a", None, float("nan"))] == 9
        assert (one[np.int64(0)], one[-0.0], one[np.str_("é")]) == (4, 4, 2)
        assert list(map(repr, one)) == list(map(repr, keys))
        assert ("b" in one, one.get("b"), one.get("b", 7), one.pop("b", 8)) == (False, None, 7, 8)
    assert math.copysign(1, next(iter(state_of({-0.0: 1})))) == 1


def state_of(items: dict[Any, Any]) -> KeyedState:
    state = KeyedState()
    state.update(items)
    return state


@pytest.mark.parametrize("key", [["a"], {1}, np.datetime64(0, "s"), ("a", [1])])
def test_other_keys_are_refused(key: Any) -> None:
    state = KeyedState()
    with pytest.raises(TypeError, match=r"a key is None, bool, int, float, str, bytes or a tuple of these; got .*, a "):
        state[key] = 1
    assert not state


def test_deleted_key_returns_as_new() -> None:
    state = state_of({"a": 1, "b": 2, "c": 3})
    state["a"] = 4
    assert list(state) == ["a", "b", "c"]
    state["a"] = state.pop("a")
    assert list(state.items()) == [("b", 2), ("c", 3), ("a", 4)]


def test_without_a_log_nothing_is_remembered_of_changes() -> None:
    state = state_of({"a": 1})
    del state["a"]
    assert state._changed is None
    assert state._snapshot().keys() == {"next", "cells"}


def test_changes_during_log_lag_take_no_more_memory_than_keys() -> None:
    """For hours no slice is logged, and keys come and go."""
    state = KeyedState()
    state._begin_log()
    state["stays"] = state["logged"] = 0
    assert finished(state._footprints(10, Rewriting())).count == 2
    del state["logged"]
    for number in range(1000):
        state[number] = number
        state["stays"] = number
        del state[number]
    assert list(state._changed or ()) == ["logged", "stays"]
    found = finished(state._footprints(20, Rewriting()))
    assert (found.closings, found.records) == ([{"keys": ["logged"]}], [{"cells": [(0, "stays", 999)]}])


# --- the log ---


def test_only_keys_that_changed_are_written() -> None:
    run = settings("1 a 5\n4 b 2\n12 c 1\n13 a 7\n14 a 8\n25 b -\n26 a 8\n31 d 4\n32 d -\n41 b 1")
    added = [run.added(end) for end in (10, 20, 30, 40, 50, 60)]
    assert added == ["a=5 b=2", "c=1 a=8", "-b a=8", "", "b=1", ""]
    assert run.held() == (60, 3)
    fragment, _ = run.remade()
    (operator,) = fragment.operators.values()
    assert isinstance(operator, KeyedHost)
    assert list(operator._by_key.items()) == [("a", 8), ("c", 1), ("b", 1)]


def test_a_key_that_went_and_came_in_one_slice_has_its_new_place() -> None:
    """Also where its new state equals the old one."""
    run = settings("1 a 5\n4 b 2\n12 a -\n13 a 5")
    assert [run.added(end) for end in (10, 20)] == ["a=5 b=2", "a=5"]
    fragment, _ = run.remade()
    (operator,) = fragment.operators.values()
    assert isinstance(operator, KeyedHost)
    assert list(operator._by_key) == ["b", "a"]


def test_time_alone_changes_states() -> None:
    """Visits end, each 10 after its last row, though no row comes."""
    run = Run(VISITS, tuples(SCHEMA, "1 a 0\n5 - 0\n8 a 0"))
    assert [run.added(end) for end in (6, 10)] == ["a=(1, 1) None=(5, 1)", "a=(8, 2)"]
    run.crash()
    assert text(run.slice(17)[0]) == "15 - 1"
    run.crash()
    assert text(run.slice(20)[0]) == "18 a 2"
    run.crash()
    assert run.held() == (20, 0)


def test_rows_replayed_for_others_are_already_in_the_state() -> None:
    """A count window is replayed from 10; the operators with keys are not given these rows, nor do they release any."""
    counting = AggregateSpec(IN, CountWindow(9), {"key": "key"}, {"n": AggregateCall("count")})
    run = Run(VISITS, tuples(SCHEMA, "1 a 0\n12 a 0\n13 b 0\n27 b 0\n28 a 0"), other=counting)
    for end in (10, 20, 30):
        run.slice(end)
    assert run.extent.replay_from() == 10
    fragment, _ = run.remade([12, 23])
    assert text(given(fragment, run.unit, run.ports, 30, 40)[0]) == "37 b 1\n38 a 1"


def test_state_restored_during_replay_waits_for_its_end() -> None:
    """As a redo that begins before all is replayed."""
    counting = AggregateSpec(IN, CountWindow(9), {"key": "key"}, {"n": AggregateCall("count")})
    run = Run(VISITS, tuples(SCHEMA, "1 a 0\n12 a 0\n13 b 0\n27 b 0\n28 a 0"), other=counting)
    for end in (10, 20, 30):
        run.slice(end)
    commit = decode_state(run.written[-1].commit)
    slices = [LoggedSlice(w.end, *decode_state(w.records).values()) for w in run.written]
    fragment, redo = Fragment(run.unit), Fragment(run.unit)
    log, continued = FragmentLog(run.unit, fragment), FragmentLog(run.unit, redo)
    finished(log.reconstruct(commit, decode_state(run.written[0].commit), 10, slices))
    given(fragment, run.unit, run.ports, 10, 15)
    redo.restore(fragment.snapshot())
    continued.continues(log, 15)
    continued.replays_on()
    log.gave_up(commit)
    assert given(redo, run.unit, run.ports, 15, 30) == [[], []]
    continued.replayed(commit, 30)
    assert digest(redo) == run.written[-1].digest
    assert live_of(continued).times.tolist() == live_of(run.log).times.tolist()


def test_old_footprints_are_rewritten_but_changed_ones_once() -> None:
    run = settings("1 a 1\n2 b 2\n3 c 3\n12 d 4\n23 b 5\n24 e 6\n25 d 7")
    assert [run.added(end) for end in (10, 20)] == ["a=1 b=2 c=3", "d=4"]
    run.below, run.most = 10, 1
    assert run.added(30) == "a=1 b=5 e=6 d=7"
    assert live_of(run.log).times.tolist() == [10, 30, 30, 30, 30]
    run.below, run.most = 30, 0
    assert run.added(40) == "c=3"
    run.below = END_OF_TIME
    assert run.added(50) == "a=1 b=5 e=6 d=7 c=3"
    assert run.held() == (50, 5)
    run.crash()
    assert (run.added(60), run.held()) == ("a=1 b=5 e=6 d=7 c=3", (60, 5))
    run.remade()


def test_everything_is_rewritten_after_forget() -> None:
    """As after a slice that the disk refused: its records are missing."""
    run = settings("1 a 1\n2 b 2\n12 b -\n13 c 3\n24 a 4")
    assert [run.added(end) for end in (10, 20)] == ["a=1 b=2", "-b c=3"]
    run.log.forget()
    assert run.added(30) == "a=4 c=3"
    assert (run.extent.needs(), *run.held()) == (30, 30, 2)
    run.crash()
    assert run.added(40) == ""


def test_a_state_of_another_replica_is_written_whole() -> None:
    """Whether it had a log or not, and whether the state was sent or is another instance's."""
    run = settings("1 a 1\n2 b 2\n12 c 3")
    run.slice(10)
    plain = Fragment(run.unit)
    given(plain, run.unit, run.ports, BEFORE_TIME, 10)
    for state in (plain.snapshot(), decode_state(encode_state(run.fragment.snapshot())), run.fragment.snapshot()):
        moved = settings("1 a 1\n2 b 2\n12 c 3")
        moved.fragment.restore(state)
        moved.log.forget()
        moved.previous = 10
        assert moved.added(20) == "a=1 b=2 c=3"
        assert moved.held() == (20, 3)
        moved.remade()


def test_restored_state_knows_what_changed_since_then() -> None:
    """A failure begins at 15, behind the slice to 10; what it adds is taken back."""
    run = settings("1 a 1\n2 b 2\n12 a 5\n13 b -\n16 c 9\n17 a -\n26 d 4")
    run.slice(10)
    given(run.fragment, run.unit, run.ports, 10, 15)
    back = Fragment(run.unit)
    log = FragmentLog(run.unit, back)
    back.restore(mark := run.fragment.snapshot())
    log.continues(run.log, 15)
    given(run.fragment, run.unit, run.ports, 15, 20)
    assert encode_state(run.fragment.snapshot()) != encode_state(mark)
    run.fragment, run.log, run.previous = back, log, 15
    run.ports = [[t for t in run.ports[0] if t[0] not in (16, 17)], []]
    assert run.added(30) == "-b a=5 d=4"
    run.crash()


def test_a_missing_key_is_refused() -> None:
    run = settings("1 a 1\n12 b 2")
    run.slice(10)
    run.slice(20)
    last = run.written[-1]
    tree, log = decode_state(last.records), FragmentLog(run.unit, Fragment(run.unit))
    commit = decode_state(last.commit)
    with pytest.raises(LogCorrupt, match="has footprints of 1 keys, expected 2"):
        finished(log.reconstruct(commit, commit, 20, [LoggedSlice(20, tree["closings"], tree["footprints"])]))


@pytest.mark.parametrize(("before", "now"), [("Places", "Visits"), ("Visits", "Places")])
def test_class_with_another_form_of_state_is_named(before: str, now: str) -> None:
    ints = Schema.of(key="int64", value="int64")
    arguments = {"by": ["key"], "gap": 10}
    units = [unit_of({"out": CustomSpec((IN,), f"{OWN}:{name}", arguments)}, {"in": ints}) for name in (before, now)]
    run = LoggedRun(units[0], [[(1, (1, 1))]])
    run.slice(10)
    tree, commit = decode_state(run.written[-1].records), decode_state(run.written[-1].commit)
    log = FragmentLog(units[1], Fragment(units[1]))
    with pytest.raises(
        OperatorFailed, match=r"'out' raised on .*: the checkpoint log has its state (as a whole|by key)"
    ):
        finished(log.reconstruct(commit, commit, 10, [LoggedSlice(10, tree["closings"], tree["footprints"])]))


# --- the operator ---


def test_operators_with_keys_keep_the_contract() -> None:
    """Also undo/redo by a snapshot, and whole checkpoints."""
    rows = tuples(SCHEMA, "1 a 5\n2 b 1\n4 a 2\n12 b 3\n15 - 4")
    others = tuples(SCHEMA, "1 a 0\n3 b 0\n12 b 0\n13 a 0\n16 - 0")
    cuts = [(2, False), (3, True), (12, False), (14, True)]
    out = check_contract(lambda: make(LATEST, SCHEMA, SCHEMA), [SCHEMA, SCHEMA], [rows, others], cuts)
    assert text(out) == "1 a 5\n3 b 1\n12 b 3\n13 a 2\n16 - 4"
    out = check_contract(lambda: make(VISITS, SCHEMA), [SCHEMA], [rows], cuts)
    assert text(out) == lines("""
        12 b 1
        14 a 2
        22 b 1
        25 - 1
    """)


def test_skipping_operator_is_logged_by_key() -> None:
    spec = CustomSpec((StreamId("some"),), f"{OWN}:Visits", {"by": ["key"], "gap": 10, "bad": ["b"]}, OnError.SKIP)
    passing = CustomSpec((IN,), f"{OWN}:PassThrough", {})
    unit = unit_of({"some": passing, "out": spec}, {"in": SCHEMA})
    run = LoggedRun(unit, [tuples(SCHEMA, "1 a 0\n2 b 0\n3 c 0\n8 a 0")])
    for end in (5, 9):
        run.slice(end)
    (tree,) = decode_state(run.written[-1].records)["footprints"]["out"]
    assert [key for _, key, _ in tree["cells"]] == ["a"]
    run.crash()
    assert text(run.slice(30)[1]) == "13 c 1\n18 a 2"


class Indexed(Latest):
    """Makes an index of its state."""

    made: int = 0

    def restore(self, state: Any) -> None:
        super().restore(state)
        self.made = len(self.state)


def test_derived_data_of_a_state_is_rebuilt() -> None:
    run = Run(CustomSpec((IN, OTHER), f"{__name__}:Indexed", {}), tuples(SCHEMA, "1 a 1\n2 b 2"), [])
    run.slice(10)
    run.crash()
    (operator,) = run.fragment.operators.values()
    assert isinstance(operator, KeyedHost)
    assert isinstance(operator._operator, Indexed)
    assert operator._operator.made == 2


def test_undo_can_clear_it() -> None:
    operator = make(LATEST, SCHEMA, SCHEMA)
    assert isinstance(operator, KeyedHost)
    operator.begin_log()
    operator._by_key["a"] = 1
    finished(operator.footprints(10, Rewriting()))
    operator.clear(5)
    assert (operator.previous, len(operator._by_key)) == (5, 0)
    assert finished(operator.footprints(20, Rewriting())).closings == [{"keys": ["a"]}]


def test_a_class_with_a_snapshot_of_its_own_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"More defines snapshot, but a KeyedOperator has all of its state in self\.state"
    ):

        class More(PassThrough, KeyedOperator):
            def snapshot(self) -> Any:
                return {}


CONFIG = """
sources: {orders: {from: {generator: {name: orders, rate: 50, duration: 2s}}}}
query:
  own: {custom: {class: 'own_keyed:Own', from: orders}}
defaults: {checkpoint: {continuous: true, recovery: 2s}}
"""
STEP = "    def step(self, ports, boundary): return None\n"
SCHEMA_OF = "    @classmethod\n    def output_schema(cls, inputs): return inputs[0]\n"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (SCHEMA_OF, "'own_keyed:Own' does not define step"),
        (STEP, "'own_keyed:Own' does not define output_schema"),
        (
            SCHEMA_OF + STEP + "    def snapshot(self): return {}\n",
            "'own_keyed:Own': TypeError: Own defines snapshot, but",
        ),
    ],
)
def test_check_names_the_class_and_what_it_lacks(
    body: str, message: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_keyed.py").write_text(
        f"from operators.keyed import KeyedOperator\nclass Own(KeyedOperator):\n{body}", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_keyed", raising=False)
    with pytest.raises(ConfigError) as error:
        load_text(CONFIG, "shop.yaml")
    assert message in str(error.value)
    assert str(error.value).startswith("shop.yaml:4: query.own")


def test_the_state_cannot_be_replaced() -> None:
    """By a dict, say, whose changes nobody would see."""
    with pytest.raises(AttributeError, match="state"):
        Latest([SCHEMA, SCHEMA]).state = {}  # type: ignore[misc, assignment]
    assert issubclass(Latest, CustomOperator)
