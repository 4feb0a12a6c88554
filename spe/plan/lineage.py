"""Where the partition key goes on its way through a unit: which attributes still hold it, under which names."""

from __future__ import annotations

from typing import Final

from spe.plan.plan import Unit
from spe.query.query import (
    AggregateSpec,
    FilterSpec,
    JoinKind,
    JoinSpec,
    MapSpec,
    OperatorSpec,
    TopKSpec,
    UnionSpec,
    inputs_of,
)
from spe.stream.names import StreamId

#: Per key attribute, the names under which a stream carries it, or, of a full join, the calls of coalesce that give it
#: (as :func:`written`); empty: it does not carry the whole key.
KeyNames = tuple[frozenset[str], ...]


_COALESCE: Final = "coalesce("


def written(expression: str) -> str:
    """An expression without its white space, if that is all that can differ: a name, or coalesce of names."""
    text = "".join(expression.split())
    return _COALESCE + text[len(_COALESCE) :] if text.lower().startswith(_COALESCE) else text


def key_names(unit: Unit) -> dict[StreamId, KeyNames]:
    """Names of the key per stream of a unit, inputs included."""
    names: dict[StreamId, KeyNames] = {i.stream: tuple(frozenset((k,)) for k in i.key or ()) for i in unit.inputs}
    for operator in unit.operators:
        made = _through(operator.spec, [names[s] for s in inputs_of(operator.spec)])
        names[operator.name] = made if all(made) else ()
    return names


def _through(spec: OperatorSpec, inputs: list[KeyNames]) -> KeyNames:
    if isinstance(spec, FilterSpec | TopKSpec):
        return inputs[0]
    if isinstance(spec, MapSpec):
        return tuple(_renamed(k, spec.columns, spec.keep) for k in inputs[0])
    if isinstance(spec, AggregateSpec):
        return tuple(_renamed(k, spec.group_by, False) for k in inputs[0])
    if isinstance(spec, UnionSpec):
        return tuple(frozenset.intersection(*ks) for ks in zip(*inputs)) if all(inputs) else ()
    if isinstance(spec, JoinSpec):
        return _joined(spec, inputs)
    return ()


def _renamed(names: frozenset[str], columns: dict[str, str] | object, keep: bool) -> frozenset[str]:
    assert isinstance(columns, dict)
    return frozenset(n for n, text in columns.items() if written(text) in names) | (
        names - columns.keys() if keep else frozenset()
    )


def _joined(spec: JoinSpec, inputs: list[KeyNames]) -> KeyNames:
    """An outer row has null on its other side, so only sides that are always there carry the key.

    Each side has the values of its own rows.  Those of both may be mixed where the join makes them equal.
    """
    if spec.kind is JoinKind.FULL:
        return _coalesced(spec, inputs)
    sides = []
    if spec.kind in (JoinKind.INNER, JoinKind.LEFT):
        sides.append((spec.prefix[0], inputs[0]))
    if spec.kind in (JoinKind.INNER, JoinKind.RIGHT):
        sides.append((spec.prefix[1], inputs[1]))
    if not sides or not all(names for _, names in sides):
        return ()
    if len(sides[0][1]) > 1 and not _equated(spec, inputs):
        sides = sides[:1]
    return tuple(
        frozenset(prefix + n for (prefix, _), ks in zip(sides, per_key) for n in ks)
        for per_key in zip(*[names for _, names in sides])
    )


def _coalesced(spec: JoinSpec, inputs: list[KeyNames]) -> KeyNames:
    """Of a row of a full join one side may be null, and only the first that is not has the key."""
    if not all(inputs) or not _equated(spec, inputs):
        return ()
    one, other = spec.prefix
    both = [[(one + a, other + b) for a in x for b in y] for x, y in zip(*inputs)]
    return tuple(frozenset(f"coalesce({a},{b})" for pair in pairs for a, b in (pair, pair[::-1])) for pairs in both)


def _equated(spec: JoinSpec, inputs: list[KeyNames]) -> bool:
    """Does the join ask each attribute of the key to be the same on both sides?"""
    return all(any(a in x and b in y for a, b in spec.on) for x, y in zip(*inputs))
