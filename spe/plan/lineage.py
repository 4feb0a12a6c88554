"""Names of the attributes that hold the partition key in the streams of a unit."""

from __future__ import annotations

from spe.plan.plan import Unit
from spe.query.declaration import KeyNames
from spe.stream.names import StreamId


def key_names(unit: Unit) -> dict[StreamId, KeyNames]:
    """Names of the key per stream of a unit, inputs included."""
    names: dict[StreamId, KeyNames] = {i.stream: tuple(frozenset((k,)) for k in i.key or ()) for i in unit.inputs}
    for operator in unit.operators:
        made = operator.spec.key_names([names[s] for s in operator.spec.inputs])
        names[operator.name] = made if all(made) else ()
    return names
