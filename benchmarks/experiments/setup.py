"""The paper's basic set-up, as a configuration: three equal streams, merged, joined with themselves, and their failure.

Each node of the chain joins what it gets with itself on a unique key, as the paper's does: a join of bounded state
that gives every tuple back once.  So a result says which tuple of which stream it comes from, and when that was made.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from replicas.faults.model import Fault
from replicas.simulation.scenarios.scenario import Scenario
from spe.plan.describe import show_duration
from spe.stream.times import MILLISECOND, SECOND

STREAMS: Final = ("a", "b", "c")
#: The stream that fails.
FAILED: Final = "c"
CLIENT: Final = "client"
#: When the failure begins: behind what the measures leave out as warming up.
FAILS_US: Final = 5 * SECOND


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that a run depends on; the defaults are those of the paper.

    Attributes:
      rate: tuples per second, of all streams together.
      failure, stabilization: what is done with new tuples then: process, delay or suspend.
      depth: nodes in sequence.
      replicas: of each of them.
      state: tuples in the state of each join.
      failure_us: how long the stream is out; 0: nothing fails.
      burst_us: what a source makes within this time comes in its first quarter; 0: evenly.  Fewer, larger batches, for
        the simulator's sake: of 100 ms they leave all figures as they are.
      speed: tuples that a node reprocesses per second while it reconciles; None: that takes no time.
    """

    rate: int = 3000
    x_us: int = 3 * SECOND
    alpha: float = 0.9
    failure: str = "process"
    stabilization: str = "process"
    depth: int = 1
    replicas: int = 1
    state: int = 100
    bucket_us: int = 100 * MILLISECOND
    boundary_us: int = 100 * MILLISECOND
    failure_us: int = 5 * SECOND
    burst_us: int = 0
    speed: int | None = None
    seed: int = 1

    @property
    def alpha_x_us(self) -> int:
        return round(self.alpha * self.x_us)

    @property
    def heals_us(self) -> int:
        return FAILS_US + self.failure_us

    def nodes(self, place: int) -> list[str]:
        """Names of the replicas at a place of the chain, from 1 on."""
        return [f"n{place}{letter}" for letter in "abcd"[: self.replicas]]


def scenario(setup: Setup, faults: tuple[Fault, ...] | None = None) -> Scenario:
    """A run: the stream is cut off while its source goes on, and the sources last until all is corrected.

    A node reprocesses one bucket a turn, which takes as long as its tuples take at ``speed``: a slice holds as many
    rows of an input as a bucket has of a stream.  Nodes further down get all streams in one input, so a chain needs
    tuples of one instant, which are never divided: one per stream and bucket.

    Args:
      faults: what happens instead of the cut.
    """
    happens = cut(setup) if faults is None else faults
    options: dict[str, Any] = {}
    if setup.speed is not None:
        turn_us = round(setup.bucket_us * setup.rate / setup.speed)
        in_bucket = ceil(setup.rate * setup.bucket_us / (len(STREAMS) * SECOND))
        options = {"limits": {"slice_rows": in_bucket}, "turn_us": turn_us}
    lasts_us = lasting_us(setup)
    return Scenario(setup.seed, configuration(setup), options, happens, lasts_us, 4 * lasts_us)


def cut(setup: Setup) -> tuple[Fault, ...]:
    """The failure of the paper: one stream is disconnected, its source goes on."""
    if not setup.failure_us:
        return ()
    return (Fault("cut", (f"source:{FAILED}",), ("all",), for_us=setup.failure_us, at_us=FAILS_US),)


def lasting_us(setup: Setup) -> int:
    """How long the sources last: past the correction of the last node, with some ordinary time behind it."""
    correcting_us = 0.0
    if setup.speed is not None:
        correcting_us = setup.failure_us * setup.rate / (setup.speed - setup.rate)
    held_us = setup.alpha_x_us if setup.failure == "delay" else 0
    return setup.heals_us + (ceil(correcting_us) * setup.replicas + held_us) * setup.depth + 3 * SECOND


def configuration(setup: Setup) -> dict[str, Any]:
    """As of a YAML file."""
    each = setup.rate // len(STREAMS)
    generator = {"name": "sequence", "rate": each, "duration": show_duration(lasting_us(setup))}
    if setup.burst_us:
        generator["burst"] = show_duration(setup.burst_us)
    query: dict[str, Any] = {}
    for at, name in enumerate(STREAMS):
        made = {"stream": f"{at}", "n": "n", "made": "ts", "key": f"n * {len(STREAMS)} + {at}"}
        query[f"of_{name}"] = {"map": {"from": name, "compute": made}}
    query["merged"] = {"union": [f"of_{name}" for name in STREAMS]}
    fragments: dict[str, Any] = {}
    last, operators = "merged", list(query)
    for place in range(1, setup.depth + 1):
        added = _self_join(last, place, setup)
        query |= added
        operators += added
        fragments[f"f{place}"] = {"operators": operators, "replicas": setup.nodes(place)}
        last, operators = list(added)[-1], []
    return {
        "cluster": "experiment",
        "bucket": show_duration(setup.bucket_us),
        "defaults": {
            "x": show_duration(setup.x_us),
            "alpha": setup.alpha,
            "policy": {"failure": setup.failure, "stabilization": setup.stabilization},
        },
        "nodes": [node for place in range(1, setup.depth + 1) for node in setup.nodes(place)],
        "sources": {
            name: {"from": {"generator": {**generator, "seed": at}}, "boundary": show_duration(setup.boundary_us)}
            for at, name in enumerate(STREAMS)
        },
        "query": query,
        "outputs": [last],
        "fragments": fragments,
        "clients": {CLIENT: {"reads": [last]}},
    }


def _self_join(stream: str, place: int, setup: Setup) -> dict[str, Any]:
    """Each tuple meets itself only; the state is what came within the interval."""
    within_us = setup.state * SECOND // setup.rate
    join = {"left": stream, "right": stream, "on": "key", "within": [f"-{within_us}us", "0us"]}
    back = {name: f"l_{name}" for name in ("stream", "n", "made", "key")}
    return {f"joined_{place}": {"join": join}, f"out_{place}": {"map": {"from": f"joined_{place}", "compute": back}}}
