"""Declarations of operators: one class per operator, in one file of ``spe.query.operators``.

An instance is a specification: plain, frozen data, as in a query.  The class has properties for the configuration, the
planner, the checkers and the proof; their defaults here promise nothing.  The package ``operators`` computes the rows;
implementations are registered there (``operators.build``).
"""

from __future__ import annotations

import enum
import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NamedTuple, cast

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from spe.errors import QueryError
from spe.expressions import compile_expression
from spe.problems import Path, did_you_mean
from spe.stream.names import StreamId
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.values import Model

#: Per key attribute, the names under which a stream carries it, or, for a full join, the calls of coalesce that give it
#: (in the form of :func:`written`); empty: it does not carry the whole key.
KeyNames = tuple[frozenset[str], ...]


class OnError(enum.StrEnum):
    """Reaction to a row on which an operator fails: the replica stops, or skips the row.

    Not in the text of specifications, from which fingerprints are made: see ``QueryOperator.described``.
    """

    STOP = "stop"
    SKIP = "skip"


class OnLate(enum.StrEnum):
    """Reaction to rows that are late for windows by an attribute: counted, or also rejected, with the reason.

    Results do not depend on it.
    """

    COUNT = "count"
    REJECT = "reject"


class Logged(enum.StrEnum):
    """How a checkpoint log holds the state of an operator (rule G2)."""

    #: There is no state.
    NOTHING = "nothing"
    #: A record of each group in each pane or open count window, when it begins and when it is rewritten.
    CELLS = "cells"
    #: Nothing: its state consists of input rows, and input is replayed from the oldest of them.
    ROWS = "rows"
    #: One record of the whole state, rewritten as a whole.
    WHOLE = "whole"


class Keys(Model):
    """The keys of an operator in the configuration."""

    model_config = ConfigDict(validate_default=True)

    def values(self) -> dict[str, Any]:
        """Value by key."""
        return dict(zip(self.known(), dict(self).values()))


class Guarantee(NamedTuple):
    """A row of the table in docs/reference/operators.md: a result, its time, the order of results of equal time."""

    what: str
    time: str
    order: str


class Traits(NamedTuple):
    """Known properties of the tuples of a stream.

    Attributes:
      key: attributes that distinguish tuples of one time.
      in_step: all results of a window have one time.
      cadence_us: tuple time between two results of a group; 0: any.
    """

    key: frozenset[str] = frozenset()
    in_step: bool = False
    cadence_us: int = 0


class OperatorSpec(ABC):
    """An operator of the query."""

    __slots__ = ()

    #: Its keyword in the configuration.
    KEYWORD: ClassVar[str]
    KEYS: ClassVar[type[Keys]]
    GUARANTEES: ClassVar[tuple[Guarantee, ...]]
    #: The key that a plain value in place of a mapping stands for.
    SHORTHAND: ClassVar[str | None] = None
    #: Fields that hold expressions by name or place -> their key in the configuration: a mistake in one entry does not
    #: hide mistakes in the others.
    ENTRIES: ClassVar[Mapping[str, str]] = {}
    #: Other fields with another key in the configuration.
    WRITTEN: ClassVar[Mapping[str, str]] = {"input": "from", "inputs": "from"}
    #: Does it pass a selection of its input's rows, unchanged?
    SELECTS: ClassVar[bool] = False
    #: Does a result need a row of each input?  Then losing one input loses all (PPA section IV: correlated inputs).
    CORRELATES: ClassVar[bool] = False
    #: Does it read the rejected rows of its input's operator, rather than the stream?
    TAKES_REJECTED: ClassVar[bool] = False
    if TYPE_CHECKING:  # at run time it would be the default value of the field

        @property
        def inputs(self) -> tuple[StreamId, ...]:
            """Input streams in port order."""

    @classmethod
    def of(cls, keys: Keys) -> OperatorSpec:
        """Makes a specification from keys: a key is the field of its name, or the one in ENTRIES or WRITTEN."""
        values, own = keys.values(), {field.name for field in fields(cast(Any, cls))}
        for field, key in {**cls.WRITTEN, **cls.ENTRIES}.items():
            if field in own and key in values:
                values[field] = values.pop(key)
        return cls(**values)

    @abstractmethod
    def output_schema(self, inputs: Sequence[Schema]) -> Schema:
        """Returns the schema of its output.

        Args:
          inputs: schema of each port.

        Raises:
          QueryError: the specification does not fit its inputs; ``field`` names the place.
          ExpressionError: an expression in it is refused.
        """

    @abstractmethod
    def described(self) -> str:
        """Describes its function in one line, without its name."""

    def describe(self) -> str:
        return (
            self.described()
            + ("; goes on without rows that fail" if self.skips else "")
            + ("; rejects late rows" if self.rejects_late else "")
        )

    @property
    def skips(self) -> bool:
        """Does it skip rows that fail?"""
        return getattr(self, "on_error", OnError.STOP) is OnError.SKIP

    @property
    def rejects_late(self) -> bool:
        """Does it reject rows that are late for its windows?"""
        return getattr(self, "on_late", OnLate.COUNT) is OnLate.REJECT

    @property
    def rejects(self) -> bool:
        """May it reject rows or results?"""
        return self.skips or self.rejects_late

    @classmethod
    def input_path(cls, body: Any, port: int) -> Path:
        """Path of the name of an input, below the operator's keyword."""
        names = body["from"] if isinstance(body, Mapping) else body
        prefix: Path = ("from",) if isinstance(body, Mapping) else ()
        return prefix if isinstance(names, str) else (*prefix, port)

    # --- partitions ---

    def key_names(self, inputs: Sequence[KeyNames]) -> KeyNames:
        """Returns the attributes that carry the partition key in the output, given those of the inputs."""
        return ()

    def divided(self, inputs: Sequence[KeyNames]) -> str:
        """Describes its use of rows that may be in several partitions, as ``groups by (user)``; empty: none."""
        return ""

    def completed_by(self, reader: OperatorSpec) -> bool:
        """Does a reader combine the results of several partitions into whole ones?"""
        return False

    def tied(self, key: frozenset[str] | None) -> str:
        """Describes its dependence on the order of tuples of one time, as ``a count window``; empty: none.

        Args:
          key: group of the window results that it reads; None: it reads other tuples.
        """
        return ""

    # --- the checkpoint log ---

    @property
    def logged(self) -> Logged:
        """How a checkpoint log holds its state."""
        return Logged.WHOLE

    @property
    def is_grouped(self) -> bool:
        """Is its state by group, with any number of groups?"""
        return True

    @property
    def cells_per_group(self) -> int:
        """Most records of a group in a checkpoint log at a time; 1 without groups."""
        return 1

    @property
    def lifetime_us(self) -> int | None:
        """Tuple time after which a record is obsolete; None: unknown."""
        return None

    @property
    def lifetime_rows(self) -> int | None:
        """Number of rows of a group after which its record is obsolete; None: unlimited."""
        return None

    @property
    def is_replayed(self) -> bool:
        """May a record be older than the state, so that rows are replayed for it?"""
        return True

    # --- properties of its results ---

    @property
    def own_class(self) -> str | None:
        """Import path of its user-defined class, as ``module:Class``; None: built in."""
        return None

    @property
    def own_code(self) -> bool:
        """Does it run user code?"""
        return self.own_class is not None

    @property
    def only_adds(self) -> bool:
        """Does more input only add results and take none back?"""
        return False

    @property
    def reach_us(self) -> int | None:
        """Distance in tuple time from a result back to its earliest input; None: unknown."""
        return None

    @property
    def result_key(self) -> tuple[str, ...] | None:
        """Attributes that identify a result: results with equal values are versions of one answer; None: none."""
        return None

    @property
    def shares(self) -> tuple[str, ...] | None:
        """Default measures of tentative results in reports, per window; None: those of streams of tuples."""
        return None

    def traits(self, inner: Traits) -> Traits:
        """Known properties of its results, given those of its first input."""
        return Traits()


class OneInput(OperatorSpec):
    """An operator that reads one stream."""

    __slots__ = ()
    input: StreamId

    @property
    def inputs(self) -> tuple[StreamId, ...]:
        return (self.input,)


# --- keys that several operators have ---


def expression_of(value: Any) -> str:
    """Reads the text of an expression; YAML values such as ``1`` and ``true`` become SQL."""
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    raise ValueError(f"expected an SQL expression, got {value!r}")


Expression = Annotated[str, BeforeValidator(expression_of)]
From = Annotated[str, Field(alias="from", description="the stream that it reads")]
OnErrorKey = Annotated[
    Literal["stop", "skip"],
    # A function, since the signature of an enum class differs between the releases of Python.
    AfterValidator(lambda value: OnError(value)),
    Field(description="where a row makes it fail: [rows that fail](../how-to/own-operators.md#rows-that-fail)"),
]
OnLateKey = Annotated[
    Literal["count", "reject"],
    AfterValidator(lambda value: OnLate(value)),
    Field(description="rows late for a window by an attribute: counted, or [rejected](#windows) too"),
]


# --- schemas ---


def unique(attributes: Iterable[Attribute], hint: str) -> Schema:
    """Makes a schema; the error of a duplicate name ends with the hint."""
    known: set[str] = set()
    listed = tuple(attributes)
    for attribute in listed:
        if attribute.name in known:
            raise QueryError("", f"attribute {attribute.name!r} would be in the output twice; {hint}")
        known.add(attribute.name)
    return Schema(listed)


def attribute_of(schema: Schema, name: str, field: str, *, where: str = "", expected: str = "") -> Attribute:
    """Returns an attribute, or raises an error that tells ``where`` it is missing, and what was ``expected``."""
    if name not in schema:
        known = ", ".join(schema.names) or "(none)"
        hint = did_you_mean(name, schema.names)
        raise QueryError(field, f"no attribute {name!r}{where}{hint}; there are: {known}{expected}")
    return schema[name]


def check_timestamp(schema: Schema, name: str, field: str) -> None:
    attribute = attribute_of(schema, name, field)
    if attribute.type is not AttributeType.TIMESTAMP:
        raise QueryError(field, f"{name!r} is {attribute.type}; expected a timestamp")


def computed(text: str, schema: Schema, name: str) -> Attribute:
    """Returns the attribute that an expression makes."""
    expression = compile_expression(text, schema)
    return Attribute(name, expression.type, expression.nullable)


def load_class(path: str, field: str) -> Any:
    """Loads the class ``module:Class``.  Raises QueryError.

    User classes are loaded by path and used by their methods only: this package imports nothing from higher ones.
    """
    module, separator, name = path.partition(":")
    if not (module and separator and name):
        raise QueryError(field, f"expected an import path such as package.module:Class, got {path!r}")
    try:
        loaded: Any = importlib.import_module(module)
        for part in name.split("."):
            loaded = getattr(loaded, part)
    except Exception as error:  # a user's module may raise anything on import
        raise QueryError(
            field,
            f"cannot load {path!r}: {type(error).__name__}: {error}; looked in the current directory and on PYTHONPATH",
        ) from error
    if not isinstance(loaded, type):
        raise QueryError(field, f"{path!r} is no class")
    return loaded


def check_concrete(user_class: Any, path: str, field: str) -> None:
    abstract = sorted(getattr(user_class, "__abstractmethods__", ()))
    if abstract:
        raise QueryError(field, f"{path!r} does not define {', '.join(abstract)}")


# --- keys of partitions, and lines of text ---

_COALESCE: Final = "coalesce("


def written(expression: str) -> str:
    """Normalizes an expression that is a name, or coalesce of names: removes white space."""
    text = "".join(expression.split())
    return _COALESCE + text[len(_COALESCE) :] if text.lower().startswith(_COALESCE) else text


def renamed(names: frozenset[str], columns: Mapping[str, str], keep: bool) -> frozenset[str]:
    """Names of a key attribute after expressions by name."""
    return frozenset(n for n, text in columns.items() if written(text) in names) | (
        names - columns.keys() if keep else frozenset()
    )


def named(name: str, text: str) -> str:
    return name if name == text else f"{name} = {text}"
