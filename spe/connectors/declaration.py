"""Declarations of connectors: their form in a configuration, their options, their guarantees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from spe.problems import one_of
from spe.stream.schema import Schema
from spe.values import Model


def _columns(value: Any) -> dict[str, str | int]:
    if isinstance(value, dict) and all(isinstance(v, str | int) and not isinstance(v, bool) for v in value.values()):
        return {str(k): v for k, v in value.items()}
    raise ValueError(f"expected a mapping of attributes to columns of the file, got {value!r}")


def _texts(value: Any) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if isinstance(items, list | tuple) and all(isinstance(i, str) for i in items):
        return tuple(items)
    raise ValueError(f"expected a text or a list of texts, got {value!r}")


_Character = Annotated[str, Field(min_length=1, max_length=1)]
#: Options that several readers have: type and description.
OPTIONS: Final[Mapping[str, tuple[Any, str]]] = {
    "format": (
        Literal["csv", "jsonl", "avro", "arrow", "parquet"],
        "`csv` or `jsonl`, `jsonl` if it is not given; of files also `parquet`, `arrow`, `avro`",
    ),
    "columns": (
        Annotated[dict[str, str | int], BeforeValidator(_columns)],
        "attribute → its column: the name in the header, or in a JSON object; a number from 0 where CSV has no header, "
        "as in lines, whose columns are in the order of the schema otherwise",
    ),
    "delimiter": (_Character, "of CSV, `,` if it is not given"),
    "quote": (_Character, 'of CSV, `"` if it is not given'),
    "header": (bool, "of a CSV file; `false`: it has none"),
    "null": (Annotated[tuple[str, ...], BeforeValidator(_texts)], "texts that mean null in CSV"),
    "timestamps": (
        Literal["iso", "s", "ms", "us", "ns"],
        "how timestamps are written: ISO 8601 texts (`iso`, if it is not given), or numbers since the epoch",
    ),
    "sort": (str, "a column to replay by, such as an arrival sequence; the rows are then held in memory"),
}
CELLS: Final = ("columns", "delimiter", "quote", "header", "null", "timestamps")
#: Options of live rows, which have no header.
LIVE_OPTIONS: Final = ("format", *(option for option in CELLS if option != "header"))


#: Modes of sinks: final rows, each exactly once; the newest answer, with tentative rows marked, and removed when they
#: are withdrawn; every insert, undo and done, with its kind.
STABLE: Final = "stable"
CURRENT: Final = "current"
CORRECTIONS: Final = "corrections"
MODES: Final = (STABLE, CURRENT, CORRECTIONS)


#: Texts about rows that cannot be read.
KEPT_ASIDE: Final = "[kept aside](../explanation/live.md#rejected-rows)"
LEFT_OUT: Final = f"it is counted, {KEPT_ASIDE} and left out, or stops the source (`on_malformed`)"


class Guarantees(NamedTuple):
    """Guarantees of a connector, in sentences for the documentation; the test kit checks them.

    Attributes:
      durable: place of the durable copy of a row, and the time from which it exists.
      own_crash: guarantee after our process was killed, or its machine lost power.
      other_crash: guarantee after a crash of the other side: a server, a program, a disk.
      failures: failure -> reaction of the connector.
    """

    durable: str
    own_crash: str
    other_crash: str
    failures: Mapping[str, str]


class Brought(NamedTuple):
    """Settings of a source that its reader provides.

    Attributes:
      by: the provider, for messages.
      time: the attribute with the event time.
    """

    by: str = ""
    schema: Schema | None = None
    time: str | None = None
    disorder_us: int = 0


@dataclass(frozen=True)
class Reader:
    """Declares a reader, which brings the rows of a source.

    Attributes:
      kind: its key below ``from``.
      value: type of the key's value; ``written``: the same for users.
      about: short description.
      options: allowed keys of OPTIONS.
      formats: allowed values of the option ``format``.
      guarantees: its guarantees, for the documentation.
      opens: ``module:Class`` of its reader, which is called with the schema, the name of the attribute with the event
        time (or None), and the result of :meth:`reader`; imported when it is opened.
      defaults: options that it always has.
      example: a line of a source in the configuration, for the documentation.
    """

    kind: str
    value: Any
    written: str
    about: str
    options: tuple[str, ...] = ()
    guarantees: Guarantees | None = None
    opens: str = ""
    formats: tuple[str, ...] = ("csv", "jsonl")
    example: str = ""

    #: Rows occur once, and the next one is unknown; False: they can be read again from any row.
    live: ClassVar[bool] = False
    #: Rows come in batches, and time does not pass between batches.
    batches: ClassVar[bool] = False
    defaults: ClassVar[Mapping[str, Any]] = {}

    def check(self, options: Mapping[str, Any]) -> None:
        """Raises ValueError if options do not fit together, or do not fit the reader."""
        if stray := [o for o in options if o not in self.options]:
            raise ValueError(f"{', '.join(stray)} does not go with {self.kind}; expected {one_of(self.options)}")
        if (form := options.get("format")) is not None and form not in self.formats:
            raise ValueError(f"{self.kind} has no format {form}; expected {one_of(self.formats)}")

    def fits(self, value: Any, options: Mapping[str, Any]) -> None:
        """Raises ValueError if its own keys and the options do not fit together."""

    def brought(self, value: Any) -> Brought:
        return Brought()

    def reader(self, value: Any, data: Path) -> dict[str, Any]:
        """Returns its part of ``spe.plan.plan.Source.reader``, without options; paths are relative to ``data``."""
        return value.model_dump(exclude_none=True) if isinstance(value, Model) else {}

    def stored(self, reader: Mapping[str, Any]) -> bool:
        """Does a live reader first read existing rows, which may take long?"""
        return False

    def describe(self, reader: Mapping[str, Any]) -> str:
        """Describes it briefly: ``csv orders.csv``."""
        return self.kind


@dataclass(frozen=True)
class LiveRows(Reader):
    """Reads rows that come as they are made, as JSON or CSV without a header."""

    live: ClassVar = True
    defaults: ClassVar = {"format": "jsonl"}

    def check(self, options: Mapping[str, Any]) -> None:
        super().check(options)
        check_format(options)


@dataclass(frozen=True)
class SinkDeclaration:
    """Declares a sink, which takes a client's results.

    Attributes:
      kind: its key in an entry of ``sinks``.
      value: type of the key's value: a text, or a ``spe.values.Model`` whose fields are described; ``written``: the
        same for users.
      about: short description.
      modes: allowed MODES, and the contents of the sink in each.
      guarantees: its guarantees, for the documentation.
      opens: ``module:Class`` of its sink, which is called with the schemas by channel, the mode, and the result of
        :meth:`sink`; imported when it is opened.
      example: a line of a client in the configuration, for the documentation.
      not_current: reason why it lacks the mode current, for the documentation.
    """

    kind: str
    value: Any
    written: str
    about: str
    modes: Mapping[str, str]
    guarantees: Guarantees
    opens: str = ""
    example: str = ""
    not_current: str = ""

    def check(self, value: Any, mode: str) -> None:
        """Raises ValueError if options do not fit together, or do not fit the mode."""
        if mode not in self.modes:
            raise ValueError(f"{self.kind} has no mode {mode!r}; expected {one_of(list(self.modes))}")

    def sink(self, value: Any) -> dict[str, Any]:
        """Returns its part of ``spe.plan.directory.ClientSettings.sinks``, without kind and mode."""
        return dict(value.model_dump(exclude_none=True)) if isinstance(value, Model) else {}

    def place(self, sink: Mapping[str, Any]) -> str:
        """Its destination, for messages, without secrets; unique among the sinks of a client."""
        return ", ".join(str(v) for k, v in sink.items() if k not in ("kind", "mode"))


def shorthand(key: str) -> BeforeValidator:
    """Lets a text alone stand for the object in which it has that key."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


def check_format(options: Mapping[str, Any]) -> None:
    """Raises ValueError if options do not fit the format of rows, which have no header."""
    form = options.get("format", "jsonl")
    if form == "csv":
        check_numbered(options)
    elif stray := [option for option in ("delimiter", "quote", "null") if option in options]:
        raise ValueError(f"{', '.join(stray)} does not go with format {form}; expected format: csv")


def check_numbered(options: Mapping[str, Any]) -> None:
    """Raises ValueError if a column has a name, since there is no header."""
    named = [f"{a}: {c}" for a, c in options.get("columns", {}).items() if isinstance(c, str)]
    if named:
        raise ValueError(f"columns: there is no header for {', '.join(named)}; expected a number from 0")
