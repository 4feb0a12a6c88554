"""The reader of generated rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, model_validator

from spe.connectors.declaration import Brought, Guarantees, Reader, shorthand
from spe.plan.generators import GENERATORS
from spe.problems import did_you_mean, one_of
from spe.stream.times import format_duration
from spe.values import Count, Length, Model, Moment, Positive, PositiveDuration


def _name(value: Any) -> str:
    if isinstance(value, str) and value in GENERATORS:
        return value
    hint = did_you_mean(str(value), GENERATORS)
    raise ValueError(f"no generator {value!r}{hint}; expected {one_of(list(GENERATORS))}")


class GeneratorKeys(Model):
    """Made-up rows, the same for the same seed."""

    name: Annotated[str, BeforeValidator(_name)] = Field(description="one of [these](configuration.md#sources)")
    rate: Positive = Field(default=1000.0, description="rows per second of event time")
    keys: Count | None = Field(default=None, description="how many distinct keys")
    seed: Annotated[int, Field(ge=0)] = Field(default=0, description="equal seeds give equal rows")
    skew: Annotated[float, Field(ge=0, le=10)] | None = Field(default=None, description="Zipf exponent of the keys")
    drift: PositiveDuration | None = Field(
        default=None, description="event time after which other keys are the frequent ones"
    )
    disorder: Length = Field(default=0, description="how far event times may be out of order")
    extremes: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None,
        description="of `rows`: share of the cells that are null, where that may be, or at the end of their type",
    )
    burst: PositiveDuration | None = Field(
        default=None, description="what would come in this time comes in the first quarter of it"
    )
    duration: PositiveDuration | None = Field(default=None, description="event time after which it ends")
    count: Count | None = Field(default=None, description="rows after which it ends")
    start: Moment | None = Field(default=None, description="event time of the first row; none: the start of the run")

    @model_validator(mode="after")
    def _one_end(self) -> GeneratorKeys:
        if self.duration is not None and self.count is not None:
            raise ValueError("expected duration or count, not both")
        if self.extremes is not None and self.name != "rows":
            raise ValueError("extremes goes with rows, which fills a schema of yours")
        if self.drift is not None and self.name in ("sequence", "incidents"):
            raise ValueError(f"drift goes with keys that follow skew; those of {self.name} do not")
        return self


@dataclass(frozen=True)
class Generated(Reader):
    """Generates rows from the options."""

    def brought(self, value: GeneratorKeys) -> Brought:
        schema = GENERATORS[value.name].schema
        time = None if schema is None else "ts"
        return Brought(f"the generator {value.name!r}", schema, time, value.disorder)

    def reader(self, value: GeneratorKeys, data: Path) -> dict[str, Any]:
        options = {k: v for k, v in value.model_dump(exclude={"name"}).items() if v is not None}
        return {"generator": value.name, **options}

    def describe(self, reader: Mapping[str, Any]) -> str:
        text = f"generator {reader['generator']}, {reader['rate']:g} rows/s"
        if reader.get("duration") is not None:
            text += f" for {format_duration(int(reader['duration']))}"
        return f"{text}, {reader['count']} rows" if reader.get("count") is not None else text


GENERATOR: Final = Generated(
    "generator",
    Annotated[GeneratorKeys, shorthand("name")],
    "{name: …}",
    "made-up rows, equal for equal seeds",
    guarantees=Guarantees(
        durable="needs none: any row can be made again; the source's log has those that are published",
        own_crash="goes on behind the last row of the log",
        other_crash="there is no other side",
        failures={"the log is lost": "consumers refuse the new one: its ids mean other rows"},
    ),
    opens="replicas.connectors.generator:GeneratorReplay",
    example="from: {generator: {name: rows, rate: 500, keys: 50, duration: 30s}}",
)
