"""Operators in tests: tuples as text, slices by cuts, and what every operator promises."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, TypeVar
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st

from operators import footprints, steps, texts
from operators.build import build_operator
from operators.input_buffer import InputBuffer, Marker
from operators.operator import Operator
from operators.steps import finished
from operators.texts import TextIds
from spe.query import query
from spe.query.declaration import OperatorSpec
from spe.stream.batch import Rows, concat_rows
from spe.stream.frozen import Frozen
from spe.stream.names import StreamId
from spe.stream.schema import AttributeType, Schema
from spe.stream.strings import StringPool
from spe.stream.times import BEFORE_TIME, END_OF_TIME
from spe.wire.state import decode_state, encode_state
from tests.support.row_operators import plain

T = TypeVar("T")

#: Time and attribute values of one tuple.
Tuple = tuple[int, tuple[Any, ...]]
#: A slice's end, and whether its strings come in a new dictionary.
Cut = tuple[int, bool]


#: How often what runs of many portions have and others have not came up: tests that need it demand it.
EXERCISED: Counter[str] = Counter()


def require_exercised(least: Mapping[str, int]) -> None:
    """Fails where the examples are the same each time and something came up too seldom, as :class:`Situations` does."""
    if settings().derandomize:
        rare = {name: EXERCISED[name] for name, count in least.items() if EXERCISED[name] < count}
        assert not rare, f"too rare: {rare}"


def lists_of_all_sizes(elements: st.SearchStrategy[T], most: int) -> st.SearchStrategy[list[T]]:
    """Lists that are often long: Hypothesis alone draws two elements on average, where 25 are allowed."""
    sizes = st.sampled_from([0, 1, most // 4, most - 1, most])
    return sizes.flatmap(lambda n: st.lists(elements, min_size=n, max_size=n))


@contextmanager
def step_sizes(copied: int = 4, indexed: int = 3, released: int = 2, paired: int = 4, spare: int = 2) -> Iterator[None]:
    """Steps so small that a few rows are many (B8), few keys and texts that nothing refers to before they are
    forgotten, and few texts in one dictionary."""
    save, compacted, begin_dictionary = Frozen.save, TextIds.compacted, TextIds._begin_dictionary

    def counted(frozen: Frozen, at: Any) -> int:
        EXERCISED["overwritten entries saved"] += (found := save(frozen, at))
        return found

    def forgetting(ids: TextIds, live: Any) -> Any:
        EXERCISED["texts forgotten"] += 1
        return compacted(ids, live)

    def beginning(ids: TextIds) -> None:
        EXERCISED["dictionaries begun"] += 1
        begin_dictionary(ids)

    with (
        patch.multiple(steps, COPIED=copied, INDEXED=indexed, RELEASED=released, PAIRED=paired, SPARE=spare),
        patch.object(Frozen, "save", counted),
        patch.object(TextIds, "compacted", forgetting),
        patch.object(TextIds, "_begin_dictionary", beginning),
        patch.object(texts, "DICTIONARY_LIMIT", 3),
        patch.object(footprints, "LATER", 2),
    ):
        yield


def make(spec: OperatorSpec, *inputs: Schema) -> Operator:
    """A running operator named ``op``."""
    return build_operator(query.QueryOperator(StreamId("op"), spec, spec.output_schema(inputs)), inputs)


def tuples(schema: Schema, text: str) -> list[Tuple]:
    """One line per tuple: time, then its values; ``-`` is null."""
    return [
        (int(words[0]), tuple(_value(w, a.type) for w, a in zip(words[1:], schema, strict=True)))
        for words in (line.split() for line in text.splitlines())
        if words
    ]


def _value(word: str, type_: AttributeType) -> Any:
    if word == "-":
        return None
    if type_ is AttributeType.STRING:
        return word
    if type_ is AttributeType.BOOL:
        return {"true": True, "false": False}[word]
    return float(word) if type_ is AttributeType.FLOAT64 else int(word)


def text(released: Sequence[Tuple]) -> str:
    """The notation of :func:`tuples`, for what an operator released."""
    return "\n".join(" ".join([str(time), *(_word(v) for v in values)]) for time, values in released)


def lines(expected: str) -> str:
    """Expected output without indentation, for comparison with :func:`text`."""
    return "\n".join(" ".join(line.split()) for line in expected.strip().splitlines())


def _word(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


class Run:
    """Feeds an operator slice by slice, and checks what the contract says of each result.

    Args:
      operator: in its initial state, or restored.
      schemas: of its ports.
      previous: end of the slice before.
    """

    def __init__(self, operator: Operator, schemas: Sequence[Schema], previous: int = BEFORE_TIME) -> None:
        self.operator = operator
        self.schemas = schemas
        self.previous = previous
        self.pool = StringPool()
        #: Rows of a slice are given in portions of so many, cut also between rows of one time; 0: at once.
        self.portion = 0
        #: The input buffer that undo/redo would keep; None: none is kept.
        self.buffer: InputBuffer | None = None

    def slice(self, ports: Sequence[Sequence[Tuple]], boundary: int, new_dictionary: bool = False) -> list[Tuple]:
        """Runs [previous, boundary); the tuples of each port are in order of time."""
        if new_dictionary:
            self.pool = StringPool()
            self.pool.current().encode([f"other {i}" for i in range(boundary % 7)])  # new codes
        slices: list[Rows | None] = []
        for schema, port in zip(self.schemas, ports, strict=True):
            begin, end = (bisect_left(port, time, key=itemgetter(0)) for time in (self.previous, boundary))
            rows = port[begin:end]
            times, values = [t[0] for t in rows], [t[1] for t in rows]
            slices.append(Rows.from_tuples(schema, times, values, self.pool) if rows else None)
        pieces = []
        for given, upto in self._portions(slices, boundary):
            before = len(pieces)
            for rows_out in self.operator.work(given, upto):
                if rows_out is None:
                    EXERCISED["pauses"] += 1
                else:
                    pieces.append(rows_out)
            EXERCISED["slices released in pieces"] += len(pieces) > before + 1
            if self.buffer is not None:
                self.buffer.took(given, upto)
        if not pieces:
            self.previous = boundary
            return []
        out = concat_rows(pieces)
        assert len(out) > 0
        assert (out.time[1:] >= out.time[:-1]).all()
        assert out.time[0] >= self.previous
        assert out.time[-1] < boundary
        assert (out.t_max >= out.time).all()
        for attribute, column in zip(self.operator.schema, out.columns, strict=True):
            assert column.values.dtype == attribute.type.dtype
            assert (column.dictionary is not None) == (attribute.type is AttributeType.STRING)
            assert attribute.nullable or column.valid is None or column.valid.all()
        self.previous = boundary
        made = [tuple(plain(v) for v in row) for row in out.to_tuples()]
        return list(zip(out.time.tolist(), made, strict=True))

    def _portions(self, slices: Sequence[Rows | None], boundary: int) -> Iterator[tuple[Sequence[Rows | None], int]]:
        """As the fragment gives an operator what another one released in pieces."""
        rows = slices[0] if len(slices) == 1 else None
        if rows is not None and self.portion and self.operator.takes_portions:
            while len(rows) > self.portion:
                head, rows = rows.slice(0, self.portion), rows.slice(self.portion, len(rows))
                EXERCISED["instants cut"] += bool(head.time[-1] == rows.time[0])
                yield [head], int(head.time[-1])
            slices = [rows]
        yield slices, boundary


def run(
    operator: Operator, schemas: Sequence[Schema], ports: Sequence[Sequence[Tuple]], cuts: Sequence[int] = ()
) -> list[Tuple]:
    """Everything that comes out of whole streams, cut at ``cuts`` and ended."""
    feed = Run(operator, schemas)
    return [t for cut in [*sorted(cuts), END_OF_TIME] for t in feed.slice(ports, cut)]


def _otherwise(port: Sequence[Tuple]) -> list[Tuple]:
    """Each tuple with the values of the one before it."""
    return [(time, port[i - 1][1]) for i, (time, _) in enumerate(port)]


def check_contract(
    make_operator: Callable[[], Operator],
    schemas: Sequence[Schema],
    ports: Sequence[Sequence[Tuple]],
    cuts: Sequence[Cut],
) -> list[Tuple]:
    """Checks what every operator promises, and returns its output.

    1. The streams uncut, and cut at ``cuts`` (with changing dictionaries), give the same tuples in the same order.
    2. A snapshot taken before any slice, and restored after everything else has happened and an operator restored
       from it has gone another way, gives the rest of the output and the same counters at the end; and once more
       when it has travelled.
    3. An operator that is made again from a marker does the same (undo/redo), also when it stood elsewhere before.
    4. Where rows are even in number: 1 to 3 with steps so small that everything takes many of them, and with slices
       that come in portions.
    """
    whole = run(make_operator(), schemas, ports)
    if sum(map(len, ports)) % 2:
        _check_slices(make_operator, schemas, ports, cuts, whole, 0)
    else:
        with step_sizes():
            _check_slices(make_operator, schemas, ports, cuts, whole, 2)
    return whole


def _check_slices(
    make_operator: Callable[[], Operator],
    schemas: Sequence[Schema],
    ports: Sequence[Sequence[Tuple]],
    cuts: Sequence[Cut],
    whole: list[Tuple],
    portion: int,
) -> None:
    slices = [*sorted(cuts), (END_OF_TIME, False)]
    feed = Run(make_operator(), schemas)
    feed.portion = portion
    buffer = feed.buffer = InputBuffer(feed.operator)
    snapshots, markers, pieces = [], [], []
    for cut, new_dictionary in slices:
        snapshots.append((feed.previous, feed.operator.snapshot()))
        markers.append((buffer.mark(), InputBuffer(feed.operator, feed.previous).mark()))
        pieces.append(feed.slice(ports, cut, new_dictionary))
    assert [t for piece in pieces for t in piece] == whole
    counters = feed.operator.counters()
    other = make_operator()
    for i, (previous, snapshot) in enumerate(snapshots):
        other.restore(snapshot)
        Run(other, schemas, previous).slice([_otherwise(port) for port in ports], END_OF_TIME, new_dictionary=True)
        for state in (snapshot, decode_state(encode_state(snapshot))):
            other.restore(state)
            again = Run(other, schemas, previous)
            assert [again.slice(ports, cut, new) for cut, new in slices[i:]] == pieces[i:]
            assert again.operator.counters() == counters
        for marker, max_rows in zip(markers[i], (1, 1000) if i % 2 else (1000, 1)):
            again = Run(remade(marker, other, len(ports), max_rows), schemas, previous)
            assert [again.slice(ports, cut, new) for cut, new in slices[i:]] == pieces[i:]
            assert again.operator.counters() == counters


def remade(marker: Marker, operator: Operator, ports: int, max_rows: int) -> Operator:
    """The operator as it was at the marker, whatever it has done since."""
    marker.start(operator)
    finished(marker.again(operator, ports, max_rows))
    return operator
