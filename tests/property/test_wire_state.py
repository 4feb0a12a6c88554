"""Any snapshot tree of an operator is restored unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from spe.stream.batch import Batch, Boundary, Rows
from spe.stream.names import Kind
from spe.stream.strings import StringDictionary
from spe.wire.state import decode_state, encode_state
from tests.support.distribution import Situations
from tests.support.wire import IDS, TEXTS, TIMES, batches, plain, rows

KEYS = st.one_of(TEXTS, st.integers(), st.booleans(), st.none(), st.tuples(TEXTS, st.integers()))
ARRAYS = st.builds(
    lambda dtype, items: np.array(items, dtype),
    st.sampled_from(["i8", "i4", "u1", "f8", "?", ">i8"]),
    st.lists(st.integers(0, 100), max_size=10),
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    TEXTS,
    st.binary(max_size=20),
    ARRAYS,
    st.builds(StringDictionary, st.lists(TEXTS, max_size=5)),
    st.builds(Boundary, st.sampled_from(Kind), TIMES, IDS),
    rows(count=3),
    batches(),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple), st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=8,
)


def in_order(value: Any) -> Any:
    """As :func:`plain`, with arrays in this machine's byte order: that is all that may change."""
    if isinstance(value, np.ndarray):
        return plain(value.astype(value.dtype.newbyteorder("=")))
    if isinstance(value, dict):
        return [(plain(k), in_order(v)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return (type(value), [in_order(v) for v in value])
    return plain(value)


def leaves(tree: Any) -> list[Any]:
    inner = tree.values() if isinstance(tree, dict) else tree if type(tree) in (list, tuple) else None
    return [tree] if inner is None else [leaf for one in inner for leaf in leaves(one)]


MEETS = Situations({"a tree": 0.3, "an array": 0.05, "rows or a batch": 0.03, "a dictionary of strings": 0.02})


@MEETS.required
@settings(max_examples=80, deadline=None)
@given(tree=TREES)
def test_a_state_is_restored_as_it_was(tree: Any) -> None:
    data, kinds = encode_state(tree), [type(leaf) for leaf in leaves(tree)]
    MEETS.example(
        {
            "a tree": type(tree) in (dict, list, tuple) and kinds,
            "an array": np.ndarray in kinds,
            "rows or a batch": Rows in kinds or Batch in kinds,
            "a dictionary of strings": StringDictionary in kinds,
        }
    )
    restored = decode_state(data)
    assert in_order(restored) == in_order(tree)
    assert encode_state(restored) == data
