"""Small plans for tests, made without a configuration file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from spe.plan.deploy import Deployed
from spe.plan.directory import ClientSettings, Directory, Standbys, roles_of
from spe.plan.nodes import Node, Policy
from spe.plan.plan import InputStream, Limits, Plan, Source, Unit
from spe.query.declaration import OperatorSpec
from spe.query.operators.custom import CustomSpec
from spe.query.operators.union import UnionSpec
from spe.query.query import Query, QueryOperator
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, StreamId, UnitId
from spe.stream.schema import Schema

SEQUENCE = Schema.of(n="int64!", value="float64!")


def source(name: str, *, reader: Mapping[str, Any], schema: Schema = SEQUENCE, time: str | None = "ts") -> Source:
    return Source(
        stream=StreamId(name),
        schema=schema,
        boundary_us=20_000,
        disorder_us=0,
        ahead_us=None,
        time=time,
        reader=reader,
        replay={"speed": 1.0},
        on_malformed="stop",
    )


def chain(
    sources: Sequence[Source],
    stages: Sequence[tuple[str, OperatorSpec, Schema]],
    *,
    replicas: int = 2,
    x_us: int = 1_000_000,
    alpha: float = 0.9,
    failure: Policy = Policy.PROCESS,
    stabilization: Policy = Policy.PROCESS,
    bucket_us: int = 20_000,
    limits: Limits | None = None,
) -> Deployed:
    """A plan in which each stage is a unit of its own, on nodes of its own; the last one is read by client ``c``."""
    schemas = {s.stream: s.schema for s in sources}
    operators: list[QueryOperator] = []
    units: list[Unit] = []
    nodes: dict[NodeId, Node] = {}
    placement: dict[PartitionId, tuple[NodeId, ...]] = {}
    for at, (name, spec, schema) in enumerate(stages, 1):
        operator = QueryOperator(StreamId(name), spec, schema)
        inputs = tuple(InputStream(s, schemas[s], 1, None) for s in spec.inputs)
        schemas[operator.name] = schema
        operators.append(operator)
        units.append(Unit(UnitId(f"u{at}"), f"f{at}", inputs, (operator,), (operator.name,), 1))
        names = tuple(NodeId(f"n{at}{letter}") for letter in "abc"[:replicas])
        for node in names:
            nodes[node] = Node(node, f"{node}:1", x_us, alpha, failure, stabilization)
        placement[PartitionId(UnitId(f"u{at}"), 0)] = names
    output = operators[-1].name
    plan = Plan(
        cluster="test",
        query=Query({s.stream: s.schema for s in sources}, tuple(operators), (output,)),
        bucket_us=bucket_us,
        units=tuple(units),
        sources={s.stream: s for s in sources},
        limits=replace(limits or Limits(), tail_bytes=0),
    )
    addresses = {s.stream: f"source-{s.stream}:1" for s in sources}
    roles = {id: roles_of(names) for id, names in placement.items()}
    return Deployed(plan, Directory(nodes, roles, addresses, {"c": ClientSettings("c", (output,))}))


def placed(
    directory: Directory,
    placement: Mapping[PartitionId, Sequence[NodeId]] | None = None,
    standbys: Mapping[PartitionId, Standbys] | None = None,
) -> Directory:
    """The same with other replicas, other standbys or both."""
    placement = directory.placement if placement is None else placement
    standbys = directory.standbys if standbys is None else standbys
    roles = {id: roles_of(names, standbys[id].nodes if id in standbys else ()) for id, names in placement.items()}
    return replace(directory, roles=roles, checkpoint_us={id: one.every_us for id, one in standbys.items()})


def union_of(*names: str) -> UnionSpec:
    return UnionSpec(tuple(StreamId(n) for n in names))


def pass_on(name: str) -> CustomSpec:
    """An operator that passes on what comes."""
    return CustomSpec((StreamId(name),), "tests.support.operators_for_tests:PassThrough")
