"""Parses server-sent events, as defined by the HTML standard."""

from __future__ import annotations

from typing import Final, NamedTuple

#: Longest line, and longest data of an event: longer ones are left out.
EVENT_BYTES: Final = 1 << 20
_BOM: Final = b"\xef\xbb\xbf"
#: More digits are not a duration.
_RETRY_DIGITS: Final = 9


class ServerEvent(NamedTuple):
    """An event.

    Attributes:
      id: None: the event has no id of its own.
      data: None: it was too long.
    """

    id: bytes | None
    type: str
    data: str | None


class EventParser:
    """Parses one stream.  Memory is bounded by EVENT_BYTES and the size of one feed.

    Attributes:
      retry_ms: time before a reconnect, as set by the stream; None: not set.
    """

    def __init__(self) -> None:
        self.retry_ms: int | None = None
        self._rest = b""
        self._begins = True
        #: Whether the last line ended with CR, so that an LF belongs to it.
        self._after_cr = False
        #: Inside a line that is too long.
        self._skipping = False
        self._begin_event()

    def _begin_event(self) -> None:
        self._id: bytes | None = None
        self._type = ""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[ServerEvent]:
        """Returns the events that are complete now; events without data are ignored."""
        data = self._rest + data
        if self._begins:
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._rest = data
                return []
            data, self._begins = data.removeprefix(_BOM), False
        if self._after_cr and data:
            data, self._after_cr = data.removeprefix(b"\n"), False
        lines = data.splitlines(keepends=True)
        self._rest = b""
        if lines and not lines[-1].endswith((b"\r", b"\n")):
            self._rest = lines.pop()
        elif lines:
            self._after_cr = lines[-1].endswith(b"\r")
        events = []
        for line in lines:
            line = line.rstrip(b"\r\n")
            if self._skipping:
                self._skipping = False
            elif line:
                self._field(line)
            else:
                if self._data or self._size:
                    data_ = b"\n".join(self._data).decode("utf-8", "surrogateescape")
                    events.append(ServerEvent(self._id, self._type or "message", self._whole(data_)))
                self._begin_event()
        if len(self._rest) > EVENT_BYTES:
            if not self._skipping:
                self._too_long(self._rest)
            self._rest, self._skipping = b"", True
        return events

    def _whole(self, data: str) -> str | None:
        return data if self._size <= EVENT_BYTES else None

    def _too_long(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self._data, self._size = [], EVENT_BYTES + 1

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._size += len(value) + 1
                if self._size <= EVENT_BYTES:
                    self._data.append(value)
                else:
                    self._data = []
            case b"id" if b"\0" not in value:
                self._id = value
            case b"event":
                self._type = value.decode("utf-8", "replace")
            case b"retry" if value.isdigit() and len(value) <= _RETRY_DIGITS:
                self.retry_ms = int(value)
