"""Many simulated runs, shared among processes: what each found, and the sums of what all of them checked."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

from replicas.simulation.simulate import Outcome, simulate

from consistency.checking.counters import Counters
from replicas.simulation.scenario import Scenario
from replicas.simulation.shrink import Shrunk, shrink

#: From a seed to its scenario; it is sent to other processes, so it is a function of a module (or a partial of one).
MakeScenario = Callable[[int], Scenario]


@dataclass(frozen=True)
class Result:
    """What one run came to.

    Attributes:
      failed: (property, rule) of every finding, the first one first.
      findings: as texts.
      error: what the run itself died of; "" where it did not.
      counters: as :meth:`Counters.to_data` gives them.
    """

    seed: int
    failed: tuple[tuple[str, str], ...] = ()
    findings: tuple[str, ...] = ()
    error: str = ""
    faults: Counter[str] = field(default_factory=Counter)
    counters: Counters = field(default_factory=Counters)
    cpu_s: float = 0.0

    @property
    def holds(self) -> bool:
        return not self.failed and not self.error


@dataclass
class Sums:
    """Of any number of runs."""

    seeds: list[int] = field(default_factory=list)
    failed: list[Result] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    counters: Counters = field(default_factory=Counters)
    cpu_s: float = 0.0

    def add(self, result: Result) -> None:
        self.seeds.append(result.seed)
        self.faults.update(result.faults)
        self.counters.merge(result.counters)
        self.cpu_s += result.cpu_s
        if not result.holds:
            self.failed.append(result)

    @property
    def virtual_s(self) -> float:
        return self.counters.amounts["virtual time_us"] / 1e6


def play(make: MakeScenario, seed: int) -> Result:
    """One run."""
    scenario, begun = make(seed), time.process_time()
    faults = Counter(str(f.kind) for f in scenario.faults)
    try:
        outcome = simulate(scenario)
    except Exception as error:  # whatever a run dies of is a finding, and the other seeds go on
        return Result(seed, error=f"{type(error).__name__}: {error}", faults=faults)
    return Result(
        seed,
        tuple((f.property, f.rule) for f in outcome.findings),
        tuple(str(f) for f in outcome.findings),
        "",
        faults,
        outcome.counters,
        time.process_time() - begun,
    )


def play_all(make: MakeScenario, seeds: Iterable[int], *, processes: int | None = None) -> Iterator[Result]:
    """All of them, as they come to their end; ``seeds`` may be endless, and are drawn as they are needed."""
    processes = processes or os.cpu_count() or 1
    if processes == 1:
        yield from (play(make, seed) for seed in seeds)
        return
    context = multiprocessing.get_context("spawn")
    source = iter(seeds)
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        running: set[Future[Result]] = set()
        while True:
            while len(running) < processes + 1 and (seed := next(source, None)) is not None:
                running.add(pool.submit(play, make, seed))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (one.result() for one in done)


def shrink_failure(scenario: Scenario, *, budget: int, faults_only: bool = False) -> tuple[Shrunk, Outcome]:
    """The smallest scenario found in which the same property fails, and what comes of it.

    Raises:
      ValueError: the scenario holds.
    """
    first = simulate(scenario)
    if not first.findings:
        raise ValueError("nothing fails in this scenario")
    failing = first.findings[0].property

    def fails(candidate: Scenario) -> bool:
        return any(f.property == failing for f in simulate(candidate).findings)

    shrunk = shrink(scenario, fails, budget=budget, faults_only=faults_only)
    return shrunk, simulate(shrunk.scenario)
