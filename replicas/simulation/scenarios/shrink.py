"""Shrinks a failing scenario: fewer faults first (ddmin), then a simpler configuration and a shorter run.

A candidate counts if the same property fails in it.  Every try is a whole run, so there is a budget.
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

#: Time that a run goes on after its last fault.
_AFTER_US: Final = 2 * SECOND


@dataclass(frozen=True)
class Shrunk:
    """The smallest failing scenario found, and the number of runs it took."""

    scenario: Scenario
    runs: int


def shrink(scenario: Scenario, fails: Fails, *, budget: int = 150, faults_only: bool = False) -> Shrunk:
    """Shrinks ``scenario``, which fails; see the module.

    Args:
      faults_only: the configuration stays unchanged (it is a user's own).
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
    """Tries fewer moves, changes of settings, actions on joining nodes, and loads."""
    for what in ("moves", "settings", "joins", "row_ns"):
        if orders := scenario.options.get(what):
            having = partial(_having, scenario, what)
            scenario = having(ddmin(orders, lambda some, having=having: fails(having(some))))  # type: ignore[misc]
    return scenario


def _having(scenario: Scenario, what: str, orders: Sequence[Any]) -> Scenario:
    others = {name: option for name, option in scenario.options.items() if name != what}
    return _with_options(scenario, {**others, what: list(orders)} if orders else others)


def _with_options(scenario: Scenario, options: Mapping[str, Any]) -> Scenario:
    """Replaces the options; drops faults of nodes that no longer join."""
    fewer = replace(scenario, options=options)
    return replace(fewer, faults=_left_of(fewer.faults, {*fewer.processes(), "all"}))


def ddmin(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """Returns a part of ``items``, in order, that still fails and from which no single item can be removed (Zeller's
    ddmin).
    """
    smallest, parts = list(items), 2
    while smallest:
        size = -(-len(smallest) // parts)
        for start in range(0, len(smallest), size):
            rest = smallest[:start] + smallest[start + size :]
            if fails(rest):
                smallest, parts = rest, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(smallest), 2 * parts)
    return smallest


class _Budget:
    """Tries candidates while runs are left; afterwards no candidate fails."""

    def __init__(self, fails: Fails, budget: int) -> None:
        self._fails = fails
        self.left = budget

    def __call__(self, scenario: Scenario) -> bool:
        if not self.left:
            return False
        self.left -= 1
        return self._fails(scenario)


def _simplified(scenario: Scenario, fails: Fails) -> Scenario:
    """Simplifies step by step, until no simplification fails."""
    while (simpler := next((s for s in _simpler(scenario) if fails(s)), None)) is not None:
        scenario = simpler
    return scenario


def _simpler(scenario: Scenario) -> Iterator[Scenario]:
    """Yields valid scenarios that are simpler in one respect."""
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
    """Returns the faults without processes that no longer exist."""

    def there(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(n for n in names if n in known or n.partition(":")[0] in ("reads", "state"))

    remaining = []
    for fault in faults:
        first, second = there(fault.first), there(fault.second)
        if bool(first) == bool(fault.first) and bool(second) == bool(fault.second):
            remaining.append(replace(fault, first=first, second=second))
    return tuple(remaining)


def _shorter(scenario: Scenario, heal_us: int) -> Scenario:
    config = deepcopy(dict(scenario.config))
    for source in config["sources"].values():
        generator = source["from"].get("generator")
        if isinstance(generator, dict) and "duration" in generator:
            generator["duration"] = show_duration(min(parse_duration(generator["duration"]), heal_us))
    return replace(scenario, config=config, heal_us=heal_us)
