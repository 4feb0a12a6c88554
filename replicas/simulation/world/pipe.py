"""One direction of a simulated connection: its data with arrival times, and its end.  Time is passed in."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

#: TCP_USER_TIMEOUT in production.
USER_TIMEOUT_S: Final = 30.0

#: End mark in a pipe's chunks: the sender has closed.
_END: Final = b""


class Pipe:
    """Bytes under way, in order.

    While a pipe is stopped nothing arrives; earlier arrivals can still be taken, as from a socket.

    Attributes:
      source, target: hosts.
      size: bytes sent and, as far as the sender knows, not taken.
      lost: stopped forever, whatever the state of the link.
      reset_at: seconds; when an RST arrives.
      stopped_at: seconds; since when nothing arrives.
      troubled: it is stopped, or will be reset; otherwise only sent data arrives.
      chunks: (arrival time, bytes), oldest first; the times never decrease.
    """

    def __init__(self, source: str, target: str) -> None:
        self.source, self.target = source, target
        self.size = 0
        self.lost = False
        self.reset_at = math.inf
        self.stopped_at = math.inf
        self.troubled = False
        self.chunks: deque[tuple[float, bytes]] = deque()
        self._free_at = 0.0
        #: Since when the sender has waited for an acknowledgement.
        self._unacked_at = math.inf

    # --- the sender's side ---

    def send(self, now: float, data: bytes, late_s: float, bytes_per_s: float | None) -> None:
        """Sends data that arrives ``late_s`` after its last byte has left, and never before earlier data."""
        if not (self.troubled or self.chunks or late_s or bytes_per_s) and self._free_at <= now:  # the usual case
            self.chunks.append((now, data))
            self.size += len(data)
            return
        if bytes_per_s:
            self._free_at = max(now, self._free_at) + len(data) / bytes_per_s
        self._append(now, data, max(now, self._free_at) + late_s)

    def widen(self, now: float, late_s: float) -> None:
        """Removes the limit of bandwidth: data that waits for it leaves now."""
        self._free_at = now
        self.chunks = deque((min(at, now + late_s), data) for at, data in self.chunks)

    def waits_for_room(self, now: float) -> bool:
        """Returns whether sent data has not left yet."""
        return self._free_at > now

    def end(self, now: float, late_s: float) -> None:
        """Ends the data."""
        self._append(now, _END, max(now, self._free_at) + late_s)

    def reset(self, now: float, late_s: float) -> None:
        """Resets the sender's socket: its kernel sends an RST after all data."""
        self.reset_at = min(self.reset_at, self._after_all(now + late_s))
        self.troubled = True

    def _append(self, now: float, data: bytes, arrives: float) -> None:
        self.chunks.append((self._after_all(arrives), data))
        self.size += len(data)
        if self.stopped:
            self._unacked_at = min(self._unacked_at, now)

    def _after_all(self, arrives: float) -> float:
        """Returns an arrival time that is not before earlier data, nor before an older stop, even one of the same
        moment.
        """
        if self.chunks:
            arrives = max(arrives, self.chunks[-1][0])
        return max(arrives, math.nextafter(self.stopped_at, math.inf)) if self.stopped else arrives

    @property
    def gives_up_at(self) -> float:
        """Returns when the sender's kernel takes the connection for dead."""
        return self._unacked_at + USER_TIMEOUT_S

    # --- the link ---

    @property
    def stopped(self) -> bool:
        return self.stopped_at < math.inf

    def stop(self, now: float) -> None:
        if not self.stopped:
            self.stopped_at = now
            self.troubled = True
            if self.chunks and self.chunks[-1][0] > now:
                self._unacked_at = now

    def go(self) -> None:
        """Continues: held data arrives, at once if it would have arrived by now."""
        self.stopped_at = self._unacked_at = math.inf
        self.troubled = self.reset_at < math.inf

    def drop(self, now: float) -> None:
        """Drops all data that has not arrived."""
        while self.chunks and self.chunks[-1][0] > min(now, self.stopped_at):
            self.size -= len(self.chunks.pop()[1])
        self._unacked_at = math.inf

    # --- the receiver's side ---

    def take(self, now: float, max_bytes: int) -> bytes | None:
        """Takes arrived data; b"" at the end, None if there is none."""
        chunks = self.chunks
        if not chunks:
            return None
        if len(chunks) == 1 and not self.troubled and chunks[0][0] <= now and len(chunks[0][1]) <= max_bytes:
            data = chunks[0][1]
            if data != _END:
                chunks.clear()
                self.size = 0
            return data
        arrived = min(now, self.stopped_at)
        taken: list[bytes] = []
        room = max_bytes
        while room and self.chunks and self.chunks[0][0] <= arrived:
            when, data = self.chunks[0]
            if data == _END:
                return b"".join(taken)
            if len(data) > room:
                self.chunks[0] = (when, data[room:])
                data = data[:room]
            else:
                self.chunks.popleft()
            taken.append(data)
            room -= len(data)
            self.size -= len(data)
        if not taken:
            return None
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def lose_arrived(self, now: float) -> None:
        """Drops data that the receiver lost with its power; the sender is not told of the room."""
        not_taken = self.size
        self.take(now, not_taken)
        self.size = not_taken

    def is_reset(self, now: float) -> bool:
        return self.reset_at <= min(now, self.stopped_at)

    def next_after(self, now: float) -> float:
        """Returns when the receiver may find something new, by the current state."""
        if self.stopped:
            return math.inf
        first, reset = self.first_at, self.reset_at
        if first <= now:
            first = math.inf
        return min(first, reset) if reset > now else first

    @property
    def first_at(self) -> float:
        """Returns the arrival time of the first data that was not taken."""
        return self.chunks[0][0] if self.chunks else math.inf
