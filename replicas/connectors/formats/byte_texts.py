"""Many values as texts at once: arrays of bytes that stand side by side.

A text is as wide as the longest of its column, with NULs wherever there is nothing, in its middle as well;
:func:`packed` leaves them out.  So nothing has to be aligned: a digit that is not there costs a byte and no decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from spe.stream.batch import AnyArray, BoolArray, Int64Array
from spe.stream.times import iso_timestamp

#: The parts of a text, from left to right: an array with a part for each row, of bytes or of a number that has as many
#: (numbers are copied faster), or the same bytes in each row.  No text has a NUL of its own.
Texts = list[AnyArray | bytes]

_HOUR_US: Final = 3_600_000_000
#: What four digits make.
_GROUP: Final = 10_000
#: Of floats with at most four decimals, an integer.
_SCALE: Final = 10_000
#: Of the longest text of a float: -2.2250738585072014e-308.
_FLOAT_BYTES: Final = 24
#: Fewer floats are made one by one in less time.
_MANY_FLOATS: Final = 100


def _digits_of(numbers: Int64Array, places: int) -> npt.NDArray[np.uint8]:
    """Shape (numbers, places)."""
    powers = 10 ** np.arange(places - 1, -1, -1)
    return (numbers[:, np.newaxis] // powers % 10 + ord("0")).astype(np.uint8)


def _as_numbers(texts: npt.NDArray[np.uint8], width: int) -> AnyArray:
    """Texts of at most 4 or 8 bytes, each as one number."""
    return np.pad(texts, ((0, 0), (0, width - texts.shape[1]))).view(np.uint32 if width == 4 else np.uint64)[:, 0]


def _table_of_digits() -> AnyArray:
    """Four digits; then the first digits of a number, of which there may be fewer; then none."""
    numbers = np.arange(_GROUP)
    inner = _digits_of(numbers, 4)
    shown = numbers[:, np.newaxis] >= [1_000, 100, 10, 0]
    return _as_numbers(np.vstack([inner, inner * shown, np.zeros((1, 4), np.uint8)]), 4)


def _table_of_fractions() -> AnyArray:
    """A point, and four digits without zeros at the end, but for the first."""
    numbers = np.arange(_SCALE)
    shown = (numbers[:, np.newaxis] % [_SCALE, 1_000, 100, 10] != 0) | [True, False, False, False]
    return _as_numbers(_behind(b".", _digits_of(numbers, 4) * shown), 8)


def _table_of_minutes() -> AnyArray:
    """By second of an hour."""
    seconds = np.arange(3_600)
    minutes = _behind(b":", _digits_of(seconds // 60, 2))
    return _as_numbers(np.hstack([minutes, _behind(b":", _digits_of(seconds % 60, 2))]), 8)


def _behind(sign: bytes, texts: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.hstack([np.full((len(texts), 1), ord(sign), np.uint8), texts])


_DIGITS: Final = _table_of_digits()
_FRACTIONS: Final = _table_of_fractions()
_MINUTES: Final = _table_of_minutes()
#: Three digits; and no text in the end, for whole seconds.
_THREE: Final = np.pad(_digits_of(np.arange(1_000), 3), ((0, 1), (0, 0)))
_MILLISECONDS: Final = _as_numbers(np.pad(_behind(b".", _THREE[:-1]), ((0, 1), (0, 0))), 4)
_MICROSECONDS: Final = _as_numbers(_THREE, 4)


def integers(values: AnyArray) -> Texts:
    """As ``str`` gives them."""
    values = np.asarray(values, np.int64)
    negative = values < 0
    digits = _digits(np.abs(values).view(np.uint64))  # also of the least one, which has no int64 without its sign
    return [_minus(negative), *digits] if negative.any() else digits


def floats(values: AnyArray) -> Texts:
    """As ``repr`` gives them: the shortest text of which the same number is read; ``nan``, ``inf`` and ``-inf``.

    Those with at most four decimals are made at once.  Their digits are those of an integer below 10**15: two texts of
    at most 15 digits are two numbers, so none is shorter.  All others are made one by one.
    """
    values = np.asarray(values, np.float64)
    if len(values) < _MANY_FLOATS:
        return [_reprs(values)]
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.rint(values * _SCALE)
        others = np.flatnonzero((np.abs(scaled) >= 1e15) | (scaled / _SCALE != values))
    if 2 * len(others) > len(values):
        return [_reprs(values)]
    scaled[others] = 0
    magnitudes = np.abs(scaled).astype(np.uint64)
    whole = magnitudes // _SCALE
    fractions = (magnitudes - whole * _SCALE).view(np.int64)
    texts = [_minus(np.signbit(values)), *_digits(whole), _FRACTIONS.take(fractions)]
    return replaced(texts, others, _reprs(values[others]))


def timestamps(values: AnyArray) -> Texts:
    """``2026-01-01T00:00:00.500000Z``, microseconds only where there are any."""
    values = np.asarray(values, np.int64)
    hours = values // _HOUR_US
    rest = (values - hours * _HOUR_US).astype(np.uint32)
    distinct, of = np.unique(hours, return_inverse=True)
    begins = [iso_timestamp(hour * _HOUR_US).removesuffix(":00:00") for hour in distinct.tolist()]
    seconds = rest // 1_000_000
    micros = rest - seconds * 1_000_000
    millis = micros // 1_000
    last = micros - millis * 1_000
    whole = micros == 0
    millis[whole] = last[whole] = 1_000
    first = np.array(begins, np.bytes_).take(of)
    return [first, _MINUTES.take(seconds), _MILLISECONDS.take(millis), _MICROSECONDS.take(last), b"Z"]


def booleans(values: AnyArray) -> Texts:
    return [np.array([b"false", b"true"]).take(np.not_equal(values, 0).view(np.uint8))]


def replaced(texts: Texts, places: AnyArray, others: AnyArray | Sequence[bytes]) -> Texts:
    """The texts, with others at some places: one for each of these, or one for all."""
    if not len(places):
        return texts
    rows = next(len(part) for part in texts if not isinstance(part, bytes))
    block, new = _beside(texts, rows), np.asarray(others, np.bytes_)
    old = np.frombuffer(block, f"S{len(block) // rows}")
    found = old.astype(f"S{max(old.itemsize, new.itemsize)}")
    found[places] = new
    return [found]


def packed(texts: Texts, rows: int) -> bytes:
    """The texts of all rows one behind the other, with nothing between them."""
    return bytes(_beside(texts, rows).translate(None, b"\0")) if rows else b""


def _beside(texts: Texts, rows: int) -> bytearray:
    """The parts of each text one beside the other, in as many bytes for each row."""
    model = b"".join(part if isinstance(part, bytes) else bytes(part.itemsize) for part in texts)
    found = bytearray(model) * rows
    at = 0
    for part in texts:
        if isinstance(part, bytes):
            at += len(part)
        else:
            np.ndarray((rows,), part.dtype, found, at, (len(model),))[:] = part
            at += part.itemsize
    return found


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


def _reprs(values: npt.NDArray[np.float64]) -> AnyArray:
    return np.array(list(map(repr, values.tolist())), f"S{_FLOAT_BYTES}")


def _minus(negative: BoolArray) -> AnyArray:
    return negative * np.uint8(ord("-"))
