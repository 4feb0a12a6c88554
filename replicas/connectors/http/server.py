"""An HTTP/1.1 server for requests with bodies, which are limited in bytes and in time before they are used.

A request has a ``Content-Length``.  Without chunks there is only one way to delimit a body, so no proxy in front can
understand another one, and no chunk has to be counted.  A sender without the token is answered once, and remains a
stranger; the network limits their number and time.
"""

from __future__ import annotations

import hmac
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import trio

from spe.errors import SpeError

try:
    import h11
except ImportError as error:
    raise SpeError(f"http needs the extra http: pip install '.[http]' ({error})") from error

#: Longest request line with all headers.
HEAD_BYTES: Final = 16 << 10
#: Longest time for a handshake and the first headers; and for those of each further request.
HEAD_S: Final = 5.0
IDLE_S: Final = 15.0
#: Longest time for a body: this, and a second for so many bytes.
BODY_S: Final = 10.0
BODY_BYTES_PER_S: Final = 32 << 10
#: Bytes of bodies in memory, of all requests together.
BODIES_BYTES_MAX: Final = 64 << 20
#: Largest number of connections that have shown the token.
CONNECTIONS_MAX: Final = 256
#: Longest time to send an answer.
_SEND_S: Final = 10.0
#: Bytes read from a refused request, and for how long, before the connection is closed, which would discard the answer.
#: More, and longer, of a sender that has shown the token and sends too large a body.
_DRAIN_BYTES: Final = 256 << 10
_DRAIN_S: Final = 1.0
_BODY_DRAIN_BYTES: Final = 1 << 30
_BODY_DRAIN_S: Final = 30.0
_READ_BYTES: Final = 64 << 10

Headers = Sequence[tuple[str, str]]


class Answer(NamedTuple):
    """An answer: a status, a JSON object, and headers besides the general ones."""

    status: int
    body: Mapping[str, Any]
    headers: Headers = ()

    @classmethod
    def error(cls, status: int, why: str, headers: Headers = (), **more: Any) -> Answer:
        return cls(status, {"error": why, **more}, headers)

    @classmethod
    def later(cls, why: str) -> Answer:
        """Returns an answer that asks for a retry."""
        return cls.error(503, why, [("Retry-After", "1")])


@dataclass(frozen=True)
class Post:
    """A request with a body.

    Attributes:
      type: media type of the body, in lower case, without parameters.
      key: value of the header ``Idempotency-Key``; None: there is none.
    """

    type: str
    key: str | None
    body: bytearray


class RequestRefused(Exception):
    """A request is refused; the connection is closed after the answer."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.body.get("error"))
        self.answer = answer


class RequestServer:
    """Serves connections.

    Args:
      get: answers GET.
      post: answers POST.
      token: required ``Authorization: Bearer``; None: none.
      max_body: bytes.
      tls: returns the context of a new connection; None: plain text.
    """

    def __init__(
        self,
        get: Callable[[], Awaitable[Answer]],
        post: Callable[[Post], Awaitable[Answer]],
        *,
        token: str | None,
        max_body: int,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._get = get
        self._post = post
        self._token = token
        self._max_body = max_body
        self._tls = tls
        self._known = 0
        self._body_bytes = 0

    async def attend(self, stream: trio.abc.Stream) -> None:
        """Serves one connection until it ends."""
        known = False
        inner = stream
        if self._tls is not None:
            stream = trio.SSLStream(stream, self._tls(), server_side=True, https_compatible=True)
        try:
            connection = _Connection(stream)
            while (request := await connection.head(IDLE_S if known else HEAD_S)) is not None:
                try:
                    self._check_sender(request)
                    if not known:
                        if self._known >= CONNECTIONS_MAX:
                            raise RequestRefused(Answer.later(f"there are {CONNECTIONS_MAX} connections"))
                        self._known, known = self._known + 1, True
                        if hasattr(inner, "peer_name"):
                            inner.peer_name = "sender"  # the network's limits for strangers do not apply
                    answer = await self._answer(connection, request)
                except RequestRefused as refused:
                    await connection.send(refused.answer, close=True)
                    await connection.drain(body=known and refused.answer.status == 413)
                    return
                if not await connection.send(answer):
                    return
        except h11.RemoteProtocolError as error:
            await connection.refuse(error)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            pass  # it is gone, or too slow
        finally:
            self._known -= known
            await trio.aclose_forcefully(stream)

    def _check_sender(self, request: h11.Request) -> None:
        """Checks the token.  Raises RequestRefused."""
        if self._token is not None:
            credentials = _values(request, b"authorization")
            words = credentials[0].split(None, 1) if len(credentials) == 1 else []
            good = len(words) == 2 and words[0].lower() == b"bearer"
            if not good or not hmac.compare_digest(words[1].strip(), self._token.encode()):
                more = [("WWW-Authenticate", "Bearer")]
                raise RequestRefused(
                    Answer.error(401, "expected Authorization: Bearer, with the token of the source", more)
                )
        elif _values(request, b"origin"):
            raise RequestRefused(Answer.error(403, "a web page sends this; a source that takes it needs a token"))

    async def _answer(self, connection: _Connection, request: h11.Request) -> Answer:
        method = request.method
        if method not in (b"GET", b"HEAD", b"POST"):
            raise RequestRefused(Answer.error(405, "expected GET or POST", [("Allow", "GET, HEAD, POST")]))
        length = self._length(request)
        if method != b"POST":
            await self._body(connection, length)
            return await self._get()
        kind, encoding = _value(request, b"content-type"), _value(request, b"content-encoding")
        if encoding.lower() not in ("", "identity"):
            raise RequestRefused(Answer.error(415, f"expected no Content-Encoding, got {encoding[:40]}"))
        keys = _values(request, b"idempotency-key")
        if len(keys) > 1:
            raise RequestRefused(Answer.error(400, "expected one Idempotency-Key"))
        key = keys[0].decode("latin-1") if keys else None
        body = await self._body(connection, length)
        try:
            return await self._post(Post(kind.partition(";")[0].strip().lower(), key, body))
        finally:
            self._body_bytes -= len(body)

    def _length(self, request: h11.Request) -> int:
        """Returns the length of the body.  Raises RequestRefused."""
        lengths = _values(request, b"content-length")
        if _values(request, b"transfer-encoding") or (not lengths and request.method == b"POST"):
            raise RequestRefused(Answer.error(411, "expected a Content-Length, and no Transfer-Encoding"))
        length = int(lengths[0]) if lengths else 0  # h11 has validated it
        most = self._max_body if request.method == b"POST" else 0
        if length > most:
            raise RequestRefused(Answer.error(413, f"a body of {length} bytes; expected at most {most}"))
        return length

    async def _body(self, connection: _Connection, length: int) -> bytearray:
        """Reads the whole body; its bytes count until the caller subtracts them.  Raises RequestRefused."""
        body = bytearray()
        try:
            with trio.fail_after(BODY_S + length / BODY_BYTES_PER_S):
                while data := await connection.data():
                    if self._body_bytes + len(data) > BODIES_BYTES_MAX:
                        raise RequestRefused(Answer.later(f"requests have more than {BODIES_BYTES_MAX >> 20} MiB"))
                    self._body_bytes += len(data)
                    body += data
        except trio.TooSlowError:
            self._body_bytes -= len(body)
            raise RequestRefused(Answer.error(408, f"{len(body)} of {length} bytes came in time")) from None
        except BaseException:
            self._body_bytes -= len(body)
            raise
        return body


class _Connection:
    """A connection, wrapped in h11."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES // 2)
        self._head_only = False

    async def head(self, seconds: float) -> h11.Request | None:
        """Returns the next request; None at the end.  Raises h11.RemoteProtocolError, trio.TooSlowError."""
        with trio.fail_after(seconds):
            event = await self._event(HEAD_BYTES // 2)
        if not isinstance(event, h11.Request):
            return None
        self._head_only = event.method == b"HEAD"
        return event

    async def data(self) -> bytes | bytearray:
        """Returns a piece of the body; empty at its end."""
        event = await self._event(_READ_BYTES)
        return event.data if isinstance(event, h11.Data) else b""

    async def _event(self, size: int) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
                await self._send(self._http.send(go_on))
            self._http.receive_data(bytes(await self._stream.receive_some(size)))
        return event

    async def _send(self, data: bytes | None) -> None:
        if data:
            with trio.fail_after(_SEND_S):
                await self._stream.send_all(data)

    async def send(self, answer: Answer, *, close: bool = False) -> bool:
        """Sends an answer; returns whether another request may follow."""
        body = json.dumps(answer.body, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            *answer.headers,
        ]
        if close:
            headers.append(("Connection", "close"))
        http = self._http
        data = http.send(h11.Response(status_code=answer.status, headers=headers)) or b""
        if not self._head_only:
            data += http.send(h11.Data(data=body)) or b""
        data += http.send(h11.EndOfMessage()) or b""
        await self._send(data)
        if close or http.our_state is not h11.DONE or http.their_state is not h11.DONE:
            return False
        http.start_next_cycle()
        return True

    async def refuse(self, error: h11.RemoteProtocolError) -> None:
        """Answers an invalid request, if an answer can be sent."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        try:
            why = f"no request of HTTP/1.1: {str(error)[:200]}"
            await self.send(Answer.error(error.error_status_hint, why), close=True)
            await self.drain()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            pass

    async def drain(self, *, body: bool = False) -> None:
        """Reads the rest of a request, of a large body nearly all, until the sender is silent."""
        left, data = _BODY_DRAIN_BYTES if body else _DRAIN_BYTES, b"-"
        with trio.move_on_after(_BODY_DRAIN_S if body else _DRAIN_S):
            while left > 0 and data:
                data = b""
                with trio.move_on_after(_DRAIN_S):
                    data = bytes(await self._stream.receive_some(_READ_BYTES))
                left -= len(data)


def _values(request: h11.Request, name: bytes) -> list[bytes]:
    return [value for key, value in request.headers if key == name]


def _value(request: h11.Request, name: bytes) -> str:
    return next((v.decode("latin-1") for v in _values(request, name)), "")
