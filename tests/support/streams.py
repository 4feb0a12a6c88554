"""Streams as text, in the notation of the tests.

    S7/12x     stable tuple: id 7, time 12, payload x
    T/23x      tentative tuple; its id is the next one
    T/23^19x   … with t_max 19 (else t_max = time)
    B20(7)     stable boundary 20, upto 7; B20 alone: upto what came before; Binf ends the stream
    b30        tentative boundary
    U(6)       undo to 6
    R+  R-     rec_done, STABLE or UP_FAILURE afterwards
    S(5,8]     a stable batch that covers ids 6 … 8 and holds no row
    |          ends a batch: neighbouring tuples of a kind are one batch otherwise

A payload is the text of a schema's one string attribute (any run of letters and primes), or, for other schemas,
``:`` and one value per attribute, separated by commas: ``S7/12:5,null,a``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from spe.stream.batch import Batch, Boundary, Element, RecDone, Rows, Undo
from spe.stream.names import Kind, NodeState
from spe.stream.schema import AttributeType, Schema
from spe.stream.strings import StringPool
from spe.stream.times import BEFORE_TIME, END_OF_TIME, parse_timestamp

#: One payload.
PAYLOAD = Schema.of(x="string")

_TUPLE = re.compile(r"(?P<kind>[ST])(?P<id>\d*)/(?P<time>-?\d+)(\^(?P<t_max>-?\d+))?(?P<payload>:.*|[^\d:,|]*)")
_EMPTY = re.compile(r"S\((\d+),(\d+)\]")
_BOUNDARY = re.compile(r"(?P<kind>[Bb])(?P<time>-?\d+|-?inf)(\((?P<upto>\d+)\))?")
_UNDO = re.compile(r"U\((\d+)\)")
_REC_DONE = {"R+": NodeState.STABLE, "R-": NodeState.UP_FAILURE, "R−": NodeState.UP_FAILURE}


def parse(
    text: str, schema: Schema = PAYLOAD, *, position: int | None = None, pool: StringPool | None = None
) -> list[Element]:
    """The elements that a text names.

    Args:
      position: id before the first element, None: just before the first one named; a stable batch covers everything
        from the element before it.

    Raises:
      ValueError: a word is none of the notation.
    """
    return _Parser(schema, position, pool).parse(text)


def show(elements: Iterable[Element]) -> str:
    """The text of elements: what :func:`parse` reads, but for where batches are cut."""
    return " ".join(word for element in elements for word in _words(element))


class _Parser:
    def __init__(self, schema: Schema, position: int | None, pool: StringPool | None) -> None:
        self._schema = schema
        self._stable_id = self._last_id = position or 0
        self._free = position is None
        self._pool = pool
        self._run: list[re.Match[str]] = []
        self._out: list[Element] = []

    def parse(self, text: str) -> list[Element]:
        for word in text.replace("|", " | ").split():
            found = _TUPLE.fullmatch(word)
            if found is None or (self._run and self._run[0]["kind"] != found["kind"]):
                self._end_run()
            if found is not None:
                self._run.append(found)
            elif word != "|":
                self._free = False
                self._out.append(self._mark(word))
        self._end_run()
        return self._out

    def _mark(self, word: str) -> Element:
        if word in _REC_DONE:
            return RecDone(_REC_DONE[word])
        if undo := _UNDO.fullmatch(word):
            self._stable_id = self._last_id = int(undo[1])
            return Undo(int(undo[1]))
        if boundary := _BOUNDARY.fullmatch(word):
            if boundary["kind"] == "b":
                return Boundary(Kind.TENTATIVE, _time(boundary["time"]), self._last_id)
            if boundary["upto"] is not None:
                self._stable_id = self._last_id = int(boundary["upto"])
            return Boundary(Kind.STABLE, _time(boundary["time"]), self._stable_id)
        if empty := _EMPTY.fullmatch(word):
            self._stable_id = self._last_id = int(empty[2])
            return Batch(Kind.STABLE, int(empty[1]), int(empty[2]), np.empty(0, np.int64), Rows.empty(self._schema))
        raise ValueError(f"{word!r} is no stream element")

    def _end_run(self) -> None:
        run, self._run = self._run, []
        if not run:
            return
        stable = run[0]["kind"] == "S"
        if self._free and run[0]["id"]:
            self._stable_id = self._last_id = int(run[0]["id"]) - 1
        self._free = False
        before = self._stable_id if stable else self._last_id
        ids: list[int] = []
        for one in run:
            ids.append(int(one["id"]) if one["id"] else (ids[-1] if ids else before) + 1)
        self._last_id = ids[-1]
        if stable:
            self._stable_id = self._last_id
        contiguous = ids == list(range(before + 1, ids[-1] + 1))
        self._out.append(
            Batch(
                Kind.STABLE if stable else Kind.TENTATIVE,
                before,
                ids[-1],
                None if contiguous else np.array(ids, np.int64),
                self._rows(run),
            )
        )

    def _rows(self, run: Sequence[re.Match[str]]) -> Rows:
        rows = Rows.from_tuples(
            self._schema,
            [int(one["time"]) for one in run],
            [_values(one["payload"], self._schema) for one in run],
            self._pool,
        )
        if any(one["t_max"] for one in run):
            t_max = np.array([int(one["t_max"] or one["time"]) for one in run], np.int64)
            rows = Rows(rows.time, t_max, rows.columns)
        return rows


def _time(text: str) -> int:
    return {"inf": END_OF_TIME, "-inf": BEFORE_TIME}.get(text) or int(text)


def _values(payload: str, schema: Schema) -> list[Any]:
    if not payload.startswith(":"):
        return [payload]
    return [_value(text, attribute.type) for text, attribute in zip(payload[1:].split(","), schema, strict=True)]


def _value(text: str, type_: AttributeType) -> Any:
    if text == "null":
        return None
    if type_ is AttributeType.INT64:
        return int(text)
    if type_ is AttributeType.FLOAT64:
        return float(text)
    if type_ is AttributeType.BOOL:
        return {"true": True, "false": False}[text]
    if type_ is AttributeType.TIMESTAMP:
        return int(text) if re.fullmatch(r"-?\d+", text) else parse_timestamp(text)
    return text


def _words(element: Element) -> list[str]:
    if isinstance(element, Undo):
        return [f"U({element.upto_id})"]
    if isinstance(element, RecDone):
        return ["R+" if element.state is NodeState.STABLE else "R-"]
    if isinstance(element, Boundary):
        ends = {END_OF_TIME: "inf", BEFORE_TIME: "-inf"}
        time = ends.get(element.time, str(element.time))
        return [f"B{time}({element.upto_id})" if element.kind is Kind.STABLE else f"b{time}"]
    if isinstance(element, Batch):
        return _batch_words(element)
    raise TypeError(f"{element!r} is no stream element")


def _batch_words(batch: Batch) -> list[str]:
    if not len(batch):
        return [f"S({batch.from_id},{batch.upto_id}]"] if batch.kind is Kind.STABLE else []
    rows = batch.rows
    words = []
    bare = len(rows.columns) == 1 and rows.columns[0].dictionary is not None
    cells = zip(batch.row_ids().tolist(), rows.time.tolist(), rows.t_max.tolist(), rows.to_tuples(), strict=True)
    for id_, time, t_max, values in cells:
        head = f"S{id_}" if batch.kind is Kind.STABLE else "T"
        late = "" if t_max == time else f"^{t_max}"
        if bare and isinstance(values[0], str) and re.fullmatch(r"[^\d\s:,|^]*", values[0]):
            payload = values[0]
        else:
            payload = ":" + ",".join(_text(v) for v in values)
        words.append(f"{head}/{time}{late}{payload}")
    return words


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
