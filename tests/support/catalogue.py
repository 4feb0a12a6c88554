"""One operator of each kind of state, over one schema: for tests that hold for all of them."""

from __future__ import annotations

from random import Random
from typing import Final

from spe.query.declaration import OnError, OnLate, OperatorSpec
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.operators.custom import CustomSpec
from spe.query.operators.filter import FilterSpec
from spe.query.operators.join import JoinKind, JoinSpec
from spe.query.operators.map import MapSpec
from spe.query.operators.topk import TopKSpec
from spe.query.operators.union import UnionSpec
from spe.query.windows import CountWindow, SlidingWindow, TimeWindow, TumblingWindow, Window
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from tests.support.operators import Tuple

SCHEMA: Final = Schema.of(ts="timestamp", key="string", value="float64")
LEFT: Final = StreamId("left")
RIGHT: Final = StreamId("right")

_CALLS: Final = {
    "n": AggregateCall("count"),
    **{f: AggregateCall(f, "value") for f in ("sum", "avg", "min", "max", "first", "last")},
    "keys": AggregateCall("count_distinct", "key"),
    "spread": AggregateCall("tests.unit.operators.test_custom:Span", "value"),
}


def _windows(size: int, slide: int, on: str | None = None, offset: int = 0) -> TimeWindow:
    return TumblingWindow(size, offset, on) if size == slide else SlidingWindow(size, slide, offset, on)


def _aggregate(window: Window, *group_by: str) -> AggregateSpec:
    return AggregateSpec(LEFT, window, {g: g for g in group_by}, _CALLS)


def _join(kind: JoinKind, **time: object) -> JoinSpec:
    return JoinSpec(LEFT, RIGHT, kind, (("key", "key"),), **time)  # type: ignore[arg-type]


#: Name -> specification.
CATALOGUE: Final[dict[str, OperatorSpec]] = {
    "filter": FilterSpec(LEFT, "value > 0"),
    "map": MapSpec(LEFT, {"twice": "2 * value"}, keep=True),
    "union": UnionSpec((LEFT, RIGHT)),
    "tumbling": _aggregate(_windows(10, 10), "key"),
    "tumbling over all": _aggregate(_windows(10, 10, offset=3)),
    "sliding": _aggregate(_windows(20, 5), "key"),
    "sliding with gaps": _aggregate(_windows(5, 12), "key"),
    "sliding by attribute": _aggregate(_windows(20, 8, "ts"), "key"),
    "count windows": AggregateSpec(LEFT, CountWindow(4), {"key": "key"}, _CALLS),
    "top-k of an instant": TopKSpec(LEFT, 2, (("value", True),), with_ties=True),
    "top-k": TopKSpec(LEFT, 3, (("value", True),), ("key",), _windows(20, 10), rank_as="rank"),
    "top-k by attribute": TopKSpec(LEFT, 3, (("value", False),), (), _windows(15, 5, "ts")),
    "inner join": _join(JoinKind.INNER, lower_us=-6, upper_us=9),
    "left join": _join(JoinKind.LEFT, lower_us=-9, upper_us=4),
    "full join": _join(JoinKind.FULL, lower_us=-12, upper_us=-3),
    "full join by attribute": _join(JoinKind.FULL, lower_us=-8, upper_us=8, left_time="ts", right_time="ts"),
    "join in windows": _join(JoinKind.FULL, window=_windows(12, 4)),
    "right join in windows by attribute": _join(JoinKind.RIGHT, window=_windows(12, 6, "ts")),
    "custom without state": CustomSpec((LEFT,), "tests.support.operators_for_tests:PassThrough"),
    "custom with state": CustomSpec(
        (LEFT,), "tests.unit.operators.test_custom:Changes", {"attribute": "value", "by": 0.3}
    ),
    "custom that skips": CustomSpec((LEFT,), "tests.support.operators_for_tests:Choosy", {}, OnError.SKIP),
    "aggregate that skips": AggregateSpec(
        LEFT,
        _windows(20, 5),
        {"key": "key"},
        {"n": AggregateCall("count"), "total": AggregateCall("tests.support.operators_for_tests:Doubtful", "value")},
        OnError.SKIP,
    ),
    "aggregate that rejects late rows": AggregateSpec(
        LEFT,
        _windows(12, 6, "ts"),
        {"key": "key"},
        {"n": AggregateCall("count"), "total": AggregateCall("tests.support.operators_for_tests:Doubtful", "value")},
        OnError.SKIP,
        OnLate.REJECT,
    ),
    "top-k that rejects late rows": TopKSpec(
        LEFT, 3, (("value", False),), (), _windows(10, 10, "ts"), on_late=OnLate.REJECT
    ),
    "join that rejects late rows": _join(JoinKind.FULL, window=_windows(12, 6, "ts"), on_late=OnLate.REJECT),
}

#: Those whose state reaches back without bound.
UNBOUNDED: Final = ("count windows", "custom with state", "custom that skips")
#: The longest time that any other of them remembers a tuple, generously.
REACH: Final = 80


def stream(seed: int, until: int, *, gap: int = 2) -> list[Tuple]:
    """Tuples of a few keys, now and then a pause, attributes that lag behind; sums whose bits tell the order."""
    random = Random(seed)
    time, out = 0, []
    while time < until:
        time += random.randint(0, gap) if random.random() < 0.97 else random.randint(10, 30)
        ts = None if random.random() < 0.05 else time - random.choice([0, 0, 0, 1, 2, 5, 25])
        key = random.choice("abcde") if random.random() < 0.9 else None
        out.append((time, (ts, key, random.gauss(0, 1) if random.random() < 0.95 else None)))
    return out
