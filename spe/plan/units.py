"""Cuts fragments into units: operators that share one SUnion, one state and one checkpoint (rule U1).

Pure: mistakes in partition keys are collected in a :class:`spe.problems.Problems`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spe.plan.graphs import stable_order
from spe.plan.lineage import key_names
from spe.plan.log_targets import Continuous
from spe.plan.plan import InputStream, Unit
from spe.problems import Path, Problems, did_you_mean, one_of
from spe.query.declaration import KeyNames
from spe.query.query import Query, QueryOperator
from spe.stream.names import NodeId, StreamId, UnitId
from spe.stream.times import SECOND

#: Default number of replicas of a partition.
DEFAULT_REPLICAS: Final = 2
#: Default time between two checkpoints of a passive replica.
CHECKPOINT_US: Final = 5 * SECOND
#: Default where it follows a checkpoint log: it then gets only changes.
LOG_US: Final = SECOND


@dataclass(frozen=True, slots=True)
class FragmentSpec:
    """A connected piece of the query that runs together.

    Attributes:
      operators: in any order.
      key: attributes whose hash divides the input among partitions: the same for all inputs, or per input stream.
      replicas: their number, placed over the nodes in turn; or the nodes of each partition.
      standbys: number or nodes of passive replicas; 0: none.
      checkpoint_us: microseconds of wall time between the checkpoints of standbys.
      log: checkpoint log in place of whole checkpoints; None: whole checkpoints.
    """

    name: str
    operators: tuple[StreamId, ...]
    partitions: int = 1
    key: tuple[str, ...] | Mapping[StreamId, tuple[str, ...]] | None = None
    replicas: int | tuple[tuple[NodeId, ...], ...] = DEFAULT_REPLICAS
    standbys: int | tuple[tuple[NodeId, ...], ...] = 0
    checkpoint_us: int = CHECKPOINT_US
    log: Continuous | None = None


@dataclass
class _Draft:
    """A unit while it is being cut."""

    fragment: FragmentSpec
    operators: list[QueryOperator]


def cut_units(query: Query, fragments: Sequence[FragmentSpec], problems: Problems) -> tuple[Unit, ...]:
    """Cuts fragments into units, in topological order (rule U1).

    All outputs of a unit are reached by the same fragment inputs, so they have one state.  An operator goes with the
    fragment outputs that it contributes to when those are all reached by the same inputs; an operator shared by
    outputs of different reach goes by its own, so that its failure-free half stays STABLE when the other does not.
    Rejected rows are an output of the unit of the operator that rejects them.
    """
    drafts: list[_Draft] = []
    for fragment in fragments:
        drafts += _cut(query, fragment)
    units = _finish(query, drafts, problems)
    _check_key_inputs(fragments, units, problems)
    return units


def _cut(query: Query, fragment: FragmentSpec) -> list[_Draft]:
    inside = [o for o in query.operators if o.name in set(fragment.operators)]
    names = {o.name for o in inside}
    leaving = {s for o in query.operators if o.name not in names for s in o.spec.inputs} | set(query.outputs)
    reach: dict[StreamId, frozenset[StreamId]] = {}
    for operator in inside:
        own: set[StreamId] = set()
        for stream in operator.spec.inputs:
            own |= reach[stream] if stream in names else {stream}
        reach[operator.name] = frozenset(own)
    serves: dict[StreamId, set[frozenset[StreamId]]] = {name: set() for name in names}
    for operator in reversed(inside):
        if operator.spec.TAKES_REJECTED:
            continue  # it goes to the unit of its input, and does not affect the choice of that unit
        if operator.name in leaving:
            serves[operator.name].add(reach[operator.name])
        for stream in operator.spec.inputs:
            if stream in names:
                serves[stream] |= serves[operator.name]
    groups: dict[frozenset[StreamId], _Draft] = {}
    for operator in inside:
        rejecting = operator.spec.TAKES_REJECTED and operator.spec.inputs[0] in names
        maker = operator.spec.inputs[0] if rejecting else operator.name
        cut = next(iter(serves[maker])) if len(serves[maker]) == 1 else reach[maker]
        groups.setdefault(cut, _Draft(fragment, [])).operators.append(operator)
    return list(groups.values())


def _finish(query: Query, drafts: Sequence[_Draft], problems: Problems) -> tuple[Unit, ...]:
    drafts = _in_order(drafts)
    count: dict[str, int] = {}
    for draft in drafts:
        count[draft.fragment.name] = count.get(draft.fragment.name, 0) + 1
    numbered: dict[str, int] = {}
    partitions = {o.name: d.fragment.partitions for d in drafts for o in d.operators}
    units: list[Unit] = []
    carried: dict[StreamId, KeyNames] = {}
    for draft in drafts:
        name = draft.fragment.name
        numbered[name] = numbered.get(name, 0) + 1
        id = name if count[name] == 1 else f"{name}.{numbered[name]}"
        own = {o.name for o in draft.operators}
        elsewhere = {s for o in query.operators if o.name not in own for s in o.spec.inputs} | set(query.outputs)
        inputs = []
        for stream in _inputs(draft, own):
            key = _key_of(query, draft, stream, problems)
            aligned = key is not None and _carries(carried.get(stream, ()), key)
            inputs.append(InputStream(stream, query.schema_of(stream), partitions.get(stream, 1), key, aligned))
        _check_key_types(draft, inputs, problems)
        unit = Unit(
            id=UnitId(id),
            fragment=name,
            inputs=tuple(inputs),
            operators=tuple(draft.operators),
            outputs=tuple(o.name for o in draft.operators if o.name in elsewhere),
            partitions=draft.fragment.partitions,
        )
        names = key_names(unit)
        carried |= {stream: names[stream] for stream in unit.outputs}
        units.append(unit)
    return tuple(units)


def _carries(names: KeyNames, key: tuple[str, ...]) -> bool:
    """Is a stream already divided by ``key``, given the names under which it carries its producer's key?"""
    return len(names) == len(key) and all(attribute in known for attribute, known in zip(key, names))


def _inputs(draft: _Draft, own: Iterable[StreamId]) -> list[StreamId]:
    """Streams from outside, in the order of their first use."""
    own = set(own)
    return list(dict.fromkeys(s for o in draft.operators for s in o.spec.inputs if s not in own))


def _in_order(drafts: Sequence[_Draft]) -> list[_Draft]:
    """Sorts drafts topologically.  A cycle of units would be a cycle of operators, since reach sets only grow."""
    home = {o.name: i for i, d in enumerate(drafts) for o in d.operators}
    graph = {
        i: [home[s] for o in d.operators for s in o.spec.inputs if s in home and home[s] != i]
        for i, d in enumerate(drafts)
    }
    order, circles = stable_order(graph)
    assert not circles, f"units in a circle: {circles}"
    return [drafts[i] for i in order]


def _key_of(query: Query, draft: _Draft, stream: StreamId, problems: Problems) -> tuple[str, ...] | None:
    fragment = draft.fragment
    if fragment.partitions == 1 and fragment.key is None:
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
    return key if fragment.partitions > 1 else None


def _check_key_inputs(fragments: Sequence[FragmentSpec], units: Sequence[Unit], problems: Problems) -> None:
    """Checks that keys name only streams that the fragment reads."""
    for fragment in fragments:
        inputs = [i.stream for u in units if u.fragment == fragment.name for i in u.inputs]
        for stream in fragment.key if isinstance(fragment.key, Mapping) else ():
            if stream not in inputs:
                problems.add(
                    ("fragments", fragment.name, "key", str(stream)),
                    f"{stream!r} is no input of the fragment{did_you_mean(stream, inputs)}; expected {one_of(inputs)}",
                )


def _check_key_types(draft: _Draft, inputs: Sequence[InputStream], problems: Problems) -> None:
    """Checks that keys of all inputs have the same types: the hash depends on type and position."""
    keyed = [i for i in inputs if i.key is not None]
    for other in keyed[1:]:
        first = keyed[0]
        types = [[i.schema[k].type for k in i.key or ()] for i in (first, other)]
        if types[0] != types[1]:
            shown = [f"{i.stream!r} by ({', '.join(t)})" for i, t in zip((first, other), types)]
            problems.add(
                ("fragments", draft.fragment.name, "key"),
                f"divides {' but '.join(shown)}; expected the same types in the same order",
            )
