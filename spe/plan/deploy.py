"""Makes a plan and a directory from a query and a deployment: cuts fragments into units, assigns nodes to partitions.

Pure: all mistakes are collected in a :class:`spe.problems.Problems`, with paths as in the configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from typing import Final, NamedTuple

from spe.errors import ConfigError
from spe.plan.bounds import with_bounds
from spe.plan.directory import (
    ANY_ADDRESS,
    COORDINATOR,
    ClientSettings,
    CoordinatorSettings,
    Directory,
    RecoverySettings,
    roles_of,
)
from spe.plan.log_targets import Continuous
from spe.plan.nodes import Node
from spe.plan.plan import AccuracyChoice, Limits, MetricsSettings, Plan, Security, Source, Timing, Unit
from spe.plan.units import DEFAULT_REPLICAS, FragmentSpec, cut_units
from spe.problems import Path, Problems, did_you_mean, one_of, show_path
from spe.query.query import Query
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, StreamId

#: The client of a run whose configuration has none.
ONLY_CLIENT: Final = "client"
#: The fragment that holds the whole query where none is configured.
WHOLE_QUERY: Final = "main"


@dataclass(frozen=True, slots=True)
class Deployment:
    """Where and how a query is to run.

    Attributes:
      addresses: by source; a source without one gets any free port of this machine.
      log: checkpoint log of the fragment that holds the whole query where none is configured.
      bounds: by output, microseconds; X of the nodes on a path to the output follows from it.
      own_x: nodes whose X is configured rather than derived.
    """

    cluster: str
    bucket_us: int
    nodes: Mapping[NodeId, Node]
    sources: Mapping[StreamId, Source]
    clients: Mapping[str, ClientSettings]
    fragments: tuple[FragmentSpec, ...] = ()
    timing: Timing = field(default_factory=Timing)
    limits: Limits = field(default_factory=Limits)
    security: Security = field(default_factory=Security)
    accuracy: Mapping[StreamId, AccuracyChoice] = field(default_factory=dict)
    coordinator: CoordinatorSettings = field(default_factory=CoordinatorSettings)
    recovery: RecoverySettings = field(default_factory=RecoverySettings)
    addresses: Mapping[StreamId, str] = field(default_factory=dict)
    log: Continuous | None = None
    metrics: MetricsSettings | None = None
    bounds: Mapping[StreamId, int] = field(default_factory=dict)
    own_x: frozenset[NodeId] = frozenset()


class Deployed(NamedTuple):
    """A plan and its directory: what ids depend on, and who runs what, where."""

    plan: Plan
    directory: Directory


def deploy(query: Query, deployment: Deployment, problems: Problems) -> Deployed | None:
    """Returns the plan and version 0 of its directory; None after a mistake, which is added to ``problems``."""
    before = len(problems.found)
    fragments = deployment.fragments or (_whole(query, deployment),)
    check_cover([o.name for o in query.operators], fragments, problems)
    check_rejected(query, fragments, problems)
    check_read(query, problems)
    check_addresses(deployment, problems)
    if len(problems.found) > before:
        return None
    units = cut_units(query, fragments, problems)
    placed = place(fragments, usable(deployment.nodes), problems)
    check_loads(deployment.recovery, units, problems)
    if len(problems.found) > before:
        return None
    plan = Plan(
        cluster=deployment.cluster,
        query=query,
        bucket_us=deployment.bucket_us,
        units=units,
        sources=deployment.sources,
        timing=deployment.timing,
        limits=deployment.limits,
        security=deployment.security,
        accuracy=deployment.accuracy,
        metrics=deployment.metrics,
    )
    directory = with_bounds(plan, _directory(deployment, units, fragments, placed), deployment.own_x, problems)
    if why := _beyond(deployment.coordinator.budget, directory):
        problems.add(("coordinator", "budget"), why)
        return None
    return Deployed(plan, directory)


def _directory(
    deployment: Deployment, units: Sequence[Unit], fragments: Sequence[FragmentSpec], placed: Mapping[str, Placed]
) -> Directory:
    """Returns the directory; X does not yet follow from bounds."""
    spec = {f.name: f for f in fragments}
    partitions = [(PartitionId(unit.id, p), unit.fragment, p) for unit in units for p in range(unit.partitions)]
    return Directory(
        nodes=deployment.nodes,
        roles={id: roles_of(placed[name].replicas[p], placed[name].standbys[p]) for id, name, p in partitions},
        sources={s: deployment.addresses.get(s, ANY_ADDRESS) for s in deployment.sources},
        clients=deployment.clients,
        checkpoint_us={id: spec[name].checkpoint_us for id, name, _ in partitions},
        logs={id: log for id, name, _ in partitions if (log := spec[name].log) is not None},
        coordinator=deployment.coordinator,
        recovery=deployment.recovery,
        bounds=deployment.bounds,
    )


def _whole(query: Query, deployment: Deployment) -> FragmentSpec:
    names = tuple(o.name for o in query.operators)
    return FragmentSpec(
        WHOLE_QUERY, names, replicas=min(DEFAULT_REPLICAS, max(1, len(deployment.nodes))), log=deployment.log
    )


def check_cover(names: Sequence[StreamId], fragments: Sequence[FragmentSpec], problems: Problems) -> None:
    """Checks that each operator belongs to exactly one fragment."""
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


def check_rejected(query: Query, fragments: Sequence[FragmentSpec], problems: Problems) -> None:
    """Checks that rejected rows are handled in the fragment of the operator that rejects them."""
    home = {name: fragment.name for fragment in fragments for name in fragment.operators}
    for operator in query.operators:
        if operator.spec.TAKES_REJECTED and home.get(operator.name) != home.get(operator.spec.inputs[0]):
            at = next(f.operators.index(operator.name) for f in fragments if operator.name in f.operators)
            path: Path = ("fragments", home[operator.name], "operators", at)
            problems.add(path, f"{operator.name!r} is expected in the fragment of {operator.spec.inputs[0]!r}")


def check_read(query: Query, problems: Problems) -> None:
    """Checks that every operator's stream is read: otherwise the operator would work for nothing."""
    read = {s for o in query.operators for s in o.spec.inputs} | set(query.outputs)
    for operator in query.operators:
        if operator.name not in read:
            problems.add(("query", str(operator.name)), "is read by nobody; expected it in outputs or as an input")


def check_addresses(deployment: Deployment, problems: Problems) -> None:
    """Checks that no two processes listen at one address; port 0 is any free port."""
    where: list[tuple[Path, str]] = [
        (("nodes", str(n), "address"), node.address) for n, node in deployment.nodes.items()
    ]
    where += [(("sources", str(s), "address"), address) for s, address in deployment.addresses.items()]
    where += [(("coordinator", "address"), deployment.coordinator.address)]
    taken: dict[str, Path] = {}
    for path, address in where:
        if address in taken and not address.endswith(":0"):
            problems.add(path, f"{address} is the address of {show_path(taken[address][:2])} already")
        taken.setdefault(address, path)


def check_loads(recovery: RecoverySettings, units: Sequence[Unit], problems: Problems) -> None:
    """Checks that loads name units, with one value or one per partition."""
    many = {unit.id: unit.partitions for unit in units}
    for name, load in recovery.loads.items():
        path: Path = ("recovery", "loads", str(name))
        if name not in many:
            problems.add(path, f"no unit {name!r}{did_you_mean(name, many)}; expected {one_of(list(many))}")
            continue
        for what, values in (("load", load.cores), ("work", load.install_us)):
            if len(values) not in (0, 1, many[name]):
                problems.add(path, f"{what} is one, or {many[name]}, one per partition; got {len(values)}")


def usable(nodes: Mapping[NodeId, Node]) -> list[NodeId]:
    """Nodes on which partitions are placed: those that are not spare."""
    return [id for id, node in nodes.items() if not node.spare]


class Placed(NamedTuple):
    """Nodes of each partition of a fragment."""

    replicas: tuple[tuple[NodeId, ...], ...]
    standbys: tuple[tuple[NodeId, ...], ...]


def place(fragments: Sequence[FragmentSpec], nodes: Sequence[NodeId], problems: Problems) -> dict[str, Placed]:
    """Assigns nodes to each partition of each fragment; a bare number is spread over all nodes in turn."""
    placed: dict[str, Placed] = {}
    ring = cycle(nodes)
    for fragment in fragments:
        none = ((),) * fragment.partitions
        replicas = _rows(fragment, "replicas", fragment.replicas, none, nodes, ring, problems)
        if replicas is None:
            continue
        standbys = _rows(fragment, "standby", fragment.standbys, replicas, nodes, ring, problems)
        if standbys is not None:
            placed[fragment.name] = Placed(replicas, standbys)
    return placed


def _rows(
    fragment: FragmentSpec,
    section: str,
    wanted: int | tuple[tuple[NodeId, ...], ...],
    taken: Sequence[tuple[NodeId, ...]],
    nodes: Sequence[NodeId],
    ring: Iterator[NodeId],
    problems: Problems,
) -> tuple[tuple[NodeId, ...], ...] | None:
    """Nodes of each partition for one kind of replica, none of them in ``taken``."""
    path: Path = ("fragments", fragment.name, section)
    if wanted == 0:
        return ((),) * len(taken)
    if isinstance(wanted, int):
        needed = wanted + max(map(len, taken), default=0)
        if needed > len(nodes):
            what = "replicas of a partition" if section == "replicas" else "replicas and standbys of a partition"
            problems.add(path, f"{needed} {what} need {needed} nodes; there are {len(nodes)}")
            return None
        return tuple(tuple(islice((n for n in ring if n not in row), wanted)) for row in taken)
    if len(wanted) != fragment.partitions:
        problems.add(path, f"lists {len(wanted)} partitions; expected nodes for each of {fragment.partitions}")
    for p, row in enumerate(wanted):
        if row or section == "replicas":
            _check_row(row, (*path, p), nodes, problems)
        for r, node in enumerate(row):
            if p < len(taken) and node in taken[p]:
                problems.add((*path, p, r), f"{node!r} runs this partition already; expected another node")
    return wanted


def _check_row(row: Sequence[NodeId], path: Path, nodes: Sequence[NodeId], problems: Problems) -> None:
    if not row:
        problems.add(path, f"names no node; expected at least one of: {', '.join(nodes)}")
    for r, node in enumerate(row):
        if node not in nodes:
            hint = did_you_mean(node, nodes)
            problems.add((*path, r), f"no node {node!r}{hint}; expected {one_of(list(nodes))}")
        elif node in row[:r]:
            problems.add((*path, r), f"{node!r} is listed twice; a node holds at most one replica of a partition")


def with_addresses(directory: Directory, addresses: Mapping[str, str]) -> Directory:
    """Returns the directory with other addresses.

    Args:
      addresses: ``host:port`` by the names of :meth:`Directory.addresses`; the others stay.

    Raises:
      KeyError: the directory has no process of that name.
    """
    known = directory.addresses()
    for name in addresses:
        if name not in known:
            raise KeyError(f"no process {name!r}; there are: {', '.join(sorted(known))}")
    nodes = {n: replace(node, address=addresses.get(n, node.address)) for n, node in directory.nodes.items()}
    sources = {s: addresses.get(f"source:{s}", address) for s, address in directory.sources.items()}
    coordinator = replace(directory.coordinator, address=addresses.get(COORDINATOR, directory.coordinator.address))
    return replace(directory, nodes=nodes, sources=sources, coordinator=coordinator)


def with_budget(directory: Directory, budget: int) -> Directory:
    """Returns the directory with another number of partitions whose first standby runs from the start.

    Raises:
      ConfigError: fewer partitions have standbys.
    """
    if why := _beyond(budget, directory):
        raise ConfigError([f"--budget: {why}"])
    return replace(directory, coordinator=replace(directory.coordinator, budget=budget))


def _beyond(budget: int, directory: Directory) -> str:
    most = sum(len(directory.placement[id]) < 2 for id in directory.standbys)
    if 0 <= budget <= most:
        return ""
    return f"expected at most {most}, as many partitions have one replica and a standby, got {budget}"


def check_all_addressed(where: str, addresses: Mapping[str, str]) -> None:
    """Raises ConfigError if a configuration leaves addresses open: only ``spe run`` finds free ones."""
    if without := [name for name, address in addresses.items() if address.endswith(":0")]:
        raise ConfigError(
            [
                f"{where} gives no address for {', '.join(without)}; give each an `address: HOST:PORT` to run it on "
                "several machines, or use spe run, which finds free ones, and the directory of the run"
            ]
        )


def with_default_client(plan: Plan, directory: Directory) -> Directory:
    """Adds a client of all outputs if no client is configured, so that the results of a run are read."""
    if directory.clients:
        return directory
    return replace(directory, clients={ONLY_CLIENT: ClientSettings(ONLY_CLIENT, plan.query.outputs)})


def without_external(directory: Directory) -> Directory:
    """Returns the directory without external clients: the rest are started by ``spe run``, and record."""
    return replace(directory, clients={n: c for n, c in directory.clients.items() if not c.external})


def with_origins(plan: Plan, origins: Mapping[str, int]) -> Plan:
    """Returns the plan with these event times as the origins of its replayed sources."""
    sources = dict(plan.sources)
    for name, origin_us in origins.items():
        source = sources[StreamId(name)]
        sources[StreamId(name)] = replace(source, replay={**source.replay, "origin_us": origin_us})
    return replace(plan, sources=sources)
