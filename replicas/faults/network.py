"""Network faults inside a real process: wraps its Network, and cuts, delays and heals.

A cut holds bytes, as a network does: connections stay open and silent, new ones time out, and after healing
everything held arrives in order.  Faults name a peer: its address as we connect to it, or the name that it had in
its hello.  Each process holds what *it* sends and receives, so a cut of both directions needs one process only.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Literal

import trio

from spe.errors import LinkBroken
from spe.runtime.env import Network
from spe.runtime.network import CONNECT_S, Handler

Direction = Literal["in", "out"]

#: Bytes that a held connection takes before its sender has to wait, as a socket's buffer would.
HELD_BYTES: Final = 256 << 10


class FaultyNetwork:
    """Adds faults to ``inner``."""

    def __init__(self, inner: Network) -> None:
        self._inner = inner
        self._cuts: set[tuple[str, Direction]] = set()
        self._delay_s: dict[str, float] = {}
        #: Set and replaced at each change, so that waiting tasks check again.
        self._changed = trio.Event()

    def cut(self, peer: str, direction: Literal["in", "out", "both"] = "both") -> None:
        """Holds bytes from ``peer``, to it, or both."""
        directions: tuple[Direction, ...] = ("in", "out") if direction == "both" else (direction,)
        self._cuts.update((peer, d) for d in directions)
        self._wake()

    def delay(self, peer: str, seconds: float) -> None:
        """Delays everything sent to ``peer`` from now on; 0 ends it."""
        self._delay_s[peer] = seconds
        if seconds <= 0:
            del self._delay_s[peer]
        self._wake()

    def heal(self, peer: str | None = None) -> None:
        """Ends all faults towards ``peer``, or towards all peers."""
        self._cuts = set() if peer is None else {c for c in self._cuts if c[0] != peer}
        self._delay_s = {} if peer is None else {p: s for p, s in self._delay_s.items() if p != peer}
        self._wake()

    async def connect(self, address: str, seconds: float = CONNECT_S) -> FaultyStream:
        """Connects as the inner network; across a cut in either direction it times out: a connection needs both."""
        if self.is_cut({address}, "in", "out"):
            await trio.sleep(seconds)
            raise LinkBroken(f"cannot connect to {address}: no answer within {seconds:g} s (cut)")
        return FaultyStream(self, await self._inner.connect(address, seconds), address)

    async def serve(
        self, address: str, handler: Handler, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async def accept(stream: trio.abc.Stream) -> None:
            faulty = FaultyStream(self, stream, None)
            await handler(faulty)
            await faulty.wait_sent()

        await self._inner.serve(address, accept, task_status=task_status)

    def is_cut(self, names: set[str], *directions: Direction) -> bool:
        return any((name, d) in self._cuts for name in names for d in directions)

    def delay_s(self, names: set[str]) -> float:
        return max((self._delay_s.get(name, 0.0) for name in names), default=0.0)

    async def wait_open(self, names: set[str], *directions: Direction) -> None:
        while self.is_cut(names, *directions):
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class FaultyStream(trio.abc.Stream):
    """A stream that obeys its network's faults."""

    def __init__(self, network: FaultyNetwork, inner: trio.abc.Stream, address: str | None) -> None:
        self._network = network
        self._inner = inner
        #: Names that faults may use for the other end.
        self._names = {address} if address is not None else set()
        self._peer_name: str | None = None
        #: (time of departure, bytes), oldest first; a task sends them while there are any.
        self._held: deque[tuple[float, bytes]] = deque()
        self._held_bytes = 0
        self._sending = False
        self._progress = trio.Event()
        self._broken = False
        self._closed = False
        #: Received, but not yet returned: a cut came in between.
        self._arrived: bytes | bytearray | Exception | None = None
        #: Directions that hold back each of sending and receiving.
        self._sends_need: tuple[Direction, ...] = ("out",)
        self._receives_need: tuple[Direction, ...] = ("in",)

    @property
    def peer_name(self) -> str | None:
        """Name of the inner stream's peer; faults may use it once it is set."""
        return self._peer_name

    @peer_name.setter
    def peer_name(self, name: str) -> None:
        self._peer_name = name
        self._names.add(name)
        self._inner.peer_name = name  # type: ignore[attr-defined]
        if self._network.is_cut(self._names, "in", "out"):
            # Accepted across a cut, before the name was known: such a connection would not exist, so nothing passes.
            self._sends_need = self._receives_need = ("in", "out")

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Returns at once while the buffer of held bytes has room, as a socket does."""
        self._check()
        delay_s = self._network.delay_s(self._names)
        if not self._held and not delay_s and not self._network.is_cut(self._names, *self._sends_need):
            await self._inner.send_all(data)
            return
        self._held.append((trio.current_time() + delay_s, bytes(data)))
        self._held_bytes += len(data)
        if not self._sending:
            self._sending = True
            trio.lowlevel.spawn_system_task(self._send_held)
        while self._held_bytes > HELD_BYTES and not self._broken:
            await self._progress.wait()
        await trio.lowlevel.checkpoint()
        self._check()

    async def wait_send_all_might_not_block(self) -> None:
        while self._held_bytes > HELD_BYTES:
            await self._progress.wait()
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receives; data, its end or an error wait here while the way in is cut."""
        if self._arrived is None:
            try:
                self._arrived = await self._inner.receive_some(max_bytes)
            except trio.BrokenResourceError as e:
                self._arrived = e
        await self._network.wait_open(self._names, *self._receives_need)
        arrived, self._arrived = self._arrived, None
        if isinstance(arrived, Exception):
            raise arrived
        return arrived

    async def aclose(self) -> None:
        """Closes the connection after the held bytes have left, as from a socket's buffer."""
        self._closed = True
        if not self._sending:
            await self._inner.aclose()
        else:
            await trio.lowlevel.checkpoint()

    async def wait_sent(self) -> None:
        """Returns when no bytes are held any more."""
        while self._sending:
            await self._progress.wait()

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError
        if self._broken:
            raise trio.BrokenResourceError

    async def _send_held(self) -> None:
        try:
            while self._held:
                due, data = self._held[0]
                await trio.sleep_until(due)
                await self._network.wait_open(self._names, *self._sends_need)
                await self._inner.send_all(data)
                self._held.popleft()
                self._held_bytes -= len(data)
                self._step()
        except Exception:  # the sender gets the error at its next send; a system task must not raise
            self._broken = True
            self._held.clear()
            self._held_bytes = 0
        finally:
            self._sending = False
            self._step()
            if self._closed:
                await trio.aclose_forcefully(self._inner)

    def _step(self) -> None:
        self._progress.set()
        self._progress = trio.Event()
