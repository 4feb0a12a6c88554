"""Runs many simulations in several processes, and sums up their findings and checks."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Final

from consistency.checking.counters import Counters
from consistency.checking.finding import Finding
from replicas.simulation.scenarios.feature_set import Features
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.scenarios.shrink import Shrunk, shrink
from replicas.simulation.simulate import CPU_S, Judge, Outcome, simulate
from replicas.simulation.world.clock import Stuck
from spe.errors import leaves

#: A run that has used so much CPU is stuck in one step: the time limit stops a run between steps before this.
ENDLESS_S: Final = 2 * CPU_S
#: Makes the scenario of a seed; it is sent to other processes, so it is a function of a module (or a partial of one).
MakeScenario = Callable[[int], Scenario]


@dataclass(frozen=True)
class SeedResult:
    """The result of one run.

    Attributes:
      findings: broken promises.
      faults: number of faults of each kind.
      features: features that were requested for a random configuration.
    """

    seed: int
    findings: tuple[Finding, ...] = ()
    faults: Counter[str] = field(default_factory=Counter)
    counters: Counters = field(default_factory=Counters)
    cpu_s: float = 0.0
    features: Features | None = None

    @property
    def holds(self) -> bool:
        return not self.findings


@dataclass
class Sums:
    """Sums over any number of runs."""

    seeds: list[int] = field(default_factory=list)
    failed: list[SeedResult] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    counters: Counters = field(default_factory=Counters)
    cpu_s: float = 0.0

    def add(self, result: SeedResult) -> None:
        self.seeds.append(result.seed)
        self.faults.update(result.faults)
        self.counters.merge(result.counters)
        self.cpu_s += result.cpu_s
        if not result.holds:
            self.failed.append(result)

    @property
    def virtual_s(self) -> float:
        return self.counters.amounts["virtual time_us"] / 1e6


def run(scenario: Scenario, also: Judge | None = None) -> tuple[tuple[Finding, ...], Outcome | None]:
    """Runs a scenario.  A run that raises is a finding like any other, and has no outcome."""
    try:
        with _timed(ENDLESS_S):
            outcome = simulate(scenario, also=also)
    except Exception as error:
        return tuple(Finding("run", type(e).__name__, 0, "the run", str(e)) for e in leaves(error)), None
    return tuple(outcome.findings), outcome


@contextmanager
def _timed(cpu_s: float) -> Iterator[None]:
    """Raises Stuck in the running code after so much CPU time: a step that never ends yields to no other check."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_: int, frame: FrameType | None) -> None:
        where = "" if frame is None else f" in {frame.f_code.co_qualname}"
        raise Stuck(f"a step does not end{where}: the run has taken {cpu_s:g} s of CPU")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def play(make: MakeScenario, seed: int, also: Judge | None = None) -> SeedResult:
    """Runs the scenario of one seed."""
    scenario, begun = make(seed), time.process_time()
    findings, outcome = run(scenario, also)
    return SeedResult(
        seed,
        findings,
        faults=Counter(str(f.kind) for f in scenario.faults),
        counters=outcome.counters if outcome is not None else Counters(),
        cpu_s=time.process_time() - begun,
    )


def play_all(
    make_of: Callable[[int], MakeScenario],
    seeds: Iterable[int],
    *,
    processes: int | None = None,
    also: Judge | None = None,
) -> Iterator[SeedResult]:
    """Runs all seeds and yields results as they come; ``seeds`` may be endless, and are drawn as needed.

    Args:
      make_of: returns the scenario maker of a seed when its turn comes.
      also: a judge in addition to the checkers; it is sent to other processes, as scenario makers are.
    """
    processes = processes or os.cpu_count() or 1
    if processes == 1:
        yield from (play(make_of(seed), seed, also) for seed in seeds)
        return
    context = multiprocessing.get_context("spawn")
    source = iter(seeds)
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        running: set[Future[SeedResult]] = set()
        while True:
            while len(running) < processes + 1 and (seed := next(source, None)) is not None:
                running.add(pool.submit(play, make_of(seed), seed, also))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (finished.result() for finished in done)


def shrink_failure(scenario: Scenario, *, budget: int, faults_only: bool = False, also: Judge | None = None) -> Shrunk:
    """Returns the smallest scenario found in which the same property fails; ``scenario`` itself if none is smaller.

    Where a run raised, any broken promise counts, since the error may come before one.  Rules about the state at the
    end are independent of each other, so there it must be the same rule.
    """
    findings, _ = run(scenario, also)
    if not findings:
        return Shrunk(scenario, 1)
    first = findings[0]

    def fails(candidate: Scenario) -> bool:
        findings = run(candidate, also)[0]
        if first.property == "run":
            return any(f.property != "quiet" for f in findings)
        return any(f.property == first.property and (f.property != "quiet" or f.rule == first.rule) for f in findings)

    return shrink(scenario, fails, budget=budget, faults_only=faults_only)
