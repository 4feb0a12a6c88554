"""Generated streams: their names, schemas and options.  A pure table; replicas.connectors.generator makes the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from spe.stream.schema import Schema


@dataclass(frozen=True, slots=True)
class Generator:
    """A generated stream: its schema and the defaults of its options.

    Attributes:
      schema: the first attribute, ``ts``, is the event time; None: the schema of its source.
      about: one line for the documentation.
      keys: number of distinct keys by default; 0: no keys.
      skew: Zipf exponent of the keys by default; 0: all equally often.
    """

    schema: Schema | None
    about: str
    keys: int = 0
    skew: float = 0.0


GENERATORS: Final[Mapping[str, Generator]] = MappingProxyType(
    {
        "sequence": Generator(
            Schema.of(ts="timestamp!", n="int64!", value="float64!"),
            "n = 0, 1, 2, … and a uniform value in [0, 1)",
        ),
        "orders": Generator(
            Schema.of(ts="timestamp!", key="int64!", price="float64!", qty="int64!"),
            "orders of `keys` products: price in whole cents, 1 to 10 pieces",
            keys=100,
        ),
        "readings": Generator(
            Schema.of(ts="timestamp!", sensor="int64!", value="float64"),
            "readings of `keys` sensors around a level of their own; one in a hundred is null",
            keys=100,
        ),
        "pages": Generator(
            Schema.of(ts="timestamp!", url="string!", client="string!"),
            "requests for `keys` pages, the first ones most often (Zipf), by some hundreds of clients",
            keys=1000,
            skew=1.0,
        ),
        "locations": Generator(
            Schema.of(ts="timestamp!", user="int64!", segment="int64!", speed="float64!"),
            "cars on `keys` road segments, the first ones busiest (Zipf); where an incident is, they crawl",
            keys=1000,
            skew=0.5,
        ),
        "incidents": Generator(
            Schema.of(ts="timestamp!", segment="int64!", reporter="int64!"),
            "reports of the incidents that `locations` of as many segments drives into; one in ten is false",
            keys=1000,
        ),
        "rows": Generator(None, "rows of the source's own schema: `keys` values of each attribute", keys=20),
    }
)
