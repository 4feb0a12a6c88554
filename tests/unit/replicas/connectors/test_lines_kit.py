"""What the readers of lines state, checked by the kit: a row that was not synced is lost, and nothing else happens."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Event, Thread
from typing import Any, Final

import pytest
import trio

from replicas.connectors import tcp
from replicas.connectors.server_sink import GONE
from replicas.connectors.tcp import StandardInput
from replicas.testing import PromiseBroken, check_receiver
from replicas.testing.connectors import SentRows
from spe.log import SegmentedLog
from spe.runtime.env import Network
from spe.stream.schema import Schema

ADDRESS: Final = "127.0.0.1:9001"
SCHEMA: Final = {"ts": "timestamp!", "n": "int64!", "text": "string"}
ROWS: Final = [{"ts": f"2026-01-01T12:00:{n:02}", "n": 1_000 + n, "text": f"row {n}"} for n in range(24)]
JSON: Final = [f'{{"ts": "{row["ts"]}", "n": {row["n"]}, "text": "{row["text"]}"}}\n'.encode() for row in ROWS]
#: A beginning of such a line can be a row.
CSV: Final = [f"{row['ts']},{row['n']},{row['text']}\n".encode() for row in ROWS]
LINES: Final = {"jsonl": JSON, "csv": CSV}
#: Rows of a connection, and crashes of each kind.
EACH, SOME, FEW = 3, 8, 4


class LineSender:
    """Two producers, each with every other row: a line in two pieces, and a new connection after every few lines.

    What is lost stays so: a producer is told nothing, and goes on behind the line that it was sending.
    """

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines
        self._next = [0, 1]
        self.connections: list[SentRows] = []
        self.over = False

    async def serve(self, network: Network, *, task_status: trio.TaskStatus[str]) -> None:
        async with trio.open_nursery() as nursery:
            task_status.started("")
            for producer in range(2):
                nursery.start_soon(self._produce, network, producer)
        self.over = True
        await trio.sleep_forever()

    async def _produce(self, network: Network, producer: int) -> None:
        while self._next[producer] < len(self._lines):
            with suppress(*GONE):
                stream = await network.connect(ADDRESS, 1.0)
                connection = SentRows()
                self.connections.append(connection)
                try:
                    await self._send(stream, producer, connection)
                finally:  # a kernel closes it in order, whatever its process was doing
                    await trio.aclose_forcefully(stream)
            await trio.sleep(0.02)

    async def _send(self, stream: trio.abc.Stream, producer: int, connection: SentRows) -> None:
        for number in range(self._next[producer], len(self._lines), 2)[:EACH]:
            self._next[producer] = number + 2
            connection.rows.append(number)
            line = self._lines[number]
            await stream.send_all(line[:-2])
            await trio.sleep(0.004)
            await stream.send_all(line[-2:])
        await stream.aclose()
        connection.whole = True


def received(form: str) -> int:
    source = {"schema": SCHEMA, "time": "ts", "from": {"tcp": ADDRESS, "format": form}}
    return check_receiver(source, ROWS, lambda: LineSender(LINES[form]), most=SOME)


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_lines_over_tcp_are_lost_only_on_a_kill(form: str) -> None:
    """And a part of a line is no row."""
    assert received(form) == 4 * (SOME + 1)


class Pipeline:
    """Whoever writes into the standard input of a source that is started again: in a new pipe, behind what it wrote."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines
        self._next = 0
        self._stops = Event()
        self._thread: Thread | None = None
        self._descriptors: list[int] = []
        self.connections: list[SentRows] = []
        self.over = False

    def started(self) -> int:
        """The descriptor from which a process reads that has just been started."""
        self.ended()
        self._stops = Event()
        reading, writing = os.pipe()
        self._descriptors.append(reading)
        self._thread = Thread(target=self._write, args=(writing, self._stops))
        self._thread.start()
        return reading

    def ended(self) -> None:
        """The process that was started is no more, and so is its pipe: a read of it that still waits has its end."""
        self._stops.set()
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        self.ended()
        for descriptor in self._descriptors:
            os.close(descriptor)

    def _write(self, descriptor: int, stops: Event) -> None:
        connection = SentRows()
        self.connections.append(connection)
        while self._next < len(self._lines) and not stops.wait(0.003):
            number, self._next = self._next, self._next + 1
            connection.rows.append(number)
            os.write(descriptor, self._lines[number])
        connection.whole = not stops.is_set()
        os.close(descriptor)
        self.over = connection.whole


def test_lines_of_stdin_are_lost_only_when_source_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    pipelines: list[Pipeline] = []

    class Piped(StandardInput):
        def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
            super().__init__(schema, time, reader, pipelines[-1].started())

    def pipeline() -> Pipeline:
        pipelines.append(Pipeline(CSV))
        return pipelines[-1]

    monkeypatch.setattr(tcp, "StandardInput", Piped)
    source = {"schema": SCHEMA, "time": "ts", "from": {"stdin": True, "format": "csv"}}
    try:
        assert check_receiver(source, ROWS, pipeline, virtual=False, most=FEW) == 2 * (FEW + 1)
    finally:
        for one in pipelines:
            one.close()


# --- what the kit finds ---


def feed_of(change: Callable[[list[str]], list[str]]) -> type[tcp.LineSplitter]:
    """Changes lines that come, by twos."""

    class Changed(tcp.LineSplitter):
        def __init__(self) -> None:
            super().__init__()
            self._waiting: list[str] = []

        def feed(self, data: bytes | bytearray) -> tuple[list[str], int]:
            lines, too_long = super().feed(data)
            self._waiting += lines
            if len(self._waiting) < 2:
                return [], too_long
            given, self._waiting = change(self._waiting), []
            return given, too_long

        def end(self) -> list[str]:
            given, self._waiting = self._waiting, []
            return given + super().end()

    return Changed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda lines: lines[:1],
            "missing in the log, and nobody was killed since it was sent",
        ),
        (
            lambda lines: lines[::-1],
            "rows of one connection are not in the order in which they were sent",
        ),
        (lambda lines: [*lines, lines[-1]], "is in the log twice, and was sent once"),
    ],
)
def test_lost_swapped_or_doubled_lines_are_detected(
    change: Callable[[list[str]], list[str]], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "LineSplitter", feed_of(change))
    monkeypatch.setattr("replicas.testing.crashes._LONGEST_S", 10.0)  # where a line is awaited that never comes
    with pytest.raises(PromiseBroken, match=said):
        received("jsonl")


def test_part_of_a_line_taken_as_a_row_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp._Intake, "unfinished", tcp._Intake.lines)
    with pytest.raises(PromiseBroken, match=r"^the server is killed at step .* is in the log, and was never sent"):
        received("csv")


def test_line_given_to_consumers_too_early_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(log: SegmentedLog) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(SegmentedLog, "sync", at_once)
    with pytest.raises(PromiseBroken, match=r"was given to consumers as row \d+, and is not in the log"):
        received("jsonl")
