"""Column arithmetic with SQL's rules: nulls, NaN as the largest value, division, overflow, text order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from spe.batch import AnyArray, BoolArray, Column, canonical
from spe.schema import AttributeType
from spe.strings import StringDictionary, StringPool


def both_valid(*columns: Column) -> BoolArray | None:
    """Where no argument is null; None when none ever is."""
    valid: BoolArray | None = None
    for column in columns:
        if column.valid is not None:
            valid = column.valid if valid is None else valid & column.valid
    return valid


def masked(valid: BoolArray | None, ok: BoolArray | None) -> BoolArray | None:
    """``valid`` and also ``ok``."""
    if ok is None:
        return valid
    return ok if valid is None else valid & ok


# --- comparison: NaN equals NaN and is larger than everything else ---


def equal(a: AnyArray, b: AnyArray) -> BoolArray:
    result: BoolArray = a == b
    if a.dtype == np.float64:
        nan = np.isnan(a)
        if nan.any():
            result = result | (nan & np.isnan(b))
    return result


def less(a: AnyArray, b: AnyArray) -> BoolArray:
    if a.dtype != np.float64:
        return np.asarray(a < b)
    return np.asarray(~(a >= b) & ~np.isnan(a))


def comparable(a: Column, b: Column) -> tuple[AnyArray, AnyArray]:
    """Values that compare as the columns do: strings become their ranks in one dictionary."""
    if a.dictionary is None or b.dictionary is None:
        return a.values, b.values
    if a.dictionary is not b.dictionary:
        a = a.in_dictionary(b.dictionary)
    assert b.dictionary is not None
    ranks = b.dictionary.ranks()
    if not len(ranks):
        return a.values, b.values
    return ranks.take(a.values), ranks.take(b.values)


def same_text(a: Column, b: Column) -> BoolArray:
    """Equality of two string columns; no order is needed."""
    assert b.dictionary is not None
    return np.asarray(a.in_dictionary(b.dictionary).values == b.values)


# --- strings: work per distinct text, not per row ---


class PerEntry:
    """``function`` of each entry of a dictionary, as an array that grows with it.

    Args:
      function: text -> bool or int (None: the result is null).
      dtype: of the array.
    """

    def __init__(self, function: Callable[[str], Any], dtype: Any) -> None:
        self._function = function
        self._dtype = dtype
        self._tables: WeakKeyDictionary[StringDictionary, tuple[AnyArray, BoolArray]] = WeakKeyDictionary()

    def of(self, column: Column) -> tuple[AnyArray, BoolArray | None]:
        """Per row (values, ok); ok is None when no entry failed."""
        dictionary = column.dictionary
        assert dictionary is not None
        values, ok = self._tables.get(dictionary, (np.empty(0, self._dtype), np.empty(0, np.bool_)))
        if len(values) != len(dictionary):
            made = [self._function(s) for s in dictionary.strings[len(values) :]]
            fine = np.array([x is not None for x in made], np.bool_)
            values = np.concatenate([values, np.array([0 if x is None else x for x in made], self._dtype)])
            ok = np.concatenate([ok, fine])
            self._tables[dictionary] = (values, ok)
        if not len(values):
            return np.zeros(len(column), self._dtype), None
        return values.take(column.values), None if ok.all() else ok.take(column.values)


class TextPerEntry:
    """``function`` of each entry, text to text: results go into dictionaries of our own, bounded by a pool."""

    def __init__(self, function: Callable[[str], str]) -> None:
        self._function = function
        self._pool = StringPool()
        self._tables: WeakKeyDictionary[StringDictionary, tuple[StringDictionary, AnyArray]] = WeakKeyDictionary()

    def of(self, column: Column) -> Column:
        dictionary = column.dictionary
        assert dictionary is not None
        target, codes = self._tables.get(dictionary, (self._pool.current(), np.empty(0, np.int32)))
        if len(codes) != len(dictionary):
            new = target.encode([self._function(s) for s in dictionary.strings[len(codes) :]])
            codes = np.concatenate([codes, new])
            self._tables[dictionary] = (target, codes)
        values = codes.take(column.values) if len(codes) else np.zeros(len(column), np.int32)
        return Column(values, column.valid, target)


class TextOf:
    """Text made of several columns, row by row, once per distinct combination of codes where that is few."""

    def __init__(self, function: Callable[..., str | None]) -> None:
        self._function = function
        self._pool = StringPool()

    def of(self, columns: Sequence[Column]) -> Column:
        valid = both_valid(*columns)
        n = len(columns[0])
        target = self._pool.current()
        blank = target.code("")
        codes = np.full(n, blank, np.int32)
        rows = np.arange(n) if valid is None else np.flatnonzero(valid)
        cells = [c.take(rows).to_list() for c in columns]
        made = [self._function(*items) for items in zip(*cells)]
        ok = np.array([x is not None for x in made], np.bool_)
        codes[rows] = target.encode(["" if x is None else x for x in made])
        if not ok.all():
            valid = np.ones(n, np.bool_) if valid is None else valid.copy()
            valid[rows[~ok]] = False
        return Column(codes, valid, target)


# --- choosing between columns ---


def choose(masks: Sequence[BoolArray], columns: Sequence[Column], type_: AttributeType) -> Column:
    """Row by row the column of the first true mask; the last column where none is (CASE, COALESCE, IF)."""
    dictionary: StringDictionary | None = None
    if type_ is AttributeType.STRING:
        dictionary = next((c.dictionary for c in columns if c.dictionary is not None), None) or StringDictionary()
        columns = [c.in_dictionary(dictionary) for c in columns]
    result = columns[-1]
    values = result.values.astype(type_.dtype, copy=True)
    nullable = any(c.valid is not None for c in columns)
    valid = _validity(result).copy() if nullable else None
    for mask, column in reversed(list(zip(masks, columns[:-1]))):
        values[mask] = (
            column.values[mask] if column.values.dtype == values.dtype else column.values[mask].astype(values.dtype)
        )
        if valid is not None:
            valid[mask] = _validity(column)[mask]
    if valid is not None and valid.all():
        valid = None
    return Column(values, valid, dictionary)


def _validity(column: Column) -> BoolArray:
    return np.ones(len(column), np.bool_) if column.valid is None else column.valid


def null_column(n: int, type_: AttributeType) -> Column:
    dictionary = StringDictionary([""]) if type_ is AttributeType.STRING else None
    return Column(np.zeros(n, type_.dtype), np.zeros(n, np.bool_), dictionary)


def finished(values: AnyArray, valid: BoolArray | None) -> Column:
    """A float result in canonical form: one NaN, no −0.0."""
    return Column(canonical(values), valid)


# --- arithmetic ---


def truncated_division(a: AnyArray, b: AnyArray) -> AnyArray:
    """Integer division towards zero; b must not be 0.  The smallest integer by −1 wraps, as addition does."""
    with np.errstate(over="ignore", divide="ignore"):
        quotient = a // b
        return np.asarray(quotient + ((quotient * b != a) & ((a < 0) != (b < 0))))


def half_up(values: AnyArray, digits: int) -> AnyArray:
    """Rounds halves away from zero, as SQL does (NumPy rounds them to even)."""
    with np.errstate(over="ignore", invalid="ignore"):
        scale = 10.0**digits
        scaled = np.abs(values) * scale
        whole = np.floor(scaled)
        rounded = whole + (scaled - whole >= 0.5)
        result = np.copysign(rounded / scale, values)
        return np.where(np.isfinite(values) & np.isfinite(scaled), result, values)
