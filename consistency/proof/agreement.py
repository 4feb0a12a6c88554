"""Compares the plan that was run with the user's file, as the truth reads it.  Pure."""

from __future__ import annotations

from typing import Any

from consistency.proof.recorded.query_file import Reading
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.stream.names import StreamId


def disagreements(reading: Reading, plan: Plan, directory: Directory) -> list[str]:
    """Returns where a plan has another shape: streams, inputs, outputs, readers, bucket, partitions or keys.

    What operators compute is not compared here: the truth computes it, and the values are compared.
    """
    differences: list[str] = []

    def compare(what: str, in_file: Any, in_plan: Any) -> None:
        if in_file != in_plan:
            differences.append(f"{what}: the file says {in_file!r}, the plan {in_plan!r}")

    compare("sources", set(reading.sources), set(plan.sources))
    for name, source in reading.sources.items():
        in_plan = plan.sources.get(StreamId(name))
        if in_plan is not None and source.types is not None:
            compare(f"schema of {name!r}", dict(source.types), {a.name: str(a.type) for a in in_plan.schema})
    compare("bucket", reading.bucket_us, plan.bucket_us)
    compare("outputs", reading.outputs, tuple(plan.query.outputs))
    compare("operators", set(reading.operators), {o.name for o in plan.query.operators})
    specs = {str(o.name): o.spec for o in plan.query.operators}
    for name, operator in reading.operators.items():
        ran_as = specs.get(name)
        compare(f"inputs of {name!r}", operator.inputs, None if ran_as is None else tuple(ran_as.inputs))
        compare(f"skip of {name!r}", getattr(operator, "skip", False), ran_as is not None and ran_as.skips)
    for name, reads in (reading.clients or {}).items():
        compare(
            f"reads of client {name!r}",
            reads,
            directory.clients[name].reads if name in directory.clients else None,
        )
    placed = {name: entry for entry in reading.fragments for name in entry.operators}
    for unit in plan.units:
        for name in (operator.name for operator in unit.operators):
            compare(f"partitions of {name!r}", placed[name].partitions if name in placed else None, unit.partitions)
        for entry in unit.inputs if unit.partitions > 1 else ():
            compare(f"key of {entry.stream!r}", placed[unit.operators[0].name].key_of(entry.stream), entry.key)
    return differences
