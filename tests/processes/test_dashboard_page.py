"""The page in a real browser, on statuses that are made up: what is hostile, what is large, and how it moves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.browser import browser, complaints, is_installed, resize
from benchmarks.dashboard import served, simulated_hub
from benchmarks.simulated_status import SimulatedCluster
from replicas.cli.dashboard.hub import Hub
from spe.figures.sight import Sight
from spe.status import FaultStatus, UnreachedStatus
from spe.stream.names import NodeState
from spe.stream.times import SECOND
from tests.support.sights import NOW, a_sight, a_small_replica, deployed
from tests.support.statuses import a_channel, a_client, a_coordinator, a_move, a_node, a_source, an_input

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = [pytest.mark.processes, pytest.mark.skipif(not is_installed(), reason="no Chromium with its driver here")]

PATIENCE_S = 120.0
EVIL = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">{{1}}</style>\u202e"


def until(driver: Chrome, condition: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not driver.execute_script(f"return Boolean({condition})"):
        assert time.monotonic() < end, (condition, complaints(driver))
        time.sleep(0.05)


@contextmanager
def opened(hub: Hub, width: int = 1280) -> Iterator[Chrome]:
    with served(hub) as address, browser(width, 1000) as driver:
        driver.get(address)
        until(driver, "document.documentElement.dataset.drawn > 1")
        yield driver


def of_small_cluster(make: Any) -> Hub:
    """One second of its time per frame."""
    seconds = count()
    return Hub(*deployed(), lambda: make(next(seconds)), period_s=0.1)


def test_texts_from_processes_are_never_markup() -> None:
    """Every text that a process, a fault or a run can bring is markup here, and stays text."""

    def evil(second: int) -> Sight:
        at = NOW + second * SECOND
        reads = (an_input(channel="a/0", main=None, frontier=NOW, other_logs={EVIL: EVIL}), an_input(channel="b/0"))
        fault = FaultStatus(fault=EVIL, planned_us=None, began_us=NOW, ended_us=None, for_us=None, errors=(EVIL,))
        stopped = a_small_replica(NodeState.UP_FAILURE, inputs=reads, error=EVIL, skew=(EVIL,), missing=(EVIL,))
        full = replace(a_node("n1", stopped), disk_full={EVIL: EVIL})
        source = a_source("source:a", frontier=NOW, fault=EVIL, note=EVIL)
        client = a_client(a_channel(channel="out/0", producer=EVIL, held=True, tentative=5, last_arrival_us=at))
        sight = a_sight(at, full, source, client, title=f"small   {EVIL}", faults=[fault], note=EVIL)
        return replace(sight, errors={"n2": UnreachedStatus("silent", EVIL)}, phases={**sight.phases, "n2": EVIL})

    with opened(of_small_cluster(evil)) as driver:
        until(driver, "document.querySelector('#why .cause')")
        driver.execute_script("document.querySelector('tr[data-replica] button').click()")
        until(driver, "document.querySelector('#details h2')?.textContent === 'n1'")
        assert driver.title == "small · Tentative SPE"
        assert (
            driver.execute_script("return document.querySelectorAll('main script, main img, main style').length") == 0
        )
        assert EVIL[:20] in driver.execute_script("return document.body.textContent")
        assert complaints(driver) == []


def test_nothing_jumps_while_figures_change() -> None:
    """The bar of a waiting bucket fills, rates change, a replica becomes tentative and stable again.

    Only the first time that there is something to say, *Why* makes room for it, which it keeps.
    """

    def living(second: int) -> Sight:
        at = NOW + second * SECOND
        state = NodeState.UP_FAILURE if second % 20 > 10 else NodeState.STABLE
        held = state is NodeState.UP_FAILURE
        replica = a_small_replica(state, waiting_us=second % 10 * 200_000, frontier=at, stable=second**2)
        channel = a_channel(
            channel="out/0", frontier=at, last_arrival_us=at, stable=second**2, tentative=second * 7, held=held,
            delay_us=second % 7 * 100_000,
        )  # fmt: skip
        return a_sight(at, a_node("n1", replica), a_client(channel))

    with opened(of_small_cluster(living)) as driver:
        until(driver, "document.documentElement.dataset.drawn > 5 && !document.querySelector('#side').hidden")
        driver.execute_script(
            "window.shift = 0;"
            "const add = (list) => { for (const one of list.getEntries()) window.shift += one.value; };"
            "new PerformanceObserver(add).observe({type: 'layout-shift', buffered: false})"
        )
        drawn = int(driver.execute_script("return document.documentElement.dataset.drawn"))
        until(driver, f"document.documentElement.dataset.drawn > {drawn + 45}")
        # Below 0.1 is called good (Core Web Vitals), for a whole visit.
        assert driver.execute_script("return window.shift") < 0.02
        assert complaints(driver) == []


def test_the_query_keeps_no_room_of_a_larger_window() -> None:
    """A window that gets smaller leaves no scroll bars behind: the lines were as large as the query ever was."""
    with opened(of_small_cluster(lambda second: a_sight(NOW + second * SECOND)), 2000) as driver:
        graph = "document.querySelector('.graph')"
        until(driver, f"{graph}?.scrollWidth > 1300")
        resize(driver, 1280, 1000)
        until(driver, f"{graph}.clientWidth < 1280")
        drawn = int(driver.execute_script("return document.documentElement.dataset.drawn"))
        until(driver, f"document.documentElement.dataset.drawn > {drawn + 3}")
        assert driver.execute_script(f"return [{graph}.scrollWidth, {graph}.clientWidth]") == driver.execute_script(
            f"return [{graph}.clientWidth, {graph}.clientWidth]"
        )


def test_move_shows_what_it_waits_for_and_its_reason() -> None:
    def moving(second: int) -> Sight:
        waits = a_move(number=2, phase="install", why="n2 recovers", reason="n1 is drained")
        return a_sight(NOW + second * SECOND, a_coordinator(a_move(phase="follow"), waits))

    with opened(of_small_cluster(moving)) as driver:
        until(driver, "document.querySelectorAll('#moves [data-move]').length === 2")
        notes = "[...document.querySelectorAll('#moves [data-move] .note')].map((one) => one.textContent)"
        assert sorted(driver.execute_script(f"return {notes}")) == [
            "active, ordered",
            "n2 recovers; active, n1 is drained",
        ]
        assert complaints(driver) == []


def test_page_can_be_used_with_keyboard_alone() -> None:
    from selenium.webdriver.common.keys import Keys

    with opened(of_small_cluster(lambda second: a_sight(NOW + second * SECOND))) as driver:
        body = driver.find_element("css selector", "body")
        body.send_keys("/")
        driver.switch_to.active_element.send_keys("n2")
        until(driver, "document.querySelectorAll('tr[data-replica]').length === 1")
        driver.switch_to.active_element.send_keys(Keys.ESCAPE)
        until(driver, "document.querySelectorAll('tr[data-replica]').length === 2")
        paper = "getComputedStyle(document.body).backgroundColor"
        before = driver.execute_script(f"return {paper}")
        body.send_keys("tt")
        assert driver.execute_script("return document.documentElement.dataset.theme") == "dark"
        assert driver.execute_script(f"return {paper}") != before
        # Everything that can be clicked can be reached, and shows that it is.
        reached = set()
        for _ in range(60):
            body.send_keys(Keys.TAB)
            reached.add(driver.execute_script("return document.activeElement.className || document.activeElement.id"))
            assert driver.execute_script(
                "const s = getComputedStyle(document.activeElement); "
                "return document.activeElement === document.body || s.outlineStyle !== 'none'"
            )
        assert {"replica", "plain name", "item"} <= reached
        driver.execute_script("document.querySelector('.unit button.replica').focus()")
        driver.switch_to.active_element.send_keys(Keys.ENTER)
        until(driver, "!document.getElementById('details').hidden")
        body.send_keys(Keys.ESCAPE)
        until(driver, "document.getElementById('details').hidden")


def test_every_colour_of_text_can_be_read() -> None:
    """Contrast of at least 4.5 to 1 against what is behind it, light and dark (WCAG AA)."""
    script = """
    const value = (c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
    const rgb = (text) => {
      const canvas = new OffscreenCanvas(1, 1).getContext("2d");
      canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
      return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = ([r, g, b]) => 0.2126 * value(r) + 0.7152 * value(g) + 0.0722 * value(b);
    const behind = (node) => {
      for (; node; node = node.parentElement) {
        const colour = rgb(getComputedStyle(node).backgroundColor);
        if (colour[3] > 250) return colour;
      }
      return [255, 255, 255, 255];
    };
    const bad = [];
    for (const node of document.querySelectorAll("body *")) {
      const own = [...node.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
      if (!own || !node.checkVisibility() || node.closest("noscript, .skip, option")) continue;
      const [a, b] = [light(rgb(getComputedStyle(node).color)), light(behind(node))];
      const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      if (ratio < 4.5) bad.push([node.className, node.textContent.slice(0, 30), ratio.toFixed(2)]);
    }
    return bad;
    """

    def mixed(second: int) -> Sight:
        at = NOW + second * SECOND
        nodes = [
            a_node("n1", a_small_replica(NodeState.UP_FAILURE)),
            a_node("n2", a_small_replica(NodeState.STABILIZATION)),
        ]
        client = a_client(a_channel(channel="out/0", held=True, tentative=5, last_arrival_us=at))
        return a_sight(at, *nodes, client, a_source("source:a", frontier=at, fault="broken"))

    with opened(of_small_cluster(mixed)) as driver:
        until(driver, "document.querySelector('#why .cause')")
        for theme in ("light", "dark"):
            driver.execute_script(f"document.documentElement.dataset.theme = '{theme}'")
            assert driver.execute_script(script) == [], theme


def search(driver: Chrome, words: str) -> None:
    driver.execute_script(
        "const filter = document.getElementById('filter'); filter.value = arguments[0];"
        "filter.dispatchEvent(new Event('input'))",
        words,
    )


class TestLarge:
    """100 nodes with 1,000 partitions, at sixty times real speed."""

    def test_page_stays_usable(self) -> None:
        hub = simulated_hub(SimulatedCluster(), speed=60, period_s=0.1)
        with opened(hub) as driver:
            # Only what is in sight has elements, whatever there is.
            assert driver.execute_script("return document.querySelectorAll('tr[data-replica]').length") < 60
            assert driver.execute_script("return document.getElementsByTagName('*').length") < 3_000
            counts = driver.execute_script(
                "return [...document.querySelectorAll('#states b')].map((b) => b.textContent)"
            )
            assert sum(int(one.replace(",", "")) for one in counts) == 2_000
            search(driver, "totals/7@")
            until(driver, "document.querySelectorAll('tr[data-replica]').length === 2")
            search(driver, "")
            driver.execute_script("document.getElementById('replicas').scrollTop = 36 * 1500")
            until(driver, "document.querySelectorAll('tr[data-replica]').length > 5")
            longest = driver.execute_async_script(
                "const done = arguments[0]; let last = performance.now(), longest = 0; const end = last + 4000;"
                "const look = () => { const now = performance.now(); longest = Math.max(longest, now - last);"
                "last = now; now < end ? setTimeout(look, 5) : done(longest); }; look();"
            )
            assert longest < 1_500, "the page answers while frames come, also on a busy machine"
            for width in (390, 1280):
                resize(driver, width, 900)
                time.sleep(0.5)
                assert driver.execute_script("return document.documentElement.scrollWidth") <= width
            assert complaints(driver) == []
