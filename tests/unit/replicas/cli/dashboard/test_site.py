"""The page over the network: what browsers get, and how little those take that hang, flood or ask for nonsense."""

from __future__ import annotations

import json
import re
import resource
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from replicas.cli.dashboard import door, hub
from replicas.cli.dashboard.hub import WATCHERS_MAX, Hub
from replicas.cli.dashboard.page import Site, bind_address, fault_kinds, is_local
from replicas.cli.run.run import Supervisor
from spe.errors import PortInUse, SpeError
from tests.support.pages import Answer, ask, dial, first_events, request_text
from tests.support.sights import a_sight, deployed

pytest.importorskip("quart_trio")

PATIENCE_S = 60
STATIC = Path(hub.__file__).parent / "static"


class Served:
    """A page that is served.

    Attributes:
      injected: faults that somebody asked for.
    """

    def __init__(self, title: str, inject: bool, bind: str = "127.0.0.1:0") -> None:
        self.injected: list[Mapping[str, Any]] = []
        plan, directory = deployed()
        self.hub = Hub(
            plan,
            directory,
            lambda: a_sight(time.time_ns() // 1000, title=title),
            inject=self._inject if inject else None,
            kinds=fault_kinds("inside"),
            targets=["n1"],
            period_s=0.02,
        )
        self.site = Site(self.hub, bind)
        self.address = ""

    async def _inject(self, fault: Mapping[str, Any]) -> str:
        self.injected.append(fault)
        return "" if fault.get("kind") == "kill" else "it is no fault"

    async def watched_by(self, count: int) -> None:
        """Returns when so many pages watch."""
        while True:
            await trio.sleep(0.01)
            if self.hub.watchers == count:
                return

    async def get(self, path: str, **more: Any) -> Answer:
        return await ask(self.address, path, **more)

    async def post(self, body: bytes, *, key: str | None = None, kind: str = "application/json") -> Answer:
        headers = {"Content-Type": kind, **({} if key is None else {"X-Spe-Key": key})}
        return await ask(self.address, "/api/faults", method="POST", headers=headers, body=body)


@asynccontextmanager
async def served(title: str = "small   runs/x", *, inject: bool = True) -> AsyncIterator[Served]:
    one = Served(title, inject)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            one.address = await nursery.start(one.site.run)
            yield one
            nursery.cancel_scope.cancel()


class TestPages:
    async def test_page_uses_local_files_only_and_no_inline_script(self) -> None:
        async with served() as one:
            page = await one.get("/")
            names = re.findall(r'(?:src|href)="([^"#]+)"', page.text)
            files = {name: await one.get(f"/{name}") for name in names}
        assert page.status == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert {answer.status for answer in files.values()} == {200}
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=", page.text)

    @pytest.mark.parametrize("file", sorted(STATIC.iterdir()), ids=lambda p: p.name)
    def test_no_file_names_another_host_or_makes_markup_of_text(self, file: Path) -> None:
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z]+\.[a-z]", text)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text)

    @pytest.mark.parametrize("path", ["/", "/api/frame", "/static/main.js", "/nothing"])
    async def test_every_answer_forbids_scripts_of_others_and_frames(self, path: str) -> None:
        async with served() as one:
            await one.hub.newer_than(0)
            headers = (await one.get(path)).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"

    async def test_events_are_the_layout_then_frames(self) -> None:
        async with served() as one, await dial(one.address) as stream:
            (first, layout), (second, frame), (third, later) = await first_events(stream, 3)
        assert (first, second, third) == ("layout", "frame", "frame")
        assert layout["number"] == frame["layout"]
        assert [name for name, *_ in layout["replicas"]] == ["main@n1", "main@n2"]
        assert later["at"] > frame["at"]

    async def test_the_past_can_be_asked_for(self) -> None:
        async with served() as one:
            await one.hub.newer_than(4)
            whole = (await one.get("/api/timeline")).json
            first = (await one.get(f"/api/frame?at={whole['from']}")).json
            newest = (await one.get("/api/frame")).json
            layout = (await one.get(f"/api/layout/{first['layout']}")).json
            later = (await one.get(f"/api/timeline?after={newest['at']}")).json
        assert first["at"] == whole["from"] < newest["at"]
        assert len(later["points"]) < len(whole["points"])
        assert layout["cluster"] == "small"

    @pytest.mark.parametrize(
        ("path", "status"),
        [
            ("/nothing", 404),
            ("/static/../hub.py", 404),
            ("/static/%2e%2e%2fhub.py", 404),
            ("/static/hub.py", 404),
            ("/api/layout/99", 404),
            ("/api/layout/x", 404),
            ("/api/frame?at=never", 200),
            ("/api/timeline?after=-99999999999999999999999", 200),
        ],
    )
    async def test_nonsense_gets_a_short_answer(self, path: str, status: int) -> None:
        async with served() as one:
            await one.hub.newer_than(0)
            answer = await one.get(path)
        assert answer.status == status
        assert status == 200 or len(answer.body) < 400


class TestFaults:
    async def test_fault_is_injected_with_the_key_of_the_address(self) -> None:
        async with served() as one:
            address, _, key = one.address.partition("#")
            answers = [await one.post(json.dumps({"kind": kind}).encode(), key=key) for kind in ("kill", "x")]
        assert address.endswith("/")
        assert [(a.status, a.json) for a in answers] == [(200, {"error": ""}), (200, {"error": "it is no fault"})]
        assert one.injected == [{"kind": "kill"}, {"kind": "x"}]

    @pytest.mark.parametrize("key", [None, "", "wrong", "ключ"])
    async def test_none_is_without_it(self, key: str | None) -> None:
        async with served() as one:
            answer = await one.post(b'{"kind": "kill"}', key=key)
        assert (answer.status, one.injected) == (403, [])

    @pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
    async def test_nothing_but_post_changes_anything(self, method: str) -> None:
        async with served() as one:
            answer = await one.get("/api/faults", method=method, headers={"X-Spe-Key": one.site.key})
        assert answer.status in (200, 405)
        assert "access-control-allow-origin" not in answer.headers
        assert one.injected == []

    @pytest.mark.parametrize(
        ("body", "kind", "status"),
        [
            (b'{"kind": "kill"}', "text/plain", 415),  # what a form of another site could send
            (b"[1]", "application/json", 400),
            (b"{", "application/json", 400),
            (b'{"kind": "' + b"x" * 9_000 + b'"}', "application/json", 413),
        ],
    )
    async def test_invalid_fault_is_refused(self, body: bytes, kind: str, status: int) -> None:
        async with served() as one:
            answer = await one.post(body, key=one.site.key, kind=kind)
        assert (answer.status, one.injected) == (status, [])

    async def test_where_none_may_be_injected_there_is_no_key(self) -> None:
        async with served(inject=False) as one:
            await one.hub.newer_than(0)
            answer = await one.post(b'{"kind": "kill"}', key=one.site.key)
            layout = (await one.get("/api/layout/1")).json
        assert (answer.status, layout["faults"]["kinds"]) == (403, {})
        assert "#" not in one.address

    def test_kinds_are_those_that_real_processes_can_suffer(self) -> None:
        assert set(fault_kinds("inside")) == {"kill", "restart", "freeze", "stall", "cut", "delay", "heal"}
        assert set(fault_kinds("proxy")) - set(fault_kinds("inside")) == {"slow", "refuse", "reset", "half-open"}
        assert fault_kinds("inside")["kill"] == ("target", "for")


class TestWhoMayAsk:
    @pytest.mark.parametrize("host", ["127.0.0.1:80", "localhost", "localhost:8080", "[::1]:9"])
    async def test_local_host_names_and_tunnels_are_allowed(self, host: str) -> None:
        async with served() as one:
            assert (await one.get("/", headers={"Host": host})).status == 200

    @pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:80", "localhost.evil"])
    async def test_a_name_that_another_site_leads_here_is_refused(self, host: str) -> None:
        async with served() as one:
            answers = [await one.get(path, headers={"Host": host}) for path in ("/", "/api/frame", "/api/events")]
        assert {answer.status for answer in answers} == {421}

    @pytest.mark.parametrize(
        ("bind", "local"),
        [("127.0.0.1:0", True), ("localhost:80", True), ("[::1]:0", True), ("0.0.0.0:0", False), ("10.0.0.1:1", False)],
    )
    def test_only_this_machine_injects_faults(self, bind: str, local: bool) -> None:
        assert is_local(bind) is local

    def test_an_address_that_is_none_is_refused(self) -> None:
        assert bind_address("off") == ""
        assert bind_address("127.0.0.1:8080") == "127.0.0.1:8080"
        with pytest.raises(SpeError, match="--dashboard: expected an address"):
            bind_address("8080")

    def test_missing_dashboard_extra_disables_default_address_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("replicas.cli.dashboard.page.installed", lambda: False)
        assert bind_address("127.0.0.1:0") == ""
        with pytest.raises(SpeError, match=r"pip install '\.\[dashboard\]'"):
            bind_address("127.0.0.1:8080")

    async def test_an_address_that_is_taken_is_named(self) -> None:
        async with served() as one:
            taken = one.address.removeprefix("http://").partition("/")[0]
            with pytest.raises(PortInUse, match=f"cannot listen on {taken}"):
                await door.Door(one.site._serve).run(taken)


class TestBadBrowsers:
    async def test_client_that_does_not_read_misses_frames_only(self) -> None:
        """Others go on; it gets no more than the sockets between hold."""
        async with served("x" * 60_000) as one, await dial(one.address) as hanging:
            await hanging.send_all(request_text("GET", "/api/events", {}))
            await one.watched_by(1)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            started = one.hub.number
            await one.hub.newer_than(started + 60)
            assert (await one.get("/api/frame")).status == 200
            grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown_kb < 60_000

    async def test_watcher_that_reads_nothing_is_disconnected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(door, "SEND_S", 0.2)
        async with served("x" * 12_000_000) as one, await dial(one.address) as hanging:
            await hanging.send_all(request_text("GET", "/api/events", {}))
            await one.watched_by(1)
            await one.watched_by(0)

    async def test_leaving_watcher_frees_its_place(self) -> None:
        async with served() as one:
            for _ in range(2 * WATCHERS_MAX):
                async with await dial(one.address) as stream:
                    await first_events(stream, 1)
            await one.watched_by(0)

    async def test_watchers_are_limited_and_the_next_is_informed(self) -> None:
        async with served() as one, trio.open_nursery() as nursery:
            open_ = [await dial(one.address) for _ in range(WATCHERS_MAX)]
            for stream in open_:
                await stream.send_all(request_text("GET", "/api/events", {}))
            await one.watched_by(WATCHERS_MAX)
            answer = await one.get("/api/events")
            assert (answer.status, answer.text) == (503, f"{WATCHERS_MAX} pages are open already\n")
            for stream in open_:
                await trio.aclose_forcefully(stream)
            nursery.cancel_scope.cancel()

    async def test_connections_that_say_nothing_make_room_for_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(door, "CONNECTIONS_MAX", 4)
        async with served() as one:
            idle = [await dial(one.address) for _ in range(12)]
            assert (await one.get("/")).status == 200
            assert one.site.door.dropped >= 8
            for stream in idle:
                await trio.aclose_forcefully(stream)

    async def test_a_flood_is_answered_at_a_limited_rate(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A process spends no more than a part of its time on it."""
        from replicas.cli.dashboard import site

        monkeypatch.setattr(site, "REQUESTS_BURST", 5)
        answered = 0

        async def flood(address: str) -> None:
            nonlocal answered
            while True:
                answered += (await ask(address, "/api/frame")).status == 200

        async with served() as one:
            await one.hub.newer_than(0)
            await one.get("/")
            began = trio.current_time()
            with trio.move_on_after(2):
                async with trio.open_nursery() as nursery:
                    for _ in range(10):
                        nursery.start_soon(flood, one.address)
            took = trio.current_time() - began
            assert answered <= 5 + site.REQUESTS_PER_SECOND * took + 2
            assert (await one.get("/")).status == 200

    @pytest.mark.parametrize(
        "data",
        [
            b"\0" * 50_000,
            b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 40_000,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 999,
        ],
        ids=["noise", "endless headers", "broken http/2"],
    )
    async def test_noise_ends_the_connection_and_nothing_else(self, data: bytes) -> None:
        async with served() as one:
            async with await dial(one.address) as stream:
                with trio.move_on_after(3):
                    try:
                        await stream.send_all(data)
                        while await stream.receive_some(1 << 16):
                            pass
                    except trio.BrokenResourceError:
                        pass
            assert (await one.get("/")).status == 200

    async def test_server_ends_though_browsers_hang(self) -> None:
        """Whoever serves must be able to end a run."""
        with trio.fail_after(PATIENCE_S):
            async with served("x" * 60_000) as one:
                stream = await dial(one.address)
                await stream.send_all(request_text("GET", "/api/events", {}))
                await one.hub.newer_than(30)
                began = trio.current_time()
            assert trio.current_time() - began < 5
            await trio.aclose_forcefully(stream)


class TestHub:
    async def test_the_web_server_is_started_by_the_first_browser(self) -> None:
        async with served() as one:
            await one.hub.newer_than(2)
            assert one.site.door._started is None
            await one.get("/")
            assert one.site.door._started is not None

    async def test_frames_come_seldom_where_they_take_long(self, monkeypatch: pytest.MonkeyPatch) -> None:
        one = Served("small", inject=False)
        slow = one.hub.make

        def make() -> None:
            slow()
            until = time.thread_time() + 0.05
            while time.thread_time() < until:
                pass

        monkeypatch.setattr(one.hub, "make", make)
        with trio.move_on_after(1.5):
            await one.hub.run()
        assert one.hub.number <= 4


async def test_a_page_that_breaks_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong with it, the run goes on without."""
    plan, directory = deployed()
    told: list[str] = []
    job: Any = SimpleNamespace(
        plan=plan, directory=directory, dashboard="127.0.0.1:0", links=SimpleNamespace(mode="inside"), specs=()
    )
    supervisor = Supervisor(job)
    monkeypatch.setattr(supervisor._narrator, "say", told.append)
    monkeypatch.setattr(supervisor, "_sight", lambda: 1 // 0)
    trace = SimpleNamespace(event=lambda name, **facts: told.append(name))
    supervisor._env = cast(Any, SimpleNamespace(trace=trace))
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(supervisor._serve_page, cast(Any, SimpleNamespace(inject=None)))
    assert told[0].startswith("dashboard: http://127.0.0.1:")
    assert told[1] == "dashboard_failed"
    assert "the dashboard has ended: ZeroDivisionError" in told[2]
