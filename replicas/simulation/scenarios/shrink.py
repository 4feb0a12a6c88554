"""Makes a failing scenario small: fewer faults first (ddmin), then a simpler configuration and a shorter run.

A candidate counts when the same property fails in it.  Every try is a whole run, so there is a budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from replicas.faults.model import Fault
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.scenarios.simplification import simpler_configurations
from spe.errors import ConfigError
from spe.plan.describe import show_duration
from spe.stream.times import SECOND, parse_duration

Fails = Callable[[Scenario], bool]
T = TypeVar("T")

#: A run goes on for so long after its last fault.
_AFTER_US: Final = 2 * SECOND


@dataclass(frozen=True)
class Shrunk:
    """The smallest scenario found that still fails, and how many runs it took."""

    scenario: Scenario
    runs: int


def shrink(scenario: Scenario, fails: Fails, *, budget: int = 150, faults_only: bool = False) -> Shrunk:
    """See the module; ``scenario`` itself fails.

    Args:
      faults_only: the configuration stays as it is (it is a user's own).
    """
    tries = _Budget(fails, budget)
    while True:
        before = scenario
        scenario = _fewer_orders(_fewer_faults(scenario, tries), tries)
        if not faults_only:
            scenario = _simplified(scenario, tries)
        if scenario == before or not tries.left:
            return Shrunk(scenario, budget - tries.left)


def _fewer_faults(scenario: Scenario, fails: Fails) -> Scenario:
    faults = ddmin(scenario.faults, lambda some: fails(replace(scenario, faults=tuple(some))))
    return replace(scenario, faults=tuple(faults))


def _fewer_orders(scenario: Scenario, fails: Fails) -> Scenario:
    """With fewer moves, changes of settings, things done to nodes that join, and loads."""
    for what in ("moves", "settings", "joins", "row_ns"):
        if given := scenario.options.get(what):
            having = partial(_having, scenario, what)
            scenario = having(ddmin(given, lambda some, having=having: fails(having(some))))  # type: ignore[misc]
    return scenario


def _having(scenario: Scenario, what: str, orders: Sequence[Any]) -> Scenario:
    others = {name: one for name, one in scenario.options.items() if name != what}
    return _with_options(scenario, {**others, what: list(orders)} if orders else others)


def _with_options(scenario: Scenario, options: Mapping[str, Any]) -> Scenario:
    """Without the faults of nodes that do not join any more."""
    fewer = replace(scenario, options=options)
    return replace(fewer, faults=_left_of(fewer.faults, {*fewer.processes(), "all"}))


def ddmin(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """A part of ``items``, in order, that still fails and of which no single item can be left out (Zeller's ddmin)."""
    found, parts = list(items), 2
    while found:
        size = -(-len(found) // parts)
        for start in range(0, len(found), size):
            rest = found[:start] + found[start + size :]
            if fails(rest):
                found, parts = rest, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(found), 2 * parts)
    return found


class _Budget:
    """Tries candidates while there are runs left; none fails afterwards."""

    def __init__(self, fails: Fails, budget: int) -> None:
        self._fails = fails
        self.left = budget

    def __call__(self, scenario: Scenario) -> bool:
        if not self.left:
            return False
        self.left -= 1
        return self._fails(scenario)


def _simplified(scenario: Scenario, fails: Fails) -> Scenario:
    """Simpler and simpler, until no simplification fails any more."""
    while (simpler := next((s for s in _simpler(scenario) if fails(s)), None)) is not None:
        scenario = simpler
    return scenario


def _simpler(scenario: Scenario) -> Iterator[Scenario]:
    """One step simpler in one respect; only scenarios that can be run."""
    if scenario.options:
        yield _with_options(scenario, {})
        for name in scenario.options:
            yield _with_options(scenario, {k: v for k, v in scenario.options.items() if k != name})
        if any("own" in entry for entry in scenario.joins()):
            plain = [{k: v for k, v in entry.items() if k != "own"} for entry in scenario.joins()]
            yield _with_options(scenario, {**scenario.options, "joins": plain})
    last_us = max((f.at_us + (f.for_us or 0) for f in scenario.faults), default=0)
    if last_us + _AFTER_US < scenario.heal_us:
        yield _shorter(scenario, last_us + _AFTER_US)
    for config in simpler_configurations(scenario.config):
        try:
            simpler = replace(scenario, config=config)
            known = {*simpler.processes(), "all"}
        except ConfigError:
            continue
        yield replace(simpler, faults=_left_of(scenario.faults, known))


def _left_of(faults: Sequence[Fault], known: set[str]) -> tuple[Fault, ...]:
    """The faults without processes that are no more."""

    def there(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(n for n in names if n in known or n.partition(":")[0] in ("reads", "state"))

    kept = []
    for fault in faults:
        first, second = there(fault.first), there(fault.second)
        if bool(first) == bool(fault.first) and bool(second) == bool(fault.second):
            kept.append(replace(fault, first=first, second=second))
    return tuple(kept)


def _shorter(scenario: Scenario, heal_us: int) -> Scenario:
    config = deepcopy(dict(scenario.config))
    for source in config["sources"].values():
        generator = source["from"].get("generator")
        if isinstance(generator, dict) and "duration" in generator:
            generator["duration"] = show_duration(min(parse_duration(generator["duration"]), heal_us))
    return replace(scenario, config=config, heal_us=heal_us)
