"""What an operator declares: one class per operator, in one file of ``spe.query.operators``.

An instance is a specification: plain, frozen data, as a query says it.  The class answers what the configuration, the
planner, the checkers and the proof ask of it.  Where an operator gives no answer of its own, the one here stands: it
promises nothing.  The rows are computed by ``operators``, which is registered there (``operators.build``).
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

#: Per key attribute, the names under which a stream carries it, or, of a full join, the calls of coalesce that give it
#: (as :func:`written`); empty: it does not carry the whole key.
KeyNames = tuple[frozenset[str], ...]


class OnError(enum.StrEnum):
    """Where an operator cannot take a row in, or make one: does the replica stop, or go on without the row?

    It is in no specification's text, of which fingerprints are made: see ``spe.query.query.QueryOperator.described``.
    """

    STOP = "stop"
    SKIP = "skip"


class OnLate(enum.StrEnum):
    """Are rows that are late for windows by an attribute only counted, or rejected too: written with the reason?

    Results do not depend on it.
    """

    COUNT = "count"
    REJECT = "reject"


class Logged(enum.StrEnum):
    """How a checkpoint log holds the state of an operator (rules G2 and G3)."""

    #: There is no state.
    NOTHING = "nothing"
    #: A record of each group in each pane or open count window, when it begins and when it is rewritten.
    CELLS = "cells"
    #: Nothing: the rows that it keeps are input, which is replayed from the oldest of them.
    ROWS = "rows"
    #: One record of everything, written again as a whole.
    WHOLE = "whole"


class Keys(Model):
    """The keys of an operator in the configuration."""

    model_config = ConfigDict(validate_default=True)

    def said(self) -> dict[str, Any]:
        """Value by key."""
        return {info.alias or name: getattr(self, name) for name, info in type(self).model_fields.items()}


class Guarantee(NamedTuple):
    """A row of the table in docs/reference/operators.md: which result, its time, the order of results of equal time."""

    what: str
    time: str
    order: str


class Traits(NamedTuple):
    """What is known of the tuples of a stream.

    Attributes:
      key: attributes that tell those of one time apart.
      in_step: all results of a window have one time.
      cadence_us: tuple time between two results of a group; 0: any.
    """

    key: frozenset[str] = frozenset()
    in_step: bool = False
    cadence_us: int = 0


class OperatorSpec(ABC):
    """An operator of the query."""

    __slots__ = ()

    #: The word for it in the configuration.
    KEYWORD: ClassVar[str]
    KEYS: ClassVar[type[Keys]]
    GUARANTEES: ClassVar[tuple[Guarantee, ...]]
    #: The key that is meant where the configuration gives a value in place of a mapping.
    SHORTHAND: ClassVar[str | None] = None
    #: Fields that hold expressions with names or places, by the key that they are written under: a mistake in one entry
    #: does not hide those in the others.
    ENTRIES: ClassVar[Mapping[str, str]] = {}
    #: Other fields that are not written under their own name.
    WRITTEN: ClassVar[Mapping[str, str]] = {"input": "from", "inputs": "from"}
    #: Does it pass some of its input's rows, as they are?
    SELECTS: ClassVar[bool] = False
    #: Does a result need a row of each input?  Then losing one input loses all (PPA section IV: correlated inputs).
    CORRELATES: ClassVar[bool] = False
    #: Is it given what the operator that makes its input rejects, and not the stream?
    TAKES_REJECTED: ClassVar[bool] = False
    if TYPE_CHECKING:  # at run time it would be the default value of a field of this name

        @property
        def inputs(self) -> tuple[StreamId, ...]:
            """Input streams in port order."""

    @classmethod
    def of(cls, keys: Keys) -> OperatorSpec:
        """What the configuration says: each key is the field of its name, or the one that ENTRIES or WRITTEN has."""
        said, own = keys.said(), {field.name for field in fields(cast(Any, cls))}
        for field, key in {**cls.WRITTEN, **cls.ENTRIES}.items():
            if field in own and key in said:
                said[field] = said.pop(key)
        return cls(**said)

    @abstractmethod
    def output_schema(self, inputs: Sequence[Schema]) -> Schema:
        """The schema of what it makes.

        Args:
          inputs: schema of each port.

        Raises:
          QueryError: the specification does not fit its inputs; ``field`` says where.
          ExpressionError: an expression in it is refused.
        """

    @abstractmethod
    def described(self) -> str:
        """What it does, in one line, without its name."""

    def describe(self) -> str:
        return (
            self.described()
            + ("; goes on without rows that fail" if self.skips else "")
            + ("; rejects late rows" if self.rejects_late else "")
        )

    @property
    def skips(self) -> bool:
        """Does it go on without rows that it cannot take in or make?"""
        return getattr(self, "on_error", OnError.STOP) is OnError.SKIP

    @property
    def rejects_late(self) -> bool:
        """Does it tell which rows are late for its windows?"""
        return getattr(self, "on_late", OnLate.COUNT) is OnLate.REJECT

    @property
    def rejects(self) -> bool:
        """May it reject rows or results?"""
        return self.skips or self.rejects_late

    @classmethod
    def input_path(cls, body: Any, port: int) -> Path:
        """Where an input is named, below the operator's keyword."""
        names = body["from"] if isinstance(body, Mapping) else body
        prefix: Path = ("from",) if isinstance(body, Mapping) else ()
        return prefix if isinstance(names, str) else (*prefix, port)

    # --- partitions ---

    def key_names(self, inputs: Sequence[KeyNames]) -> KeyNames:
        """Where the partition key goes: what carries it in the output, by where the inputs carry it."""
        return ()

    def divided(self, inputs: Sequence[KeyNames]) -> str:
        """What it does with rows that may be in several partitions, as ``groups by (user)``; empty: nothing."""
        return ""

    def completed_by(self, reader: OperatorSpec) -> bool:
        """Does a reader make the whole result of those of several partitions?"""
        return False

    def tied(self, key: frozenset[str] | None) -> str:
        """What of it depends on the order of tuples of one time, as ``a count window``; empty: nothing.

        Args:
          key: group of the window results that it reads; None: it reads others.
        """
        return ""

    # --- the checkpoint log ---

    @property
    def logged(self) -> Logged:
        """How a checkpoint log holds its state."""
        return Logged.WHOLE

    @property
    def is_grouped(self) -> bool:
        """Is its state by groups, of which there may be any number?"""
        return True

    @property
    def cells_per_group(self) -> int:
        """Most records that a group has in a checkpoint log at a time; 1 where groups are nothing to it."""
        return 1

    @property
    def lifetime_us(self) -> int | None:
        """Tuple time after which each record is out of use by itself; None: nobody can say."""
        return None

    @property
    def lifetime_rows(self) -> int | None:
        """Rows of a group after which its record is out of use by itself; None: their number does not matter."""
        return None

    @property
    def is_replayed(self) -> bool:
        """May a record be older than what it is of, so that rows are replayed for it?"""
        return True

    # --- what is known of its results ---

    @property
    def own_class(self) -> str | None:
        """Import path of the user's class that it is, as ``module:Class``; None: it is none."""
        return None

    @property
    def own_code(self) -> bool:
        """Does it run code of the user's?"""
        return self.own_class is not None

    @property
    def only_adds(self) -> bool:
        """Does more input only add results and take none back?"""
        return False

    @property
    def reach_us(self) -> int | None:
        """How far before a result the input lies that has a part in it, in tuple time; None: nobody can say."""
        return None

    @property
    def result_key(self) -> tuple[str, ...] | None:
        """Attributes that say which input a result is of: two of equal ones are versions of one answer; None: none."""
        return None

    @property
    def shares(self) -> tuple[str, ...] | None:
        """What a report measures of tentative results by default, per window; None: of streams of tuples."""
        return None

    def traits(self, inner: Traits) -> Traits:
        """What is known of its results, by what is known of its first input."""
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
    """The text of an expression; YAML reads ``1`` and ``true`` as what they mean in SQL too."""
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
    """A schema; a name that is there twice is an error that says what to do."""
    seen: set[str] = set()
    listed = tuple(attributes)
    for attribute in listed:
        if attribute.name in seen:
            raise QueryError("", f"attribute {attribute.name!r} would be in the output twice; {hint}")
        seen.add(attribute.name)
    return Schema(listed)


def attribute_of(schema: Schema, name: str, field: str, *, where: str = "", expected: str = "") -> Attribute:
    """The attribute, or an error that says ``where`` it was looked for, and what was ``expected`` instead."""
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
    """The attribute that an expression makes."""
    expression = compile_expression(text, schema)
    return Attribute(name, expression.type, expression.nullable)


def load_class(path: str, field: str) -> Any:
    """The class that ``module:Class`` names.  Raises QueryError.

    Users' classes are found by import path and used by their methods only: this floor imports nothing from above.
    """
    module, separator, name = path.partition(":")
    if not (module and separator and name):
        raise QueryError(field, f"expected an import path such as package.module:Class, got {path!r}")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever a user's module raises when it is imported
        raise QueryError(
            field,
            f"cannot load {path!r}: {type(error).__name__}: {error}; looked in the current directory and on PYTHONPATH",
        ) from error
    if not isinstance(found, type):
        raise QueryError(field, f"{path!r} is no class")
    return found


def check_concrete(found: Any, path: str, field: str) -> None:
    abstract = sorted(getattr(found, "__abstractmethods__", ()))
    if abstract:
        raise QueryError(field, f"{path!r} does not define {', '.join(abstract)}")


# --- keys of partitions, and lines of text ---

_COALESCE: Final = "coalesce("


def written(expression: str) -> str:
    """An expression without its white space, if that is all that can differ: a name, or coalesce of names."""
    text = "".join(expression.split())
    return _COALESCE + text[len(_COALESCE) :] if text.lower().startswith(_COALESCE) else text


def renamed(names: frozenset[str], columns: Mapping[str, str], keep: bool) -> frozenset[str]:
    """Names of a key attribute behind expressions by name."""
    return frozenset(n for n, text in columns.items() if written(text) in names) | (
        names - columns.keys() if keep else frozenset()
    )


def named(name: str, text: str) -> str:
    return name if name == text else f"{name} = {text}"
