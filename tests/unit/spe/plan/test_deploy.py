"""Fragments are divided into units, units into partitions, and partitions get nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spe.errors import ConfigError
from spe.plan.deploy import Deployed, Deployment, deploy, with_addresses
from spe.plan.directory import ClientSettings, Directory
from spe.plan.graphs import stable_order
from spe.plan.lineage import key_names
from spe.plan.nodes import Node, Policy
from spe.plan.plan import InputStream, Partitioning, Plan, Source, Unit
from spe.plan.results import results_fingerprint
from spe.plan.review import Severity, review
from spe.plan.units import FragmentSpec, cut_units
from spe.problems import Problems, show_path
from spe.query.declaration import OnError, OnLate, OperatorSpec
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.operators.filter import FilterSpec
from spe.query.operators.join import JoinKind, JoinSpec
from spe.query.operators.map import MapSpec
from spe.query.operators.topk import TopKSpec
from spe.query.operators.union import UnionSpec
from spe.query.query import Query, QueryOperator
from spe.query.windows import CountWindow, TumblingWindow, Window
from spe.stream.batch import Column
from spe.stream.hashing import partition_of
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import NodeId, StreamId, UnitId
from spe.stream.schema import Schema

SCHEMA = Schema.of(ts="timestamp!", key="int64!", user="string")
SECOND = TumblingWindow(1_000_000)


def reads(*streams: str) -> OperatorSpec:
    """An operator that reads these streams; its kind does not matter for units."""
    if len(streams) == 1:
        return FilterSpec(StreamId(streams[0]), "true")
    return UnionSpec(tuple(map(StreamId, streams)))


def query(operators: Mapping[str, OperatorSpec], outputs: Sequence[str], sources: Sequence[str] = ("A", "B")) -> Query:
    return Query(
        {StreamId(s): SCHEMA for s in sources},
        tuple(QueryOperator(StreamId(n), spec, SCHEMA) for n, spec in operators.items()),
        tuple(map(StreamId, outputs)),
    )


def fragment(name: str, *operators: str, **options: Any) -> FragmentSpec:
    return FragmentSpec(name, tuple(map(StreamId, operators)), **options)


def source(name: str, **options: Any) -> Source:
    defaults: dict[str, Any] = {
        "boundary_us": 100_000,
        "disorder_us": 0,
        "ahead_us": None,
        "time": "ts",
        "reader": {"kind": "csv", "path": "/x.csv"},
        "replay": {"speed": 1.0, "rate": None, "max": False},
        "on_malformed": "skip",
    }
    return Source(StreamId(name), SCHEMA, **{**defaults, **options})


def node(name: str, x_us: int = 5_000_000) -> Node:
    return Node(NodeId(name), "127.0.0.1:0", x_us, 0.9, Policy.PROCESS, Policy.PROCESS)


def deployed(what: Query, *fragments: FragmentSpec, nodes: int = 2, **sources: Source) -> Deployed:
    problems = Problems()
    found = deploy(
        what,
        Deployment(
            cluster="test",
            bucket_us=100_000,
            nodes={NodeId(f"n{i}"): node(f"n{i}") for i in range(1, nodes + 1)},
            sources={s: sources.get(s, source(s)) for s in what.sources},
            clients={"c": ClientSettings("c", what.outputs)},
            fragments=fragments,
        ),
        problems,
    )
    if found is None or problems:
        raise ConfigError([f"{show_path(p.path)}: {p.message}" for p in problems.found])
    return found


def shape(units: Sequence[Unit]) -> list[tuple[str, str, str, str]]:
    """(id, inputs, operators, outputs) as words."""
    return [
        (u.id, " ".join(i.stream for i in u.inputs), " ".join(o.name for o in u.operators), " ".join(u.outputs))
        for u in units
    ]


# -- units (U1: one SUnion per unit)


def test_query_without_fragments_is_one_fragment() -> None:
    plan, directory = deployed(query({"u": reads("A", "B"), "f": reads("u")}, ["f"]))

    assert shape(plan.units) == [("main", "A B", "u f", "f")]
    assert directory.placement == {PartitionId(plan.units[0].id, 0): ("n1", "n2")}


def test_outputs_reached_by_different_inputs_are_separate_units() -> None:
    plan = deployed(query({"a": reads("A"), "b": reads("B")}, ["a", "b"])).plan

    assert shape(plan.units) == [("main.1", "A", "a", "a"), ("main.2", "B", "b", "b")]


def test_operators_of_one_output_are_in_its_unit() -> None:
    """Operators on one source before the merge are no separate unit, because no output depends on them alone."""
    plan = deployed(query({"a": reads("A"), "b": reads("B"), "u": reads("a", "b"), "f": reads("u")}, ["u", "f"])).plan

    assert shape(plan.units) == [("main", "A B", "a b u f", "u f")]


def test_operator_shared_by_different_outputs_is_separate_unit() -> None:
    """When B fails, what depends on A alone stays STABLE.

    clean reads A; report reads clean; merged reads clean and B.
    """
    plan = deployed(
        query({"clean": reads("A"), "report": reads("clean"), "merged": reads("clean", "B")}, ["report", "merged"])
    ).plan
    assert shape(plan.units) == [
        ("main.1", "A", "clean report", "clean report"),
        ("main.2", "clean B", "merged", "merged"),
    ]


def test_a_stream_read_by_another_fragment_is_an_output() -> None:
    plan = deployed(
        query({"u": reads("A", "B"), "f": reads("u"), "g": reads("f")}, ["g"]),
        fragment("front", "u", "f"),
        fragment("back", "g"),
    ).plan
    assert shape(plan.units) == [("front", "A B", "u f", "f"), ("back", "f", "g", "g")]


def test_fragments_may_read_each_other_without_operator_cycle() -> None:
    plan = deployed(
        query({"a": reads("A"), "b": reads("a"), "c": reads("b")}, ["c"]), fragment("x", "a", "c"), fragment("y", "b")
    ).plan
    assert shape(plan.units) == [("x.1", "A", "a", "a"), ("y", "a", "b", "b"), ("x.2", "b", "c", "c")]


def reach_of(what: Query, name: StreamId, home: Mapping[StreamId, str]) -> set[StreamId]:
    """Inputs of its fragment that reach an operator."""
    (spec,) = [o.spec for o in what.operators if o.name == name]
    reach: set[StreamId] = set()
    for stream in spec.inputs:
        inside = home.get(stream) == home[name]
        reach |= reach_of(what, stream, home) if inside else {stream}
    return reach


@st.composite
def deployed_queries(draw: st.DrawFn) -> tuple[Query, list[FragmentSpec]]:
    """A query of 3 sources and up to 9 operators, all of them read, in up to 3 random fragments."""
    count = draw(st.integers(1, 9))
    names = ["A", "B", "C"]
    operators: dict[str, OperatorSpec] = {}
    for i in range(count):
        operators[f"o{i}"] = reads(*draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)))
        names.append(f"o{i}")
    read = {s for spec in operators.values() for s in spec.inputs}
    outputs = [n for n in operators if n not in read or draw(st.booleans())]
    home: dict[str, list[str]] = {}
    for name in operators:
        home.setdefault(draw(st.sampled_from("xyz")), []).append(name)
    return query(operators, outputs, "ABC"), [fragment(f, *own) for f, own in home.items()]


@settings(max_examples=150, deadline=None)
@given(deployed_queries())
def test_units_cover_the_query_and_each_has_one_reach(
    case: tuple[Query, list[FragmentSpec]],
) -> None:
    """For any query and any fragments:

    1. each operator is in one unit, beside operators of its fragment only
    2. a unit comes after those that it reads
    3. all outputs of a unit are reached by the same inputs of the fragment, so they have one state
    """
    what, fragments = case
    problems = Problems()
    units = cut_units(what, fragments, problems)
    home = {name: f.name for f in fragments for name in f.operators}
    known = set(what.sources)

    assert not problems
    assert sorted(o.name for u in units for o in u.operators) == sorted(o.name for o in what.operators)
    for unit in units:
        own = {o.name for o in unit.operators}
        assert {home[n] for n in own} == {unit.fragment}
        assert {i.stream for i in unit.inputs} <= known
        assert unit.outputs
        assert len({frozenset(reach_of(what, s, home)) for s in unit.outputs}) == 1
        known |= set(unit.outputs)
    assert set(what.outputs) <= known


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.integers(0, 8), st.lists(st.integers(0, 8), max_size=3), max_size=9))
def test_operator_order_is_topological_and_cycles_are_real(graph: dict[int, list[int]]) -> None:
    order, circles = stable_order(graph)
    in_circle = {n for c in circles for n in c}

    assert sorted([*order, *in_circle]) == sorted(graph)
    for at, name in enumerate(order):
        assert {b for b in graph[name] if b in graph} - in_circle <= set(order[:at])
    for circle in circles:
        assert circle[0] == circle[-1]
        assert all(before in graph[after] for before, after in pairwise(circle))


def test_given_order_is_kept_where_possible() -> None:
    assert stable_order({"c": [], "a": ["c"], "b": []}) == (["c", "a", "b"], [])


# -- cover


@pytest.mark.parametrize(
    ("fragments", "message"),
    [
        ([fragment("x", "a")], "operator b is in no fragment"),
        ([fragment("x", "a", "b"), fragment("y", "b")], "'b' is in fragment 'x' already"),
        ([fragment("x", "a", "b", "c")], "fragments.x.operators[2]: no operator 'c'"),
        ([fragment("x", "a", "b", replicas=3)], "3 replicas of a partition need 3 nodes; there are 2"),
        ([fragment("x", "a", "b", replicas=((NodeId("n1"), NodeId("n3")),))], "no node 'n3'"),
        ([fragment("x", "a", "b", replicas=((NodeId("n1"), NodeId("n1")),))], "at most one replica of a partition"),
        ([fragment("x", "a", "b", replicas=((),))], "names no node"),
        ([fragment("x", "a", "b", replicas=((NodeId("n1"),), (NodeId("n2"),)))], "lists 2 partitions"),
        ([fragment("x", "a", "b", partitions=2)], "2 partitions need attributes to divide by"),
        ([fragment("x", "a", "b", partitions=2, key=("kay",))], "has no attribute 'kay' (did you mean 'key'?)"),
        ([fragment("x", "a", "b", partitions=2, key={StreamId("A"): ("key",)})], "lacks the input 'B'"),
        ([fragment("x", "a", "b", key=("kay",))], "has no attribute 'kay' (did you mean 'key'?)"),
        (
            [fragment("x", "a", "b", partitions=2, key={StreamId(s): ("key",) for s in "ABa"})],
            "fragments.x.key.a: 'a' is no input of the fragment",
        ),
        (
            [fragment("x", "a", "b", partitions=2, key={StreamId("A"): ("key",), StreamId("B"): ("user",)})],
            "divides 'A' by (int64) but 'B' by (string)",
        ),
    ],
)
def test_fragments_that_do_not_fit_are_refused(fragments: list[FragmentSpec], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        deployed(query({"a": reads("A", "B"), "b": reads("a")}, ["b"]), *fragments)

    assert any(message in p for p in caught.value.problems), caught.value.problems


def test_an_operator_without_readers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"query\.b: is read by nobody"):
        deployed(query({"a": reads("A"), "b": reads("B")}, ["a"]))


# -- partitions and placement


def test_a_partitioned_unit_reads_by_key_and_is_read_whole() -> None:
    plan = deployed(
        query({"u": reads("A", "B"), "f": reads("u")}, ["f"]),
        fragment("front", "u", partitions=4, key=("key",)),
        fragment("back", "f"),
        nodes=4,
    ).plan
    front, back = plan.units

    assert [(i.stream, i.producers, i.key) for i in front.inputs] == [("A", 1, ("key",)), ("B", 1, ("key",))]
    assert [(i.stream, i.producers, i.key) for i in back.inputs] == [("u", 4, None)]
    assert [str(c) for c in back.channels_in(0)] == ["u/0", "u/1", "u/2", "u/3"]
    assert plan.key_columns("front", "A") == (1,)


def inputs_by_partition(first: int, then: int, by: str = "key") -> tuple[Deployed, list[list[int]]]:
    """Who reads which of a stream by ``key`` in ``first`` partitions, read in ``then`` partitions by another key."""
    made = deployed(
        query({"u": reads("A", "B"), "f": reads("u")}, ["f"]),
        fragment("front", "u", partitions=first, key=("key",)),
        fragment("back", "f", partitions=then, key=(by,)),
        nodes=8,
    )
    return made, [[c.partition for c in made.plan.units[1].channels_in(p)] for p in range(then)]


@pytest.mark.parametrize(
    ("first", "then", "by", "kind", "read"),
    [
        (3, 3, "key", Partitioning.ONE_TO_ONE, [[0], [1], [2]]),
        (4, 2, "key", Partitioning.MERGE, [[0, 1], [2, 3]]),
        (2, 4, "key", Partitioning.SPLIT, [[0], [0], [1], [1]]),
        (3, 2, "key", Partitioning.FULL, [[0, 1], [1, 2]]),
        (2, 3, "key", Partitioning.FULL, [[0], [0, 1], [1]]),
        (2, 2, "ts", Partitioning.FULL, [[0, 1], [0, 1]]),
        (4, 1, "key", Partitioning.FULL, [[0, 1, 2, 3]]),
    ],
)
def test_a_stream_divided_by_the_key_is_read_by_hash_ranges(
    first: int, then: int, by: str, kind: Partitioning, read: list[list[int]]
) -> None:
    (plan, directory), found = inputs_by_partition(first, then, by)

    assert found == read
    assert plan.units[1].inputs[0].partitioning(then) is kind
    for channel in (Channel(StreamId("u"), p) for p in range(first)):
        readers = [p for p in range(then) if channel.partition in read[p]]
        named = [c for c in directory.consumers_of(plan, channel) if not c.startswith("client")]
        assert [c.partition("@")[0] for c in named] == [f"back/{p}" for p in readers for _ in range(2)]


def carried(*operators: tuple[str, OperatorSpec], key: tuple[str, ...], then: tuple[str, ...]) -> bool:
    """Is the last of these operators read one-to-one by key ``then`` when they are divided by ``key``?"""
    last = operators[-1][0]
    plan = deployed(
        query({**dict(operators), "f": reads(last)}, ["f"]),
        fragment("front", *(name for name, _ in operators), partitions=3, key=key),
        fragment("back", "f", partitions=3, key=then),
        nodes=6,
    ).plan
    return plan.units[-1].inputs[0].aligned


JOINED = Schema.of(l_ts="timestamp", l_key="int64", l_user="string", r_ts="timestamp", r_key="int64", r_user="string")


def test_other_readers_do_not_change_how_a_stream_is_divided() -> None:
    """Two readers by another key come before the reader by the dividing key."""
    plan = deployed(
        query({"u": reads("A", "B"), "f": reads("u"), "g": reads("u"), "h": reads("u")}, ["f", "g", "h"]),
        fragment("front", "u", partitions=2, key=("key",)),
        fragment("f", "f", partitions=2, key=("ts",)),
        fragment("g", "g", partitions=2, key=("ts",)),
        fragment("h", "h", partitions=2, key=("key",)),
        nodes=8,
    ).plan
    assert {u.id: u.inputs[0].aligned for u in plan.units} == {"front": False, "f": False, "g": False, "h": True}


@pytest.mark.parametrize(
    ("spec", "then", "aligned"),
    [
        (FilterSpec(StreamId("A"), "true"), ("key", "user"), True),
        (FilterSpec(StreamId("A"), "true"), ("user", "key"), False),  # the hash depends on the order of attributes
        (FilterSpec(StreamId("A"), "true"), ("key",), False),
        (MapSpec(StreamId("A"), {"ts": "ts", "key": "key", "user": "user"}, keep=False), ("key", "user"), True),
        (MapSpec(StreamId("A"), {"key": "key + 1"}, keep=True), ("key", "user"), False),
        (MapSpec(StreamId("A"), {"user": "user"}, keep=True), ("key", "user"), True),
    ],
)
def test_key_of_several_attributes_stays_whole(spec: OperatorSpec, then: tuple[str, ...], aligned: bool) -> None:
    assert carried(("u", spec), key=("key", "user"), then=then) is aligned


@pytest.mark.parametrize(
    ("kind", "on", "then", "aligned"),
    [
        (JoinKind.INNER, (("key", "key"), ("user", "user")), ("l_key", "r_user"), True),
        (JoinKind.INNER, (("key", "key"),), ("l_key", "l_user"), True),
        (JoinKind.INNER, (("key", "key"),), ("l_key", "r_user"), False),
        (JoinKind.LEFT, (("key", "key"), ("user", "user")), ("l_key", "l_user"), True),
        (JoinKind.LEFT, (("key", "key"), ("user", "user")), ("l_key", "r_user"), False),
        (JoinKind.RIGHT, (("key", "key"),), ("r_key", "r_user"), True),
        (JoinKind.FULL, (("key", "key"), ("user", "user")), ("l_key", "l_user"), False),
    ],
)
def test_a_join_keeps_the_key_of_sides_that_are_never_null(
    kind: JoinKind, on: tuple[tuple[str, str], ...], then: tuple[str, ...], aligned: bool
) -> None:
    unit = Unit(
        UnitId("front"),
        "front",
        tuple(InputStream(StreamId(s), SCHEMA, 1, ("key", "user")) for s in "AB"),
        (
            QueryOperator(
                StreamId("j"), JoinSpec(StreamId("A"), StreamId("B"), kind, on, lower_us=0, upper_us=0), JOINED
            ),
        ),
        (StreamId("j"),),
        3,
    )
    names = key_names(unit)[StreamId("j")]
    assert (len(names) == 2 and all(t in n for t, n in zip(then, names, strict=True))) is aligned


def test_units_share_x_only_where_one_partition_reads_the_other() -> None:
    plan, directory = deployed(
        query({"u": reads("A", "B"), "f": reads("u")}, ["f"]),
        fragment("front", "u", partitions=2, key=("key",), replicas=((NodeId("n1"),), (NodeId("n2"),))),
        fragment("back", "f", partitions=2, key=("key",), replicas=((NodeId("n2"),), (NodeId("n1"),))),
    )
    assert directory.share(plan, UnitId("back"), NodeId("n1")).x_us == directory.nodes[NodeId("n1")].x_us


@given(st.integers(1, 9), st.integers(2, 9), st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_partitions_that_are_not_read_have_no_needed_rows(first: int, then: int, values: list[int]) -> None:
    column = Column(np.array(values, np.int64))
    read = InputStream(StreamId("s"), SCHEMA, first, ("key",), aligned=True)

    made, wanted = partition_of([column], first), partition_of([column], then)

    assert all(m in read.upstream(w, then) for m, w in zip(made.tolist(), wanted.tolist(), strict=True))
    assert max(made) < first
    assert max(wanted) < then


def test_a_number_of_replicas_is_placed_round_robin() -> None:
    directory = deployed(
        query({"u": reads("A", "B"), "f": reads("u")}, ["f"]),
        fragment("front", "u", partitions=3, key=("key",)),
        fragment("back", "f"),
        nodes=4,
    ).directory
    assert {str(p): " ".join(nodes) for p, nodes in directory.placement.items()} == {
        "front/0": "n1 n2",
        "front/1": "n3 n4",
        "front/2": "n1 n2",
        "back/0": "n3 n4",
    }


def test_listed_nodes_stay_in_their_order() -> None:
    row = (NodeId("n2"), NodeId("n1"))
    directory = deployed(query({"u": reads("A", "B")}, ["u"]), fragment("x", "u", replicas=(row,))).directory

    assert list(directory.placement.values()) == [row]


# -- addresses and the fingerprint (rule U11)


def test_addresses_do_not_change_the_plan() -> None:
    directory = deployed(query({"u": reads("A", "B")}, ["u"])).directory
    moved = with_addresses(directory, {"n1": "10.0.0.1:7001", "source:A": "10.0.0.9:7000"})

    assert moved.addresses() == {
        "n1": "10.0.0.1:7001",
        "n2": "127.0.0.1:0",
        "source:A": "10.0.0.9:7000",
        "source:B": "127.0.0.1:0",
    }
    with pytest.raises(KeyError, match="no process 'n9'"):
        with_addresses(directory, {"n9": "10.0.0.1:7001"})


def test_fingerprint_covers_all_that_ids_depend_on() -> None:
    what = query({"u": reads("A", "B")}, ["u"])
    base = deployed(what).plan
    one_replica = deployed(what, fragment("main", "u", replicas=1)).plan
    wider = replace(base, bucket_us=200_000)
    divided = deployed(what, fragment("main", "u", partitions=2, key=("key",))).plan
    other_key = deployed(what, fragment("main", "u", partitions=2, key=("user",))).plan
    turned = deployed(query({"u": reads("B", "A")}, ["u"])).plan

    assert base.fingerprint == one_replica.fingerprint
    assert len({p.fingerprint for p in (base, wider, divided, other_key, turned)}) == 5


def test_the_fingerprint_covers_on_error() -> None:
    """A configuration without on_error keeps its fingerprint."""
    spec = MapSpec(StreamId("A"), {"key": "key"})
    stop, skip = (deployed(query({"u": one}, ["u"])).plan for one in (spec, replace(spec, on_error=OnError.SKIP)))
    assert stop.fingerprint != skip.fingerprint
    assert "on_error" not in repr(stop.query.operators)
    assert results_fingerprint(stop, StreamId("u")) != results_fingerprint(skip, StreamId("u"))


def test_fingerprint_covers_on_late_but_results_do_not() -> None:
    """A state with a count of rejected rows is another; a sink goes on.  Without on_late nothing has changed."""
    spec = AggregateSpec(StreamId("A"), TumblingWindow(10, 0, "ts"), {}, {"n": AggregateCall("count")})
    count, reject = (deployed(query({"u": one}, ["u"])).plan for one in (spec, replace(spec, on_late=OnLate.REJECT)))
    assert count.fingerprint != reject.fingerprint
    assert "late" not in json.dumps([o.state_described() for o in count.query.operators])
    assert results_fingerprint(count, StreamId("u")) == results_fingerprint(reject, StreamId("u"))


# -- what is likely not meant


def warnings(plan: Plan, directory: Directory) -> list[str]:
    found = review(plan, directory)
    assert all(f.severity is Severity.WARNING for f in found)
    return [f"{'.'.join(map(str, f.path))}: {f.message}" for f in found]


def aggregate(stream: str, *groups: str, function: str = "count", window: Window = SECOND) -> OperatorSpec:
    call = AggregateCall(function, None if function == "count" else "user")
    return AggregateSpec(StreamId(stream), window, {g: g for g in groups}, {"n": call})


def test_healthy_plan_has_no_warnings() -> None:
    assert warnings(*deployed(query({"u": reads("A", "B")}, ["u"]))) == []


def test_a_single_replica_gives_a_warning() -> None:
    (warning,) = warnings(
        *deployed(query({"u": reads("A", "B")}, ["u"]), fragment("x", "u", replicas=((NodeId("n1"),),)), nodes=1)
    )
    assert warning.startswith("fragments.x.replicas: x/0 has fewer than 2 replicas")


@pytest.mark.parametrize(
    ("operator", "sensitive"),
    [
        (aggregate("u", "key", function="first"), "first over more than one"),
        (aggregate("u", "key", function="last"), "last over more than one"),
        (aggregate("u", "key", window=CountWindow(3)), "a count window over more than one"),
        (TopKSpec(StreamId("u"), 3, (("key", True),)), "ties of a top-k over more than one"),
        (TopKSpec(StreamId("u"), 3, (("key", True),), with_ties=True), ""),
        (aggregate("u", "key"), ""),
    ],
)
def test_results_depending_on_ties_between_partitions_warn(operator: OperatorSpec, sensitive: str) -> None:
    plan, directory = deployed(
        query({"u": reads("A", "B"), "out": operator}, ["out"]),
        fragment("front", "u", partitions=2, key=("key",)),
        fragment("back", "out"),
    )
    assert [w.split(": ")[1].split(" upstream")[0] for w in warnings(plan, directory)] == (
        [sensitive] if sensitive else []
    )


def test_results_over_one_upstream_partition_give_no_warning() -> None:
    plan, directory = deployed(
        query({"u": reads("A", "B"), "out": aggregate("u", "key", function="first")}, ["out"]),
        fragment("front", "u"),
        fragment("back", "out"),
    )
    assert warnings(plan, directory) == []


def test_ranking_window_results_by_all_groups_has_no_ties() -> None:
    def plan(*order: str) -> Deployed:
        top = TopKSpec(StreamId("n"), 3, tuple((o, True) for o in order))
        return deployed(
            query({"n": aggregate("A", "key"), "out": top}, ["out"], ["A"]),
            fragment("front", "n", partitions=2, key=("key",)),
            fragment("back", "out"),
        )

    assert warnings(*plan("n", "key")) == []
    assert len(warnings(*plan("n"))) == 1


@pytest.mark.parametrize(
    ("parts_ties", "root_ties", "root_k", "partial"),
    [(False, False, 3, False), (False, False, 4, True), (False, True, 3, True), (True, True, 3, False)],
)
def test_a_top_k_of_large_enough_top_ks_gives_no_warning(
    parts_ties: bool, root_ties: bool, root_k: int, partial: bool
) -> None:
    parts = TopKSpec(StreamId("n"), 3, (("n", True), ("key", False)), with_ties=parts_ties)
    root = replace(parts, input=StreamId("p"), k=root_k, with_ties=root_ties)
    plan, directory = deployed(
        query({"n": aggregate("A", "key"), "p": parts, "out": root}, ["out"], ["A"]),
        fragment("front", "n", "p", partitions=2, key=("key",)),
        fragment("back", "out"),
    )
    assert any("divided by another key" in w for w in warnings(plan, directory)) is partial


FULL = JoinSpec(StreamId("A"), StreamId("B"), JoinKind.FULL, (("key", "key"),), SECOND)
RENAMED = MapSpec(StreamId("A"), {"k": "key", "u": "user"})


@pytest.mark.parametrize(
    ("operators", "partial"),
    [
        ({"out": aggregate("A", "key", "user")}, False),
        ({"out": aggregate("A", "user")}, True),
        ({"out": aggregate("A")}, True),
        ({"m": RENAMED, "out": aggregate("m", "k")}, False),
        ({"m": RENAMED, "out": aggregate("m", "u")}, True),
        ({"n": aggregate("A", "key"), "out": TopKSpec(StreamId("n"), 1, (("n", True),), ("key",))}, False),
        ({"n": aggregate("A", "key"), "out": TopKSpec(StreamId("n"), 1, (("n", True),))}, True),
        ({"out": JoinSpec(StreamId("A"), StreamId("B"), JoinKind.INNER, (("key", "key"),), SECOND)}, False),
        ({"out": JoinSpec(StreamId("A"), StreamId("B"), JoinKind.INNER, (("user", "user"),), SECOND)}, True),
        ({"u": reads("A", "B"), "f": reads("u"), "out": aggregate("f", "key")}, False),
        ({"j": FULL, "m": MapSpec(StreamId("j"), {"k": "Coalesce(r_key, l_key)"}), "out": aggregate("m", "k")}, False),
        ({"j": FULL, "m": MapSpec(StreamId("j"), {"k": "coalesce(l_key, r_user)"}), "out": aggregate("m", "k")}, True),
        ({"j": FULL, "m": MapSpec(StreamId("j"), {"k": "l_key"}), "out": aggregate("m", "k")}, True),
    ],
)
def test_grouping_by_other_key_than_partitions_warns(operators: dict[str, OperatorSpec], partial: bool) -> None:
    sources = ["A", "B"] if any("B" in o.inputs for o in operators.values()) else ["A"]
    plan, directory = deployed(
        query(operators, ["out"], sources), fragment("x", *operators, partitions=2, key=("key",))
    )
    found = [w for w in warnings(plan, directory) if "divided by another key" in w]

    assert len(found) == partial


def test_the_key_is_followed_through_the_prefixes_of_a_join() -> None:
    join = JoinSpec(StreamId("A"), StreamId("B"), JoinKind.INNER, (("key", "key"),), SECOND)
    left = replace(join, kind=JoinKind.LEFT)
    full = replace(join, kind=JoinKind.FULL)
    plan = deployed(
        query({"j": join, "l": left, "f": full}, ["j", "l", "f"]),
        fragment("x", "j", "l", "f", partitions=2, key=("key",)),
    ).plan
    names = key_names(plan.units[0])

    assert names[StreamId("j")] == (frozenset({"l_key", "r_key"}),)
    assert names[StreamId("l")] == (frozenset({"l_key"}),)
    assert names[StreamId("f")] == (frozenset({"coalesce(l_key,r_key)", "coalesce(r_key,l_key)"}),)


def test_sources_of_a_unit_at_different_speeds_give_a_warning() -> None:
    slow = source("B", replay={"speed": 2.0, "rate": None, "max": False})
    (warning,) = warnings(*deployed(query({"u": reads("A", "B")}, ["u"]), B=slow))

    assert warning.startswith("sources.B.replay: unit 'main' reads sources whose tuple times drift apart (A 1x, B 2x)")


def test_unused_parts_of_a_plan_give_a_warning() -> None:
    plan, directory = deployed(query({"a": reads("A")}, ["a"], ["A", "spare"]), nodes=3)

    assert warnings(plan, directory) == ["sources.spare: is read by no operator", "nodes.n3: hosts no replica"]
    assert (
        warnings(plan, replace(directory, clients={"c": ClientSettings("c", ())}))[-1]
        == "outputs: 'a' is read by no configured client"
    )


def test_ordinary_wait_follows_bucket_boundary_and_disorder() -> None:
    """αX = 4.5 s: a bucket of 100 ms, boundaries of 100 ms and a disorder of 4.3 s are just too much at this speed."""

    def errors(disorder_us: int, speed: float) -> int:
        replay = {"speed": speed, "rate": None, "max": False}
        plan, directory = deployed(
            query({"a": reads("A")}, ["a"], ["A"]), A=source("A", disorder_us=disorder_us, replay=replay)
        )
        return sum(f.severity is Severity.ERROR for f in review(plan, directory))

    assert errors(4_300_000, 1.0) == 1  # reported once for both nodes
    assert errors(4_299_000, 1.0) == 0
    assert errors(4_300_000, 1.01) == 0
    assert errors(43_000_000, 10.1) == 0


def test_a_replay_by_rate_has_no_known_wait() -> None:
    paced = source("A", disorder_us=10**9, replay={"speed": None, "rate": 100.0, "max": False})

    assert warnings(*deployed(query({"a": reads("A")}, ["a"], ["A"]), A=paced)) == []
