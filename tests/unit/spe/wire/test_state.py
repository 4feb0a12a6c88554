"""Operator state as bytes: shared objects stay shared, and damaged bytes are refused."""

from __future__ import annotations

import struct
import zlib
from collections import OrderedDict
from typing import Any

import msgpack
import numpy as np
import pytest

from spe.errors import LocalProtocolError, RemoteProtocolError
from spe.stream.batch import Batch, Boundary, Column, Rows
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from spe.stream.schema import Schema
from spe.stream.strings import StringDictionary
from spe.wire.state import decode_state, encode_state
from tests.support.wire import plain

SCHEMA = Schema.of(word="string", n="int64!")


def tree() -> dict[Any, Any]:
    rows = Rows.from_tuples(SCHEMA, [1, 2], [("a", 1), (None, 2)])
    return {
        "none": None,
        "numbers": [True, False, -1, 2**63, -(2**70), 0.5, float("inf")],
        "texts": ("", "ä\ud800", b"\0\xff"),
        (1, "key"): {2: {}, None: []},
        "arrays": [np.arange(6.0).reshape(2, 3), np.zeros(0, np.int32), np.array(7), np.array([True, False])],
        "batch": Batch(Kind.TENTATIVE, 3, 9, np.array([4, 9]), rows),
        "boundary": Boundary(Kind.STABLE, 5, 9),
        "dictionary": StringDictionary(["x", "y"]),
    }


def test_a_tree_of_every_type_is_restored() -> None:
    assert plain(decode_state(encode_state(tree()))) == plain(tree())


def test_shared_objects_are_stored_once_and_shared_again() -> None:
    """Codes need their dictionary, and t_max is mostly the same array as time."""
    dictionary = StringDictionary(["a", "b"])
    time = np.arange(1000)
    column = Column(np.zeros(1000, np.int32), None, dictionary)
    rows = Rows(time, time, (column, Column(time)))
    data = encode_state([rows, rows, dictionary])
    assert len(data) < 1000 * (8 + 4) + 1000

    first, second, again = decode_state(data)
    assert first.t_max is first.time is first.columns[1].values is second.time
    assert first.columns[0].dictionary is second.columns[0].dictionary is again


def test_the_same_tree_gives_the_same_bytes() -> None:
    assert encode_state(tree()) == encode_state(tree())


def test_restored_arrays_are_read_only_and_retain_nothing_else() -> None:
    (array,) = decode_state(encode_state([np.arange(5)]))
    assert not array.flags.writeable
    assert array.base is None or array.base.nbytes == array.nbytes


def test_arrays_in_any_memory_order_are_stored_by_value() -> None:
    grid = np.arange(12).reshape(3, 4)
    arrays = [grid.T, grid[:, ::2], grid.astype(">i8")]
    back = decode_state(encode_state(arrays))
    assert [a.tolist() for a in back] == [a.tolist() for a in arrays]
    assert back[2].dtype == np.int64


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (np.int64(3), r"state\.groups\[1\]: cannot store a numpy\.int64"),
        (np.float64(3), "cannot store a numpy.float64"),
        ({1, 2}, "cannot store a builtins.set"),
        (object(), "cannot store a builtins.object"),
        (OrderedDict(), "cannot store a collections.OrderedDict"),
        (Channel(StreamId("s"), 0), "cannot store a spe.stream.ids.Channel"),
        (Kind.STABLE, "cannot store a spe.stream.names.Kind"),
        (np.array(["a"], object), "cannot store an array of object"),
    ],
)
def test_unrestorable_values_are_refused_with_their_place(value: Any, where: str) -> None:
    with pytest.raises(LocalProtocolError, match=where):
        encode_state({"groups": [0, value]})


def test_a_tree_too_deep_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(LocalProtocolError, match="more than 64 levels deep"):
        encode_state(deep)


def test_every_flipped_bit_and_every_truncation_is_noticed() -> None:
    data = encode_state(tree())
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(RemoteProtocolError):
            decode_state(bytes(damaged))
        with pytest.raises(RemoteProtocolError):
            decode_state(data[:at])


def test_another_version_is_named() -> None:
    data = bytearray(encode_state(None))
    data[4] = 9
    with pytest.raises(RemoteProtocolError, match="the state is of format version 9; this release reads version 1"):
        decode_state(bytes(data))


def state_of(skeleton: Any, arrays: bytes = b"") -> bytes:
    """Bytes with a correct checksum over arbitrary content."""
    packed = bytes(msgpack.packb(skeleton))
    body = packed + bytes(-len(packed) & 7) + arrays
    return struct.pack("<4sIIIQ", b"SPEs", 1, zlib.crc32(body), 0, len(packed)) + body


def nested(depth: int) -> list[Any]:
    node: list[Any] = [0]
    for _ in range(depth):
        node = [0, node]
    return node


@pytest.mark.parametrize(
    "skeleton",
    [
        None,
        [],
        [[], [], {}],
        [[], [], []],
        [[], [], [99]],
        [[], [], [4, 0]],
        [[], [], [9, 0]],
        [[], [], [2, 1]],
        [[], [], [2, [0], 1]],
        [[], [], [3, "x"]],
        [[], [], [5, [0, 1], None, None]],
        [[["<f8", [0]]], [], [6, [4, 0], [4, 0], []]],
        [[], [], [8, 5, 0, 0]],
        [[], [], [7, 0, 0, 0, None, None]],
        [[["<i8", [2**40]]], [], None],
        [[["<i8", [-1]]], [], None],
        [[["O", [1]]], [], None],
        [[["nonsense", [1]]], [], None],
        [[["<u4", [0]], ["|u1", [0]]], [[0, 7]], None],
        [[], [], nested(65)],
        [[], [], nested(400)],
    ],
)
def test_an_invalid_skeleton_is_refused(skeleton: Any) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_state(state_of(skeleton))


def test_columns_that_do_not_fit_together_are_refused() -> None:
    """Codes outside of their dictionary, masks and columns of other lengths would break a restored operator later."""
    two, three = np.arange(2), np.arange(3)
    texts = StringDictionary(["only"])
    for bad in (
        Column(np.array([1], np.int32), None, texts),
        Column(np.array([-1], np.int32), None, texts),
        Column(two, np.ones(3, np.bool_)),
        Rows(two, two, (Column(three),)),
        Rows(two, three, ()),
    ):
        with pytest.raises(RemoteProtocolError):
            decode_state(encode_state(bad))


def test_a_code_under_a_null_may_be_anything() -> None:
    column = Column(np.array([5, 0], np.int32), np.array([False, True]), StringDictionary(["only"]))
    assert decode_state(encode_state(column)).to_list() == [None, "only"]
