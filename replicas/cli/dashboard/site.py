"""Answers browsers: the page, events, the past, and fault injection.  Quart on trio, served by Hypercorn.

Only ``POST /api/faults`` changes anything.  It needs the key that follows the # in the address, which a browser
sends to no server by itself.  No script runs but the page's own (Content-Security-Policy).
"""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import AsyncIterator, Mapping
from importlib.resources import files
from typing import Any, Final

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart import Response, request
from quart_trio import QuartTrio

from replicas.cli.dashboard.hub import WATCHERS_MAX, Hub
from replicas.cli.dashboard.timeline import encode

#: Requests per second of all browsers together, after a burst; others wait.
REQUESTS_PER_SECOND: Final = 40
REQUESTS_BURST: Final = 60
#: Largest number of waiting requests; more are refused.
WAITING_MAX: Final = 100
#: Largest size of a fault.
_BODY_BYTES: Final = 4 << 10
_BODY_S: Final = 5.0

#: Ports are not compared, because a tunnel has its own.
_PORT: Final = re.compile(r":\d+$")
KEY_HEADER: Final = "X-Spe-Key"
_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def static_files() -> dict[str, tuple[str, bytes]]:
    """Returns content type and content of each file of the page, by name."""
    contents = {}
    for file in files("replicas.cli.dashboard").joinpath("static").iterdir():
        kind = _TYPES.get(f".{file.name.rpartition('.')[2]}")
        if kind is not None:
            contents[file.name] = (f"{kind}; charset=utf-8", file.read_bytes())
    return contents


class _Turns:
    """Admits requests at a limited rate."""

    def __init__(self) -> None:
        self._next_at = 0.0
        self._waiting = 0

    async def wait(self) -> bool:
        """Waits for a turn; returns False where too many requests wait already."""
        if self._waiting >= WAITING_MAX:
            return False
        interval_s, now = 1 / REQUESTS_PER_SECOND, trio.current_time()
        self._next_at = max(self._next_at, now - REQUESTS_BURST * interval_s) + interval_s
        self._waiting += 1
        try:
            await trio.sleep_until(self._next_at)
        finally:
            self._waiting -= 1
        return True


def make_site(hub: Hub, key: str, hosts: frozenset[str] | None) -> QuartTrio:
    """Makes the web application.

    Args:
      key: key for injecting faults.
      hosts: host names that requests may have, against other sites that resolve to this machine; None: any.
    """
    site = QuartTrio("replicas.cli.dashboard", static_folder=None)
    site.config.update(MAX_CONTENT_LENGTH=_BODY_BYTES, BODY_TIMEOUT=_BODY_S, RESPONSE_TIMEOUT=None)
    _add_guards(site, hosts)
    _add_files(site, static_files())
    _add_figures(site, hub)
    _add_faults(site, hub, key)
    return site


def _add_guards(site: QuartTrio, hosts: frozenset[str] | None) -> None:
    turns = _Turns()

    @site.before_request
    async def admit() -> Response | None:
        if hosts is not None and _PORT.sub("", request.host) not in hosts:
            return _text(f"expected one of the hosts {', '.join(sorted(hosts))}", 421)
        return None if await turns.wait() else _text("too many requests", 429)

    @site.after_request
    async def add_headers(response: Response) -> Response:
        response.headers.update(_HEADERS)
        return response


def _add_files(site: QuartTrio, static: Mapping[str, tuple[str, bytes]]) -> None:
    @site.get("/")
    async def page() -> Response:
        return _file(static, "index.html")

    @site.get("/static/<name>")
    async def file(name: str) -> Response:
        return _file(static, name)


def _add_figures(site: QuartTrio, hub: Hub) -> None:
    @site.get("/api/frame")
    async def frame() -> Response:
        at = request.args.get("at", default=None, type=int)
        shown = hub.frame if at is None else hub.timeline.frame_at(at)
        return _json(shown) if shown else _text("there is no frame yet", 404)

    @site.get("/api/layout/<int:number>")
    async def layout(number: int) -> Response:
        data = hub.layouts.get(number)
        return _text("there is no such layout", 404) if data is None else _json(data)

    @site.get("/api/timeline")
    async def timeline() -> Response:
        return _json(encode(hub.timeline.since(request.args.get("after", default=0, type=int))))

    @site.get("/api/events")
    async def events() -> Response:
        if hub.watchers >= WATCHERS_MAX:
            return _text(f"{WATCHERS_MAX} pages are open already", 503)
        return Response(_events(hub), content_type="text/event-stream")


def _add_faults(site: QuartTrio, hub: Hub, key: str) -> None:
    @site.post("/api/faults")
    async def faults() -> Response:
        if hub.inject is None:
            return _text("no fault can be injected here", 403)
        if not hmac.compare_digest(request.headers.get(KEY_HEADER, "").encode(), key.encode()):
            return _text("the key is missing or wrong: open the address as it was printed, with what follows #", 403)
        if not request.is_json:
            return _text("expected a fault as JSON", 415)
        data = await request.get_json(silent=True)
        if not isinstance(data, dict):
            return _text("expected a fault as a JSON object", 400)
        return _json(encode({"error": await hub.inject(data)}))


async def _events(hub: Hub) -> AsyncIterator[bytes]:
    """Yields server-sent events: the newest frame, when the browser has taken the last one."""
    with hub.watching():
        layout = number = 0
        yield b"retry: 2000\n\n"
        while True:
            number = await hub.newer_than(number)
            frame = hub.frame
            if hub.layout_number != layout:
                layout = hub.layout_number
                yield f"event: layout\ndata: {hub.layouts[layout]}\n\n".encode()
            yield f"event: frame\ndata: {frame}\n\n".encode()


def _text(text: str, status: int) -> Response:
    return Response(f"{text}\n", status, content_type="text/plain; charset=utf-8")


def _json(text: str | bytes) -> Response:
    return Response(text, content_type="application/json")


def _file(static: Mapping[str, tuple[str, bytes]], name: str) -> Response:
    content = static.get(name)
    if content is None:
        return _text("there is no such file", 404)
    return Response(content[1], content_type=content[0])


async def serve_site(
    hub: Hub, key: str, hosts: frozenset[str] | None, path: str, task_status: trio.TaskStatus[None]
) -> None:
    """Serves on a socket of the file system; reports when it does."""
    config = Config()
    config.bind = [f"unix:{path}"]
    config.accesslog = config.errorlog = None
    config.include_server_header = False
    config.h2_max_concurrent_streams = 8
    config.keep_alive_timeout = 20
    config.graceful_timeout = 0.2
    logging.getLogger("quart.app").setLevel(logging.CRITICAL)

    async with trio.open_nursery() as nursery:
        await nursery.start(_serve, make_site(hub, key, hosts), config)
        task_status.started()


async def _serve(site: QuartTrio, config: Config, *, task_status: trio.TaskStatus[Any]) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        async def send_whole(message: Mapping[str, Any]) -> None:
            # At the end of an answer Hypercorn may close the connection while Quart cancels the request: the shield
            # keeps it open until the answer is sent.  The door limits how long that takes.
            with trio.CancelScope(shield=not message.get("more_body", False)):
                await send(message)

        await site(scope, receive, send_whole)

    await serve(application, config, shutdown_trigger=trio.sleep_forever, task_status=task_status, mode="asgi")
