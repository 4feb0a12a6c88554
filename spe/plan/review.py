"""Review of a plan: settings that are legal but probably a mistake, such as timing that a healthy system cannot keep,
results that depend on ties, and partitions that cannot survive a failure.

A setting that certainly makes a healthy system tentative is an error; everything else is a warning.  Durations of
tuple time are first divided by the replay speed of the sources: X is wall time.
"""

from __future__ import annotations

import enum
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from spe.plan.bounds import derived
from spe.plan.describe import describe_pace, show_duration
from spe.plan.directory import Directory
from spe.plan.exposure import is_open
from spe.plan.lineage import key_names
from spe.plan.log_use import hints, logged_fragments, mistakes
from spe.plan.nodes import Policy
from spe.plan.plan import Plan, Source, Unit, Watermark
from spe.plan.retention import memory_only
from spe.plan.timing import NORMAL_DELAY_US, depth, needed_wait_us, origins, speed_of, stall_us
from spe.problems import Path
from spe.query.query import QueryOperator
from spe.query.windows import WINDOW_END, WINDOW_START
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, StreamId, UnitId


class Severity(enum.StrEnum):
    ERROR = "error"
    WARNING = "warning"


class PlanFinding(NamedTuple):
    """An error or warning about a plan, and the place in the configuration that it concerns."""

    severity: Severity
    path: Path
    message: str


def review(plan: Plan, directory: Directory) -> list[PlanFinding]:
    """All findings, errors first, in the order of the plan."""
    findings = [
        *_waiting(plan, directory),
        *_bounds(plan, directory),
        *_silence(plan, directory),
        *_start(plan),
        *_doors(plan, directory),
        *_disorder(plan),
        *_pace(plan),
        *_order(plan),
        *_keys(plan),
        *_logs(plan, directory),
        *_retention(plan, directory),
        *_replicas(plan, directory),
        *_unused(plan, directory),
    ]
    return sorted(dict.fromkeys(findings), key=lambda f: f.severity is Severity.WARNING)


class _Short(NamedTuple):
    """An αX that is too short for a unit.  ``rule`` numbers the reason; ``enough_us`` is the shortest allowed."""

    rule: int
    severity: Severity
    enough_us: int
    why: str


def _shortfalls(plan: Plan, unit: Unit, alpha_x_us: int) -> Iterator[_Short]:
    bare, normal = needed_wait_us(plan, unit)
    channels = (c for p in range(unit.partitions) for c in unit.channels_in(p))
    reaction = 2 * (max(stall_us(plan, c) for c in channels) + plan.timing.connect_us)
    if alpha_x_us <= bare:
        yield _Short(
            0,
            Severity.ERROR,
            bare + 1,
            f"is too short for unit {unit.id!r}: a healthy system would be tentative; expected more than "
            f"bucket + boundary + disorder = {_show(bare)} of wall time",
        )
    elif alpha_x_us <= normal:
        yield _Short(
            1,
            Severity.WARNING,
            normal + 1,
            f"is close to bucket + boundary + disorder = {_show(bare)} of unit {unit.id!r}: any delay "
            f"makes it tentative; {_show(normal + 1)} leaves room for a normal one",
        )
    if alpha_x_us < reaction:
        yield _Short(
            2,
            Severity.WARNING,
            reaction,
            f"is less than 2·(stall + connect) = {_show(reaction)} of unit {unit.id!r}: when a replica "
            "upstream dies, results may be tentative before the other one is found",
        )


def refused_share(plan: Plan, directory: Directory, node: NodeId) -> str | None:
    """The reason why a node's share of X is too short for a unit on it, as in :func:`review`; None: it is enough."""
    for unit in plan.units:
        if not any(node in directory.hosts(PartitionId(unit.id, p)) for p in range(unit.partitions)):
            continue
        share = directory.share(plan, unit.id, node)
        for short in _shortfalls(plan, unit, share.alpha_x_us):
            if short.severity is Severity.ERROR:
                divided = ", the share of one unit there," if share is not directory.nodes[node] else ""
                return f"αX = {_show(share.alpha_x_us)}{divided} {short.why}"
    return None


def least_x_us(plan: Plan, directory: Directory, node: NodeId) -> int:
    """The shortest X of a node, at its α, whose shares :func:`refused_share` does not refuse."""
    least = 1
    for unit in plan.units:
        if any(node in directory.hosts(PartitionId(unit.id, p)) for p in range(unit.partitions)):
            share_us = math.floor((needed_wait_us(plan, unit)[0] + 1) / directory.nodes[node].alpha) + 1
            least = max(least, share_us * directory.in_sequence(plan, unit.id, node))
    return least


def _waiting(plan: Plan, directory: Directory) -> Iterator[PlanFinding]:
    """One finding for all nodes whose αX is too short in the same way, with the unit that needs most."""
    bound = derived(plan, directory)
    alike: dict[tuple[int, int, bool, StreamId | None], list[tuple[_Short, UnitId, NodeId]]] = defaultdict(list)
    for unit in plan.units:
        hosts = {n for p in range(unit.partitions) for n in directory.hosts(PartitionId(unit.id, p))}
        for node in (n for n in directory.nodes.values() if n.id in hosts):
            share = directory.share(plan, unit.id, node.id)
            for short in _shortfalls(plan, unit, share.alpha_x_us):
                output = bound[node.id].limit.output if node.id in bound else None
                alike[short.rule, share.alpha_x_us, share is not node, output].append((short, unit.id, node.id))
    for (_, alpha_x_us, divided, output), short_units in alike.items():
        worst = max((short for short, _, _ in short_units), key=lambda short: short.enough_us)
        nodes = ", ".join(dict.fromkeys(repr(node) for _, _, node in short_units))
        whose = f", the share of one unit on {nodes}," if divided else f" of {nodes}"
        others = len({unit for _, unit, _ in short_units}) - 1
        more = f" (and {others} more unit{'s' if others > 1 else ''})" if others else ""
        path: Path = ("nodes", str(short_units[0][2]), "x")
        if output is not None:
            path = ("outputs", str(output), "bound")
            least_us = _least_bound_us(plan, directory, output, worst.enough_us, [(u, n) for _, u, n in short_units])
            more += f"; expected a bound of at least {_show(least_us)}"
        yield PlanFinding(worst.severity, path, f"αX = {_show(alpha_x_us)}{whose} {worst.why}{more}")


def _least_bound_us(
    plan: Plan, directory: Directory, output: StreamId, alpha_x_us: int, where: Sequence[tuple[UnitId, NodeId]]
) -> int:
    """The shortest bound of an output that gives each of these units this αX, in whole milliseconds."""
    least = 0
    for unit, node in where:
        share = directory.share(plan, unit, node)
        wanted_us = math.ceil(alpha_x_us / share.alpha)
        least = max(least, math.ceil(directory.bounds[output] * wanted_us / share.x_us))
    return -(-least // 1000) * 1000


def _bounds(plan: Plan, directory: Directory) -> Iterator[PlanFinding]:
    """Finds nodes that hold results back as long as a failure lasts, and so cannot keep a bound."""
    for node, promise in derived(plan, directory).items():
        has = directory.nodes[node]
        if Policy.SUSPEND in (has.during_failure, has.during_stabilization):
            yield PlanFinding(
                Severity.ERROR,
                ("nodes", str(node), "policy"),
                f"suspend holds results of {node!r} back as long as a failure lasts, and "
                f"outputs.{promise.limit.output}.bound = {show_duration(promise.limit.bound_us)} could not be kept; "
                "expected process or delay, or no bound",
            )


def _silence(plan: Plan, directory: Directory) -> Iterator[PlanFinding]:
    """Finds live sources whose silence holds up the bucket of their last row and other sources' rows (rule S7)."""
    for stream, source in plan.sources.items():
        if not source.live or source.watermark is not Watermark.DATA:
            continue
        path: Path = ("sources", str(stream), "idle")
        if source.idle_us is None:
            yield PlanFinding(
                Severity.WARNING,
                path,
                "is never: whenever no row comes for αX, results are tentative until one does; expected a duration "
                "where that is not meant",
            )
        elif tightest := _tightest(plan, directory, source):
            room_us, needed_us, alpha_x_us, unit = tightest
            expected = f"at most {_show_down(room_us)}, or " if room_us > 0 else ""
            yield PlanFinding(
                Severity.WARNING,
                path,
                f"{show_duration(source.idle_us)} is long for unit {unit!r}, whose αX is {_show(alpha_x_us)}: whenever "
                f"no row comes for so long, results are tentative; expected {expected}αX above {_show(needed_us)}",
            )


def _start(plan: Plan) -> Iterator[PlanFinding]:
    """Finds tables and directories whose first reading may take long (rule S7)."""
    for stream, source in plan.sources.items():
        if not source.stored or source.time is None:
            continue
        if source.watermark is Watermark.CLOCK:
            text = "is clock, so rows that are there before the start are late; expected data where there may be some"
            yield PlanFinding(Severity.WARNING, ("sources", str(stream), "watermark"), text)
        elif source.idle_to_now and len(plan.sources) > 1:
            text = (
                "goes to now only once all rows that are there at the start are read, which may take long; until then "
                "what reads other sources as well is tentative. Expected an input that begins with few rows"
            )
            yield PlanFinding(Severity.WARNING, ("sources", str(stream), "idle"), text)


def _tightest(plan: Plan, directory: Directory, source: Source) -> tuple[int, int, int, UnitId] | None:
    """The tightest αX that is too short for a source's silences: (longest silence allowed, αX needed, αX, unit).

    The bucket of the last row ends at most d later; the boundary stands ``disorder`` before that row, and advances only
    after the silence.  With idle to the present it then advances at once.
    """
    tight = []
    for unit in plan.units:
        if all(source not in origins(plan, i.stream) for i in unit.inputs):
            continue
        delay_us = NORMAL_DELAY_US * depth(plan, unit)
        bare_us = plan.bucket_us + source.boundary_us + source.disorder_us
        idle_us = source.idle_us or 0
        rest_us = delay_us + (source.boundary_us if source.idle_to_now else bare_us)
        needed_us = max(bare_us + delay_us, idle_us + rest_us)
        hosts = {n for p in range(unit.partitions) for n in directory.hosts(PartitionId(unit.id, p))}
        for alpha_x_us in (directory.share(plan, unit.id, node).alpha_x_us for node in hosts):
            if alpha_x_us <= needed_us and idle_us + rest_us > bare_us + delay_us:
                tight.append((alpha_x_us - rest_us - 1, needed_us, alpha_x_us, unit.id))
    return min(tight, default=None)


def _doors(plan: Plan, directory: Directory) -> Iterator[PlanFinding]:
    """Finds processes that other machines can reach without TLS: the token can be read on the network."""
    if plan.security.certificates is not None or plan.security.insecure:
        return
    places: list[tuple[Path, str]] = [(("nodes", str(n.id), "address"), n.address) for n in directory.nodes.values()]
    places += [(("sources", str(s), "address"), address) for s, address in directory.sources.items()]
    if directory.coordinated:
        places.append((("coordinator", "address"), directory.coordinator.address))
    expected = "security: {certificates: FOLDER} (spe certs makes them), or {insecure: true} if the network is your own"
    for path, address in places:
        if is_open(address):
            text = f"{address} can be reached from other machines, and there is no TLS; expected {expected}"
            yield PlanFinding(Severity.WARNING, path, text)
            break  # reported once
    for source in plan.sources.values():
        address = str(source.reader.get("address", ""))
        if address and is_open(address):
            text = f"whoever reaches {address} can write rows, without a token or TLS; expected {expected}"
            yield PlanFinding(Severity.WARNING, ("sources", str(source.stream), "from", "tcp"), text)


def _disorder(plan: Plan) -> Iterator[PlanFinding]:
    """Finds files without a stated disorder: files are seldom sorted by event time (rule S1)."""
    for stream, source in plan.sources.items():
        if "path" in source.reader and not source.disorder_given:
            yield PlanFinding(
                Severity.WARNING,
                ("sources", str(stream), "disorder"),
                "is not given: rows out of order of time count at a later time, and windows may leave them out; "
                "expected how far they may lie behind, such as 10s, or 0s if the file is sorted",
            )


def _pace(plan: Plan) -> Iterator[PlanFinding]:
    """Finds sources of one unit whose tuple times drift apart: they keep the unit tentative (rule S5)."""
    for unit in plan.units:
        sources = list(dict.fromkeys(s.stream for i in unit.inputs for s in origins(plan, i.stream)))
        speeds = {speed_of(plan.sources[s]) for s in sources}
        if len(sources) > 1 and (len(speeds) > 1 or None in speeds):
            shown = ", ".join(f"{s} {describe_pace(plan.sources[s])}" for s in sources)
            yield PlanFinding(
                Severity.WARNING,
                ("sources", str(sources[-1]), "replay"),
                f"unit {unit.id!r} reads sources whose tuple times drift apart ({shown}): once they are more than αX "
                "apart it stays tentative; the same speed for all avoids it",
            )


def _order(plan: Plan) -> Iterator[PlanFinding]:
    """Finds results that depend on ties in time between upstream partitions (rule U11)."""
    for unit in plan.units:
        partitions = range(unit.partitions)
        many = {i.stream for i in unit.inputs if any(len(i.upstream(p, unit.partitions)) > 1 for p in partitions)}
        if not many:
            continue
        for operator in unit.operators:
            many |= {operator.name} if many & set(operator.spec.inputs) else set()
            sensitive = operator.spec.tied(_window_group(plan, operator.spec.inputs[0]))
            if sensitive and many & set(operator.spec.inputs):
                yield PlanFinding(
                    Severity.WARNING,
                    ("query", str(operator.name)),
                    f"{sensitive} over more than one upstream partition: ties in time are settled by partition "
                    "number, so another number of partitions gives another result",
                )


def _window_group(plan: Plan, stream: StreamId) -> frozenset[str] | None:
    """The group of the window results that a stream consists of; None: it has other tuples."""
    made = {o.name: o.spec for o in plan.query.operators}
    source = made.get(stream)
    while source is not None and source.SELECTS:
        source = made.get(source.inputs[0])
    key = None if source is None else source.result_key
    return None if key is None else frozenset(key) - {WINDOW_START, WINDOW_END}


def _keys(plan: Plan) -> Iterator[PlanFinding]:
    """Finds groupings that are not by the partition key: they give a partial result per partition."""
    for unit in plan.units:
        if unit.partitions == 1:
            continue
        names = key_names(unit)
        for operator in unit.operators:
            missing = operator.spec.divided([names[s] for s in operator.spec.inputs])
            if missing and not _goes_on_in_a_tree(operator, plan):
                yield PlanFinding(
                    Severity.WARNING,
                    ("query", str(operator.name)),
                    f"{missing}, but fragment {unit.fragment!r} is divided by another key: each partition computes a "
                    "result of its own over its share",
                )


def _goes_on_in_a_tree(operator: QueryOperator, plan: Plan) -> bool:
    """Do only operators that complete its partial results read this operator?"""
    if operator.name in plan.query.outputs:
        return False
    return all(operator.spec.completed_by(o.spec) for o in plan.query.operators if operator.name in o.spec.inputs)


def _logs(plan: Plan, directory: Directory) -> Iterator[PlanFinding]:
    """Finds fragments whose checkpoint log is impossible (rule G4), or costs as much as whole checkpoints."""
    logged = logged_fragments(plan, directory)
    for path, message in mistakes(plan, logged):
        yield PlanFinding(Severity.ERROR, path, message)
    for path, message in hints(plan, logged):
        yield PlanFinding(Severity.WARNING, path, message)


def _retention(plan: Plan, directory: Directory) -> Iterator[PlanFinding]:
    """Finds sources whose log could not be deleted, because a partition's state is in memory only (rule E2)."""
    for stream, source in plan.sources.items():
        if source.retain is not None and (lost := memory_only(plan, directory, stream)):
            yield PlanFinding(
                Severity.ERROR,
                ("sources", str(stream), "retain"),
                f"{', '.join(map(str, lost))} would need the whole log if all its replicas died, for it keeps its "
                "state in memory only; expected checkpoints on disk, defaults: {checkpoint: {every: 5s, disk: true}}, "
                "or standbys",
            )


def _replicas(plan: Plan, directory: Directory) -> Iterator[PlanFinding]:
    single: dict[str, list[str]] = {}
    for partition in directory.placement:
        if len(directory.hosts(partition)) < 2:
            single.setdefault(plan.unit[partition.unit].fragment, []).append(str(partition))
    for fragment, partitions in single.items():
        yield PlanFinding(
            Severity.WARNING,
            ("fragments", fragment, "replicas"),
            f"{', '.join(partitions)} has fewer than 2 replicas: while its node is down, results are tentative",
        )


def _unused(plan: Plan, directory: Directory) -> Iterator[PlanFinding]:
    read = {i.stream for u in plan.units for i in u.inputs}
    for stream in plan.sources:
        if stream not in read:
            yield PlanFinding(Severity.WARNING, ("sources", str(stream)), "is read by no operator")
    hosts = {n for id in directory.placement for n in directory.hosts(id)}
    for id, node in directory.nodes.items():
        if id not in hosts and not node.spare:
            yield PlanFinding(Severity.WARNING, ("nodes", str(id)), "hosts no replica")
    wanted = {s for c in directory.clients.values() for s in c.reads}
    for stream in plan.query.outputs:
        if stream not in wanted and directory.clients:
            yield PlanFinding(Severity.WARNING, ("outputs",), f"{stream!r} is read by no configured client")


def _show(us: int) -> str:
    """A duration to the millisecond, rounded up: requirements must not look met when they are not."""
    return show_duration(-(-us // 1000) * 1000)


def _show_down(us: int) -> str:
    """A duration to the millisecond, rounded down: room must not look larger than it is."""
    return show_duration(us // 1000 * 1000)
