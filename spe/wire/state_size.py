"""How large a state is, without encoding it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from typing import Any, Final

import numpy as np

from spe.stream.batch import Column, Rows
from spe.stream.frozen import FrozenArray
from spe.stream.strings import StringDictionary

#: Entries of a list or map that are looked at; the others count as these do on average.
_LOOKED_AT: Final = 16
#: Bytes of a number, or of anything else that is small; and of a text beside its own.
_NUMBER: Final = 8
_LENGTH: Final = 2


def state_bytes(tree: Any) -> int:
    """About how many bytes :func:`spe.wire.state.encode_state` would make of a tree; nothing is copied.

    It takes no longer where lists, maps and arrays are long.
    """
    return round(_size(tree, set()))


def _size(value: Any, seen: set[int]) -> float:
    if isinstance(value, FrozenArray):
        return len(value) * value.dtype.itemsize
    if isinstance(value, np.ndarray):
        if id(value) in seen:  # written once
            return 0
        seen.add(id(value))
        return value.nbytes
    if isinstance(value, str | bytes):
        return _LENGTH + len(value)
    if isinstance(value, dict):
        return _average(2 * len(value), chain.from_iterable(islice(value.items(), _LOOKED_AT)), seen)
    if isinstance(value, StringDictionary):
        if id(value) in seen:
            return 0
        seen.add(id(value))
        return _average(len(value), islice(value.strings, _LOOKED_AT), seen)
    if isinstance(value, Rows):
        return sum(_size(part, seen) for part in (value.time, value.t_max, *value.columns))
    if isinstance(value, Column):
        return sum(_size(part, seen) for part in (value.values, value.valid, value.dictionary) if part is not None)
    if isinstance(value, list | tuple):
        return _average(len(value), islice(value, _LOOKED_AT), seen)
    return _NUMBER


def _average(count: int, some: Iterable[Any], seen: set[int]) -> float:
    sizes = [_size(one, seen) for one in some]
    return count * sum(sizes) / len(sizes) if sizes else 0
