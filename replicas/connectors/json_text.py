"""Rows as lines of JSON, column by column: what ``json.dumps`` gives of each row, at a fraction of its time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from json.encoder import encode_basestring
from typing import Any, Final

import numpy as np

from spe.stream.batch import AnyArray, Batch, BoolArray, Column, Int64Array
from spe.stream.names import Kind
from spe.stream.schema import AttributeType, Schema
from spe.stream.times import iso_timestamp

_HOUR_US: Final = 3_600_000_000
_BOOLS: Final = np.array(["false", "true"], object)


def json_lines(batch: Batch, schema: Schema, corrections: bool, begin: str = "") -> list[str]:
    """One line per tuple of a batch, without its end.

    Args:
      corrections: with ``_kind`` and ``_tentative``.
      begin: an object whose members come first, such as ``{"_partition": 0}``.
    """
    time = batch.rows.time
    names, texts = ["_id", "_time"], [_numbers(batch.row_ids()), _times(time)]
    for attribute, column in zip(schema, batch.rows.columns):
        names.append(attribute.name)
        if attribute.type is AttributeType.TIMESTAMP and column.valid is None and np.array_equal(column.values, time):
            texts.append(texts[1])  # the attribute by which its source has a time
        else:
            texts.append(_column(column, attribute.type))
    if corrections:
        tentative = "true" if batch.kind is Kind.TENTATIVE else "false"
        names = ["_kind", "_tentative", *names]
        texts = [['"insert"'] * len(batch), [tentative] * len(batch), *texts]
    return _lines(names, texts, begin)


def json_rows(columns: Sequence[Column], schema: Schema) -> list[str]:
    """One object per row, of its attributes alone."""
    return _lines(schema.names, [_column(column, a.type) for a, column in zip(schema, columns)])


def _lines(names: Sequence[str], texts: Sequence[list[str]], begin: str = "") -> list[str]:
    place = {name: at for at, name in enumerate(names)}  # an attribute may have a name of ours, and stands for it then
    pieces: list[Iterable[str]] = []
    for name, at in place.items():
        before = ", " if pieces else f"{begin[:-1]}, " if begin else "{"
        pieces += [repeat(f"{before}{encode_basestring(name)}: "), texts[at]]
    return list(map("".join, zip(*pieces, repeat("}"))))


def _column(column: Column, type_: AttributeType) -> list[str]:
    if column.dictionary is not None:
        texts = _strings(column.values, column.dictionary.strings)
    elif type_ is AttributeType.TIMESTAMP:
        texts = _times(column.values)
    elif type_ is AttributeType.FLOAT64:
        texts = _floats(column.values)
    elif type_ is AttributeType.BOOL:
        texts = _BOOLS[column.values.astype(np.intp)].tolist()
    else:
        texts = _numbers(column.values)
    return texts if column.valid is None else _with_nulls(texts, column.valid)


def _with_nulls(texts: list[str], valid: BoolArray) -> list[str]:
    for at in np.flatnonzero(~valid).tolist():
        texts[at] = "null"
    return texts


def _numbers(values: AnyArray) -> list[str]:
    return list(map(repr, values.tolist()))


def _floats(values: AnyArray) -> list[str]:
    texts = _numbers(values)
    for at in np.flatnonzero(~np.isfinite(values)).tolist():
        texts[at] = '"NaN"' if np.isnan(values[at]) else '"Infinity"' if values[at] > 0 else '"-Infinity"'
    return texts


def _strings(codes: AnyArray, strings: Sequence[str]) -> list[str]:
    """Each distinct text is encoded once."""
    used, at = np.unique(codes, return_inverse=True)
    return _taken([encode_basestring(strings[c]) for c in used.tolist()], at)


def _times(values: Int64Array) -> list[str]:
    """``"2026-01-01T00:00:00.500000Z"``, six digits only where one is not 0.  Each distinct time is made once: its hour
    as a text, which takes long, and all digits behind it at once, as columns of characters."""
    used, at = np.unique(values, return_inverse=True)
    hours, rest = np.divmod(used, _HOUR_US)
    distinct, of = np.unique(hours, return_inverse=True)
    begins = [f'"{iso_timestamp(hour * _HOUR_US)[:-5]}' for hour in distinct.tolist()]
    lengths = np.array([len(begin) for begin in begins], np.int64)
    texts = np.empty(len(used), object)
    for length in set(lengths.tolist()):  # years have four digits, but for extreme ones
        some = np.flatnonzero(lengths[of] == length)
        texts[some] = _with_digits(np.array(begins)[of[some]], length, rest[some])
    found: list[str] = texts[at].tolist()
    return found


def _with_digits(begins: Any, length: int, rest: Int64Array) -> list[str]:
    """Texts of one length, each with ``MM:SS``, the digits of the second where there are any, ``Z`` and a quote."""
    chars = np.zeros((len(rest), length + 14), np.uint32)
    chars[:, :length] = begins.astype(f"U{length}").view(np.uint32).reshape(-1, length)
    seconds, micros = np.divmod(rest, 1_000_000)
    minute, second = np.divmod(seconds, 60)
    colon, point, z, quote = map(ord, ':.Z"')
    chars[:, length + 2] = colon
    for first, number, digits in ((0, minute, 2), (3, second, 2), (6, micros, 6)):
        for place in range(digits):
            chars[:, length + first + place] = ord("0") + number // 10 ** (digits - 1 - place) % 10
    chars[:, length + 5], chars[:, length + 12], chars[:, length + 13] = point, z, quote
    whole = np.flatnonzero(micros == 0)
    chars[whole, length + 5 :] = [z, quote, *[0] * 7]
    found: list[str] = chars.view(f"U{length + 14}")[:, 0].tolist()
    return found


def _taken(texts: list[str], at: Any) -> list[str]:
    found: list[str] = np.array(texts, object)[at].tolist()
    return found
