"""The port for metrics, and clients that hang, flood, or ask for what does not exist."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio
import trio.testing

from spe.errors import PortInUse
from spe.runtime import http_port
from spe.runtime.http_port import (
    ACCEPTED_PER_SECOND,
    BURST,
    CONNECTIONS_MAX,
    FRESH_S,
    REQUEST_BYTES,
    REQUEST_S,
    HttpPort,
    Page,
)

#: A test that waits longer than this has failed.
PATIENCE_S = 60


class Pages:
    """Pages that count how often they are made."""

    def __init__(self) -> None:
        self.made = 0

    def metrics(self) -> Page:
        self.made += 1
        return Page(f"made {self.made}\n", content_type="text/plain; version=0.0.4")

    def broken(self) -> Page:
        raise RuntimeError("something broke")


@asynccontextmanager
async def served() -> AsyncIterator[tuple[str, HttpPort, Pages]]:
    pages = Pages()
    port = HttpPort({"/metrics": pages.metrics, "/broken": pages.broken})
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            yield await nursery.start(port.serve, "127.0.0.1:0"), port, pages
            nursery.cancel_scope.cancel()


async def dial(address: str) -> trio.SocketStream:
    host, _, number = address.rpartition(":")
    return await trio.open_tcp_stream(host, int(number))


async def ask(address: str, request: str) -> str:
    """The whole answer; "" where the connection is closed without one."""
    async with await dial(address) as stream:
        try:
            await stream.send_all(request.encode())
            return b"".join([data async for data in stream]).decode()
        except trio.BrokenResourceError:
            return ""


async def get(address: str, path: str = "/metrics") -> str:
    return await ask(address, f"GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n")


class TestRequests:
    async def test_a_page_comes_whole_with_its_length_and_its_type(self) -> None:
        async with served() as (address, _, _):
            head, _, body = (await get(address)).partition("\r\n\r\n")
        lines = head.split("\r\n")
        assert (lines[0], body) == ("HTTP/1.1 200 OK", "made 1\n")
        assert {"Content-Type: text/plain; version=0.0.4", "Content-Length: 7", "Connection: close"} <= set(lines)

    async def test_head_gets_no_body_and_a_query_is_left_out(self) -> None:
        async with served() as (address, _, _):
            answer = await ask(address, "HEAD /metrics?name[]=x HTTP/1.0\r\n\r\n")
        assert answer.startswith("HTTP/1.1 200 OK\r\n")
        assert answer.endswith("\r\n\r\n")
        assert "Content-Length: 7" in answer

    @pytest.mark.parametrize(
        ("request_", "status"),
        [
            ("GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
            ("GET /metrics/../../etc/passwd HTTP/1.1\r\n\r\n", "404 Not Found"),
            ("GET http://evil/metrics HTTP/1.1\r\n\r\n", "404 Not Found"),
            ("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405 Method Not Allowed"),
            ("TRACE /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
            ("GET /metrics\r\n\r\n", "400 Bad Request"),
            ("GET /metrics HTTP/2\r\n\r\n", "400 Bad Request"),
            ("\x16\x03\x01\x02 tls \r\n\r\n", "400 Bad Request"),
            ("\r\n\r\n", "400 Bad Request"),
            ("GET /broken HTTP/1.1\r\n\r\n", "500 Internal Server Error"),
            ("GET /metrics HTTP/1.1\r\n" + "X: y\r\n" * REQUEST_BYTES, "431 Request Header Fields Too Large"),
        ],
    )
    async def test_other_requests_get_an_error(self, request_: str, status: str) -> None:
        async with served() as (address, _, _):
            answer = await ask(address, request_)
            assert answer.startswith(f"HTTP/1.1 {status}\r\n")
            assert "made 1" in await get(address)

    @pytest.mark.parametrize(
        ("host", "status"),
        [
            ("Host: localhost", 200),
            ("host:LOCALHOST:1", 200),
            ("Host: [::1]:9464", 200),
            ("Host: 127.0.0.1", 200),
            ("X: y", 200),
            ("Host: evil.example", 421),
            ("Host: evil.example:9464", 421),
            ("Host: 127.0.0.1.evil.example", 421),
            ("Host:", 421),
        ],
    )
    async def test_a_loopback_address_answers_to_its_own_names(self, host: str, status: int) -> None:
        """A web page may lead its own name to the address of the machine that shows it."""
        async with served() as (address, _, _):
            answer = await ask(address, f"GET /metrics HTTP/1.1\r\n{host}\r\n\r\n")
        assert answer.startswith(f"HTTP/1.1 {status} ")

    async def test_an_address_of_the_network_answers_to_any_name(self) -> None:
        port = HttpPort({"/metrics": lambda: Page("ok")})
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                address = await nursery.start(port.serve, "0.0.0.0:0")
                answer = await ask(address, "GET /metrics HTTP/1.1\r\nHost: node-0.node\r\n\r\n")
                nursery.cancel_scope.cancel()
        assert answer.startswith("HTTP/1.1 200 ")

    async def test_an_address_that_is_taken_is_named(self) -> None:
        async with served() as (address, _, _):
            with pytest.raises(PortInUse, match=f"cannot listen on {address}: Address already in use"):
                await HttpPort({}).serve(address)


class TestHostileClients:
    async def test_clients_that_hang_do_not_keep_others_out(self) -> None:
        """More of them than there may be connections; each sends the beginning of a request, or nothing."""
        async with served() as (address, port, _):
            hanging = [await dial(address) for _ in range(2 * CONNECTIONS_MAX)]
            for stream in hanging[::2]:
                await stream.send_all(b"GET /met")
            assert "made 1" in await get(address)
            assert port.dropped > 0
            assert len(port._connections) <= CONNECTIONS_MAX
            for stream in hanging:
                await trio.aclose_forcefully(stream)

    async def test_a_client_that_hangs_is_sent_away(self, autojump_clock: trio.testing.MockClock) -> None:
        """On streams in memory, in virtual time."""
        ours, theirs = trio.testing.memory_stream_pair()
        port, begun = HttpPort({}), trio.current_time()
        scope = trio.CancelScope(deadline=begun + REQUEST_S)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(port._attend, ours, scope)  # type: ignore[arg-type]
            for _ in range(3):
                await theirs.send_all(b"G")
                await trio.sleep(1)
            assert await theirs.receive_some() == b""
        assert scope.cancelled_caught
        assert trio.current_time() - begun == REQUEST_S

    async def test_a_client_that_does_not_read_its_answer_is_sent_away(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The answer is larger than what the kernel takes for a client that reads nothing."""
        size = 64 << 20
        monkeypatch.setattr(http_port, "REQUEST_S", 0.2)
        port, taken = HttpPort({"/metrics": lambda: Page("x" * size)}), 0
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                address = await nursery.start(port.serve, "127.0.0.1:0")
                async with await dial(address) as stream:
                    await stream.send_all(b"GET /metrics HTTP/1.1\r\n\r\n")
                    await trio.sleep(1)
                    with suppress(trio.BrokenResourceError):
                        while data := await stream.receive_some():
                            taken += len(data)
                nursery.cancel_scope.cancel()
        assert taken < size

    async def test_flood_is_accepted_at_stated_rate_and_makes_few_pages(self) -> None:
        """Clients that ask as fast as they can, some of them for pages that do not exist."""
        async with served() as (address, port, pages):
            begun = trio.current_time()

            async def flood(path: str) -> None:
                while port.accepted < BURST + ACCEPTED_PER_SECOND:
                    await get(address, path)

            async with trio.open_nursery() as nursery:
                for path in ("/metrics", "/nothing", "/metrics?x=1") * 10:
                    nursery.start_soon(flood, path)
            took_s = trio.current_time() - begun
            assert port.accepted <= BURST + took_s * ACCEPTED_PER_SECOND + 1
            assert 1 <= pages.made <= took_s / FRESH_S + 1
            assert "HTTP/1.1 200" in await get(address)
