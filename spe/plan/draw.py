"""The plan as text, for ``spe check``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from spe.connectors import find_reader, find_sink
from spe.plan.bounds import bound_lines
from spe.plan.describe import describe_pace, show_duration
from spe.plan.directory import Directory
from spe.plan.log_use import log_lines
from spe.plan.nodes import Node
from spe.plan.plan import InputStream, Partitioning, Plan, Unit
from spe.plan.review import PlanFinding, review
from spe.problems import show_path
from spe.stream.ids import PartitionId
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from spe.text_table import text_table

NO_WARNINGS: Final = "No warnings."


def check_text(plan: Plan, directory: Directory) -> str:
    """Lists sources, units with their operators and schemas, partitions, replicas, nodes, clients and warnings.

    The same plan gives the same text, so texts can be stored and compared.
    """
    parts = [
        [f"{plan.cluster}   bucket {show_duration(plan.bucket_us)}   plan {plan.fingerprint}"],
        ["SOURCES", *_sources(plan)],
        *(_unit(plan, directory, u) for u in plan.units),
        ["CHECKPOINT LOG", *text_table(log_lines(plan, directory), indent="  ")],
        ["NODES", *_nodes(directory)],
        *([["BOUNDS", *text_table(list(bound_lines(plan, directory)), indent="  ")]] if directory.bounds else []),
        ["CLIENTS", *_clients(directory)],
        _findings(review(plan, directory)),
    ]
    return "\n\n".join("\n".join(line.rstrip() for line in part) for part in parts) + "\n"


def _schema(schema: Schema) -> str:
    """A schema as written in a configuration: ``ts timestamp!, user string``."""
    return ", ".join(f"{a.name} {a.type}{'' if a.nullable else '!'}" for a in schema)


def _reader(reader: Mapping[str, Any]) -> str:
    declared = find_reader(reader["kind"])
    return str(reader["kind"]) if declared is None else declared.describe(reader)


def _place(sink: Mapping[str, Any]) -> str:
    declared = find_sink(sink["kind"])
    return "" if declared is None else declared.place(sink)


def _sources(plan: Plan) -> list[str]:
    rows = []
    for name, source in plan.sources.items():
        time = f"time {source.time or 'of arrival'}, disorder {show_duration(source.disorder_us)}"
        rows.append(
            [
                name,
                _reader(source.reader),
                describe_pace(source),
                f"{time}, boundary {show_duration(source.boundary_us)}",
            ]
        )
    return [
        line
        for text, s in zip(text_table(rows, indent="  "), plan.sources.values())
        for line in (text, f"      {_schema(s.schema)}")
    ]


def _unit(plan: Plan, directory: Directory, unit: Unit) -> list[str]:
    kinds = [(str(o.name), o.spec.KEYWORD) for o in unit.operators]
    operators = text_table([(n, k, o.spec.describe()) for (n, k), o in zip(kinds, unit.operators)], indent="  ")
    listing = [line for text, o in zip(operators, unit.operators) for line in (text, f"      {_schema(o.schema)}")]
    return [
        _unit_title(unit),
        *_picture(plan, directory, unit),
        *listing,
        "  replicas",
        *text_table(_replica_rows(plan, directory, unit), indent="    "),
    ]


def _unit_title(unit: Unit) -> str:
    fragment = "" if unit.fragment == unit.id else f" of fragment {unit.fragment}"
    partitions = "1 partition" if unit.partitions == 1 else f"{unit.partitions} partitions"
    return f"UNIT {unit.id}{fragment}   {partitions}"


def _picture(plan: Plan, directory: Directory, unit: Unit) -> list[str]:
    """Draws the inputs, a box with the operators, and the outputs with their readers."""
    left = [_input_label(i, unit.partitions) for i in unit.inputs]
    right = [f"{s} ──▶ {', '.join(_readers(plan, directory, s)) or 'nobody'}" for s in unit.outputs]
    inside = text_table([(str(o.name), o.spec.KEYWORD) for o in unit.operators], indent=" ")
    height = max(len(left), len(inside), len(right))
    width = max(*(len(line) for line in inside), len(unit.id) + 2) + 1
    tags = _joined(left, height)
    out = [f"{' ' * len(tags[0])}┌ {unit.id} {'─' * (width - len(unit.id) - 2)}┐"]
    for row in range(height):
        body = inside[row] if row < len(inside) else ""
        tail = f"──▶ {right[row]}" if row < len(right) else ""
        out.append(f"{tags[row]}│{body.ljust(width)}│{tail}")
    return [*(f"  {line}" for line in out), f"  {' ' * len(tags[0])}└{'─' * width}┘"]


def _input_label(input: InputStream, partitions: int) -> str:
    several = f" ×{input.producers}" if input.producers > 1 else ""
    if input.producers > 1 and input.partitioning(partitions) is not Partitioning.FULL:
        several += f", {input.partitioning(partitions)}"
    return f"{input.stream}{several}" + (f" by {', '.join(input.key)}" if input.key else "")


def _joined(labels: Sequence[str], height: int) -> list[str]:
    """Labels with lines that meet in an arrow at the middle label."""
    width = max(len(label) for label in labels)
    middle = (len(labels) - 1) // 2
    out = []
    for row in range(height):
        if row >= len(labels):
            out.append(" " * (width + 6))
            continue
        if len(labels) == 1:
            joint = "─"
        elif row == middle:
            joint = "┬" if row == 0 else "┼"
        else:
            joint = "┐" if row == 0 else "┘" if row == len(labels) - 1 else "┤"
        arrow = "─▶" if row == middle else "  "
        out.append(f"{labels[row].ljust(width)} ──{joint}{arrow}")
    return out


def _readers(plan: Plan, directory: Directory, stream: StreamId) -> list[str]:
    units = [str(u.id) for u in plan.units if any(i.stream == stream for i in u.inputs)]
    return units + [f"client {c.name}" for c in directory.clients.values() if stream in c.reads]


def _replica_rows(plan: Plan, directory: Directory, unit: Unit) -> list[list[str]]:
    rows = []
    for p in range(unit.partitions):
        id = PartitionId(unit.id, p)
        where = ", ".join(f"{n} ({_x(directory.share(plan, unit.id, n))})" for n in directory.placement[id])
        if (standbys := directory.standbys.get(id)) is not None:
            state = "the log" if id in directory.logs else f"a checkpoint every {show_duration(standbys.every_us)}"
            where += f"; standby {', '.join(standbys.nodes)}, {state}"
        rows.append([str(id), where])
    return rows


def _x(node: Node) -> str:
    return f"X {show_duration(node.x_us)}, αX {show_duration(node.alpha_x_us)}"


def _nodes(directory: Directory) -> list[str]:
    rows = []
    for node in directory.nodes.values():
        policy = f"{node.during_failure} in failure, {node.during_stabilization} in stabilization"
        hosts = ", ".join(f"{r.unit}/{r.partition}" for r in directory.replicas_on(node.id)) or "nothing"
        if passive := directory.standbys_on(node.id):
            hosts += f"; standby of {', '.join(f'{r.unit}/{r.partition}' for r in passive)}"
        rows.append([str(node.id), _address(node.address), _x(node), policy, _reconcile(node), hosts])
    return text_table(rows, indent="  ")


def _reconcile(node: Node) -> str:
    """``checkpoint``, ``undo every 200ms``, ``undo, disk every 5s``."""
    checkpoints = node.checkpoints
    if checkpoints.every_us is None:
        return str(node.reconcile)
    return f"{node.reconcile}{', disk' if checkpoints.disk else ''} every {show_duration(checkpoints.every_us)}"


def _address(address: str) -> str:
    return "any port" if address.endswith(":0") else address


def _clients(directory: Directory) -> list[str]:
    rows = []
    for client in directory.clients.values():
        sinks = ", ".join(f"{s['kind']} {_place(s)} ({s['mode']})" for s in client.sinks)
        takes = "external" if client.external else sinks or "no sink"
        rows.append([client.name, f"reads {', '.join(client.reads)}", takes])
    return text_table(rows, indent="  ") or ["  none: nothing holds the output buffers"]


def _findings(findings: Sequence[PlanFinding]) -> list[str]:
    if not findings:
        return [NO_WARNINGS]
    return [f"{len(findings)} WARNING{'S' if len(findings) > 1 else ''}", *(_finding(f) for f in findings)]


def _finding(finding: PlanFinding) -> str:
    return f"  {finding.severity}: {show_path(finding.path)}: {finding.message}"
