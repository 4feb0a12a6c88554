"""What a connector declares: how a configuration writes it, which options go with it, what it promises."""

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


#: What a sink writes: final rows, each exactly once; the newest answer, its tentative rows marked, and removed when
#: they are withdrawn; every insert, undo and done, with its kind.
STABLE: Final = "stable"
CURRENT: Final = "current"
CORRECTIONS: Final = "corrections"
MODES: Final = (STABLE, CURRENT, CORRECTIONS)


#: What happens to a row that cannot be read.
KEPT_ASIDE: Final = "[kept aside](../explanation/live.md#rejected-rows)"
LEFT_OUT: Final = f"it is counted, {KEPT_ASIDE} and left out, or stops the source (`on_malformed`)"


class Guarantees(NamedTuple):
    """What a connector states, in sentences for the documentation; the test kit checks it.

    Attributes:
      durable: where the durable copy of a row is, and since when.
      own_crash: what holds after our process was killed, or its machine lost power.
      other_crash: what holds after a crash of the other side: a server, a program, a disk.
      failures: what happens, and what the connector does then.
    """

    durable: str
    own_crash: str
    other_crash: str
    failures: Mapping[str, str]


class Brought(NamedTuple):
    """What a source need not say because its reader knows it.

    Attributes:
      by: who, in words.
      time: the attribute with the event time.
    """

    by: str = ""
    schema: Schema | None = None
    time: str | None = None
    disorder_us: int = 0


@dataclass(frozen=True)
class Reader:
    """Where rows come from.

    Attributes:
      kind: its key below ``from``.
      value: type of what stands there; ``written``: the same for people.
      about: what it promises.
      options: those of OPTIONS that go with it.
      formats: values of the option ``format``, where that goes with it.
      guarantees: what it states, for the documentation.
      opens: of a connector in another package, ``module:Class`` of its reader, which is made with the schema, the name
        of the attribute with the event time (or None), and what :meth:`reader` has given.
      defaults: of options that it always has.
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

    #: Rows happen once, and nobody knows the next one; else they can be read again from any one.
    live: ClassVar[bool] = False
    #: They come in batches, and in the pauses between these no time passes.
    batches: ClassVar[bool] = False
    defaults: ClassVar[Mapping[str, Any]] = {}

    def check(self, given: Mapping[str, Any]) -> None:
        """Raises ValueError where options do not go together, or with this."""
        if stray := [o for o in given if o not in self.options]:
            raise ValueError(f"{', '.join(stray)} does not go with {self.kind}; expected {one_of(self.options)}")
        if (form := given.get("format")) is not None and form not in self.formats:
            raise ValueError(f"{self.kind} has no format {form}; expected {one_of(self.formats)}")

    def fits(self, value: Any, given: Mapping[str, Any]) -> None:
        """Raises ValueError where its own keys and the options do not go together."""

    def brought(self, value: Any) -> Brought:
        return Brought()

    def reader(self, value: Any, data: Path) -> dict[str, Any]:
        """What ``spe.plan.plan.Source.reader`` has of it, besides options; relative paths start from ``data``."""
        return value.model_dump(exclude_none=True) if isinstance(value, Model) else {}

    def stored(self, reader: Mapping[str, Any]) -> bool:
        """Does a live one first read rows that were there before it, which may take long?"""
        return False

    def describe(self, reader: Mapping[str, Any]) -> str:
        """In short: ``csv orders.csv``."""
        return self.kind


@dataclass(frozen=True)
class SinkDeclaration:
    """Where a client's results go.

    Attributes:
      kind: its key in an entry of ``sinks``.
      value: type of what stands there: a text, or a ``spe.values.Model`` whose fields are described; ``written``: the
        same for people.
      about: what it writes.
      modes: those of MODES that it takes, and what a reader of its results sees in each.
      guarantees: what it states, for the documentation.
      opens: of a connector in another package, ``module:Class`` of its sink, which is made with the schemas by channel,
        the mode, and what :meth:`sink` has given.
      example: a line of a client in the configuration, for the documentation.
      not_current: why it does not have the mode current, for the documentation.
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
        """Raises ValueError where options do not go together, or with the mode."""
        if mode not in self.modes:
            raise ValueError(f"{self.kind} has no mode {mode!r}; expected {one_of(list(self.modes))}")

    def sink(self, value: Any) -> dict[str, Any]:
        """What ``spe.plan.directory.ClientSettings.sinks`` has of it, besides kind and mode."""
        return dict(value.model_dump(exclude_none=True)) if isinstance(value, Model) else {}

    def place(self, sink: Mapping[str, Any]) -> str:
        """Where it writes, for messages; no secrets.  Two sinks of one client must not have the same."""
        return ", ".join(str(v) for k, v in sink.items() if k not in ("kind", "mode"))


def check_format(given: Mapping[str, Any]) -> None:
    """Raises ValueError where options are of another format than that of rows, which have no header."""
    form = given.get("format", "jsonl")
    if form == "csv":
        check_numbered(given)
    elif stray := [option for option in ("delimiter", "quote", "null") if option in given]:
        raise ValueError(f"{', '.join(stray)} does not go with format {form}; expected format: csv")


def check_numbered(given: Mapping[str, Any]) -> None:
    """Raises ValueError where there is no header and a column has a name."""
    named = [f"{a}: {c}" for a, c in given.get("columns", {}).items() if isinstance(c, str)]
    if named:
        raise ValueError(f"columns: there is no header for {', '.join(named)}; expected a number from 0")
