"""Rule G4: one operator with state on each path of a unit, and where to cut a fragment that has more."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from operators.custom import CustomOperator
from operators.keyed import KeyedOperator
from spe.config import load_text
from spe.errors import ConfigError
from spe.plan.deploy import Deployed
from spe.plan.draw import check_text
from spe.plan.log_use import log_lines, log_use
from spe.plan.review import Severity, review
from spe.query.declaration import Logged, OperatorSpec
from spe.query.operators.aggregate import AggregateSpec
from spe.query.operators.custom import CustomSpec
from spe.query.operators.filter import FilterSpec
from spe.query.operators.join import JoinKind, JoinSpec
from spe.query.operators.map import MapSpec
from spe.query.operators.topk import TopKSpec
from spe.query.operators.union import UnionSpec
from spe.query.windows import CountWindow, SlidingWindow, TumblingWindow, Window
from spe.stream.names import StreamId
from tests.unit.spe.plan.test_deploy import SECOND, deployed, fragment, query

A, B = StreamId("A"), StreamId("B")
WINDOWED_TOPK = TopKSpec(A, 3, (("key", True),), window=SECOND)
LOGGED = "checkpoint: {continuous: true, recovery: 2s}"


def count(stream: str) -> AggregateSpec:
    return AggregateSpec(StreamId(stream), SECOND, {"key": "key"}, {})


class Stateless(CustomOperator):
    pass


class Stateful(CustomOperator):
    def snapshot(self) -> dict[str, int]:
        return {}


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ModuleType("log_use_operators")
    made.Stateless, made.Stateful = Stateless, Stateful  # type: ignore[attr-defined]
    made.Keyed = type("Keyed", (KeyedOperator,), {})  # type: ignore[attr-defined]
    made.Foreign = type("Foreign", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "log_use_operators", made)


@pytest.mark.parametrize(
    ("spec", "logged"),
    [
        (FilterSpec(A, "true"), Logged.NOTHING),
        (MapSpec(A, {}, True), Logged.NOTHING),
        (UnionSpec((A, B)), Logged.NOTHING),
        (TopKSpec(A, 3, (("key", True),)), Logged.NOTHING),
        (WINDOWED_TOPK, Logged.ROWS),
        (JoinSpec(A, B, JoinKind.INNER, (("key", "key"),), window=SECOND), Logged.ROWS),
        (count("A"), Logged.CELLS),
        (CustomSpec((A,), "log_use_operators:Stateless"), Logged.NOTHING),
        (CustomSpec((A,), "log_use_operators:Stateful"), Logged.WHOLE),
        (CustomSpec((A,), "log_use_operators:Foreign"), Logged.WHOLE),
        (CustomSpec((A,), "log_use_operators:Keyed"), Logged.CELLS),
    ],
    ids=str,
)
def test_each_operator_kind_has_its_logged_form(spec: OperatorSpec, logged: Logged) -> None:
    assert spec.logged is logged


def test_an_operator_without_a_declaration_is_written_as_a_whole() -> None:
    class Sample(FilterSpec):
        logged = OperatorSpec.logged

    assert Sample(A, "true").logged is Logged.WHOLE


@pytest.mark.parametrize(
    ("window", "panes", "lifetime_us"),
    [
        (TumblingWindow(10), 1, 10),
        (SlidingWindow(30, 10), 3, 30),  # at 30 pane 0 is gone
        (SlidingWindow(30, 20), 3, 30),
        (SlidingWindow(10, 30), 1, 10),
        (CountWindow(5), 1, None),
        (TumblingWindow(10, on="ts"), 1, None),
    ],
    ids=str,
)
def test_records_of_a_group(window: Window, panes: int, lifetime_us: int | None) -> None:
    spec = AggregateSpec(A, window, {"key": "key"}, {})
    assert (spec.cells_per_group, spec.lifetime_us) == (panes, lifetime_us)


def use(deployed: Deployed, unit: str = "main") -> tuple[tuple[str, ...], list[list[str]]]:
    """The two operators on one path, if any, and the cut."""
    found = log_use(deployed.plan, next(u for u in deployed.plan.units if u.id == unit))
    return tuple(o.name for o in found.on_one_path or ()), [list(part) for part in found.cut]


def test_a_pipeline_with_one_state_can() -> None:
    one = deployed(query({"a": FilterSpec(A, "true"), "b": count("a"), "c": FilterSpec(StreamId("b"), "true")}, ["c"]))
    assert use(one) == ((), [["a", "b", "c"]])


def test_states_side_by_side_can() -> None:
    one = deployed(query({"a": count("A"), "b": count("A"), "u": UnionSpec((StreamId("a"), StreamId("b")))}, ["u"]))
    assert use(one) == ((), [["a", "b", "u"]])


def test_fragment_is_cut_before_state_behind_another() -> None:
    operators = {
        "a": FilterSpec(A, "true"),
        "b": count("a"),
        "c": FilterSpec(StreamId("b"), "key > 0"),
        "d": count("c"),
        "e": JoinSpec(StreamId("d"), StreamId("a"), JoinKind.INNER, (("key", "key"),), window=SECOND),
    }
    assert use(deployed(query(operators, ["e"]))) == (("b", "d"), [["a", "b", "c"], ["d"], ["e"]])


def test_a_path_may_lead_by_a_union() -> None:
    operators = {"a": count("A"), "u": UnionSpec((B, StreamId("a"))), "b": count("u")}
    assert use(deployed(query(operators, ["b"]))) == (("a", "b"), [["a", "u"], ["b"]])


def test_two_fragments_of_one_state_each_can() -> None:
    operators = {"a": count("A"), "b": count("a")}
    one = deployed(query(operators, ["b"]), fragment("f", "a"), fragment("g", "b"))
    assert use(one, "f") == use(one, "f") == ((), [["a"]])
    assert use(one, "g") == ((), [["b"]])


@pytest.mark.parametrize("seed", range(40))
def test_the_cut_of_a_random_query_can_be_written(seed: int) -> None:
    random, operators, streams = Random(seed), {}, ["A", "B"]
    for i in range(random.randint(1, 9)):
        some = random.sample(streams, min(len(streams), random.randint(1, 2)))
        kinds = [count(some[0]), FilterSpec(StreamId(some[0]), "true"), UnionSpec(tuple(map(StreamId, some)))]
        operators[f"o{i}"] = random.choice(kinds[: 1 + len(some)])
        streams.append(f"o{i}")
    read = {s for spec in operators.values() for s in spec.inputs}
    outputs = [n for n in operators if n not in read] + random.sample(sorted(operators), 1)
    made = query(operators, list(dict.fromkeys(outputs)))
    whole = deployed(made)
    for unit in whole.plan.units:
        _, cut = use(whole, unit.id)
        again = deployed(made, *(fragment(f"f{i}", *part) for i, part in enumerate(cut)))
        assert all(log_use(again.plan, u).on_one_path is None for u in again.plan.units)
        assert (
            len(cut) == 1
            or any(log_use(whole.plan, u).on_one_path for u in whole.plan.units)
            or len(whole.plan.units) > 1
        )


CONFIG = """
sources:
  orders: {from: {generator: {name: orders, rate: 50, duration: 2s}}}
query:
  totals: {aggregate: {from: orders, window: 1s, group_by: key, compute: {n: count(*)}}}
  large: {filter: {from: totals, where: n > 1}}
  sums: {aggregate: {from: large, window: 5s, group_by: key, compute: {n: sum(n)}}}
"""
SAID = (
    "'totals' and 'sums' of unit {unit!r} both have state, one behind the other: a log cannot say what the first gave "
    "the second; expected fragments: {{{unit}: {{operators: [totals, large]}}, {unit}_2: {{operators: [sums]}}}}, or "
    "checkpoint: {{continuous: false}} for this fragment"
)


@pytest.mark.parametrize(
    ("more", "where", "unit"),
    [
        (f"defaults: {{{LOGGED}}}\n", "8: defaults.checkpoint", "main"),
        (f"fragments: {{f: {{operators: [totals, large, sums], {LOGGED}}}}}\n", "8: fragments.f.checkpoint", "f"),
    ],
)
def test_a_log_that_cannot_be_is_refused_where_it_is_asked_for(more: str, where: str, unit: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_text(CONFIG + more, "shop.yaml")
    assert str(error.value) == f"shop.yaml:{where}.continuous: {SAID.format(unit=unit)}"
    advice = f"fragments: {{{unit}: {{operators: [totals, large]}}, {unit}_2: {{operators: [sums]}}}}\n"
    assert advice.strip() in str(error.value)
    load_text(f"{CONFIG}defaults: {{{LOGGED}}}\n{advice}")


def test_check_shows_which_units_could_write_a_log() -> None:
    plain = load_text(CONFIG)
    assert log_lines(*plain) == [
        [
            "main",
            "cannot",
            "sums has state and is behind totals; cut: "
            "fragments: {main: {operators: [totals, large]}, main_2: {operators: [sums]}}",
        ]
    ]
    assert "\nCHECKPOINT LOG\n  main  cannot  sums has state" in check_text(*plain)
    cut = f"fragments: {{f: {{operators: [totals, large], {LOGGED}}}, g: {{operators: [sums]}}}}\n"
    assert log_lines(*load_text(CONFIG + cut)) == [
        ["f", "writes one", "totals by group"],
        ["g", "could write one", "sums by group"],
    ]


def test_check_names_states_written_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_state.py").write_text(
        "from operators.custom import CustomOperator\n"
        "class Own(CustomOperator):\n"
        "    @classmethod\n"
        "    def output_schema(cls, inputs): return inputs[0]\n"
        "    def step(self, ports, boundary): return ports[0]\n"
        "    def snapshot(self): return {}\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "\n".join(CONFIG.splitlines()[:4]) + "\n  own: {custom: {class: 'own_state:Own', from: orders}}\n"
    whole = load_text(f"{text}defaults: {{{LOGGED}}}\n")
    (finding,) = [f for f in review(*whole) if "one record" in f.message]
    assert (finding.severity, finding.path) == (Severity.WARNING, ("query", "own"))
    assert log_lines(*whole)[0][2].startswith("own as a whole: ")
    assert not [f for f in review(*load_text(text)) if "one record" in f.message]
