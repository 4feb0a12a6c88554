"""The ``sources`` section: schema, time, reader and pace of each stream."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from spe.config.validate import validated
from spe.plan.generators import GENERATORS
from spe.plan.plan import ANY_ADDRESS, LIVE_KINDS, Source, Watermark
from spe.problems import Path, Problems, did_you_mean, one_of
from spe.stream.names import StreamId
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.times import MILLISECOND, SECOND
from spe.values import Address, Count, Length, Model, Moment, Positive, PositiveDuration, address_of, duration_of

#: Silence after which time passes in a live source all the same, unless told otherwise (rule S7).
IDLE_US: Final = 500 * MILLISECOND
#: A live source refuses event times further ahead of its clock than this, unless told otherwise (rule S5).
AHEAD_US: Final = 3_600 * SECOND


def _generator(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _columns(value: Any) -> dict[str, str | int]:
    if isinstance(value, dict) and all(isinstance(v, str | int) and not isinstance(v, bool) for v in value.values()):
        return {str(k): v for k, v in value.items()}
    raise ValueError(f"expected a mapping of attributes to columns of the file, got {value!r}")


def _texts(value: Any) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if isinstance(items, list | tuple) and all(isinstance(i, str) for i in items):
        return tuple(items)
    raise ValueError(f"expected a text or a list of texts, got {value!r}")


def _name(value: Any) -> str:
    if isinstance(value, str) and value in GENERATORS:
        return value
    hint = did_you_mean(str(value), GENERATORS)
    raise ValueError(f"no generator {value!r}{hint}; expected {one_of(list(GENERATORS))}")


class GeneratorModel(Model):
    """Made-up rows, the same for the same seed.  ``rate`` counts rows per second of event time."""

    name: Annotated[str, BeforeValidator(_name)]
    rate: Positive = 1000.0
    keys: Count | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    skew: Annotated[float, Field(ge=0, le=10)] | None = None
    disorder: Length = 0
    extremes: Annotated[float, Field(ge=0, le=1)] | None = None
    burst: PositiveDuration | None = None
    duration: PositiveDuration | None = None
    count: Count | None = None
    start: Moment | None = None

    @model_validator(mode="after")
    def _one_end(self) -> GeneratorModel:
        if self.duration is not None and self.count is not None:
            raise ValueError("expected duration or count, not both")
        if self.extremes is not None and self.name != "rows":
            raise ValueError("extremes goes with rows, which fills a schema of yours")
        return self

    def reader(self) -> dict[str, Any]:
        options = {k: v for k, v in self.model_dump(exclude={"name"}).items() if v is not None}
        return {"kind": "generator", "generator": self.name, **options}


class ReaderModel(Model):
    """Where rows come from: one of the kinds, and the options that go with it."""

    csv: str | None = None
    jsonl: str | None = None
    parquet: str | None = None
    generator: Annotated[GeneratorModel, BeforeValidator(_generator)] | None = None
    tcp: Annotated[str, BeforeValidator(address_of)] | None = None
    stdin: Literal[True] | None = None
    format: Literal["csv", "jsonl"] | None = None
    columns: Annotated[dict[str, str | int], BeforeValidator(_columns)] | None = None
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    quote: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    header: bool | None = None
    null: Annotated[tuple[str, ...], BeforeValidator(_texts)] | None = None
    timestamps: Literal["iso", "s", "ms", "us", "ns"] | None = None
    sort: str | None = None

    @model_validator(mode="after")
    def _fits(self) -> ReaderModel:
        kinds = [k for k in KINDS if getattr(self, k) is not None]
        if len(kinds) != 1:
            got = " and ".join(kinds) or "none"
            raise ValueError(f"expected exactly one of {', '.join(KINDS)}, got {got}")
        allowed = _OPTIONS[self.kind]
        stray = [o for o in _ALL_OPTIONS if getattr(self, o) is not None and o not in allowed]
        if stray:
            raise ValueError(f"{', '.join(stray)} does not go with {self.kind}; expected {one_of(allowed)}")
        if self.live and self.header is not None:
            raise ValueError(
                "header does not go with lines: their columns are in the order of the schema, or as columns says"
            )
        if self.live and self.format != "csv":
            stray = [o for o in ("delimiter", "quote", "null") if getattr(self, o) is not None]
            if stray:
                raise ValueError(f"{', '.join(stray)} does not go with format jsonl; expected format: csv")
        elif self.live or self.header is False:
            named = [f"{a}: {c}" for a, c in (self.columns or {}).items() if isinstance(c, str)]
            if named:
                raise ValueError(f"columns: there is no header for {', '.join(named)}; expected a number from 0")
        return self

    @property
    def kind(self) -> str:
        return next(k for k in KINDS if getattr(self, k) is not None)

    @property
    def live(self) -> bool:
        return self.kind in LIVE_KINDS

    def reader(self, data: FilePath) -> dict[str, Any]:
        """The dict of ``spe.plan.plan.Source.reader``; paths absolute, relative ones below ``data``."""
        if self.generator is not None:
            return self.generator.reader()
        out: dict[str, Any] = {"kind": self.kind}
        if self.kind in ("csv", "jsonl", "parquet"):
            out["path"] = str((data / FilePath(getattr(self, self.kind)).expanduser()).absolute())
        if self.tcp is not None:
            out["address"] = self.tcp
        if self.live:
            out["format"] = self.format or "jsonl"
        for option in _ALL_OPTIONS:
            value = getattr(self, option)
            if value is not None and option != "format":
                out[option] = list(value) if option == "null" else value
        return out


KINDS: Final = ("csv", "jsonl", "parquet", "generator", "tcp", "stdin")
_CELLS: Final = ["columns", "delimiter", "quote", "header", "null", "timestamps"]
_OPTIONS: Final[Mapping[str, list[str]]] = {
    "csv": _CELLS,
    "jsonl": ["columns", "timestamps"],
    "parquet": ["columns", "timestamps", "sort"],
    "generator": [],
    "tcp": ["format", *_CELLS],
    "stdin": ["format", *_CELLS],
}
_ALL_OPTIONS: Final = ("format", *_CELLS, "sort")


class ReplayModel(Model):
    """Pace of files and generators: at ``speed`` times their own, at ``rate`` rows a second, or as fast as it goes."""

    speed: Positive | None = None
    rate: Positive | None = None
    max: Literal[True] | None = None
    origin: Moment | None = None

    @model_validator(mode="after")
    def _one_pace(self) -> ReplayModel:
        given = [k for k in ("speed", "rate", "max") if getattr(self, k) is not None]
        if len(given) > 1:
            raise ValueError(f"expected one of speed, rate, max, got {' and '.join(given)}")
        if self.origin is not None and (self.rate is not None or self.max):
            raise ValueError("origin goes with speed: it is the event time at which the replay begins")
        return self

    def pace(self) -> dict[str, Any]:
        by_speed = self.rate is None and not self.max
        out: dict[str, Any] = {
            "speed": (self.speed or 1.0) if by_speed else None,
            "rate": self.rate,
            "max": bool(self.max),
        }
        return out if self.origin is None else {**out, "origin_us": self.origin}


class IdleModel(Model):
    """When a live source counts as silent; None: never.  Then time goes on from where it stood, or from the present."""

    after: PositiveDuration | None
    then: Literal["now"] | None = None


def _idle(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value
    if value == "never":
        return {"after": None}
    try:
        _ = duration_of(value)
    except ValueError:
        raise ValueError(f"expected a duration such as 5s, {{after: 5s, then: now}} or never, got {value!r}") from None
    return {"after": value}


class SourceModel(Model):
    """One source."""

    schema_: dict[str, str] | None = Field(default=None, alias="schema")
    time: str | None = None
    disorder: Length | None = None
    boundary: PositiveDuration = 100 * MILLISECOND
    from_: ReaderModel = Field(alias="from")
    replay: ReplayModel = Field(default_factory=ReplayModel)
    on_malformed: Literal["skip", "stop"] = "skip"
    address: Address = ANY_ADDRESS
    ahead: PositiveDuration | None = None
    watermark: Literal["data", "clock"] | None = None
    idle: Annotated[IdleModel, BeforeValidator(_idle)] | None = None


def read_schema(written: Mapping[str, str], path: Path, problems: Problems) -> Schema | None:
    """``{ts: timestamp!, n: int64}``: a trailing ``!`` means never null."""
    attributes = []
    for name, text in written.items():
        kind = text.removesuffix("!")
        if kind not in list(AttributeType):
            hint = did_you_mean(kind, [*AttributeType])
            problems.add(
                (*path, name), f"no type {text!r}{hint}; expected {one_of([*AttributeType])}, with ! if not null"
            )
            continue
        attributes.append(Attribute(name, AttributeType(kind), nullable=not text.endswith("!")))
    if not written:
        problems.add(path, "expected at least one attribute")
    return Schema(tuple(attributes)) if written and len(attributes) == len(written) else None


def read_source(
    name: str, entry: Any, path: Path, data: FilePath, problems: Problems
) -> tuple[Source | None, Schema | None]:
    """The source and its schema; each None where it is not known for a mistake."""
    model = validated(SourceModel, entry, path, problems)
    if model is None:
        return None, _schema_alone(entry, path, problems)
    schema = _schema(model, path, problems)
    if schema is None:
        return None, None
    of_its_own = model.from_.generator is not None and GENERATORS[model.from_.generator.name].schema is not None
    time = model.time or ("ts" if of_its_own else None)
    if time is not None or not model.from_.live:
        _check_time(time, schema, (*path, "time"), problems)
    disorder = model.disorder
    if disorder is None:
        disorder = model.from_.generator.disorder if model.from_.generator is not None else 0
    if model.from_.live and "replay" in model.model_fields_set:
        problems.add((*path, "replay"), f"{model.from_.kind} is live and has its own pace; expected no replay")
    for attribute in model.from_.columns or {}:
        if attribute not in schema:
            hint = did_you_mean(attribute, schema.names)
            where = (*path, "from", "columns", attribute)
            problems.add(where, f"no attribute {attribute!r}{hint}; expected {one_of(schema.names)}")
    ahead = model.ahead if model.ahead is not None or not model.from_.live else AHEAD_US
    source = Source(
        stream=StreamId(name),
        schema=schema,
        address=model.address,
        boundary_us=model.boundary,
        disorder_us=disorder,
        ahead_us=ahead,
        time=time,
        reader=model.from_.reader(data),
        replay=model.replay.pace(),
        on_malformed=model.on_malformed,
        disorder_given=model.disorder is not None,
        **_watermark(model, path, problems),
    )
    return source, schema


def _watermark(model: SourceModel, path: Path, problems: Problems) -> dict[str, Any]:
    """What lets time pass in a live source (rule S7)."""
    given = [k for k in ("watermark", "idle") if getattr(model, k) is not None]
    if not model.from_.live:
        for key in given:
            problems.add((*path, key), f"{model.from_.kind} is replayed and knows its next row; expected no {key}")
        return {}
    by = Watermark(model.watermark or ("clock" if model.time is None else "data"))
    if by is Watermark.DATA and model.time is None:
        expected = "time: ATTRIBUTE, or watermark: clock"
        problems.add((*path, "watermark"), f"rows are stamped when they come, so there is no data; expected {expected}")
    if by is Watermark.CLOCK:
        if model.idle is not None:
            problems.add((*path, "idle"), "by the clock time passes whether rows come or not; expected no idle")
        return {"watermark": by}
    if model.idle is None:
        return {"watermark": by, "idle_us": IDLE_US}
    return {"watermark": by, "idle_us": model.idle.after, "idle_to_now": model.idle.then == "now"}


def _schema(model: SourceModel, path: Path, problems: Problems) -> Schema | None:
    generator = model.from_.generator
    made = None if generator is None else GENERATORS[generator.name].schema
    if made is None and model.schema_ is None:
        problems.add((*path, "schema"), "is missing; expected the attributes, {ts: timestamp!, n: int64, …}")
        return None
    schema = None if model.schema_ is None else read_schema(model.schema_, (*path, "schema"), problems)
    if generator is None or made is None:
        return schema
    if schema is not None and schema != made:
        problems.add((*path, "schema"), f"the generator {generator.name!r} makes ({made}); expected this, or no schema")
    return made


def _schema_alone(entry: Any, path: Path, problems: Problems) -> Schema | None:
    """The schema of a source that is wrong otherwise, so that what reads it can be judged all the same."""
    written = entry.get("schema") if isinstance(entry, Mapping) else None
    if not isinstance(written, Mapping) or not written or not all(isinstance(t, str) for t in written.values()):
        return None
    schema = read_schema(written, (*path, "schema"), problems)
    if schema is not None and isinstance(entry.get("time"), str):
        _check_time(entry["time"], schema, (*path, "time"), problems)
    return schema


def _check_time(time: str | None, schema: Schema, path: Path, problems: Problems) -> None:
    stamps = [a.name for a in schema if a.type is AttributeType.TIMESTAMP]
    if time is None:
        problems.add(path, f"is missing; a replayed stream needs its event time, expected {one_of(stamps)}")
    elif time not in schema:
        hint = did_you_mean(time, schema.names)
        problems.add(path, f"no attribute {time!r}{hint}; expected a timestamp, {one_of(stamps)}")
    elif time not in stamps:
        problems.add(path, f"{time!r} is {schema[time].type}; expected a timestamp, {one_of(stamps)}")
