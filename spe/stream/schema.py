"""Attribute types and schemas: fixed when the configuration is read, and checked wherever tuples enter."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np


class AttributeType(enum.StrEnum):
    """The five attribute types.  A timestamp is int64 microseconds since the epoch, UTC."""

    INT64 = "int64"
    FLOAT64 = "float64"
    BOOL = "bool"
    STRING = "string"
    TIMESTAMP = "timestamp"

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of a column's ``values``; strings are int32 codes into the column's dictionary."""
        return _DTYPES[self]

    @property
    def is_numeric(self) -> bool:
        return self in (AttributeType.INT64, AttributeType.FLOAT64)


_DTYPES: dict[AttributeType, np.dtype[Any]] = {
    AttributeType.INT64: np.dtype(np.int64),
    AttributeType.FLOAT64: np.dtype(np.float64),
    AttributeType.BOOL: np.dtype(np.bool_),
    AttributeType.STRING: np.dtype(np.int32),
    AttributeType.TIMESTAMP: np.dtype(np.int64),
}


@dataclass(frozen=True, slots=True)
class Attribute:
    """One named, typed attribute of a stream's tuples."""

    name: str
    type: AttributeType
    nullable: bool = True

    def __str__(self) -> str:
        return f"{self.name} {self.type}{'' if self.nullable else ' not null'}"


@dataclass(frozen=True)
class Schema:
    """The attributes of a stream, in order.  Names are unique and case-sensitive."""

    attributes: tuple[Attribute, ...]

    def __post_init__(self) -> None:
        names = [a.name for a in self.attributes]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"attribute {twice[0]!r} is defined twice")

    @classmethod
    def of(cls, **types: str) -> Schema:
        """``Schema.of(ts="timestamp", n="int64!")``: a trailing ``!`` means not null."""
        return cls(
            tuple(
                Attribute(name, AttributeType(text.rstrip("!")), nullable=not text.endswith("!"))
                for name, text in types.items()
            )
        )

    @cached_property
    def _index(self) -> dict[str, int]:
        return {a.name: i for i, a in enumerate(self.attributes)}

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.attributes)

    def __len__(self) -> int:
        return len(self.attributes)

    def __iter__(self) -> Iterator[Attribute]:
        return iter(self.attributes)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def __getitem__(self, name: str) -> Attribute:
        """Returns an attribute.  Raises KeyError with the existing names."""
        return self.attributes[self.index(name)]

    def index(self, name: str) -> int:
        """Position of an attribute.  Raises KeyError with the existing names."""
        try:
            return self._index[name]
        except KeyError:
            raise KeyError(f"no attribute {name!r}; there are: {', '.join(self.names) or '(none)'}") from None

    def select(self, names: Sequence[str]) -> Schema:
        return Schema(tuple(self[n] for n in names))

    def __str__(self) -> str:
        return ", ".join(str(a) for a in self.attributes)

    def to_wire(self) -> list[list[Any]]:
        return [[a.name, a.type.value, a.nullable] for a in self.attributes]
