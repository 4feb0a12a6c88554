"""Makes frames while a cluster runs, keeps the past, and hands the newest frame to the open pages."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, Final

import trio

from consistency.explaining.explain import Explainer, between_us
from consistency.explaining.model import Cause, CauseKind, Condition, Explanation, Look
from replicas.cli.dashboard.frame import COLUMNS, Memory, frame
from replicas.cli.dashboard.layout import ClusterLayout, LayoutMaker
from replicas.cli.dashboard.timeline import POINT, Timeline, encode
from replicas.local.polling import ANSWER_S, PERIOD_S
from replicas.local.process import Phase
from replicas.local.run_dir import SUPERVISOR
from spe.figures.sight import Sight
from spe.plan.directory import Directory
from spe.plan.plan import Plan

#: Least seconds between two frames; also IDLE_SHARE times the CPU time that a frame takes.
FRAME_S: Final = 0.5
IDLE_SHARE: Final = 10
#: Largest number of open pages.
WATCHERS_MAX: Final = 8
#: Largest number of outputs that are explained at once; the others show only the condition.
EXPLAINED_MAX: Final = 8
#: Largest number of layouts kept for frames of the past.
_LAYOUTS_MAX: Final = 50

#: Makes a fault happen; returns "", or the reason for a refusal.
Inject = Callable[[Mapping[str, Any]], Awaitable[str]]


class TooManyWatchers(Exception):
    """The largest number of pages is open."""


class Hub:
    """Frames and past of one cluster.

    Args:
      sight: returns the current sight.
      inject: makes a fault happen; None: not allowed.
      kinds: kinds of faults that may be injected, and the fields of each.
      targets: processes that may be targets of faults.
      period_s: between two frames, by this process's clock.
      asked_s: between two polls of a process.
    """

    def __init__(
        self,
        plan: Plan,
        directory: Directory,
        sight: Callable[[], Sight],
        *,
        inject: Inject | None = None,
        kinds: Mapping[str, tuple[str, ...]] | None = None,
        targets: Sequence[str] = (),
        period_s: float = FRAME_S,
        asked_s: float = PERIOD_S,
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._sight = sight
        self.inject = inject
        allowed = kinds if inject is not None and kinds is not None else {}
        self._faults = {"kinds": {k: list(v) for k, v in allowed.items()}, "targets": list(targets)}
        self._period_s = period_s
        self._memory = Memory()
        self._layouts = LayoutMaker(plan, directory)
        self.timeline = Timeline()
        #: Layouts by number, as JSON; each frame has the number of its layout.
        self.layouts: dict[int, str] = {}
        self._layout: Mapping[str, Any] = {}
        self._layout_of: ClusterLayout | None = None
        #: Between two looks every process must have been polled again.
        self._apart_us = max(between_us(plan), round((2 * asked_s + ANSWER_S) * 1e6))
        self._looks: list[Look] = []
        self._why: list[dict[str, Any]] = []
        self._explain_at = 0.0
        #: The newest frame, as JSON, and the number of its layout; the frame's own number grows.
        self.frame = ""
        self.layout_number = 0
        self.number = 0
        self._new = trio.Event()
        self.watchers = 0

    async def run(self) -> None:
        """Makes frames until cancelled."""
        while True:
            began = time.thread_time()
            self.make()
            await trio.sleep(max(self._period_s, IDLE_SHARE * (time.thread_time() - began)))

    def make(self) -> None:
        """Makes one frame of the current sight."""
        sight = self._sight()
        layout = self._layouts.make(sight)
        if layout is not self._layout_of:
            self._layout_of = layout
            self._layout = {
                **layout.data(sight.title),
                "number": self._layout.get("number", 0) + 1,
                "columns": COLUMNS,
                "point": POINT,
                "faults": self._faults,
            }
            self.layouts[self._layout["number"]] = encode(self._layout)
            if len(self.layouts) > _LAYOUTS_MAX:
                del self.layouts[min(self.layouts)]
        if trio.current_time() >= self._explain_at:
            began = time.thread_time()
            self._explain(sight)
            self._explain_at = trio.current_time() + IDLE_SHARE * (time.thread_time() - began)
        data = {
            "layout": self._layout["number"],
            **frame(layout, sight, self._memory),
            "why": self._why,
        }
        self.timeline.take(self._layout, COLUMNS, data)
        self.frame, self.layout_number = encode(data), self._layout["number"]
        self.number += 1
        self._new.set()
        self._new = trio.Event()

    # --- explanations ---

    def _explain(self, sight: Sight) -> None:
        """Compares two looks, far enough apart for everything that works to advance."""
        apart_us = self._apart_us
        now = look_of(sight)
        if self._looks and self._looks[-1].at_us == now.at_us:
            return
        self._looks.append(now)
        while len(self._looks) > 1 and self._looks[1].at_us <= now.at_us - apart_us:
            del self._looks[0]
        before = self._looks[0]
        if now.at_us - before.at_us < apart_us:
            return
        explainer = Explainer(self._plan, self._directory, before, now)
        outputs = explainer.outputs()
        self._memory.conditions = {pair: explainer.condition(*pair) for pair in outputs}
        bad = [pair for pair in outputs if self._memory.conditions[pair] not in (Condition.FINE, Condition.ENDED)]
        self._why = [_explained(explainer.explain(*pair), sight) for pair in (bad or outputs[:1])[:EXPLAINED_MAX]]

    # --- open pages ---

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Counts a page as open while the block lasts.

        Raises:
          TooManyWatchers: the largest number of pages is open.
        """
        if self.watchers >= WATCHERS_MAX:
            raise TooManyWatchers(f"{WATCHERS_MAX} pages are open already")
        self.watchers += 1
        try:
            yield
        finally:
            self.watchers -= 1

    async def newer_than(self, number: int) -> int:
        """Waits for a frame after this one.  A slow page misses frames; nothing waits for it."""
        while self.number <= number:
            await self._new.wait()
        return self.number


def look_of(sight: Sight) -> Look:
    """Returns a look at a followed cluster; a process that missed the last poll counts as silent."""
    errors = {name: why for name, why in sight.errors.items() if name != SUPERVISOR}
    statuses = {name: status for name, status in sight.statuses.items() if name not in {*errors, SUPERVISOR}}
    return Look(sight.now_us, statuses, errors, {name: sight.seen[name].took_us for name in statuses})


def said_of(phase: str) -> str:
    """Describes a phase, to follow the name of a process."""
    return f"has {phase}" if phase in (Phase.DIED, Phase.ENDED) else f"is {phase}"


def _explained(explanation: Explanation, sight: Sight) -> dict[str, Any]:
    """Returns an explanation for the page, with the reason why a process is down where its supervisor knows it."""

    def known(cause: Cause) -> Cause:
        phase = sight.phases.get(cause.processes[0], Phase.RUNNING) if cause.processes else Phase.RUNNING
        by_supervisor = cause.kind is CauseKind.DOWN and phase != Phase.RUNNING
        return replace(cause, why=f"{cause.processes[0]} {said_of(phase)}") if by_supervisor else cause

    causes, elsewhere = map(known, explanation.causes), map(known, explanation.elsewhere)
    return asdict(replace(explanation, causes=tuple(causes), elsewhere=tuple(elsewhere)))
