"""A plan with a change, for a process that is started with another configuration than the others.

Another query or bucket gives other ids: such a process must be refused by name, and do no harm (rule U11).  Limits,
timing, and whether it writes a checkpoint log, may differ between processes.
"""

from __future__ import annotations

from dataclasses import replace

from spe.plan.directory import Directory
from spe.plan.nodes import Checkpoints
from spe.plan.plan import Plan, Timing
from spe.query.operators.filter import FilterSpec
from spe.query.operators.map import MapSpec
from spe.query.operators.topk import TopKSpec
from spe.query.query import QueryOperator
from spe.stream.schema import AttributeType
from spe.stream.times import SECOND

#: Changes that give other ids.
OTHER_IDS = ("query", "bucket")
#: Change of the directory, not of the plan.
CHECKPOINTS = "checkpoints"


def replanned(plan: Plan, change: str) -> Plan:
    """Returns the plan with another ``query``, ``bucket``, ``limits`` or ``timing``."""
    match change:
        case "limits":
            limits = plan.limits
            return replace(
                plan,
                limits=replace(
                    limits,
                    output_bytes=2 * limits.output_bytes,
                    input_bytes=2 * limits.input_bytes,
                    suffix_bytes=2 * limits.suffix_bytes,
                    slice_rows=max(1, limits.slice_rows // 2),
                ),
            )
        case "timing":
            timing = plan.timing
            half = Timing(timing.tick_us // 2, timing.heartbeat_us // 2, timing.request_us // 2, timing.connect_us)
            return replace(plan, timing=half)
        case "checkpoints":
            return plan
        case "query" if other := next((o for o in map(_other, plan.query.operators) if o is not None), None):
            return _with(plan, other)
        case _:
            return replace(plan, bucket_us=2 * plan.bucket_us)


def with_other_checkpoints(directory: Directory) -> Directory:
    """Returns the directory with whole checkpoints on disk in place of logs."""
    whole = Checkpoints(SECOND, disk=True)
    nodes = {name: replace(node, checkpoints=whole) for name, node in directory.nodes.items()}
    return replace(directory, logs={}, nodes=nodes)


def _other(operator: QueryOperator) -> QueryOperator | None:
    """Returns the operator with other results of the same schema; None: not possible for it."""
    spec = operator.spec
    match spec:
        case FilterSpec():
            return replace(operator, spec=replace(spec, where=f"not ({spec.where})"))
        case TopKSpec():
            return replace(operator, spec=replace(spec, k=spec.k + 1))
        case MapSpec():
            for attribute in operator.schema:
                numeric = attribute.type in (AttributeType.INT64, AttributeType.FLOAT64)
                if numeric and (text := spec.columns.get(attribute.name)) is not None:
                    columns = {**spec.columns, attribute.name: f"-({text})"}
                    return replace(operator, spec=replace(spec, columns=columns))
    return None


def _with(plan: Plan, other: QueryOperator) -> Plan:
    """Returns the plan with one operator replaced by that of the same name."""

    def changed(operators: tuple[QueryOperator, ...]) -> tuple[QueryOperator, ...]:
        return tuple(other if operator.name == other.name else operator for operator in operators)

    return replace(
        plan,
        query=replace(plan.query, operators=changed(plan.query.operators)),
        units=tuple(replace(unit, operators=changed(unit.operators)) for unit in plan.units),
    )
