"""Map: attributes computed from those of the same tuple."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import Field

from spe.errors import QueryError
from spe.query.declaration import (
    Expression,
    From,
    Guarantee,
    KeyNames,
    Keys,
    Logged,
    OneInput,
    OnError,
    OnErrorKey,
    Traits,
    computed,
    named,
    renamed,
    unique,
)
from spe.stream.names import StreamId
from spe.stream.schema import Schema


class MapKeys(Keys):
    """Computes attributes; ``keep: true`` keeps the input's before them."""

    from_: From
    compute: dict[str, Expression] = Field(description="expression by the attribute that it makes")
    keep: bool = Field(default=False, description="the input's attributes come first; without it they are dropped")
    on_error: OnErrorKey = "stop"


@dataclass(frozen=True, slots=True)
class MapSpec(OneInput):
    """New attributes from expressions.  ``{name: expression}`` in output order; the input's others are dropped,
    unless ``keep`` is set: then they come first."""

    KEYWORD = "map"
    KEYS = MapKeys
    GUARANTEES = (Guarantee("", "the tuple's", "the tuples'"),)
    ENTRIES: ClassVar = {"columns": "compute"}
    only_adds = True
    reach_us = 0

    input: StreamId
    columns: Mapping[str, str]
    keep: bool = False
    on_error: OnError = field(default=OnError.STOP, repr=False)

    def output_schema(self, inputs: Sequence[Schema]) -> Schema:
        if not self.columns and not self.keep:
            raise QueryError("columns", "expected at least one attribute")
        own = inputs[0].attributes if self.keep else ()
        made = [computed(text, inputs[0], name) for name, text in self.columns.items()]
        return unique([*own, *made], "give the new one another name")

    def described(self) -> str:
        made = ", ".join(named(name, text) for name, text in self.columns.items())
        return f"{self.input}: {'*, ' if self.keep else ''}{made}"

    @property
    def logged(self) -> Logged:
        return Logged.NOTHING

    def key_names(self, inputs: Sequence[KeyNames]) -> KeyNames:
        return tuple(renamed(k, self.columns, self.keep) for k in inputs[0])

    def traits(self, inner: Traits) -> Traits:
        return Traits(in_step=inner.in_step)
