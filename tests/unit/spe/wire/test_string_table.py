"""Codes of a column -> of a connection -> of the receiver's dictionary."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest

from spe.stream.strings import StringDictionary, StringPool
from spe.wire.framing import FrameReader
from spe.wire.string_table import ReceiveTable, SendTable

#: Occurrences of each text: enough that the array is checked as a whole.
EACH = 100


class Connection:
    """From a dictionary to a pool."""

    def __init__(self, dictionary: StringDictionary, pool: StringPool) -> None:
        self._dictionary = dictionary
        self._send, self._receive = SendTable(), ReceiveTable(pool)

    def carry(self, texts: Sequence[str]) -> tuple[bool, bool]:
        """Sends each text ``EACH`` times; returns whether sender and receiver use the codes untranslated."""
        values = np.repeat(self._dictionary.encode(texts), EACH)
        sent = self._send.codes(values, None, self._dictionary)
        if self._send.pending:
            new = self._send.texts()
            assert new is not None
            for frame in FrameReader().feed(b"".join(self._send.frames(new, 1 << 16))):
                self._receive.add(frame.body)
        into = self._receive.dictionary()
        received = self._receive.codes(sent.view(np.uint32))
        assert [into.strings[code] for code in received.tolist()] == [t for t in texts for _ in range(EACH)]
        return np.shares_memory(values, sent), np.shares_memory(sent, received)

    def begin_anew(self) -> None:
        self._send.reset()


def test_equal_codes_are_not_translated() -> None:
    pool = StringPool()
    connection = Connection(pool.current(), StringPool())
    assert connection.carry(["a", "b"]) == (False, False)  # no string is known yet
    assert connection.carry(["b", "a"]) == (True, True)
    assert connection.carry(["", "b"]) == (True, True)
    assert connection.carry(["c", "a"]) == (False, False)
    assert connection.carry(["c", "a", "b"]) == (True, True)


def test_codes_are_equal_only_before_the_first_difference() -> None:
    receivers = StringPool()
    receivers.current().encode(["a", "c"])
    connection = Connection(StringPool().current(), receivers)
    connection.carry(["a", "b", "c"])
    assert connection.carry(["a", "a"]) == (True, True)
    assert connection.carry(["b", "a"]) == (True, False)
    assert connection.carry(["c", "c"]) == (True, False)


@pytest.mark.parametrize("unused", [["x"], ["x", "y", "z"]])
def test_a_larger_dictionary_of_the_sender_is_translated(unused: list[str]) -> None:
    connection = Connection(StringDictionary(["", *unused, "a"]), StringPool())
    for _ in range(2):
        assert connection.carry(["a"])[0] is False


def test_a_new_dictionary_of_the_receiver_has_no_equal_codes() -> None:
    pool = StringPool(limit=4)
    connection = Connection(StringPool().current(), pool)
    connection.carry(["a", "b"])
    assert connection.carry(["b"]) == (True, True)
    pool.current().encode(["p", "q"])  # it is full
    assert connection.carry(["b"]) == (True, False)
    assert connection.carry(["b", "a"]) == (True, False)


def test_a_reset_table_forgets_equal_codes() -> None:
    connection = Connection(StringPool().current(), StringPool())
    for _ in range(2):
        connection.carry(["a", "b"])
    connection.begin_anew()
    connection.carry(["b"])
    assert connection.carry(["b"]) == (False, False)
    connection.carry(["a", "b"])
    assert connection.carry(["b", "a"]) == (False, False)


def test_codes_under_nulls_take_no_memory() -> None:
    """Such as -1, which other systems use under a null."""
    dictionary = StringDictionary(["", *map(str, range(199))])
    codes = np.append(np.arange(200, dtype=np.int32), np.int32(-1))
    table, valid = SendTable(), codes >= 0
    table.codes(codes, valid, dictionary)
    tracemalloc.start()
    try:
        for _ in range(12):
            assert table.codes(codes, valid, dictionary).tolist() == [*range(200), 0]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000
