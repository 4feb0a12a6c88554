"""The dashboard of a run of real processes, in a real browser: what it shows equals ``spe status``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from benchmarks.browser import browser, complaints, is_installed, resize
from benchmarks.dashboard import served
from replicas.cli.dashboard.hub import Hub
from replicas.local.ports import free_addresses
from spe.status import NewestStatus, ResultStatus
from tests.support.pages import ask
from tests.support.sights import NOW, a_sight, deployed
from tests.support.statuses import a_channel, a_client

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytest.importorskip("quart_trio")
pytestmark = pytest.mark.processes

CONFIG = """
cluster: shown
sources:
  a: {from: {generator: {name: sequence, rate: 100, seed: 1, duration: 600s}}}
  b: {from: {generator: {name: sequence, rate: 100, seed: 2, duration: 600s}}}
query: {out: {union: [a, b]}}
nodes: [n1, n2]
"""
PATIENCE_S = 90.0
SPE = [sys.executable, "-m", "replicas.cli"]
#: A run may be called anything; none of it is markup.
NAME = "<img src=x onerror=alert(1)>&lt;b&gt;"


class Shown:
    """The page, and what ``spe status`` says at the same time."""

    def __init__(self, driver: Chrome, run_dir: Path) -> None:
        self.driver = driver
        self._run_dir = run_dir

    def until(self, condition: str) -> None:
        """Waits for a condition in JavaScript."""
        end = time.monotonic() + PATIENCE_S
        while not self.driver.execute_script(f"return Boolean({condition})"):
            assert time.monotonic() < end, (condition, self.replicas(), self.verdict(), complaints(self.driver))
            time.sleep(0.05)

    def script(self, text: str) -> Any:
        return self.driver.execute_script(text)

    def status(self) -> dict[str, Any]:
        command = [*SPE, "status", str(self._run_dir), "--json"]
        answer: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
        return answer

    def explained(self) -> list[dict[str, Any]]:
        command = [*SPE, "explain-stall", str(self._run_dir), "--json"]
        answer: list[dict[str, Any]] = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
        return answer

    def replicas(self) -> dict[str, str]:
        """State of each, as the table has it."""
        rows = self.script(
            "return [...document.querySelectorAll('tr[data-replica]')].map((r) => [r.dataset.replica, r.dataset.state])"
        )
        return dict(rows)

    def card(self) -> dict[str, str]:
        """Of the output: its state, whom the client reads, and how many stable results it has."""
        data = dict(self.script("return Object.entries(document.querySelector('.card').dataset)"))
        text = self.script("return document.querySelector('.card .foot').textContent")
        (stable,) = re.findall(r"([\d,]+) stable", text) or ["0"]
        return {**data, "stable": stable.replace(",", "")}

    def verdict(self) -> str:
        return str(self.script("return document.getElementById('verdict').textContent"))

    def click(self, words: str) -> None:
        self.script(f"[...document.querySelectorAll('button')].find((b) => b.textContent === '{words}').click()")

    def inject(self, kind: str, target: str, length: str) -> None:
        """By the form of the page."""
        self.script(
            "const [kind, target] = document.querySelectorAll('.inject select');"
            "const length = [...document.querySelectorAll('.inject select')].pop();"
            f"kind.value = '{kind}'; kind.dispatchEvent(new Event('change')); target.value = '{target}';"
            f"length.value = '{length}'; document.querySelector('.inject button[type=submit]').click()"
        )
        self.until("document.querySelector('.inject output').textContent === 'done'")


def agrees(shown: Shown) -> None:
    """What is on the page is what ``spe status`` says before or after."""
    before, card, replicas, after = shown.status(), shown.card(), shown.replicas(), shown.status()
    for name, state in replicas.items():
        node = name.rpartition("@")[2]
        told = {_state(one, node) for one in (before, after)}
        # Only a supervisor knows that what does not answer was killed.
        assert (state in told) or (state in ("killed", "starting") and "down" in told), (name, state, told)
    channels = [one["processes"]["client:client"]["channels"][0] for one in (before, after)]
    assert card["reads"] in {channel["producer"] for channel in channels}
    assert (card["state"] == "tentative") in {channel["held"] for channel in channels}
    assert channels[0]["stable"] <= int(card["stable"]) <= channels[1]["stable"]


def _state(status: dict[str, Any], node: str) -> str:
    found = status["processes"].get(node)
    return "down" if found is None else str(found["replicas"][0]["state"])


def eventually(check: Callable[[], None]) -> None:
    """States change: what was shown a moment ago may be over."""
    end = time.monotonic() + 20
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > end:
                raise


@contextmanager
def shown_run(tmp_path: Path) -> Iterator[Shown]:
    (tmp_path / "c.yaml").write_text(CONFIG)
    run_dir, out = tmp_path / NAME.replace("/", "-"), tmp_path / "out"
    command = [*SPE, "run", tmp_path / "c.yaml", "--run-dir", run_dir, "--no-view", "--duration", "600s"]
    with out.open("w") as file, subprocess.Popen(command, stdout=file, stderr=file) as running:
        try:
            end = time.monotonic() + PATIENCE_S
            while (address := re.search(r"dashboard: (http://127\.0\.0\.1:\d+/#\S+)", out.read_text())) is None:
                assert time.monotonic() < end, out.read_text()
                time.sleep(0.1)
            with browser() as driver:
                driver.get(address[1])
                yield Shown(driver, run_dir)
        finally:
            running.terminate()
    assert running.returncode == 143, out.read_text()


@pytest.mark.long
@pytest.mark.skipif(not is_installed(), reason="no Chromium with its driver here")
def test_the_page_equals_the_status_during_a_kill_and_a_cut(tmp_path: Path) -> None:
    """One run, for processes take long to start.

    1. all is well
    2. the replica that the client reads is killed, by a button of the page
    3. a source is cut off: tentative, with the chain of explain-stall; then corrected
    4. the page goes back to when it was tentative, by the keyboard, and returns
    5. nothing on it was taken for markup, and a phone shows all of it
    """
    with shown_run(tmp_path) as shown:
        shown.until("document.querySelector('.card')?.dataset.state === 'fine' && document.querySelector('.card .big')")
        shown.until("document.querySelectorAll('tr[data-state=STABLE]').length === 2")
        eventually(lambda: agrees(shown))
        assert "All results are stable" in shown.verdict()
        shown.until(
            "document.getElementById('side').hidden && document.querySelectorAll('.newest tbody tr').length === 5"
        )

        reads = shown.card()["reads"]
        shown.inject("kill", reads, "30s")
        shown.until("document.querySelector('tr[data-state=killed]')")
        shown.until(f"document.querySelector('.card').dataset.reads !== '{reads}'")
        assert shown.replicas()[f"main@{reads}"] == "killed"
        shown.until(f"document.getElementById('verdict').textContent.includes('{reads} is killed')")
        eventually(lambda: agrees(shown))
        shown.until("document.querySelectorAll('tr[data-state=STABLE]').length === 2")
        shown.until("document.querySelector('[data-back]')")

        told, tentative_at = cut_off_and_explained(shown)
        causes = shown.script("return [...document.querySelectorAll('#why .cause')].map((c) => c.textContent)")
        for cause in told["causes"]:
            assert any(cause["why"].removeprefix("the ") in text for text in causes), (cause, causes)
        steps = shown.script("return [...document.querySelectorAll('#why .steps b')].map((s) => s.textContent)")
        assert steps == [step["who"] for step in told["steps"]]
        shown.until("document.querySelector('.newest .tentative')")
        assert shown.script("const s = document.getElementById('side'); return s.scrollHeight - s.clientHeight") == 0
        assert "out is tentative" in shown.verdict()
        assert shown.script("return document.querySelector('[data-source=a]').dataset.holds") == "2"
        shown.click("Heal all")
        shown.until("document.querySelector('.card').dataset.state === 'fine'")
        eventually(lambda: agrees(shown))

        back_to_the_tentative_results(shown, tentative_at)
        nothing_was_markup(shown)
        fits_a_phone(shown)
        assert complaints(shown.driver) == []


@pytest.mark.skipif(not is_installed(), reason="no Chromium with its driver here")
def test_a_card_holds_a_delay_that_is_not_known_and_rows() -> None:
    config = CONFIG + "defaults: {x: 2.5s}\n"
    plan, directory = deployed(config)
    rows = tuple(ResultStatus(tentative=n == 4, values=(f"{n}", "<b>" * 13)) for n in range(5))
    newest = (NewestStatus(stream="out", columns=("n", "text"), rows=rows),)
    client = replace(a_client(a_channel(channel="out/0", delay_us=None)), newest=newest)
    with served(Hub(plan, directory, lambda: a_sight(NOW, client))) as address, browser() as driver:
        driver.get(address)
        shown = Shown(driver, Path())
        for width in (1440, 360):
            resize(driver, width, 800)
            shown.until(f"innerWidth === {width} && document.querySelector('.card .delay')")
            right, edge = shown.script(
                "return ['.delay .figure', '.card'].map((s) => document.querySelector(s).getBoundingClientRect().right)"
            )
            assert right < edge
        assert shown.script("return document.querySelector('.delay .figure').textContent") == "not known (X 2.5 s)"
        cells = shown.script("return [...document.querySelectorAll('.newest td')].map((c) => c.textContent)")
        assert cells[1::3] == list("01234")
        assert cells[2] == "<b>" * 13
        assert shown.script("return document.querySelectorAll('.newest .tentative').length") == 1
        assert shown.script("return document.getElementById('side').hidden")
        assert complaints(driver) == []


def cut_off_and_explained(shown: Shown) -> tuple[dict[str, Any], int]:
    """What explain-stall says while the source is cut off, and a time at which the page showed tentative results.

    On a machine that is overloaded, a supervisor takes sources for stuck, and heals: then once more.
    """
    for _ in range(3):
        shown.inject("cut", "source:a", "")
        shown.until("document.querySelector('.card').dataset.state === 'tentative'")
        shown.until("document.querySelector('#why .cause[data-kind=link]')")
        (told,) = shown.explained()
        # It has been tentative for a while: a second before that, it was, too.
        at = int(shown.script("return document.documentElement.dataset.at"))
        if told["condition"] == "tentative" == shown.card()["state"]:
            eventually(lambda: agrees(shown))
            return told, at
    raise AssertionError(told)


def back_to_the_tentative_results(shown: Shown, at: int) -> None:
    from selenium.webdriver.common.keys import Keys

    slider = shown.driver.find_element("css selector", "#timeline input")
    slider.send_keys(Keys.ARROW_LEFT)
    shown.until("!document.getElementById('past').hidden")
    for _ in range(120):
        if int(shown.script("return document.documentElement.dataset.at")) <= at:
            break
        slider.send_keys(Keys.ARROW_LEFT)
        time.sleep(0.1)
    shown.until("document.querySelector('.card').dataset.state === 'tentative'")
    assert "UP_FAILURE" in shown.replicas().values()
    past = int(shown.script("return document.documentElement.dataset.at"))
    time.sleep(1.2)
    assert int(shown.script("return document.documentElement.dataset.at")) == past, "the past does not move"
    shown.driver.find_element("css selector", "body").send_keys(Keys.ESCAPE)
    shown.until("document.getElementById('past').hidden")
    shown.until("document.querySelector('.card').dataset.state === 'fine'")


def nothing_was_markup(shown: Shown) -> None:
    assert NAME.replace("/", "-") in shown.script("return document.getElementById('where').textContent")
    assert shown.script("return document.querySelectorAll('main img, #where *').length") == 0


def fits_a_phone(shown: Shown) -> None:
    for width in (360, 768, 1440):
        resize(shown.driver, width, 800)
        shown.until(f"innerWidth === {width}")
        time.sleep(0.3)
        assert shown.script("return document.documentElement.scrollWidth") <= width


class TestCommand:
    """``spe dashboard``; what it serves is asked for without a browser."""

    @pytest.mark.long
    def test_dashboard_without_clients_and_fault_commands(self, tmp_path: Path) -> None:
        ports = free_addresses(2)
        (tmp_path / "c.yaml").write_text(f"""
cluster: by-hand
sources:
  a: {{address: "{ports[0]}", from: {{generator: {{name: sequence, rate: 100, duration: 600s}}}}}}
query: {{out: {{filter: {{from: a, where: value >= 0}}}}}}
nodes: {{n1: {{address: "{ports[1]}"}}}}
""")
        commands = [["source", "c.yaml", "--source", "a"], ["node", "c.yaml", "--node", "n1"], ["dashboard", "c.yaml"]]
        with ExitStack() as stack:
            out = [stack.enter_context((tmp_path / name).open("w")) for name in ("source", "node", "out")]
            running = [
                stack.enter_context(subprocess.Popen([*SPE, *command], stdout=file, stderr=file, cwd=tmp_path))
                for command, file in zip(commands, out)
            ]
            try:
                address = printed(tmp_path / "out", r"dashboard: (http://127\.0\.0\.1:\d+/)$")
                frame = shows(address, lambda frame: frame["replicas"][0][0] == "STABLE")
                layout = trio.run(ask, address, f"/api/layout/{frame['layout']}").json
                refused = trio.run(partial(ask, address, "/api/faults", method="POST", body=b"{}"))
            finally:
                for one in running:
                    one.terminate()
        assert [name for name, *_ in layout["replicas"]] == ["main@n1"]
        assert (layout["channels"], layout["faults"]["kinds"], refused.status) == ([], {}, 403)
        assert [(one["client"], one["channel"], one["condition"]) for one in frame["why"]] in (
            [],
            [("", "out/0", "fine")],
        )
        assert running[2].returncode == 0

    def test_dashboard_ends_with_the_run_that_it_shows(self, tmp_path: Path) -> None:
        (tmp_path / "c.yaml").write_text(CONFIG)
        run_dir = tmp_path / "run"
        run = [*SPE, "run", str(tmp_path / "c.yaml"), "--run-dir", str(run_dir), "--no-view", "--dashboard", "off"]
        with (tmp_path / "run.out").open("w") as file, subprocess.Popen(run, stdout=file, stderr=file) as running:
            try:
                printed(tmp_path / "run.out", r"(recorded in)")
                with (tmp_path / "out").open("w") as out:
                    command = [*SPE, "dashboard", str(run_dir), "--no-faults"]
                    with subprocess.Popen(command, stdout=out, stderr=out) as showing:
                        address = printed(tmp_path / "out", r"dashboard: (http://127\.0\.0\.1:\d+/)$")
                        frame = shows(address, lambda frame: len(frame["channels"]) == 1 and frame["begun"])
                        running.terminate()
                        running.wait()
                        try:
                            assert showing.wait(PATIENCE_S) == 0
                        finally:
                            showing.kill()
            finally:
                running.terminate()
        assert "dashboard: " not in (tmp_path / "run.out").read_text()
        assert f"the run in {run_dir} is over" in (tmp_path / "out").read_text()
        assert frame["processes"] == {} or set(frame["processes"].values()) <= {"starting", "unreachable"}
        over = subprocess.run([*SPE, "dashboard", str(run_dir)], capture_output=True, text=True)
        assert over.returncode == 2
        assert "is over" in over.stderr


def printed(file: Path, pattern: str) -> str:
    """What a process prints, once it does."""
    end = time.monotonic() + PATIENCE_S
    while (found := re.search(pattern, file.read_text(), re.MULTILINE)) is None:
        assert time.monotonic() < end, file.read_text()
        time.sleep(0.1)
    return found[1]


def shows(address: str, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """The first frame for which a condition holds."""
    end = time.monotonic() + PATIENCE_S
    while True:
        answer = trio.run(ask, address, "/api/frame")
        if answer.status == 200 and condition(answer.json):
            frame: dict[str, Any] = answer.json
            return frame
        assert time.monotonic() < end, answer
        time.sleep(0.1)
