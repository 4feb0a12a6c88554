"""Encodes operator snapshots and checkpoints: a closed set of types, shared objects stay shared, no pickle.

Layout: ``<4sIIIQ`` magic, version, CRC-32 of all that follows the header, zero, length of the skeleton; the skeleton
(msgpack, padded to 8); then the bytes of each array, each padded to 8.  The skeleton is ``[arrays, dictionaries,
tree]``: dtype and shape per array, two array numbers (lengths, text) per StringDictionary, and the tree, in which a
scalar stands for itself and everything else is ``[tag, …]``.  An array or a dictionary that is referred to twice is
stored once, and is one object again after decoding.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, Final

import msgpack
import numpy as np

from spe.checksum import crc32
from spe.errors import LocalProtocolError, RemoteProtocolError, other_version
from spe.stream.batch import AnyArray, Batch, Boundary, Column, Rows
from spe.stream.frozen import Derived, FrozenArray
from spe.stream.names import Kind
from spe.stream.strings import StringDictionary

STATE_VERSION: Final = 1
#: Largest skeleton: many values belong in arrays, since unpacking costs up to 70 times this.
SKELETON_BYTES: Final = 32 << 20
DEPTH_MAX: Final = 64
_DIMENSIONS_MAX: Final = 8
#: Entries, or bytes, copied or summed at once.
_PORTION: Final = 1 << 20
#: Texts joined at once.
_TEXTS: Final = 1 << 14

_MAGIC: Final = b"SPEs"
_HEADER: Final = struct.Struct("<4sIIIQ")
_LIST, _TUPLE, _DICT, _BIG, _ARRAY, _COLUMN, _ROWS, _BATCH, _BOUNDARY, _DICTIONARY = range(10)
_INT_MIN: Final = -(2**63)
_INT_MAX: Final = 2**64 - 1
_SCALARS: Final = frozenset({type(None), bool, float, str, bytes})
_READ: Final = _SCALARS | {int}


def encode_state(tree: Any) -> bytes:
    """Encodes a tree of dict, list, tuple, int, float, str, bool, None, bytes, arrays, FrozenArray, Derived,
    Column, Rows, Batch, Boundary and StringDictionary; exactly these types, so that decoding gives an equal tree
    (with an array for a FrozenArray, None for a Derived).

    Raises:
      LocalProtocolError: the tree has other types, or is too deep or large; the error names the place.
    """
    return bytes(encode_large_state(tree))


def encode_large_state(tree: Any) -> memoryview:
    """Encodes a large tree, in a thread: large arrays are copied and summed without the interpreter's lock.

    Joining them as bytes would hold the lock throughout.
    """
    writer = _Writer()
    node = writer.node(tree, "state", 0)
    arrays = [
        [a.dtype.newbyteorder("<").str, [len(a)] if isinstance(a, FrozenArray) else list(a.shape)]
        for a in writer.arrays
    ]
    skeleton = msgpack.packb([arrays, writer.tables, node], use_bin_type=True, unicode_errors="surrogatepass")
    if len(skeleton) > SKELETON_BYTES:
        raise LocalProtocolError(
            f"state: {len(skeleton)} bytes outside of arrays, at most {SKELETON_BYTES} are possible; use arrays"
        )
    at = _HEADER.size + _padded(len(skeleton))
    sizes = [len(a) * a.dtype.itemsize if isinstance(a, FrozenArray) else a.nbytes for a in writer.arrays]
    out = np.empty(at + sum(map(_padded, sizes)), np.uint8)
    out[_HEADER.size : at] = np.frombuffer(skeleton.ljust(_padded(len(skeleton)), b"\0"), np.uint8)
    for array, size in zip(writer.arrays, sizes, strict=True):
        stop = at + _padded(size)
        out[at + size : stop] = 0
        _write_array(array, out[at : at + size])
        at = stop
    crc = 0
    for start in range(_HEADER.size, at, _PORTION):
        crc = crc32(out[start : start + _PORTION].data, crc)
    out[: _HEADER.size] = np.frombuffer(_HEADER.pack(_MAGIC, STATE_VERSION, crc, 0, len(skeleton)), np.uint8)
    return out.data


def _padded(size: int) -> int:
    return size + (-size & 7)


def _write_array(array: AnyArray | FrozenArray, out: AnyArray) -> None:
    out = out.view(array.dtype.newbyteorder("<"))
    if isinstance(array, FrozenArray):
        for _ in array.copy_to(out, _PORTION):
            pass
        return
    flat = array.reshape(-1)
    for start in range(0, len(flat), _PORTION):
        out[start : start + _PORTION] = flat[start : start + _PORTION]


def decode_state(data: bytes | bytearray | memoryview) -> Any:
    """Decodes the bytes of :func:`encode_state`.  Arrays are read-only: to write, copy first.

    Raises:
      RemoteProtocolError: the bytes are damaged, of another version, or no state.
    """
    if len(data) < _HEADER.size:
        raise RemoteProtocolError(f"state: {len(data)} bytes are too few")
    magic, version, crc, zero, length = _HEADER.unpack_from(data)
    if magic != _MAGIC or zero:
        raise RemoteProtocolError("state: these bytes are no state")
    if why := other_version("the state", version, STATE_VERSION):
        raise RemoteProtocolError(why)
    body = memoryview(data)[_HEADER.size :]
    if length > min(SKELETON_BYTES, len(body)) or crc32(body) != crc:
        raise RemoteProtocolError("state: the bytes are damaged or cut off")
    try:
        items = msgpack.unpackb(body[:length], raw=False, strict_map_key=True, unicode_errors="surrogatepass")
        arrays, tables, node = items
        reader = _Reader(_read_arrays(arrays, body, length + (-length & 7)), tables)
        return reader.node(node, 0)
    except RemoteProtocolError:
        raise
    except Exception as e:  # a damaged skeleton can fail in any of these calls, in many ways
        raise RemoteProtocolError(f"state: malformed: {type(e).__name__}: {e}") from None


class _Writer:
    """Turns a tree into nodes, and collects arrays and dictionaries."""

    def __init__(self) -> None:
        self.arrays: list[AnyArray | FrozenArray] = []
        self.tables: list[list[int]] = []
        self._array_index: dict[int, int] = {}
        self._table_index: dict[int, int] = {}
        #: Objects whose ids are in use, kept alive so that no id is reused during writing.
        self._alive: list[object] = []

    def node(self, value: Any, where: str, depth: int) -> Any:
        kind = type(value)
        if kind in _SCALARS:
            return value
        if kind is int:
            return value if _INT_MIN <= value <= _INT_MAX else [_BIG, str(value)]
        if depth > DEPTH_MAX:
            raise LocalProtocolError(f"{where}: more than {DEPTH_MAX} levels deep")
        write = _WRITERS.get(kind)
        if write is None:
            raise LocalProtocolError(f"{where}: cannot store a {kind.__module__}.{kind.__qualname__}")
        return write(self, value, where, depth + 1)

    def sequence(self, value: list[Any] | tuple[Any, ...], where: str, depth: int) -> list[Any]:
        tag = _LIST if type(value) is list else _TUPLE
        out: list[Any] = [tag]
        for at, item in enumerate(value):  # the text of the place is only made for items that may be refused
            out.append(item if type(item) in _SCALARS else self.node(item, f"{where}[{at}]", depth))
        return out

    def dict(self, value: dict[Any, Any], where: str, depth: int) -> list[Any]:
        out: list[Any] = [_DICT]
        for key, item in value.items():
            out.append(key if type(key) in _SCALARS else self.node(key, f"{where} key {key!r}", depth))
            out.append(item if type(item) in _SCALARS else self.node(item, f"{where}.{key}", depth))
        return out

    def derived(self, value: Derived, where: str, depth: int) -> None:
        return None

    def frozen(self, value: FrozenArray, where: str, depth: int) -> list[Any]:
        if value.dtype == np.object_:
            return self.sequence(value.array().tolist(), where, depth)
        self.arrays.append(value)
        return [_ARRAY, len(self.arrays) - 1]

    def array(self, value: AnyArray, where: str, depth: int) -> list[Any]:
        number = self._array_index.get(id(value))
        if number is None:
            if value.dtype.kind not in "biuf" or value.ndim > _DIMENSIONS_MAX:
                raise LocalProtocolError(f"{where}: cannot store an array of {value.dtype}, {value.ndim} dimensions")
            number = self._array_index[id(value)] = len(self.arrays)
            self._alive.append(value)
            self.arrays.append(value)
        return [_ARRAY, number]

    def column(self, value: Column, where: str, depth: int) -> list[Any]:
        parts = (value.values, value.valid, value.dictionary)
        return [_COLUMN, *[self.node(v, where, depth) for v in parts]]

    def rows(self, value: Rows, where: str, depth: int) -> list[Any]:
        columns = [self.node(c, f"{where}.columns[{i}]", depth) for i, c in enumerate(value.columns)]
        return [_ROWS, self.node(value.time, where, depth), self.node(value.t_max, where, depth), columns]

    def batch(self, value: Batch, where: str, depth: int) -> list[Any]:
        ids, rows = self.node(value.ids, where, depth), self.node(value.rows, where, depth)
        return [_BATCH, int(value.kind), value.from_id, value.upto_id, ids, rows]

    def boundary(self, value: Boundary, where: str, depth: int) -> list[Any]:
        return [_BOUNDARY, int(value.kind), value.time, value.upto_id]

    def dictionary(self, value: StringDictionary, where: str, depth: int) -> list[Any]:
        number = self._table_index.get(id(value))
        if number is None:
            number = self._table_index[id(value)] = len(self.tables)
            self._alive.append(value)
            strings, lengths, text = value.strings, np.empty(len(value), np.uint32), bytearray()
            for start in range(0, len(lengths), _TEXTS):  # a single call would hold the interpreter's lock
                some = [s.encode("utf-8", "surrogatepass") for s in strings[start : min(start + _TEXTS, len(lengths))]]
                lengths[start : start + len(some)] = np.fromiter(map(len, some), np.uint32, len(some))
                text += b"".join(some)
            self.tables.append([len(self.arrays), len(self.arrays) + 1])
            self.arrays += [lengths, np.frombuffer(text, np.uint8)]
        return [_DICTIONARY, number]


_WRITERS: Final[dict[type, Callable[[_Writer, Any, str, int], list[Any] | None]]] = {
    list: _Writer.sequence,
    tuple: _Writer.sequence,
    dict: _Writer.dict,
    np.ndarray: _Writer.array,
    FrozenArray: _Writer.frozen,
    Derived: _Writer.derived,
    Column: _Writer.column,
    Rows: _Writer.rows,
    Batch: _Writer.batch,
    Boundary: _Writer.boundary,
    StringDictionary: _Writer.dictionary,
}


def _read_arrays(descriptions: Any, body: memoryview, at: int) -> list[AnyArray]:
    """Copies the arrays, so that a remaining one does not keep all the bytes alive; read-only."""
    arrays = []
    for text, shape in descriptions:
        dtype = np.dtype(str(text))
        if (
            dtype.kind not in "biuf"
            or len(shape) > _DIMENSIONS_MAX
            or not all(type(n) is int and n >= 0 for n in shape)
        ):
            raise RemoteProtocolError(f"state: no array of {text!r:.40} and shape {shape!r:.80}")
        count = math.prod(shape)
        if at + count * dtype.itemsize > len(body):
            raise RemoteProtocolError(f"state: an array of {count} × {dtype} lies beyond the end")
        array = np.frombuffer(body, dtype, count, at).astype(dtype.newbyteorder("="), copy=True).reshape(shape)
        array.flags.writeable = False
        arrays.append(array)
        at += array.nbytes + (-array.nbytes & 7)
    if at != len(body):
        raise RemoteProtocolError(f"state: {len(body) - at} bytes too many")
    return arrays


class _Reader:
    """Turns nodes back into the tree."""

    def __init__(self, arrays: list[AnyArray], tables: list[Any]) -> None:
        self._arrays = arrays
        self._tables = [self._read_table(arrays[lengths], arrays[text]) for lengths, text in tables]

    @staticmethod
    def _read_table(lengths: AnyArray, text: AnyArray) -> StringDictionary:
        data, at, strings = np.ascontiguousarray(text, np.uint8).data, 0, []
        for start in range(0, len(lengths), _PORTION):
            for length in lengths[start : start + _PORTION].tolist():
                strings.append(str(data[at : at + length], "utf-8", "surrogatepass"))
                at += length
        dictionary = StringDictionary(strings)
        if at != len(data) or len(dictionary) != len(strings):
            raise RemoteProtocolError("state: a string table with wrong lengths, or the same string twice")
        return dictionary

    def node(self, node: Any, depth: int) -> Any:
        if type(node) is not list:
            if type(node) in _READ:
                return node
            raise RemoteProtocolError(f"state: an unexpected {type(node).__name__}")
        if depth > DEPTH_MAX:
            raise RemoteProtocolError(f"state: more than {DEPTH_MAX} levels deep")
        tag, *items = node
        if tag in (_LIST, _TUPLE, _DICT):
            values = [n if type(n) in _READ else self.node(n, depth + 1) for n in items]
            if tag == _LIST:
                return values
            return tuple(values) if tag == _TUPLE else dict(zip(values[::2], values[1::2], strict=True))
        return self._object(tag, items, depth + 1)

    def _object(self, tag: Any, items: list[Any], depth: int) -> Any:
        if tag == _BIG:
            return int(items[0])
        if tag == _ARRAY:
            return self._arrays[items[0]]
        if tag == _DICTIONARY:
            return self._tables[items[0]]
        if tag == _BOUNDARY:
            kind, time, upto_id = items
            return Boundary(Kind(kind), int(time), int(upto_id))
        if tag == _COLUMN:
            return _column(*[self.node(n, depth) for n in items])
        if tag == _ROWS:
            time, t_max = self.node(items[0], depth), self.node(items[1], depth)
            return _rows(time, t_max, tuple([self.node(n, depth) for n in items[2]]))
        if tag == _BATCH:
            kind, from_id, upto_id, ids, rows = items
            return _batch(kind, from_id, upto_id, self.node(ids, depth), self.node(rows, depth))
        raise RemoteProtocolError(f"state: there is no tag {tag!r:.40}")


def _column(values: AnyArray, valid: AnyArray | None, dictionary: StringDictionary | None) -> Column:
    if type(values) is not np.ndarray or values.ndim != 1 or type(dictionary) not in (StringDictionary, type(None)):
        raise RemoteProtocolError("state: a column that is no array")
    column = Column(values, valid, dictionary)
    if valid is not None and (valid.dtype != np.bool_ or len(valid) != len(values)):
        raise RemoteProtocolError("state: a mask that does not fit its column")
    if dictionary is not None:
        used = values if valid is None else values[valid]
        if len(used) and not 0 <= used.min() <= used.max() < len(dictionary):
            raise RemoteProtocolError("state: a string code outside its dictionary")
    return column


def _rows(time: AnyArray, t_max: AnyArray, columns: tuple[Column, ...]) -> Rows:
    if not time.shape == t_max.shape == (len(time),) or time.dtype != np.int64 or t_max.dtype != np.int64:
        raise RemoteProtocolError("state: rows without times")
    if any(type(c) is not Column or len(c) != len(time) for c in columns):
        raise RemoteProtocolError("state: rows of columns of different lengths")
    return Rows(time, t_max, columns)


def _batch(kind: int, from_id: int, upto_id: int, ids: AnyArray | None, rows: Rows) -> Batch:
    count = upto_id - from_id if ids is None else len(ids)
    if type(rows) is not Rows or count != len(rows):
        raise RemoteProtocolError("state: a batch whose ids do not fit its rows")
    return Batch(Kind(kind), from_id, upto_id, ids, rows)
