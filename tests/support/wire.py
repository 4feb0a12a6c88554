"""Stream elements for tests of the wire: strategies that make them, and plain values that compare them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from spe.stream.batch import Batch, Boundary, Column, Element, Int64Array, RecDone, Rows, Undo
from spe.stream.names import Kind, NodeState
from spe.stream.schema import AttributeType, Schema
from spe.stream.strings import StringDictionary
from spe.stream.times import BEFORE_TIME, END_OF_TIME
from spe.wire.codec import ElementDecoder
from spe.wire.framing import FrameReader

#: Every type, nullable and not.
SCHEMA = Schema.of(
    at="timestamp!",
    n="int64!",
    x="float64!",
    name="string!",
    on="bool!",
    m="int64",
    y="float64",
    tag="string",
    off="bool",
)

TIMES = st.integers(BEFORE_TIME, END_OF_TIME)
IDS = st.integers(0, 2**62)
TEXTS = st.text(st.characters(), max_size=8)  # lone surrogates included: they are legal in Python
VALUES: dict[AttributeType, st.SearchStrategy[Any]] = {
    AttributeType.INT64: st.integers(-(2**63), 2**63 - 1),
    AttributeType.TIMESTAMP: st.integers(-(2**63), 2**63 - 1),
    AttributeType.FLOAT64: st.floats(allow_nan=False),
    AttributeType.BOOL: st.booleans(),
    AttributeType.STRING: TEXTS,
}


@st.composite
def rows(draw: st.DrawFn, schema: Schema = SCHEMA, count: int | None = None) -> Rows:
    """Rows whose string columns share one new dictionary, or have one each."""
    n = draw(st.integers(0, 80)) if count is None else count
    shared = StringDictionary()
    columns = []
    for attribute in schema:
        values = VALUES[attribute.type]
        if attribute.nullable:
            values = st.none() | values
        dictionary = shared if draw(st.booleans()) else StringDictionary(["other"])
        # Few distinct values per column: what is drawn is chosen from, so that large batches stay cheap to draw.
        palette = draw(st.lists(values, min_size=1, max_size=4))
        items = [palette[i % len(palette)] for i in range(n)]
        columns.append(Column.from_list(items, attribute.type, dictionary))
    time = _times(draw, n)
    return Rows(time, time if draw(st.booleans()) else _times(draw, n), tuple(columns))


def _times(draw: st.DrawFn, n: int) -> Int64Array:
    palette = draw(st.lists(TIMES, min_size=1, max_size=4))
    return np.array([palette[i % len(palette)] for i in range(n)], np.int64)


@st.composite
def batches(draw: st.DrawFn, schema: Schema = SCHEMA) -> Batch:
    """A batch of either kind that covers its whole range of ids, or (a substream) a part of it."""
    content = draw(rows(schema))
    n, from_id, kind = len(content), draw(IDS), draw(st.sampled_from(Kind))
    if draw(st.booleans()):
        return Batch(kind, from_id, from_id + n, None, content)
    steps = draw(st.lists(st.integers(1, 5), min_size=n + 1, max_size=n + 1))
    ids = from_id + np.cumsum(np.array(steps, np.int64))
    return Batch(kind, from_id, int(ids[-1]), ids[:-1], content)


def elements(schema: Schema = SCHEMA) -> st.SearchStrategy[Element]:
    return st.one_of(
        batches(schema),
        st.builds(Boundary, st.sampled_from(Kind), TIMES, IDS),
        st.builds(Undo, IDS),
        st.builds(RecDone, st.sampled_from(NodeState)),
    )


def plain(value: Any) -> Any:
    """A value that is equal exactly when what it was made of is: types and null masks count, codes do not."""
    if isinstance(value, Batch):
        return ("batch", value.kind, value.from_id, value.upto_id, value.row_ids().tolist(), plain(value.rows))
    if isinstance(value, Rows):
        same = value.t_max is value.time
        return ("rows", value.time.tolist(), same or value.t_max.tolist(), [plain(c) for c in value.columns])
    if isinstance(value, Column):
        return ("column", value.values.dtype.str, value.valid is None or value.valid.tolist(), value.to_list())
    if isinstance(value, Boundary):
        return ("boundary", value.kind, value.time, value.upto_id)
    if isinstance(value, Undo):
        return ("undo", value.upto_id)
    if isinstance(value, RecDone):
        return ("rec_done", value.state)
    if isinstance(value, StringDictionary):
        return ("dictionary", list(value.strings))
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.str, value.shape, value.tolist())
    if isinstance(value, dict):
        return ("dict", [(plain(k), plain(v)) for k, v in value.items()])
    if isinstance(value, list | tuple):
        return (type(value).__name__, [plain(v) for v in value])
    return (type(value).__name__, value)


def decoded(data: bytes, decoder: ElementDecoder, reader: FrameReader | None = None) -> list[Element]:
    """All elements in ``data``."""
    frames = (reader or FrameReader(1 << 24)).feed(data)
    return [e for f in frames if (e := decoder.decode(f)) is not None]
