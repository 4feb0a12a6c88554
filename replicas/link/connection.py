"""A connection between two processes: frames over a byte stream, and the hello that opens it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import trio

from spe.errors import LinkBroken, LinkClosed, PeerRefused, RemoteProtocolError
from spe.plan.directory import CONFIGURED, Version
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.runtime.tls import Tls, TlsNetwork, holder_of
from spe.wire.fields import Role
from spe.wire.framing import UNAUTHENTICATED_BYTES, Frame, FrameReader, FrameType
from spe.wire.greeting import check_welcome
from spe.wire.messages.connection import PROTOCOL, Hello, Welcome
from spe.wire.messages.message import HELLO_VALUES_MAX, STATUS_VALUES_MAX, VALUES_MAX, Message, decode_message

#: Environment variable with the shared secret of the cluster.
TOKEN_VARIABLE: Final = "SPE_TOKEN"
#: Largest read once the peer is known: enough that many small frames are handled at once, and a large one does not
#: come in pieces.
RECEIVE_BYTES = 1 << 20
#: Bytes sent after which other tasks may run.
YIELD_BYTES = 64 << 10
#: Longest time for the first frame of an unknown peer.
HELLO_SECONDS = 2.0


@dataclass(slots=True)
class Identity:
    """Our identity towards other processes; a process with an incarnation on disk sets it before it first connects.

    Attributes:
      role: node, source, client or control.
      incarnation: grows with each start of this process.
      token: shared secret of the cluster; "" where none is configured.
      directory: our current version.
    """

    role: Role
    name: str
    incarnation: int
    token: str = ""
    directory: Version = CONFIGURED


class Connection:
    """Sends and receives frames over one stream.  Sending is serialised; one task receives.

    Attributes:
      received: bytes, so far.
      arriving: called when bytes came that do not complete a frame.
    """

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.received = 0
        self.arriving: Callable[[], None] | None = None
        self._stream = stream
        self._frames = FrameReader()
        self._waiting: deque[Frame] = deque()
        self._receive_bytes = UNAUTHENTICATED_BYTES
        self._values_max = HELLO_VALUES_MAX
        self._send_lock = trio.Lock()
        #: For streams that support it: TLS has its own records.
        self._stream_send_now: Callable[[bytes], int] | None = getattr(stream, "send_now", None)
        self._unyielded = 0

    def allow(self, frame_bytes: int) -> None:
        """Accepts larger frames from now on: the peer is known."""
        self._frames.limit = frame_bytes
        self._receive_bytes = RECEIVE_BYTES
        self._values_max = VALUES_MAX

    def allow_status(self) -> None:
        """Accepts a status, which may be larger than other messages: we ask the peer for it."""
        self._frames.allow_status()
        self._values_max = STATUS_VALUES_MAX

    def named(self, peer: str) -> None:
        """Tells the network layer the peer's name, for fault injection by name."""
        if hasattr(self._stream, "peer_name"):
            self._stream.peer_name = peer

    def certified(self) -> str | None:
        """The name in the peer's certificate; None without TLS."""
        return getattr(self._stream, "certified", None)

    async def send_bytes(self, data: bytes) -> None:
        """Sends; other tasks run now and then, not at each small message.  Raises LinkBroken when the peer is gone."""
        sent = self._send_now(data)
        if sent == len(data):
            self._unyielded += sent
            if self._unyielded >= YIELD_BYTES:
                self._unyielded = 0
                await trio.lowlevel.cancel_shielded_checkpoint()  # sending to a fast reader must not starve other tasks
            return
        await self._send_rest(data, sent)

    async def _send_rest(self, data: bytes, sent: int) -> None:
        lock = self._send_lock
        try:
            try:
                lock.acquire_nowait()  # at once: no other task may send between the parts of a frame
            except trio.WouldBlock:
                await lock.acquire()
            try:
                await self._stream.send_all(memoryview(data)[sent:] if sent else data)
            finally:
                lock.release()
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
            raise _broken(error) from error

    def _send_now(self, data: bytes) -> int:
        """Sends what the stream takes without waiting; returns the number of bytes.  Raises LinkBroken."""
        if self._stream_send_now is None or self._send_lock.locked():
            return 0
        try:
            return self._stream_send_now(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
            raise _broken(error) from error

    async def send(self, message: Message) -> None:
        await self.send_bytes(message.encode())

    async def send_within(self, message: Message, seconds: float, why: str) -> None:
        """Sends within a time.  Raises LinkBroken, which contains ``why``, also on a timeout."""
        data = message.encode()
        sent = self._send_now(data)
        if sent == len(data):
            return  # usual case, without the cost of a deadline
        with trio.move_on_after(seconds) as scope:
            await self._send_rest(data, sent)
        if scope.cancelled_caught:
            raise LinkBroken(why)

    async def receive(self) -> list[Frame]:
        """Returns at least one frame.

        Raises:
          LinkBroken: the peer vanished.  LinkClosed: it hung up between two frames.
          RemoteProtocolError: it sent no frame, or too large a one.
        """
        if not self._waiting:
            await self._fill()
        frames = list(self._waiting)
        self._waiting.clear()
        return frames

    async def _fill(self) -> None:
        """Reads until a frame is waiting."""
        while not self._waiting:
            try:
                data = await self._stream.receive_some(self._receive_bytes)
            except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
                raise LinkBroken(f"while receiving: {error or type(error).__name__}") from error
            if not data:
                try:
                    self._frames.finish()
                except RemoteProtocolError as error:  # the peer was killed while it sent: this breaks no rule
                    raise LinkBroken(str(error)) from None
                raise LinkClosed("the peer hung up")
            self.received += len(data)
            self._waiting += self._frames.feed(data)
            if not self._waiting and self.arriving is not None:
                self.arriving()

    async def receive_message(self) -> Message:
        """Returns the next frame, which must be a control message; later frames wait for the next call."""
        if self._waiting:
            await trio.lowlevel.checkpoint()  # thousands of messages in one read: other tasks run between them
        else:
            await self._fill()
        frame = self._waiting.popleft()
        if frame.type is not FrameType.CONTROL:
            raise RemoteProtocolError(f"expected a control message, got a {frame.type.name} frame")
        return decode_message(frame.body, self._values_max)

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)


def _broken(error: Exception) -> LinkBroken:
    return LinkBroken(f"while sending: {error or type(error).__name__}")


def secured(env: Env, plan: Plan, name: str) -> Env:
    """Returns the environment with TLS if the plan has certificates.  Raises ConfigError if ours is invalid."""
    if plan.security.certificates is None:
        return env
    tls = Tls(Path(plan.security.certificates), plan.cluster, name)
    return replace(env, network=TlsNetwork(env.network, tls, env.trace))


def _hello(plan: Plan, me: Identity) -> Hello:
    return Hello(
        lowest=PROTOCOL.lowest,
        highest=PROTOCOL.highest,
        cluster=plan.cluster,
        role=me.role,
        name=me.name,
        incarnation=me.incarnation,
        fingerprint=plan.fingerprint,
        token=me.token,
        epoch=me.directory.epoch,
        number=me.directory.number,
    )


async def dial(
    env: Env, plan: Plan, me: Identity, peer: str, address: str, *, hello_us: int | None = None
) -> tuple[Connection, Welcome]:
    """Opens a connection to a process of the cluster and says hello.

    Args:
      hello_us: longest wait for the answer to the hello; None: as long as a connection may take.

    LinkBroken: not reachable.  Its subclass PeerBusy: the peer has no room for us now.
    PeerRefused: the peer refuses us; has the reason.
    """
    stream = await env.network.connect(address, plan.timing.connect_us / 1e6)
    connection = Connection(stream)
    try:
        if (shown := connection.certified()) is not None and shown != holder_of(peer):
            raise PeerRefused(f"expected {peer!r} at {address}, found the certificate of {shown!r}")
        connection.named(peer)
        with trio.fail_after((hello_us or plan.timing.connect_us) / 1e6):
            await connection.send(_hello(plan, me))
            welcome = check_welcome(await connection.receive_message(), peer)
        connection.allow(plan.limits.frame_bytes)
    except trio.TooSlowError:
        await connection.aclose()
        raise LinkBroken(f"{peer} at {address} did not answer the hello") from None
    except BaseException:
        with trio.CancelScope(shield=True):
            await connection.aclose()
        raise
    return connection, welcome
