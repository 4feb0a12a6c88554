"""A query and a deployment to a plan: fragments are cut into units, units get partitions, partitions get nodes.

Pure: everything that is wrong is collected in a :class:`spe.problems.Problems`, with paths as in the configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spe.errors import ConfigError
from spe.graphs import stable_order
from spe.plan import (
    Client,
    InputStream,
    Limits,
    Node,
    PartitionId,
    Plan,
    Source,
    Timing,
    Unit,
)
from spe.problems import Path, Problems, did_you_mean, one_of, show_path
from spe.query import Operator, Query, inputs_of
from spe.states import NodeId, StreamId, UnitId

#: The fragment that holds the whole query where none is configured.
WHOLE_QUERY = "main"
#: Replicas of a partition where the configuration does not say.
DEFAULT_REPLICAS = 2


@dataclass(frozen=True, slots=True)
class FragmentSpec:
    """A connected piece of the query that runs together.

    Attributes:
      operators: in any order.
      key: attributes whose hash divides the input among partitions: the same for all inputs, or per input stream.
      replicas: how many, placed over the nodes in turn; or the nodes of each partition.
    """

    name: str
    operators: tuple[StreamId, ...]
    partitions: int = 1
    key: tuple[str, ...] | Mapping[StreamId, tuple[str, ...]] | None = None
    replicas: int | tuple[tuple[NodeId, ...], ...] = DEFAULT_REPLICAS


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


@dataclass
class _Draft:
    """A unit while it is being cut."""

    fragment: FragmentSpec
    operators: list[Operator]


def cut_units(query: Query, fragments: Sequence[FragmentSpec], problems: Problems) -> tuple[Unit, ...]:
    """Units in topological order (protocol.md U1).

    All outputs of a unit are reached by the same fragment inputs, so they have one state.  An operator goes with the
    fragment outputs that it contributes to when those are all reached by the same inputs; an operator shared by
    outputs of different reach goes by its own, so that its failure-free half stays STABLE when the other does not.
    """
    drafts: list[_Draft] = []
    for fragment in fragments:
        drafts += _cut(query, fragment)
    return _finish(query, drafts, problems)


def _cut(query: Query, fragment: FragmentSpec) -> list[_Draft]:
    inside = [o for o in query.operators if o.name in set(fragment.operators)]
    names = {o.name for o in inside}
    leaving = {s for o in query.operators if o.name not in names for s in inputs_of(o.spec)} | set(query.outputs)
    reach: dict[StreamId, frozenset[StreamId]] = {}
    for operator in inside:
        own: set[StreamId] = set()
        for stream in inputs_of(operator.spec):
            own |= reach[stream] if stream in names else {stream}
        reach[operator.name] = frozenset(own)
    serves: dict[StreamId, set[frozenset[StreamId]]] = {name: set() for name in names}
    for operator in reversed(inside):
        if operator.name in leaving:
            serves[operator.name].add(reach[operator.name])
        for stream in inputs_of(operator.spec):
            if stream in names:
                serves[stream] |= serves[operator.name]
    groups: dict[frozenset[StreamId], _Draft] = {}
    for operator in inside:
        served = serves[operator.name]
        cut = next(iter(served)) if len(served) == 1 else reach[operator.name]
        groups.setdefault(cut, _Draft(fragment, [])).operators.append(operator)
    return list(groups.values())


def _finish(query: Query, drafts: Sequence[_Draft], problems: Problems) -> tuple[Unit, ...]:
    drafts = _in_order(drafts)
    count: dict[str, int] = {}
    for draft in drafts:
        count[draft.fragment.name] = count.get(draft.fragment.name, 0) + 1
    seen: dict[str, int] = {}
    partitions = {o.name: d.fragment.partitions for d in drafts for o in d.operators}
    units = []
    for draft in drafts:
        name = draft.fragment.name
        seen[name] = seen.get(name, 0) + 1
        id = name if count[name] == 1 else f"{name}.{seen[name]}"
        own = {o.name for o in draft.operators}
        elsewhere = {s for o in query.operators if o.name not in own for s in inputs_of(o.spec)} | set(query.outputs)
        inputs = tuple(
            InputStream(
                stream, query.schema_of(stream), partitions.get(stream, 1), _key_of(query, draft, stream, problems)
            )
            for stream in _inputs(draft, own)
        )
        _check_key_types(draft, inputs, problems)
        units.append(
            Unit(
                id=UnitId(id),
                fragment=name,
                inputs=inputs,
                operators=tuple(draft.operators),
                outputs=tuple(o.name for o in draft.operators if o.name in elsewhere),
                partitions=draft.fragment.partitions,
            )
        )
    return tuple(units)


def _inputs(draft: _Draft, own: Iterable[StreamId]) -> list[StreamId]:
    """Streams from outside, in the order of their first use."""
    own = set(own)
    return list(dict.fromkeys(s for o in draft.operators for s in inputs_of(o.spec) if s not in own))


def _in_order(drafts: Sequence[_Draft]) -> list[_Draft]:
    """Topological.  A cycle of units is impossible: it would be a cycle of operators (reach sets only grow)."""
    home = {o.name: i for i, d in enumerate(drafts) for o in d.operators}
    graph = {
        i: [home[s] for o in d.operators for s in inputs_of(o.spec) if s in home and home[s] != i]
        for i, d in enumerate(drafts)
    }
    order, circles = stable_order(graph)
    assert not circles, f"units in a circle: {circles}"
    return [drafts[i] for i in order]


def _key_of(query: Query, draft: _Draft, stream: StreamId, problems: Problems) -> tuple[str, ...] | None:
    fragment = draft.fragment
    if fragment.partitions == 1:
        return None
    path: Path = ("fragments", fragment.name, "key")
    if fragment.key is None:
        attributes = one_of(query.schema_of(stream).names)
        problems.add(path, f"is missing; {fragment.partitions} partitions need attributes to divide by, {attributes}")
        return None
    per_stream = isinstance(fragment.key, Mapping)
    key = fragment.key.get(stream) if isinstance(fragment.key, Mapping) else fragment.key
    schema = query.schema_of(stream)
    if key is None:
        problems.add(path, f"lacks the input {stream!r}; expected attributes of it, {one_of(schema.names)}")
        return None
    for name in key:
        if name not in schema:
            hint = did_you_mean(name, schema.names)
            where = (*path, str(stream)) if per_stream else path
            advice = "" if per_stream else f"; a key per input is written {{{stream}: ATTRIBUTE, …}}"
            problems.add(
                where, f"input {stream!r} has no attribute {name!r}{hint}; expected {one_of(schema.names)}{advice}"
            )
            return None
    return key


def _check_key_types(draft: _Draft, inputs: Sequence[InputStream], problems: Problems) -> None:
    """Equal keys must meet in one partition, whatever input they come by: the hash goes by type and position."""
    keyed = [i for i in inputs if i.key is not None]
    for one in keyed[1:]:
        first = keyed[0]
        types = [[i.schema[k].type for k in i.key or ()] for i in (first, one)]
        if types[0] != types[1]:
            shown = [f"{i.stream!r} by ({', '.join(t)})" for i, t in zip((first, one), types)]
            problems.add(
                ("fragments", draft.fragment.name, "key"),
                f"divides {' but '.join(shown)}; expected the same types in the same order",
            )


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
