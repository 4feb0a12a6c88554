"""An HTTP/1.1 client: one request after the other on a connection, over any Network."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import trio

from spe.connectors.server import Url
from spe.errors import LinkBroken, ServerAway, SpeError
from spe.runtime.env import Env
from spe.runtime.server_trouble import outside

try:
    import h11
except ImportError as error:
    raise SpeError(f"http needs the extra http: pip install '.[http]' ({error})") from error

#: Longest time to connect, including the TLS handshake.
CONNECT_S: Final = 5.0
#: Longest status line with all headers.
HEAD_BYTES: Final = 32 << 10
#: Bytes of an error body that are read, and characters that are shown.
_WHY_BYTES: Final = 4 << 10
_WHY_SHOWN: Final = 200
#: Longest time for the rest of an answer that is not needed.
_REST_S: Final = 1.0
_READ_BYTES: Final = 64 << 10
#: Longest delay that a server may ask for.
_WAIT_S: Final = 300.0
#: Statuses below 500 for which a retry may help.
_AGAIN: Final = (408, 425, 429)

Headers = Sequence[tuple[bytes, bytes]]


class HttpClient:
    """Connects to one server, one connection at a time.

    Args:
      name: name for messages.
      token: for ``Authorization: Bearer``; None: none.
      ca: file with certificates of authorities; None: those of the system.

    Raises:
      SpeError: the file cannot be used.
    """

    def __init__(self, name: str, url: Url, *, token: str | None = None, ca: str | None = None) -> None:
        self._name = name
        self._url = url
        self._tls: ssl.SSLContext | None = None
        if url.secure:
            try:
                self._tls = ssl.create_default_context(cafile=ca)
            except (OSError, ssl.SSLError) as error:
                raise SpeError(f"{name}: {ca} has no certificates: {error}") from error
        self._headers = [(b"Host", url.authority.encode()), (b"User-Agent", b"tentative-spe")]
        if token is not None:
            self._headers.append((b"Authorization", b"Bearer " + token.encode()))
        self._stream: trio.abc.Stream | None = None
        self._http = h11.Connection(h11.CLIENT)

    @property
    def connected(self) -> bool:
        """Whether there is a connection for another request."""
        return self._stream is not None and self._http.our_state is h11.IDLE

    async def connect(self, env: Env) -> None:
        """Makes a new connection.  Raises LinkBroken."""
        await self.close()
        address = f"{self._url.host}:{self._url.port}"
        stream: trio.abc.Stream = await outside(env).connect(address, CONNECT_S)
        if self._tls is not None:
            stream = secure = trio.SSLStream(
                stream, self._tls, server_hostname=self._url.host.strip("[]"), https_compatible=True
            )
            try:
                with trio.fail_after(CONNECT_S):
                    await secure.do_handshake()
            except BaseException as error:
                await trio.aclose_forcefully(stream)
                if isinstance(error, trio.BrokenResourceError | trio.TooSlowError):
                    raise LinkBroken(f"no TLS with {address}: {error.__cause__ or 'no answer'}") from error
                raise
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)

    async def ask(self, method: str, headers: Headers = (), body: bytes = b"") -> h11.Response:
        """Returns the head of the answer; its body, by :meth:`data` or :meth:`rest`, must be read before another
        request.

        Raises:
          EOFError, trio.BrokenResourceError: the connection is gone, or the answer is not HTTP/1.1.
        """
        assert self._stream is not None
        http, all_headers = self._http, [*self._headers, *headers]
        if method == "POST":
            all_headers.append((b"Content-Length", b"%d" % len(body)))
        data = http.send(h11.Request(method=method, target=self._url.target, headers=all_headers)) or b""
        if body:
            data += http.send(h11.Data(data=body)) or b""
        data += http.send(h11.EndOfMessage()) or b""
        await self._stream.send_all(data)
        while not isinstance(event := await self._event(), h11.Response):
            if not isinstance(event, h11.InformationalResponse):
                raise EOFError("the server closed the connection without an answer")
        return event

    async def data(self) -> bytes:
        """Returns a piece of the body; b"" at its end.  Raises as :meth:`ask`."""
        event = await self._event()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def why(self) -> str:
        """Returns the beginning of an error body, in one line; closes the connection."""
        body = b""
        try:
            with trio.move_on_after(_REST_S):
                while len(body) < _WHY_BYTES and (data := await self.data()):
                    body += data
        except (EOFError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await self.close()
        return " ".join(body.decode("utf-8", "replace").split())[:_WHY_SHOWN]

    async def done(self) -> None:
        """Reads the rest of a short body, so that the connection can be used again, or closes it."""
        left = _WHY_BYTES
        with trio.move_on_after(_REST_S), suppress(EOFError, trio.BrokenResourceError):  # the head is sufficient
            while left > 0 and (data := await self.data()):
                left -= len(data)
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        else:
            await self.close()

    async def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await trio.aclose_forcefully(stream)

    async def failure(self, response: h11.Response, what: str = "it") -> SpeError:
        """Returns the error of a failed request: :exc:`ServerAway` if a retry may help.

        Args:
          what: the refused thing, for the message.
        """
        status, why = response.status_code, await self.why()
        text = f"{status} {response.reason.decode('latin-1')}".strip() + (f": {why}" if why else "")
        if status in _AGAIN or status >= 500:
            return ServerAway(text)
        if 300 <= status < 400:
            location = header(response, "location").partition("?")[0]
            return SpeError(
                f"{self._name} is elsewhere, {text}; expected its own URL, not one that leads to {location}"
            )
        return SpeError(f"{self._name} refuses {what}: {text}")

    async def _event(self) -> Any:
        assert self._stream is not None
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(bytes(await self._stream.receive_some(_READ_BYTES)))
        except h11.RemoteProtocolError as error:
            raise EOFError(f"no answer of HTTP/1.1: {str(error)[:_WHY_SHOWN]}") from error
        return event


def header(response: h11.Response, name: str) -> str:
    """Returns the first header of a name, in lower case; "" if there is none."""
    wanted = name.encode()
    return next((value.decode("latin-1") for key, value in response.headers if key == wanted), "")


def retry_after_s(response: h11.Response, now_us: int) -> float:
    """Returns the delay that the server asks for, 5 minutes at most; 0 without one."""
    text = header(response, "retry-after")
    try:
        if text.isascii() and text.isdigit():
            return min(float(text), _WAIT_S)
        until = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return 0.0
    seconds = (until.replace(tzinfo=until.tzinfo or UTC) - datetime.fromtimestamp(now_us / 1e6, UTC)).total_seconds()
    return min(max(seconds, 0.0), _WAIT_S)
