"""What an operator keeps is freed with it, and not when Python looks for circles of objects, which it seldom does."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from weakref import ref

import pytest

from operators.fragment import Fragment
from operators.fragment_log import FragmentLog
from operators.steps import finished
from spe.query.declaration import OperatorSpec
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.operators.join import JoinKind, JoinSpec
from spe.query.operators.topk import TopKSpec
from spe.query.windows import CountWindow, SlidingWindow, TumblingWindow
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from tests.support.logged import given, unit_of
from tests.support.operators import tuples

SCHEMA = Schema.of(key="string", value="int64!")
LEFT, RIGHT = StreamId("left"), StreamId("right")
CALLS = {"n": AggregateCall("count"), "first": AggregateCall("first", "key"), "max": AggregateCall("max", "value")}
TUMBLING = TumblingWindow(100)
SPECS: dict[str, OperatorSpec] = {
    "tumbling": AggregateSpec(LEFT, TUMBLING, {"key": "key"}, CALLS),
    "sliding": AggregateSpec(LEFT, SlidingWindow(100, 50), {"key": "key"}, CALLS),
    "count": AggregateSpec(LEFT, CountWindow(9), {"key": "key"}, CALLS),
    "topk": TopKSpec(LEFT, 2, (("value", True),), ("key",), TUMBLING),
    "interval": JoinSpec(LEFT, RIGHT, JoinKind.FULL, (("key", "key"),), lower_us=-90, upper_us=90),
    "window": JoinSpec(LEFT, RIGHT, JoinKind.LEFT, (("key", "key"),), window=TUMBLING),
}


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("logged", [False, True], ids=["", "logged"])
@pytest.mark.parametrize("name", SPECS)
def test_the_state_of_an_operator_is_freed_with_it(name: str, logged: bool) -> None:
    spec = SPECS[name]
    unit = unit_of({"out": spec}, {str(one): SCHEMA for one in spec.inputs})
    fragment = Fragment(unit)
    log = FragmentLog(unit, fragment) if logged else None
    rows = tuples(SCHEMA, "1 a 5\n4 b 2\n12 a 1\n15 c 4")
    given(fragment, unit, [rows] * len(spec.inputs), 0, 20)
    if log is not None:
        finished(log.slice_log(20))
    operator = ref(fragment.operators[StreamId("out")])
    other = Fragment(unit).operators[StreamId("out")]
    other.restore(fragment.operators[StreamId("out")].snapshot())
    while other.load():
        pass
    restored = ref(other)
    del fragment, log, other
    assert (operator(), restored()) == (None, None)
