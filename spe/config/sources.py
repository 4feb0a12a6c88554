"""The ``sources`` section: schema, time, reader and pace of each stream."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field, create_model, model_validator

from spe.config.clients import SinkModel
from spe.config.connectors import with_installed
from spe.config.retention import RetainModel
from spe.config.validate import validated
from spe.connectors import READERS, find_reader
from spe.connectors.declaration import OPTIONS, Reader
from spe.connectors.installed_connectors import READERS_GROUP
from spe.plan.directory import ANY_ADDRESS
from spe.plan.plan import Source, Watermark
from spe.problems import Path, Problems, did_you_mean, one_of
from spe.stream.names import StreamId
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.times import MILLISECOND, SECOND
from spe.values import Address, Length, Model, Moment, Positive, PositiveDuration, duration_of

#: Default of the silence after which time passes in a live source without rows (rule S7).
IDLE_US: Final = 500 * MILLISECOND
#: Default of the distance ahead of its clock from which a live source refuses event times (rule S5).
AHEAD_US: Final = 3_600 * SECOND


class ReaderKeys(Model):
    """The reader of a source: one of the kinds, and its options."""

    READERS: ClassVar[Mapping[str, Reader]] = READERS

    @model_validator(mode="after")
    def _fits(self) -> ReaderKeys:
        kinds = [k for k in self.READERS if getattr(self, k) is not None]
        if len(kinds) != 1:
            got = " and ".join(kinds) or "none"
            raise ValueError(f"expected exactly one of {', '.join(self.READERS)}, got {got}")
        self.declared.check(self.given)
        self.declared.fits(self.value, self.given)
        return self

    @property
    def declared(self) -> Reader:
        return next(reader for kind, reader in self.READERS.items() if getattr(self, kind) is not None)

    @property
    def value(self) -> Any:
        """The value of the kind's key."""
        return getattr(self, self.declared.kind)

    @property
    def given(self) -> dict[str, Any]:
        """The options that are set."""
        return {o: getattr(self, o) for o in OPTIONS if getattr(self, o) is not None}

    def reader(self, data: FilePath) -> dict[str, Any]:
        """Returns the dict for ``spe.plan.plan.Source.reader``; paths become absolute, relative to ``data``."""
        options = {name: list(value) if isinstance(value, tuple) else value for name, value in self.given.items()}
        of_the_kind = self.declared.reader(self.value, data)
        return {"kind": self.declared.kind, **of_the_kind, **self.declared.defaults, **options}


if TYPE_CHECKING:
    ReaderModel = ReaderKeys
else:
    _types = {
        **{kind: reader.value for kind, reader in READERS.items()},
        **{name: option[0] for name, option in OPTIONS.items()},
    }
    ReaderModel = create_model("ReaderModel", __base__=ReaderKeys, **{k: (t | None, None) for k, t in _types.items()})


class ReplayModel(Model):
    """Pace of files and generators: ``speed`` times their own, ``rate`` rows a second, or at full speed."""

    speed: Positive | None = None
    rate: Positive | None = None
    max: Literal[True] | None = None
    origin: Moment | None = None

    @model_validator(mode="after")
    def _one_pace(self) -> ReplayModel:
        paces = [k for k in ("speed", "rate", "max") if getattr(self, k) is not None]
        if len(paces) > 1:
            raise ValueError(f"expected one of speed, rate, max, got {' and '.join(paces)}")
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
    """When a live source counts as silent; None: never.  Its time then continues from its last value, or from now."""

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
    """One source.

    Attributes:
      schema: attribute → `int64`, `float64`, `bool`, `string`, `timestamp`; a trailing `!`: never null.
        Default: required, except for generators that bring one.
      time: the attribute with the event time; live sources without it use the time of arrival.
        Default: required for files and `rows`.
      disorder: how far an event time may lie behind the largest before; later rows are late.
        Default: `0`, or the generator's.
      boundary: a boundary at least every this much tuple time.
      from: the reader.
      replay: files and generators: `{speed: 60}`, `{rate: 1000}`, `{max: true}`; with a speed, `origin: TIMESTAMP`.
        Default: `{speed: 1}`.
      on_malformed: or `stop`; skipped rows are counted and kept.
      address: where the source listens. Default: any free port.
      ahead: refuses event times further ahead of the clock. Default: `1h` for live sources.
      watermark: what advances the time of live sources. Default: `data`; without `time`, `clock`.
      idle: live sources by data: when a silence begins; also `{after: 5s, then: now}`, `never`.
        Default: `500ms`; of `push`, `never`.
      late: a [sink](#clients) for late rows, such as `{jsonl: late}`: [more](../explanation/live.md#late-rows).
        Default: none.
      rejected: a sink for rows that cannot be read, or `ahead` refuses: [more](../explanation/live.md#rejected-rows).
        Default: none.
      retain: how long [its log is kept](../how-to/operate.md#keep-logs-small). Default: for ever.
    """

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
    retain: RetainModel | None = None
    late: SinkModel | None = None
    rejected: SinkModel | None = None


@cache
def _source_model(kinds: frozenset[str]) -> type[SourceModel]:
    """Returns the model of a source that may have these readers."""
    if kinds <= READERS.keys():
        return SourceModel
    names = [*READERS, *sorted(kinds - READERS.keys())]
    readers = {kind: reader for kind in names if (reader := find_reader(kind)) is not None}
    others: Any = {kind: (reader.value | None, None) for kind, reader in readers.items() if kind not in READERS}
    model = create_model("ReaderModel", __base__=ReaderModel, **others)
    model.READERS = readers
    return create_model("SourceModel", __base__=SourceModel, from_=(model, Field(alias="from")))


def read_schema(written: Mapping[str, str], path: Path, problems: Problems) -> Schema | None:
    """Reads ``{ts: timestamp!, n: int64}``: a trailing ``!`` means never null."""
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
) -> tuple[Source | None, Schema | None, str]:
    """Reads a source; returns it, its schema and its address, each None or "" if unknown because of a mistake."""
    written = entry.get("from") if isinstance(entry, Mapping) else None
    known = with_installed("reader", written, READERS, OPTIONS, READERS_GROUP, find_reader, (*path, "from"), problems)
    model = None if known is None else validated(_source_model(frozenset(known)), entry, path, problems)
    if model is None:
        return None, _schema_alone(entry, path, problems), ""
    schema = _schema(model, path, problems)
    if schema is None:
        return None, None, ""
    declared, brought = model.from_.declared, model.from_.declared.brought(model.from_.value)
    time = model.time or brought.time
    if time is not None or not declared.live:
        _check_time(time, schema, (*path, "time"), problems)
    if declared.live and "replay" in model.model_fields_set:
        problems.add((*path, "replay"), f"{declared.kind} is live and has its own pace; expected no replay")
    _check_own_sinks(model, time, path, problems)
    _check_columns(model.from_.given.get("columns", {}), schema, (*path, "from", "columns"), problems)
    ahead = model.ahead if model.ahead is not None or not declared.live else AHEAD_US
    source = Source(
        stream=StreamId(name),
        schema=schema,
        boundary_us=model.boundary,
        disorder_us=brought.disorder_us if model.disorder is None else model.disorder,
        ahead_us=ahead,
        time=time,
        reader=model.from_.reader(data),
        replay=model.replay.pace(),
        on_malformed=model.on_malformed,
        disorder_given=model.disorder is not None,
        retain=None if model.retain is None else model.retain.retain(data),
        late=None if model.late is None else model.late.sink(),
        rejected=None if model.rejected is None else model.rejected.sink(),
        **_watermark(model, path, problems),
    )
    return source, schema, model.address


def _watermark(model: SourceModel, path: Path, problems: Problems) -> dict[str, Any]:
    """Reads the settings of a live source's clock (rule S7)."""
    settings = [k for k in ("watermark", "idle") if getattr(model, k) is not None]
    if not model.from_.declared.live:
        for key in settings:
            kind = model.from_.declared.kind
            problems.add((*path, key), f"{kind} is replayed and knows its next row; expected no {key}")
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
        return {"watermark": by, "idle_us": None if model.from_.declared.batches else IDLE_US}
    return {"watermark": by, "idle_us": model.idle.after, "idle_to_now": model.idle.then == "now"}


def _schema(model: SourceModel, path: Path, problems: Problems) -> Schema | None:
    brought = model.from_.declared.brought(model.from_.value)
    made = brought.schema
    if made is None and model.schema_ is None:
        problems.add((*path, "schema"), "is missing; expected the attributes, {ts: timestamp!, n: int64, …}")
        return None
    schema = None if model.schema_ is None else read_schema(model.schema_, (*path, "schema"), problems)
    if made is None:
        return schema
    if schema is not None and schema != made:
        problems.add((*path, "schema"), f"{brought.by} makes ({made}); expected this, or no schema")
    return made


def _check_own_sinks(model: SourceModel, time: str | None, path: Path, problems: Problems) -> None:
    for what, sink in (("late", model.late), ("rejected", model.rejected)):
        if sink is not None and sink.mode != "stable":
            problems.add((*path, what, "mode"), f"{what} rows are final; expected no mode, got {sink.mode!r}")
    if model.late is not None and time is None:
        expected = "expected time: ATTRIBUTE, or no late"
        problems.add((*path, "late"), f"rows are stamped when they come, so none is late; {expected}")
    if model.rejected is not None and model.on_malformed == "stop":
        expected = "expected on_malformed: skip, or no rejected"
        problems.add((*path, "rejected"), f"the first row that cannot be read stops the source; {expected}")


def _schema_alone(entry: Any, path: Path, problems: Problems) -> Schema | None:
    """Reads the schema of a source with other mistakes, so that its readers can be checked."""
    written = entry.get("schema") if isinstance(entry, Mapping) else None
    if not isinstance(written, Mapping) or not written or not all(isinstance(t, str) for t in written.values()):
        return None
    schema = read_schema(written, (*path, "schema"), problems)
    if schema is not None and isinstance(entry.get("time"), str):
        _check_time(entry["time"], schema, (*path, "time"), problems)
    return schema


def _check_columns(columns: Mapping[str, Any], schema: Schema, path: Path, problems: Problems) -> None:
    for attribute in columns:
        if attribute not in schema:
            hint = did_you_mean(attribute, schema.names)
            problems.add((*path, attribute), f"no attribute {attribute!r}{hint}; expected {one_of(schema.names)}")


def _check_time(time: str | None, schema: Schema, path: Path, problems: Problems) -> None:
    stamps = [a.name for a in schema if a.type is AttributeType.TIMESTAMP]
    if time is None:
        problems.add(path, f"is missing; a replayed stream needs its event time, expected {one_of(stamps)}")
    elif time not in schema:
        hint = did_you_mean(time, schema.names)
        problems.add(path, f"no attribute {time!r}{hint}; expected a timestamp, {one_of(stamps)}")
    elif time not in stamps:
        problems.add(path, f"{time!r} is {schema[time].type}; expected a timestamp, {one_of(stamps)}")
