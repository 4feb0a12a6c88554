"""The stream of rows and results that another operator of the fragment rejects (rule U15)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from operators.operator import Operator
from operators.rejections import Rejection
from operators.steps import Steps
from spe.stream.batch import Column, Rows
from spe.stream.schema import Schema
from spe.stream.strings import StringDictionary

#: Number of rejections that a step turns into rows.
_STEP: Final = 1 << 8


class RejectedStream(Operator):
    """Makes rows of rejections; the fragment passes the rejections of a slice."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        raise AssertionError("U15: the fragment gives it rejections, not rows")

    def made(self, rejections: Sequence[Rejection]) -> Steps[list[Rows]]:
        """Makes rows by (time, rows before results, number), which does not depend on slices; in portions."""
        ordered = sorted(rejections, key=lambda r: (r.time, r.result, r.number))
        pieces: list[Rows] = []
        for begin in range(0, len(ordered), _STEP):
            if begin:
                yield
            pieces.append(_rows(ordered[begin : begin + _STEP]))
        return pieces

    def rewind(self, boundary: int) -> bool:
        return True


def _rows(some: Sequence[Rejection]) -> Rows:
    time = np.array([r.time for r in some], np.int64)
    columns = (
        _texts(["result" if r.result else "row" for r in some]),
        Column(np.array([r.number for r in some], np.int64), None, None),
        _texts([r.input for r in some]),
        Column(np.array([r.id or 0 for r in some], np.int64), _valid([r.id for r in some]), None),
        _texts([r.reason for r in some]),
        _texts([json.dumps(r.values, ensure_ascii=False) for r in some]),
    )
    return Rows(time, time, columns)


def _texts(texts: Sequence[str | None]) -> Column:
    """Makes a column; escapes lone surrogates, which a user's message may have, so that they can be sent."""
    strings = StringDictionary()
    codes = strings.encode([(text or "").encode("utf-8", "backslashreplace").decode() for text in texts])
    return Column(codes, _valid(texts), strings)


def _valid(values: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    return None if None not in values else np.array([value is not None for value in values], np.bool_)
