"""A query and a deployment to a plan: fragments are cut into units (spe.units), their partitions get nodes.

Pure: everything that is wrong is collected in a :class:`spe.problems.Problems`, with paths as in the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from spe.errors import ConfigError
from spe.plan import AccuracyChoice, Client, Limits, Node, PartitionId, Plan, Security, Source, Timing
from spe.problems import Path, Problems, did_you_mean, one_of, show_path
from spe.query import Query, inputs_of
from spe.states import NodeId, StreamId
from spe.units import DEFAULT_REPLICAS, FragmentSpec, cut_units

#: The client of a run whose configuration has none.
ONLY_CLIENT: Final = "client"
#: The fragment that holds the whole query where none is configured.
WHOLE_QUERY: Final = "main"


@dataclass(frozen=True, slots=True)
class Deployment:
    """Where and how a query runs."""

    cluster: str
    bucket_us: int
    nodes: Mapping[NodeId, Node]
    sources: Mapping[StreamId, Source]
    clients: Mapping[str, Client]
    fragments: tuple[FragmentSpec, ...] = ()
    timing: Timing = field(default_factory=Timing)
    limits: Limits = field(default_factory=Limits)
    security: Security = field(default_factory=Security)
    accuracy: Mapping[StreamId, AccuracyChoice] = field(default_factory=dict)


def make_plan(query: Query, deployment: Deployment) -> Plan:
    """The plan.  Raises ConfigError with everything that does not fit."""
    problems = Problems()
    plan = try_plan(query, deployment, problems)
    if plan is None or problems:
        raise ConfigError([f"{show_path(p.path)}: {p.message}" for p in problems.found])
    return plan


def try_plan(query: Query, deployment: Deployment, problems: Problems) -> Plan | None:
    """The plan, or None; what is wrong goes to ``problems``."""
    before = len(problems.found)
    fragments = deployment.fragments or (_whole(query, deployment),)
    check_cover([o.name for o in query.operators], fragments, problems)
    check_read(query, problems)
    check_addresses(deployment, problems)
    if len(problems.found) > before:
        return None
    units = cut_units(query, fragments, problems)
    placed = place(fragments, list(deployment.nodes), problems)
    if len(problems.found) > before:
        return None
    placement = {PartitionId(unit.id, p): placed[unit.fragment][p] for unit in units for p in range(unit.partitions)}
    return Plan(
        cluster=deployment.cluster,
        query=query,
        bucket_us=deployment.bucket_us,
        units=units,
        nodes=deployment.nodes,
        sources=deployment.sources,
        clients=deployment.clients,
        placement=placement,
        timing=deployment.timing,
        limits=deployment.limits,
        security=deployment.security,
        accuracy=deployment.accuracy,
    )


def _whole(query: Query, deployment: Deployment) -> FragmentSpec:
    names = tuple(o.name for o in query.operators)
    return FragmentSpec(WHOLE_QUERY, names, replicas=min(DEFAULT_REPLICAS, max(1, len(deployment.nodes))))


def check_cover(names: Sequence[StreamId], fragments: Sequence[FragmentSpec], problems: Problems) -> None:
    """Each operator belongs to exactly one fragment."""
    home: dict[StreamId, str] = {}
    for fragment in fragments:
        for i, name in enumerate(fragment.operators):
            path: Path = ("fragments", fragment.name, "operators", i)
            if name not in names:
                problems.add(path, f"no operator {name!r}{did_you_mean(name, names)}; expected {one_of(list(names))}")
            elif name in home:
                problems.add(path, f"{name!r} is in fragment {home[name]!r} already")
            else:
                home[name] = fragment.name
    missing = [n for n in names if n not in home]
    if missing:
        problems.add(("fragments",), f"operator {', '.join(missing)} is in no fragment; expected each in exactly one")


def check_read(query: Query, problems: Problems) -> None:
    """An operator whose stream nobody reads is a mistake: it would cost work and show nothing."""
    read = {s for o in query.operators for s in inputs_of(o.spec)} | set(query.outputs)
    for operator in query.operators:
        if operator.name not in read:
            problems.add(("query", str(operator.name)), "is read by nobody; expected it in outputs or as an input")


def check_addresses(deployment: Deployment, problems: Problems) -> None:
    """No two processes listen at one address; port 0 is any free one."""
    where = [(("nodes", str(n), "address"), node.address) for n, node in deployment.nodes.items()]
    where += [(("sources", str(s), "address"), source.address) for s, source in deployment.sources.items()]
    taken: dict[str, Path] = {}
    for path, address in where:
        if address in taken and not address.endswith(":0"):
            problems.add(path, f"{address} is the address of {show_path(taken[address][:2])} already")
        taken.setdefault(address, path)


def place(
    fragments: Sequence[FragmentSpec], nodes: Sequence[NodeId], problems: Problems
) -> dict[str, tuple[tuple[NodeId, ...], ...]]:
    """Nodes of each partition of each fragment; where only a number is given, in turn over all nodes."""
    placed: dict[str, tuple[tuple[NodeId, ...], ...]] = {}
    turn = 0
    for fragment in fragments:
        path: Path = ("fragments", fragment.name, "replicas")
        if isinstance(fragment.replicas, int):
            count = fragment.replicas
            if count > len(nodes):
                problems.add(path, f"{count} replicas of a partition need {count} nodes; there are {len(nodes)}")
                continue
            rows = []
            for _ in range(fragment.partitions):
                rows.append(tuple(nodes[(turn + r) % len(nodes)] for r in range(count)))
                turn += count
            placed[fragment.name] = tuple(rows)
            continue
        if len(fragment.replicas) != fragment.partitions:
            problems.add(
                path,
                f"lists {len(fragment.replicas)} partitions; expected nodes for each of {fragment.partitions}",
            )
        for p, row in enumerate(fragment.replicas):
            _check_row(row, (*path, p), nodes, problems)
        placed[fragment.name] = fragment.replicas
    return placed


def _check_row(row: Sequence[NodeId], path: Path, nodes: Sequence[NodeId], problems: Problems) -> None:
    if not row:
        problems.add(path, f"names no node; expected at least one of: {', '.join(nodes)}")
    for r, node in enumerate(row):
        if node not in nodes:
            hint = did_you_mean(node, nodes)
            problems.add((*path, r), f"no node {node!r}{hint}; expected {one_of(list(nodes))}")
        elif node in row[:r]:
            problems.add((*path, r), f"{node!r} is listed twice; a node holds at most one replica of a partition")


def with_addresses(plan: Plan, addresses: Mapping[str, str]) -> Plan:
    """The same plan with other addresses.  The fingerprint stays: ids do not depend on where things run.

    Args:
      addresses: ``host:port`` by node id, or by ``source:NAME``; what is not in it stays.

    Raises:
      KeyError: a name that the plan does not have.
    """
    known = {*plan.nodes, *(f"source:{s}" for s in plan.sources)}
    for name in addresses:
        if name not in known:
            raise KeyError(f"no process {name!r}; there are: {', '.join(sorted(known))}")
    nodes = {n: replace(node, address=addresses.get(n, node.address)) for n, node in plan.nodes.items()}
    sources = {
        s: replace(source, address=addresses.get(f"source:{s}", source.address)) for s, source in plan.sources.items()
    }
    return replace(plan, nodes=nodes, sources=sources)


def processes(plan: Plan) -> dict[str, str]:
    """Address of every process that listens, by the names of :func:`with_addresses`."""
    return {n: node.address for n, node in plan.nodes.items()} | {
        f"source:{s}": source.address for s, source in plan.sources.items()
    }


def with_default_client(plan: Plan) -> Plan:
    """A run has somebody who reads what it makes.  The fingerprint stays."""
    if plan.clients:
        return plan
    return replace(plan, clients={ONLY_CLIENT: Client(ONLY_CLIENT, plan.query.outputs)})


def with_origins(plan: Plan, origins: Mapping[str, int]) -> Plan:
    """The same plan, whose replayed sources begin at these event times."""
    sources = dict(plan.sources)
    for name, origin_us in origins.items():
        source = sources[StreamId(name)]
        sources[StreamId(name)] = replace(source, replay={**source.replay, "origin_us": origin_us})
    return replace(plan, sources=sources)
