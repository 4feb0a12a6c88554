"""Which units can write a checkpoint log, and where to cut a fragment whose units cannot (rule G4).  Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from spe.plan.directory import Directory
from spe.plan.plan import Plan, Unit
from spe.problems import Path
from spe.query.declaration import Logged
from spe.query.query import QueryOperator
from spe.stream.names import StreamId


class LogUse(NamedTuple):
    """How a checkpoint log would hold the state of a unit.

    Attributes:
      holders: operators with state.
      on_one_path: two holders of which the second is downstream of the first; None: there are none, and the unit can
        write a log.
      whole: holders whose state is one record.
      cut: operators of the fragments into which to cut this one so that each can write a log; one if it already can.
    """

    holders: tuple[QueryOperator, ...]
    on_one_path: tuple[QueryOperator, QueryOperator] | None
    whole: tuple[QueryOperator, ...]
    cut: tuple[tuple[StreamId, ...], ...]


def log_use(plan: Plan, unit: Unit) -> LogUse:
    holders = tuple(o for o in unit.operators if o.spec.logged is not Logged.NOTHING)
    return LogUse(
        holders,
        _on_one_path(unit.operators),
        tuple(o for o in holders if o.spec.logged is Logged.WHOLE),
        _cut([o for u in plan.units if u.fragment == unit.fragment for o in u.operators]),
    )


def logged_fragments(plan: Plan, directory: Directory) -> set[str]:
    """Names of the fragments that write a log."""
    return {plan.unit[id.unit].fragment for id in directory.logs}


def _on_one_path(operators: Sequence[QueryOperator]) -> tuple[QueryOperator, QueryOperator] | None:
    """Returns the first operator with state behind another one, and the last such operator before it.

    Args:
      operators: the operators of a unit, in topological order.
    """
    before: dict[StreamId, QueryOperator] = {}
    for operator in operators:
        holder = next((before[s] for s in operator.spec.inputs if s in before), None)
        if operator.spec.logged is not Logged.NOTHING:
            if holder is not None:
                return holder, operator
            holder = operator
        if holder is not None:
            before[operator.name] = holder
    return None


def _cut(operators: Sequence[QueryOperator]) -> tuple[tuple[StreamId, ...], ...]:
    """Groups operators by the number of operators with state on the longest path to them, themselves included."""
    depth: dict[StreamId, int] = {}
    for operator in operators:
        has_state = operator.spec.logged is not Logged.NOTHING
        depth[operator.name] = max((depth.get(s, 0) for s in operator.spec.inputs), default=0) + has_state
    parts: dict[int, list[StreamId]] = {}
    for name, count in depth.items():
        parts.setdefault(max(count, 1), []).append(name)
    return tuple(tuple(names) for _, names in sorted(parts.items()))


def show_cut(fragment: str, cut: Sequence[Sequence[StreamId]]) -> str:
    """Formats a cut as configuration: ``fragments: {f: {operators: [a, b]}, f_2: {operators: [c]}}``."""
    names = [fragment, *(f"{fragment}_{i}" for i in range(2, len(cut) + 1))]
    parts = ", ".join(f"{name}: {{operators: [{', '.join(part)}]}}" for name, part in zip(names, cut))
    return f"fragments: {{{parts}}}"


def mistakes(plan: Plan, logged: set[str]) -> Iterator[tuple[Path, str]]:
    """Finds fragments that are to write a log and cannot.

    Args:
      logged: names of these fragments.
    """
    for unit in plan.units:
        use = log_use(plan, unit)
        if unit.fragment not in logged or use.on_one_path is None:
            continue
        first, second = use.on_one_path
        yield (
            ("fragments", unit.fragment, "checkpoint", "continuous"),
            f"{first.name!r} and {second.name!r} of unit {unit.id!r} both have state, one behind the other: a log "
            f"cannot say what the first gave the second; expected {show_cut(unit.fragment, use.cut)}, or "
            "checkpoint: {continuous: false} for this fragment",
        )


def hints(plan: Plan, logged: set[str]) -> Iterator[tuple[Path, str]]:
    """Finds operators whose log costs as much as whole checkpoints."""
    for unit in plan.units:
        for operator in log_use(plan, unit).whole if unit.fragment in logged else ():
            yield (
                ("query", str(operator.name)),
                f"the log holds all its state as one record, written again as a whole like a checkpoint: {_HELP}",
            )


_HELP = "an aggregate, or a KeyedOperator, in its place would be written by group"


def log_lines(plan: Plan, directory: Directory) -> list[list[str]]:
    """A row per unit: its name, whether it writes a log, and the log's contents or why there can be none."""
    logged = logged_fragments(plan, directory)
    rows = []
    for unit in plan.units:
        use = log_use(plan, unit)
        writes = "writes one" if unit.fragment in logged else "could write one"
        if use.on_one_path is not None:
            first, second = use.on_one_path
            why = f"{second.name} has state and is behind {first.name}; cut: {show_cut(unit.fragment, use.cut)}"
            rows.append([str(unit.id), "cannot", why])
        else:
            held = ", ".join(f"{o.name} {_HELD[o.spec.logged]}" for o in use.holders)
            rows.append([str(unit.id), writes, held or "no state"])
    return rows


_HELD = {
    Logged.CELLS: "by group",
    Logged.ROWS: "by replay of the rows that it keeps",
    Logged.WHOLE: f"as a whole: {_HELP}",
}
