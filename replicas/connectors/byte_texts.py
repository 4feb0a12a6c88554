"""Many values as texts at once: arrays of bytes that stand side by side.

A text is as wide as the longest of its column, with NULs wherever there is nothing, in its middle as well;
:func:`packed` leaves them out.  So nothing has to be aligned: a digit that is not there costs a byte and no decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from spe.stream.batch import AnyArray, BoolArray, Int64Array
from spe.stream.times import iso_timestamp

#: The parts of a text, from left to right: an array with a part for each row, of bytes or of a number that has as many
#: (numbers are copied faster), or the same bytes in each row.  None has a NUL that belongs to a text.
Texts = list[AnyArray | bytes]

_HOUR_US: Final = 3_600_000_000
_GROUP: Final = 10_000


def _table(texts: Iterable[str], dtype: type[Any]) -> AnyArray:
    size = np.dtype(dtype).itemsize
    return np.frombuffer(b"".join(text.encode().ljust(size, b"\0") for text in texts), dtype)


#: Four digits; then the first digits of a number, of which there may be fewer; then none.
_DIGITS: Final = _table([*(f"{n:04}" for n in range(_GROUP)), *(f"{n}" for n in range(_GROUP)), ""], np.uint32)
_FRACTION: Final = _table((f".{n:04}".rstrip("0").ljust(2, "0") for n in range(_GROUP)), np.uint64)
_MINUTES: Final = _table((f":{n // 60:02}:{n % 60:02}" for n in range(3_600)), np.uint64)
#: With no text in the end, for whole seconds.
_MILLISECONDS: Final = _table([*(f".{n:03}" for n in range(1_000)), ""], np.uint32)
_MICROSECONDS: Final = _table([*(f"{n:03}" for n in range(1_000)), ""], np.uint32)


def integers(values: Int64Array) -> Texts:
    """As ``str`` gives them."""
    negative = values < 0
    digits = _digits(np.abs(values).view(np.uint64))  # also of the least one, which has no int64 without its sign
    return [_minus(negative), *digits] if negative.any() else digits


def floats(values: npt.NDArray[np.float64]) -> Texts:
    """As ``repr`` gives them: the shortest text of which the same number is read; ``nan``, ``inf`` and ``-inf``.

    Few numbers have more than four decimals, and only those are made one by one.  Of all others the digits are those of
    an integer below 10**15: two texts of at most 15 digits are two numbers, so none is shorter.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.rint(values * _GROUP)
        short = (np.abs(scaled) < 1e15) & (scaled / _GROUP == values)
    others = np.flatnonzero(~short)
    scaled[others] = 0
    magnitudes = np.abs(scaled).astype(np.uint64)
    whole = magnitudes // _GROUP
    decimals = (magnitudes - whole * _GROUP).view(np.int64)
    texts = [_minus(np.signbit(values)), *_digits(whole), _FRACTION.take(decimals)]
    return replaced(texts, others, [repr(value).encode() for value in values[others].tolist()])


def timestamps(values: Int64Array) -> Texts:
    """``2026-01-01T00:00:00.500000Z``, microseconds only where there are any."""
    hours = values // _HOUR_US
    rest = (values - hours * _HOUR_US).astype(np.uint32)
    distinct, of = np.unique(hours, return_inverse=True)
    begins = np.array([iso_timestamp(hour * _HOUR_US)[:-6].encode() for hour in distinct.tolist()], np.bytes_)
    seconds = rest // 1_000_000
    micros = rest - seconds * 1_000_000
    millis = micros // 1_000
    last = micros - millis * 1_000
    whole = micros == 0
    millis[whole] = last[whole] = 1_000
    return [begins.take(of), _MINUTES.take(seconds), _MILLISECONDS.take(millis), _MICROSECONDS.take(last), b"Z"]


def booleans(values: BoolArray) -> Texts:
    return [np.array([b"false", b"true"]).take(values.view(np.uint8))]


def replaced(texts: Texts, places: AnyArray, others: Sequence[bytes]) -> Texts:
    """The texts, with others at some places: one for each of these, or one for all."""
    if not len(places):
        return texts
    rows = next(len(part) for part in texts if not isinstance(part, bytes))
    block = beside(texts, rows)
    new = np.array(others, np.bytes_)
    found = np.zeros(rows, f"S{max(block.shape[1], new.itemsize)}")
    found.view(np.uint8).reshape(rows, -1)[:, : block.shape[1]] = block
    found[places] = new
    return [found]


def beside(texts: Texts, rows: int) -> npt.NDArray[np.uint8]:
    """Shape (rows, bytes): the parts of each text one beside the other."""
    model = b"".join(part if isinstance(part, bytes) else bytes(part.itemsize) for part in texts)
    found = np.empty((rows, len(model)), np.uint8)
    found[:] = np.frombuffer(model, np.uint8)
    at = 0
    for part in texts:
        if isinstance(part, bytes):
            at += len(part)
        else:
            np.ndarray((rows,), part.dtype, found, at, (len(model),))[:] = part
            at += part.itemsize
    return found


def packed(texts: Texts, rows: int) -> bytes:
    """The texts of all rows one behind the other, with nothing between them."""
    return beside(texts, rows).tobytes().translate(None, b"\0")


def _digits(magnitudes: npt.NDArray[np.uint64]) -> Texts:
    largest = int(magnitudes.max(initial=0))
    rest: AnyArray = magnitudes.astype(np.uint32) if largest < 1 << 32 else magnitudes
    parts: Texts = []
    while not parts or largest:
        above = rest // _GROUP
        at = (rest - above * _GROUP).astype(np.intp)
        at += _GROUP * (above == 0)
        if parts:
            at[rest == 0] = 2 * _GROUP
        parts.insert(0, _DIGITS.take(at))
        rest, largest = above, largest // _GROUP
    return parts


def _minus(negative: BoolArray) -> AnyArray:
    return negative * np.uint8(ord("-"))
