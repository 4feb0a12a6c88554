"""Formats rows as lines of JSON, column by column: the same as ``json.dumps`` per row, in a small part of its time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from json.encoder import encode_basestring
from typing import Final

import numpy as np

from replicas.connectors.formats.byte_texts import Texts, booleans, floats, integers, packed, replaced, timestamps
from spe.stream.batch import AnyArray, Batch, Column
from spe.stream.names import Kind
from spe.stream.schema import AttributeType, Schema

#: Largest number of rows formatted at once, so that their columns stay in the cache; with many attributes fewer.
_MOST_ROWS: Final = 2_048
_LEAST_ROWS: Final = 256
_VALUES: Final = 1 << 16
#: Largest length of an attribute's texts for which all get the same room, if they fill a part of it.
_NARROW: Final = 128
_MUCH_ROOM: Final = 4


class _Uneven(list[bytes]):
    """The texts of a member one by one, if their lengths differ much."""


_Member = Texts | _Uneven


def json_text(batch: Batch, schema: Schema, corrections: bool, begin: str = "") -> Iterator[bytes]:
    """Yields one line per tuple of a batch, each with its end, some thousands at once.

    Args:
      corrections: with ``_kind`` and ``_tentative``.
      begin: an object whose members come first, such as ``{"_partition": 0}``.

    Raises:
      UnicodeEncodeError: a text has half a surrogate pair.
    """
    ids, times, columns = batch.row_ids(), batch.rows.time, batch.rows.columns
    kind: dict[str, _Member] = {}
    if corrections:
        kind = {"_kind": [b'"insert"'], "_tentative": [b"true" if batch.kind is Kind.TENTATIVE else b"false"]}
    strings = [_Strings(column) if column.dictionary is not None else None for column in columns]
    step = min(_MOST_ROWS, max(_LEAST_ROWS, _VALUES // (len(columns) + 1)))
    for start in range(0, len(batch), step):
        part = slice(start, start + step)
        time = times[part]
        stamp = _timestamps(time)
        # An attribute may have one of our names, and then replaces our member.
        members: dict[str, _Member] = {**kind, "_id": integers(ids[part]), "_time": stamp}
        for attribute, whole, texts in zip(schema, columns, strings):
            column = whole.slice(start, start + step)
            is_time = attribute.type is AttributeType.TIMESTAMP and column.valid is None
            if is_time and np.array_equal(column.values, time):
                members[attribute.name] = stamp  # the attribute with the source's event time
            else:
                members[attribute.name] = _member(column, attribute.type, None if texts is None else texts.part(part))
        yield _lines(members, len(time), begin)


def json_lines(batch: Batch, schema: Schema, corrections: bool, begin: str = "") -> list[str]:
    """Returns the lines of :func:`json_text`, each without its end.  Raises as it does."""
    return [line.decode() for text in json_text(batch, schema, corrections, begin) for line in text.splitlines()]


def json_rows(columns: Sequence[Column], schema: Schema) -> list[str]:
    """Returns one object per row, of its attributes alone.  Half a surrogate pair is kept."""
    members: dict[str, _Member] = {}
    for attribute, column in zip(schema, columns):
        texts = None if column.dictionary is None else _Strings(column, "surrogatepass").part(slice(None))
        members[attribute.name] = _member(column, attribute.type, texts)
    return [line.decode(errors="surrogatepass") for line in _lines(members, len(columns[0])).splitlines()]


def _lines(members: Mapping[str, _Member], count: int, begin: str = "") -> bytes:
    """Formats lines; the parts between uneven texts are made for all rows at once."""
    pieces: list[Iterable[bytes]] = []
    even: Texts = []
    before = f"{begin[:-1]}, " if begin else "{"
    for name, texts in members.items():
        even.append(f"{before}{encode_basestring(name)}: ".encode())
        before = ", "
        if isinstance(texts, _Uneven):
            pieces += [_each(even, count), texts]
            even = []
        else:
            even += texts
    if not pieces:
        return packed([*even, b"}\n"], count)
    lines = map(b"".join, zip(*pieces, _each([*even, b"}"], count)))
    return b"\n".join([*lines, b""])


def _each(texts: Texts, count: int) -> Iterable[bytes]:
    """Yields the text of each row."""
    constant = [text for text in texts if isinstance(text, bytes)]
    if len(constant) == len(texts):
        return repeat(b"".join(constant), count)
    return packed([*texts, b"\n"], count).splitlines()


def _member(column: Column, type_: AttributeType, strings: _Member | None) -> _Member:
    """Formats a member; ``strings``: texts of a column of strings."""
    texts = _MADE[type_](column.values) if strings is None else strings
    if column.valid is None:
        return texts
    nulls = np.flatnonzero(~column.valid)
    if not isinstance(texts, _Uneven):
        return replaced(texts, nulls, [b"null"])
    for at in nulls.tolist():
        texts[at] = b"null"
    return texts


def _timestamps(values: AnyArray) -> Texts:
    return [b'"', *timestamps(values), b'"']


def _floats(values: AnyArray) -> Texts:
    odd = np.flatnonzero(~np.isfinite(values))
    names = [b'"NaN"' if np.isnan(v) else b'"Infinity"' if v > 0 else b'"-Infinity"' for v in values[odd].tolist()]
    return replaced(floats(values), odd, names)


_MADE: Final[Mapping[AttributeType, Callable[[AnyArray], Texts]]] = {
    AttributeType.INT64: integers,
    AttributeType.FLOAT64: _floats,
    AttributeType.BOOL: booleans,
    AttributeType.TIMESTAMP: _timestamps,
}


class _Strings:
    """A column of strings, formatted in parts.  Each distinct string is encoded once."""

    def __init__(self, column: Column, errors: str = "strict") -> None:
        assert column.dictionary is not None
        strings = column.dictionary.strings
        used, self._at = np.unique(column.values, return_inverse=True)
        together = "\0".join([encode_basestring(strings[code]) for code in used.tolist()])  # no string has a NUL
        texts = together.encode(errors=errors).split(b"\0")
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        longest, total = int(sizes.max()), int(sizes.take(self._at).sum())
        self._is_even = longest <= _NARROW and longest * len(column) <= _MUCH_ROOM * total
        self._texts = np.array(texts, np.bytes_ if self._is_even else object)

    def part(self, part: slice) -> _Member:
        texts = self._texts.take(self._at[part])
        return [texts] if self._is_even else _Uneven(texts.tolist())
