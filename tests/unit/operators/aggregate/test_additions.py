"""The pages docs/internals/new-aggregate.md and new-window.md: their code, in the engine, against plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

import numpy as np
import pytest

from spe.config import load_plan_text
from spe.errors import ConfigError
from spe.query.aggregates import AGGREGATES, AggregateFunction, Fold
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.operators.topk import TopKSpec
from spe.query.windows import SlidingWindow, TimeWindow, TumblingWindow, Window, window_of
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from tests.support.additions import added_by_page
from tests.support.operators import Tuple, check_contract, make
from tests.support.row_operators import Call, Row, Windows, aggregated, plain

SCHEMA = Schema.of(ts="timestamp", key="string!", n="int64", x="float64")
NAN = float("nan")
#: Disorder by the attribute, nulls, groups of only nulls, NaN and an overflow.
ROWS: list[Tuple] = [
    (time, (None if i % 11 == 5 else time - i % 4 * 3, "ab"[i % 2], n, x))
    for i, (time, n, x) in enumerate(
        (2 * i, (3, None, -(2**63), 2**63 - 1, 7)[i % 5], (0.5, None, 2.0, NAN, -1.0, 0.25, 4.0)[i % 7])
        for i in range(40)
    )
]
CUTS = [(10, False), (31, True), (60, False)]


@pytest.fixture(autouse=True, scope="module")
def _additions() -> Iterator[None]:
    with added_by_page("new-aggregate.md"), added_by_page("new-window.md"), pytest.MonkeyPatch.context() as patched:
        product = AggregateFunction("product", "the product", (Fold(np.multiply, 1),), (), numeric=True)
        patched.setitem(AGGREGATES, "product", product)
        yield


def results(window: Window, calls: dict[str, AggregateCall]) -> list[Row]:
    spec = AggregateSpec(StreamId("in"), window, {"key": "key"}, calls)
    return check_contract(lambda: make(spec, SCHEMA), [SCHEMA], [ROWS], CUTS)


def range_of(panes: list[list[Any]]) -> Any:
    values = [v for pane in panes for v in pane]
    if not values:
        return None
    if any(v != v for v in values):
        return NAN
    gap = max(values) - min(values)
    return gap if isinstance(gap, float) else (gap + 2**63) % 2**64 - 2**63


def product_of(panes: list[list[Any]]) -> Any:
    made = 1
    for value in (v for pane in panes for v in pane):
        made *= value
    if not any(panes):
        return None
    return made if isinstance(made, float) else (made + 2**63) % 2**64 - 2**63


@pytest.mark.parametrize("window", [TumblingWindow(10), SlidingWindow(15, 6, 1, "ts")], ids=str)
@pytest.mark.parametrize(("name", "function"), [("range", range_of), ("product", product_of)])
def test_function_in_one_row_equals_plain_python(window: TimeWindow, name: str, function: Callable[..., Any]) -> None:
    made = results(window, {"n": AggregateCall(name, "n"), "x": AggregateCall(name, "x")})
    at = None if window.on is None else itemgetter(0)
    calls = [Call(function, itemgetter(2)), Call(function, itemgetter(3))]
    expected = aggregated(
        ROWS, Windows(window.size_us, window.slide_us, window.offset_us, at), itemgetter(slice(1, 2)), 1, calls
    )
    assert made == [(time, tuple(map(plain, values))) for time, values in expected]
    assert len(made) > 10


def test_result_type_of_the_new_function_follows_the_row() -> None:
    assert AggregateCall("range", "n").output_attribute(SCHEMA, "r") == AggregateCall("sum", "n").output_attribute(
        SCHEMA, "r"
    )


class Cumulated(Windows):
    """Windows from each multiple of the size on, which end after every step."""

    def ends(self, at: int) -> list[int]:
        start = at - (at - self.offset) % self.size
        return [end for end in range(start + self.slide, start + self.size + 1, self.slide) if end > at]

    def bounds(self, end: int) -> tuple[int, int]:
        last = end - 1
        return last - (last - self.offset) % self.size, end


@pytest.mark.parametrize("on", [None, "ts"])
def test_cumulate_window_of_the_page_equals_plain_python(on: str | None) -> None:
    window = window_of({"cumulate": "18us", "step": "6us", "offset": "1us", **({} if on is None else {"on": on})})
    made = results(window, {"n": AggregateCall("count"), "last": AggregateCall("last", "n")})
    windows = Cumulated(18, 6, 1, None if on is None else itemgetter(0))
    calls = [Call("count"), Call("last", itemgetter(2))]
    assert made == aggregated(ROWS, windows, itemgetter(slice(1, 2)), 1, calls)
    assert len(made) > 20


def test_cumulate_window_of_the_page_ranks() -> None:
    window = window_of({"cumulate": "18us", "step": "6us"})
    assert isinstance(window, TimeWindow)
    spec = TopKSpec(StreamId("in"), 1, (("n", True),), window=window)
    made = check_contract(lambda: make(spec, SCHEMA), [SCHEMA], [ROWS], CUTS)
    ends = sorted({end for time, _ in ROWS for end in Cumulated(18, 6).ends(time)})
    assert [time + 1 for time, _ in made] == ends


CONFIG = """
sources:
  orders: {from: {generator: {name: orders, rate: 50, duration: 2s}}}
query:
  totals: {aggregate: {from: orders, window: WINDOW, compute: {n: count(*), r: range(price)}}}
"""


@pytest.mark.parametrize(
    ("window", "message"),
    [
        ("{cumulate: 1s, step: 300ms}", "query.totals.aggregate.window.step: expected a divisor of the length"),
        ("{cumulate: 1s}", "query.totals.aggregate.window.step: is missing"),
        ("{cumulate: 1s, step: 1s, slide: 1s}", "a cumulate window has no 'slide'; expected one of: cumulate, step"),
        ("{cumulated: 1s}", "unknown key (did you mean 'cumulate'?)"),
    ],
)
def test_mistakes_in_the_window_of_the_page_have_their_place(window: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_plan_text(CONFIG.replace("WINDOW", window), "shop.yaml")
    assert message in str(error.value)


def test_both_additions_are_read_from_a_configuration() -> None:
    plan = load_plan_text(CONFIG.replace("WINDOW", "{cumulate: 1s, step: 250ms}"), "shop.yaml")
    (totals,) = plan.query.operators
    assert totals.spec.described() == "orders in cumulate 1s every 250ms: n = count(*), r = range(price)"
