"""Runs a whole cluster in virtual time, under faults, with every promise checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import SystemRandom
from typing import Any, Final, Literal

from replicas.faults.model import Fault, load_faults_text, read_faults
from replicas.simulation.scenarios.configured_scenario import configuration_to_simulate, grace_us
from replicas.simulation.scenarios.random_scenario import faulty
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.simulate import Outcome, simulate
from replicas.simulation.world.clock import Stuck
from replicas.testing.blame import PromiseBroken, caller, wrong
from replicas.testing.driver import results
from replicas.testing.played_run import SimulatedRun
from replicas.testing.queries import Query, read_query, read_sources
from replicas.testing.tables import GivenTable, Timed, seconds
from spe.plan.deploy import Deployed
from spe.problems import Problems, show_path
from spe.stream.times import SECOND

#: Faults of a fault file: its text, or its data.
GivenFaults = str | Sequence[Mapping[str, Any]]

#: Length of a run without given rows, and the shortest length with random faults.
_LENGTH_US: Final = 30 * SECOND
_SHORTEST_US: Final = 10 * SECOND
_SEEDS: Final = 1 << 32
#: Lines of a failing run's story that are shown.
_STORY: Final = 25


def run(
    query: Query,
    sources: Mapping[str, GivenTable] | None = None,
    *,
    faults: GivenFaults | Literal["random"] = (),
    seed: int | None = 0,
    length: str | float | None = None,
    must_happen: bool = True,
) -> SimulatedRun:
    """Runs a query with all its replicas and clients in virtual time, in this thread, and checks every promise.

    The code is that of production; clocks, network and disks are simulated.  The same arguments give the same run.
    Time 0 is the beginning of the sources.  Rows come at the pace of their event times, from the first of all sources,
    unless the configuration has another ``replay``.

    Args:
      query: an Environment, a file, YAML as text, or its data.
      sources: the rows of each source, in order of arrival; other sources have none.  None: the configured input; rows
        are generated if a file is missing or an input is live.
      faults: as in a fault file; ``"random"``: faults that follow from the seed.
      seed: seed of the order of tasks, delays, and random faults.  None: another one each time.
      length: the least time until everything heals, such as ``"20s"``.  Faults without an end last so long.
      must_happen: a fault that is impossible when it is due is an error, such as killing the last replica with the
        state of a partition.  False, and for random faults: it is skipped.

    Returns:
      the changes that the clients received, with times.

    Raises:
      PromiseBroken: an AssertionError that says which promise, with the seed that repeats the run.
      ConfigError: query, rows or faults have mistakes, or a fault was impossible when it was due.
      OperatorFailed: an operator raised; its notes have the line.
    """
    document, deployed = read_query(query)
    seed = SystemRandom().randrange(_SEEDS) if seed is None else seed
    rows = None if sources is None else read_sources(deployed.plan, sources)
    least_us = 0 if length is None else round(seconds(length) * SECOND)
    if rows is None:
        least_us = least_us or _LENGTH_US
        config, _ = configuration_to_simulate(document, deployed, least_us)
    else:
        results(query, sources or {})  # an operator that raises does so here, with the caller in the traceback
        config = {k: v for k, v in document.data.items() if k != "faults"}
        least_us = max(least_us, _length_us(deployed, rows))
    options = {} if rows is None else {"rows": _given(rows)}
    if faults == "random":
        made = faulty(config, seed, max(least_us, _SHORTEST_US))
        scenario = replace(made, options={**made.options, **options}, grace_us=grace_us(config))
    else:
        happening = _read_faults(faults, deployed)
        last_us = max((f.at_us + (f.for_us or 0) for f in happening), default=0)
        scenario = Scenario(
            seed=seed,
            config=config,
            options=options,
            faults=happening,
            heal_us=max(least_us, last_us),
            grace_us=grace_us(config),
        )
    return _played(scenario, must_happen and faults != "random")


def _played(scenario: Scenario, must_happen: bool) -> SimulatedRun:
    try:
        outcome = simulate(scenario)
    except Stuck as error:
        raise PromiseBroken(f"{error}\n{_again(scenario)}") from None
    if outcome.findings:
        raise PromiseBroken(_failure(scenario, outcome))
    if must_happen and outcome.skipped:
        raise wrong("; ".join(f"a fault did not happen: {what}" for what in outcome.skipped))
    return SimulatedRun(scenario.seed, scenario.faults, outcome.history, *scenario.deployed())


def _failure(scenario: Scenario, outcome: Outcome) -> str:
    lines = [*map(str, outcome.findings[:5]), _again(scenario)]
    lines += [f"  at {fault.at_us / SECOND:g}s {fault}" for fault in scenario.faults]
    return "\n".join([*lines, "the last events:", *(f"  {line}" for line in outcome.story[-_STORY:])])


def _again(scenario: Scenario) -> str:
    return f"the same run again: seed={scenario.seed}"


def _length_us(deployed: Deployed, rows: Mapping[str, Sequence[Timed]]) -> int:
    """Returns the time until the last row has come, at the pace of the slowest source."""
    times = [row[0] for table in rows.values() for row in table]
    speeds = [float(s.replay.get("speed") or 1.0) for s in deployed.plan.sources.values()]
    return SECOND + round((max(times) - min(times)) / min(speeds)) if times else SECOND


def _given(rows: Mapping[str, Sequence[Timed]]) -> dict[str, Any]:
    origin_us = min((row[0] for table in rows.values() for row in table), default=0)
    return {name: {"rows": [list(row) for row in table], "origin_us": origin_us} for name, table in rows.items()}


def _read_faults(entries: GivenFaults, deployed: Deployed) -> tuple[Fault, ...]:
    if isinstance(entries, str):
        mark = caller()
        return tuple(load_faults_text(entries, f"{mark.file}:{mark.line}: the faults", deployed.directory))
    problems = Problems()
    faults = read_faults(list(entries), ("faults",), deployed.directory, problems)
    if problems:
        raise wrong("\n".join(f"{show_path(p.path)}: {p.message}" for p in problems.found))
    return tuple(faults)
