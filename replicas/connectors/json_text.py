"""Rows as lines of JSON, column by column: what ``json.dumps`` gives of each row, at a small part of its time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from json.encoder import encode_basestring
from typing import Final

import numpy as np
import numpy.typing as npt

from replicas.connectors.byte_texts import Texts, booleans, floats, integers, packed, replaced, timestamps
from spe.stream.batch import AnyArray, Batch, Column
from spe.stream.names import Kind
from spe.stream.schema import AttributeType, Schema

#: Rows that are made at once, so that their columns stay in a processor's cache.
_ROWS: Final = 4_096
#: Bytes of the longest text up to which all texts of an attribute are given as much room.
_NARROW: Final = 128


@dataclass(frozen=True, slots=True)
class _Long:
    """The values of a member of which some are long."""

    texts: list[bytes]


def json_text(batch: Batch, schema: Schema, corrections: bool, begin: str = "") -> Iterator[bytes]:
    """One line per tuple of a batch, each with its end, some thousands at once.

    Args:
      corrections: with ``_kind`` and ``_tentative``.
      begin: an object whose members come first, such as ``{"_partition": 0}``.

    Raises:
      UnicodeEncodeError: a text cannot be encoded.
    """
    ids, rows = batch.row_ids(), batch.rows
    kind: dict[str, Texts] = {}
    if corrections:
        kind = {"_kind": [b'"insert"'], "_tentative": [b"true" if batch.kind is Kind.TENTATIVE else b"false"]}
    for start in range(0, len(batch), _ROWS):
        part = slice(start, start + _ROWS)
        time = rows.time[part]
        stamp = [b'"', *timestamps(time), b'"']
        # An attribute may have a name of ours, and stands for it then.
        members: dict[str, Texts | _Long] = {**kind, "_id": integers(ids[part]), "_time": stamp}
        for attribute, whole in zip(schema, rows.columns):
            column = whole.slice(part.start, part.stop)
            is_time = attribute.type is AttributeType.TIMESTAMP and column.valid is None
            if is_time and np.array_equal(column.values, time):
                members[attribute.name] = stamp  # the attribute by which its source has a time
            else:
                members[attribute.name] = _values(column, attribute.type)
        yield _lines(members, len(time), begin)


def json_lines(batch: Batch, schema: Schema, corrections: bool, begin: str = "") -> list[str]:
    """The lines of :func:`json_text`, each alone and without its end."""
    return [line for text in json_text(batch, schema, corrections, begin) for line in _decoded(text)]


def json_rows(columns: Sequence[Column], schema: Schema) -> list[str]:
    """One object per row, of its attributes alone."""
    members = {a.name: _values(column, a.type) for a, column in zip(schema, columns)}
    return _decoded(_lines(members, len(columns[0])))


def _decoded(text: bytes) -> list[str]:
    return [line.decode() for line in text.splitlines()]


def _lines(members: Mapping[str, Texts | _Long], count: int, begin: str = "") -> bytes:
    """What stands between long texts is made for all rows at once."""
    pieces: list[list[bytes]] = []
    narrow: Texts = []
    before = f"{begin[:-1]}, " if begin else "{"
    for name, values in members.items():
        narrow.append(f"{before}{encode_basestring(name)}: ".encode())
        before = ", "
        if isinstance(values, _Long):
            pieces += [packed([*narrow, b"\n"], count).splitlines(), values.texts]
            narrow = []
        else:
            narrow += values
    ends = packed([*narrow, b"}\n"], count)
    return b"".join(chain.from_iterable(zip(*pieces, ends.splitlines(keepends=True)))) if pieces else ends


def _values(column: Column, type_: AttributeType) -> Texts | _Long:
    if column.dictionary is not None:
        texts = _strings(column.values, column.dictionary.strings)
    elif type_ is AttributeType.TIMESTAMP:
        texts = [b'"', *timestamps(column.values), b'"']
    elif type_ is AttributeType.FLOAT64:
        texts = _floats(column.values)
    elif type_ is AttributeType.BOOL:
        texts = booleans(column.values)
    else:
        texts = integers(column.values)
    if column.valid is None:
        return texts
    nulls = np.flatnonzero(~column.valid)
    if not isinstance(texts, _Long):
        return replaced(texts, nulls, [b"null"])
    for at in nulls.tolist():
        texts.texts[at] = b"null"
    return texts


def _floats(values: npt.NDArray[np.float64]) -> Texts:
    odd = np.flatnonzero(~np.isfinite(values))
    names = [b'"NaN"' if np.isnan(v) else b'"Infinity"' if v > 0 else b'"-Infinity"' for v in values[odd].tolist()]
    return replaced(floats(values), odd, names)


def _strings(codes: AnyArray, strings: Sequence[str]) -> Texts | _Long:
    """Each distinct text is encoded once."""
    used, at = np.unique(codes, return_inverse=True)
    texts = [encode_basestring(strings[code]).encode() for code in used.tolist()]
    if max(map(len, texts), default=0) <= _NARROW:
        return [np.array(texts, np.bytes_).take(at)]
    return _Long([texts[i] for i in at.tolist()])
