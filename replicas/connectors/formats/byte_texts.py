"""Formats many values as texts at once: arrays of bytes, side by side.

A text is as wide as the longest of its column, padded with NULs, in its middle as well; :func:`packed` removes them.
So no text has to be aligned: a missing digit costs a byte and no decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from spe.stream.batch import AnyArray, BoolArray, Int64Array
from spe.stream.times import iso_timestamp

#: The parts of a text, from left to right: an array with a part for each row, of bytes or of a number of the same size
#: (numbers are copied faster), or the same bytes in each row.  No text has a NUL of its own.
Texts = list[AnyArray | bytes]

_HOUR_US: Final = 3_600_000_000
#: Number of values of four digits.
_GROUP: Final = 10_000
#: Factor that makes an integer of a float with at most four decimals.
_SCALE: Final = 10_000
#: Length of the longest text of a float: -2.2250738585072014e-308.
_FLOAT_BYTES: Final = 24
#: Below this number, formatting floats one by one is faster.
_MANY_FLOATS: Final = 100


def _digits_of(numbers: Int64Array, places: int) -> npt.NDArray[np.uint8]:
    """Returns digits of shape (numbers, places)."""
    powers = 10 ** np.arange(places - 1, -1, -1)
    return (numbers[:, np.newaxis] // powers % 10 + ord("0")).astype(np.uint8)


def _as_numbers(texts: npt.NDArray[np.uint8], width: int) -> AnyArray:
    """Returns texts of at most 4 or 8 bytes as numbers."""
    return np.pad(texts, ((0, 0), (0, width - texts.shape[1]))).view(np.uint32 if width == 4 else np.uint64)[:, 0]


def _table_of_digits() -> AnyArray:
    """Table of four digits; then of the first digits of a number, with leading zeros removed; then an empty entry."""
    numbers = np.arange(_GROUP)
    inner = _digits_of(numbers, 4)
    shown = numbers[:, np.newaxis] >= [1_000, 100, 10, 0]
    return _as_numbers(np.vstack([inner, inner * shown, np.zeros((1, 4), np.uint8)]), 4)


def _table_of_fractions() -> AnyArray:
    """Table of a point and four digits, without trailing zeros except for the first digit."""
    numbers = np.arange(_SCALE)
    shown = (numbers[:, np.newaxis] % [_SCALE, 1_000, 100, 10] != 0) | [True, False, False, False]
    return _as_numbers(_behind(b".", _digits_of(numbers, 4) * shown), 8)


def _table_of_minutes() -> AnyArray:
    """Table of texts by second of an hour."""
    seconds = np.arange(3_600)
    minutes = _behind(b":", _digits_of(seconds // 60, 2))
    return _as_numbers(np.hstack([minutes, _behind(b":", _digits_of(seconds % 60, 2))]), 8)


def _behind(sign: bytes, texts: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.hstack([np.full((len(texts), 1), ord(sign), np.uint8), texts])


_DIGITS: Final = _table_of_digits()
_FRACTIONS: Final = _table_of_fractions()
_MINUTES: Final = _table_of_minutes()
#: Three digits; and an empty entry, for whole seconds.
_THREE: Final = np.pad(_digits_of(np.arange(1_000), 3), ((0, 1), (0, 0)))
_MILLISECONDS: Final = _as_numbers(np.pad(_behind(b".", _THREE[:-1]), ((0, 1), (0, 0))), 4)
_MICROSECONDS: Final = _as_numbers(_THREE, 4)


def integers(values: AnyArray) -> Texts:
    """Formats integers as ``str`` does."""
    values = np.asarray(values, np.int64)
    negative = values < 0
    digits = _digits(np.abs(values).view(np.uint64))  # including the least one, whose negation exceeds int64
    return [_minus(negative), *digits] if negative.any() else digits


def floats(values: AnyArray) -> Texts:
    """Formats floats as ``repr`` does: the shortest text from which the same number is read; ``nan``, ``inf``,
    ``-inf``.

    Floats with at most four decimals are formatted at once.  Their digits are those of an integer below 10**15: two
    texts of at most 15 digits are two numbers, so none is shorter.  All others are formatted one by one.
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
    """Formats ``2026-01-01T00:00:00.500000Z``, with microseconds only if they are not zero."""
    values = np.asarray(values, np.int64)
    hours = values // _HOUR_US
    rest = (values - hours * _HOUR_US).astype(np.uint32)
    distinct, places = np.unique(hours, return_inverse=True)
    begins = [iso_timestamp(hour * _HOUR_US).removesuffix(":00:00") for hour in distinct.tolist()]
    seconds = rest // 1_000_000
    micros = rest - seconds * 1_000_000
    millis = micros // 1_000
    last = micros - millis * 1_000
    whole = micros == 0
    millis[whole] = last[whole] = 1_000
    first = np.array(begins, np.bytes_).take(places)
    return [first, _MINUTES.take(seconds), _MILLISECONDS.take(millis), _MICROSECONDS.take(last), b"Z"]


def booleans(values: AnyArray) -> Texts:
    return [np.array([b"false", b"true"]).take(np.not_equal(values, 0).view(np.uint8))]


def replaced(texts: Texts, places: AnyArray, others: AnyArray | Sequence[bytes]) -> Texts:
    """Replaces the texts at some places, each by its own text, or all by one."""
    if not len(places):
        return texts
    rows = next(len(part) for part in texts if not isinstance(part, bytes))
    block, new = _beside(texts, rows), np.asarray(others, np.bytes_)
    old = np.frombuffer(block, f"S{len(block) // rows}")
    wider = old.astype(f"S{max(old.itemsize, new.itemsize)}")
    wider[places] = new
    return [wider]


def packed(texts: Texts, rows: int) -> bytes:
    """Joins the texts of all rows, with nothing between them."""
    return bytes(_beside(texts, rows).translate(None, b"\0")) if rows else b""


def _beside(texts: Texts, rows: int) -> bytearray:
    """Joins the parts of each text, with the same number of bytes for each row."""
    model = b"".join(part if isinstance(part, bytes) else bytes(part.itemsize) for part in texts)
    joined = bytearray(model) * rows
    at = 0
    for part in texts:
        if isinstance(part, bytes):
            at += len(part)
        else:
            np.ndarray((rows,), part.dtype, joined, at, (len(model),))[:] = part
            at += part.itemsize
    return joined


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
