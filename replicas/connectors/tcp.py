"""Reads live lines, CSV or JSON, from producers over TCP, or from standard input."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, Protocol

import trio

from replicas.connectors.formats.csv import CsvLines
from replicas.connectors.formats.jsonl import JsonLines
from replicas.connectors.formats.text_columns import printable
from replicas.connectors.reader import Accept, Live, Malformed, RowChunk
from spe.errors import LinkBroken, SpeError
from spe.runtime.env import Env
from spe.stream.schema import Schema

#: Bytes of one read, which is also about the size of a chunk.
_READ_BYTES: Final = 64 << 10
#: Longest line.  A producer that never sends a newline must not fill the memory.
_LINE_BYTES_MAX: Final = 1 << 20
#: Bytes of unfinished lines of all producers together; a producer that would exceed it is disconnected.
_OPEN_BYTES_MAX: Final = 32 << 20
_NO_END: Final = "expected a newline behind the line, got the end of the connection: the line may be cut"


class LineFormat(Protocol):
    """Converts lines, without their ends, to a chunk."""

    def chunk(self, first: int, lines: list[str]) -> RowChunk: ...


def line_format(schema: Schema, time: str | None, reader: Mapping[str, Any]) -> LineFormat:
    """Returns the format named by the option ``format``: jsonl (default) or csv.  Raises SpeError."""
    form = reader.get("format", "jsonl")
    if form == "jsonl":
        return JsonLines(schema, time, reader)
    if form == "csv":
        return CsvLines(schema, time, reader)
    raise SpeError(f"reader.format: expected jsonl or csv, got {form!r}")


class LineSplitter:
    """Splits bytes into lines; leaves out blank ones."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False  # whether the current line is too long

    def feed(self, data: bytes | bytearray) -> tuple[list[str], int]:
        """Returns the lines that are complete now, and the number of those that were too long."""
        *lines, rest = (self._rest + data).split(b"\n")
        too_long = 0
        if lines and self._skipping:
            del lines[0]
            self._skipping = False
        if len(rest) > _LINE_BYTES_MAX and not self._skipping:
            self._skipping = True
            too_long += 1
        self._rest = b"" if self._skipping else rest
        fitting = [line for line in lines if len(line) <= _LINE_BYTES_MAX]
        return [_text(line) for line in fitting if line.strip()], too_long + len(lines) - len(fitting)

    @property
    def open_bytes(self) -> int:
        """Bytes of the unfinished line."""
        return len(self._rest)

    def end(self) -> list[str]:
        """Returns the last line, if it has no newline."""
        rest, self._rest = self._rest, b""
        return [_text(rest)] if rest.strip() else []


def _text(line: bytes) -> str:
    """Decodes a line; bytes that are not UTF-8 become lone surrogates, which make the row malformed."""
    return line.decode("utf-8", "surrogateescape").removesuffix("\r")


class _Intake:
    """Numbers the lines of all connections in order of arrival and passes them on."""

    def __init__(self, form: LineFormat, accept: Accept) -> None:
        self._form = form
        self._accept = accept
        self._count = 0

    async def lines(self, lines: list[str], too_long: int = 0) -> None:
        await self._take(lines, [(f"a line of more than {_LINE_BYTES_MAX} bytes", "")] * too_long)

    async def unfinished(self, lines: list[str]) -> None:
        """Takes a line without its end, at the end of a connection: the kernel also closes that of a killed producer.

        Where a part of a row could be a row, as in CSV, it is malformed; a JSON object has its own end.
        """
        if isinstance(self._form, JsonLines):
            await self.lines(lines)
        else:
            await self._take([], [(_NO_END, printable(line)) for line in lines])

    async def _take(self, lines: list[str], bad: list[tuple[str, str]]) -> None:
        if not lines and not bad:
            return
        chunk = self._form.chunk(self._count, lines)
        behind = self._count + len(lines) + 1
        chunk.malformed += [Malformed(behind + i, reason, text) for i, (reason, text) in enumerate(bad)]
        self._count += len(lines) + len(bad)
        await self._accept(chunk)


class TcpListener(Live):
    """Accepts any number of producers; each sends lines.  Never ends.  A producer that is too fast is slowed down by
    TCP.
    """

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._listen_on = str(reader["address"])
        self._form = line_format(schema, time, reader)
        #: Bound address while it listens.
        self.address: str | None = None

    async def read(self, env: Env, accept: Accept) -> None:
        intake = _Intake(self._form, accept)
        open_bytes = 0

        async def handle(stream: trio.abc.Stream) -> None:
            if hasattr(stream, "peer_name"):
                stream.peer_name = "producer"  # producers send no hello
            nonlocal open_bytes
            splitter = LineSplitter()
            try:
                while data := await stream.receive_some(_READ_BYTES):
                    open_bytes -= splitter.open_bytes
                    lines, too_long = splitter.feed(data)
                    open_bytes += splitter.open_bytes
                    await intake.lines(lines, too_long)
                    if open_bytes > _OPEN_BYTES_MAX:
                        env.trace.event("producer_sent_away", listener=self.address, open_bytes=splitter.open_bytes)
                        return
                open_bytes -= splitter.open_bytes
                await intake.unfinished(splitter.end())
            except (LinkBroken, trio.BrokenResourceError):
                env.trace.event("producer_lost", listener=self.address)  # its unfinished line is dropped
            finally:
                open_bytes -= splitter.open_bytes

        async with trio.open_nursery() as nursery:
            self.address = await nursery.start(env.network.serve, self._listen_on, handle)
            env.trace.event("listening_for_rows", address=self.address)


class StandardInput(Live):
    """Reads lines from a file descriptor until it ends."""

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any], descriptor: int = 0) -> None:
        self._form = line_format(schema, time, reader)
        self._descriptor = descriptor

    async def read(self, env: Env, accept: Accept) -> None:
        intake = _Intake(self._form, accept)
        splitter = LineSplitter()
        while True:
            # A read on a terminal may last forever; a cancelled task leaves its thread behind.
            data = await trio.to_thread.run_sync(os.read, self._descriptor, _READ_BYTES, abandon_on_cancel=True)
            if not data:
                break
            await intake.lines(*splitter.feed(data))
        await intake.lines(splitter.end())
