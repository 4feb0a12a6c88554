"""The DPC paper's measures, from the history of a run, and what its model expects of one node.

Delay_new: of each tuple of a stream that does not fail, from when it was made until its result was first received; the
tuples of the first two seconds do not count.  N_tentative: tentative tuples received, until all is corrected.

The model (section 6.1; its formulas as they follow from sections 4 and 6): λ tuples per second of m streams, one of
which fails for D; λ_a = λ (m - 1) / m still arrive; a node reprocesses μ tuples per second.  R_s = D λ / μ is the time
to correct while new tuples wait, R_c = D λ / (μ - λ) while they do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.experiments.record import Row
from benchmarks.experiments.setup import CLIENT, FAILED, FAILS_US, STREAMS, Setup, scenario
from replicas.faults.model import Fault
from replicas.simulation.simulate import Outcome, simulate
from replicas.simulation.world.clock import EPOCH_US
from spe.stream.batch import Batch, Int64Array, RecDone
from spe.stream.history import Delivered, History, Received, StateChanged
from spe.stream.names import Kind, NodeState
from spe.stream.times import SECOND

WARM_UP_US: Final = 2 * SECOND
#: Seconds of computing that one run may take.
CPU_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Measured:
    """The measures of one run; times in microseconds.

    Attributes:
      delay_us: Delay_new, the longest.
      tentative: N_tentative.
      outage_us: how long nothing of the failed stream came to a node, reconnecting included; 0: it did not fail.
      correcting_us: how long the first replica to correct took.
      rec_done_us: from the healing until the end of the last correction; None: there was none.
      findings: promises of this system that were not kept.
    """

    delay_us: int
    tentative: int
    outage_us: int
    correcting_us: int
    rec_done_us: int | None
    findings: tuple[str, ...]


def play(setup: Setup, faults: tuple[Fault, ...] | None = None) -> Measured:
    """One run in virtual time; ``faults`` take the place of the cut."""
    return measured(setup, simulate(scenario(setup, faults), cpu_s=CPU_S))


def measured(setup: Setup, outcome: Outcome) -> Measured:
    history = outcome.history
    made, delays = new_tuples(history)
    counted = made >= WARM_UP_US
    elements = [(e.at_us - setup.heals_us, e.element) for e in deliveries(history)]
    done = [at for at, e in elements if isinstance(e, RecDone)]
    # P1 is what is measured where a node has the speed of another machine, and not to be asked for.
    findings = [str(f) for f in outcome.findings if setup.speed is None or f.property != "P1"]
    if not outcome.finished:
        findings.append("not everything was corrected when the run ended")
    return Measured(
        int(delays[counted].max()),
        sum(len(e) for _, e in elements if isinstance(e, Batch) and e.kind is Kind.TENTATIVE),
        _outage_us(setup, history),
        _correcting_us(history),
        done[-1] if done else None,
        tuple(findings),
    )


def deliveries(history: History) -> Iterator[Delivered]:
    """The elements that the client's application received."""
    return (e for e in history if isinstance(e, Delivered) and e.consumer == f"client:{CLIENT}")


def new_tuples(history: History) -> tuple[Int64Array, Int64Array]:
    """(when made since the run began, delay) of each tuple of the streams that do not fail, on its first receipt."""
    made: list[Int64Array] = []
    delays: list[Int64Array] = []
    newest = [-1] * len(STREAMS)
    for event in deliveries(history):
        if not isinstance(event.element, Batch) or not len(event.element):
            continue
        stream, number, at = (column.values for column in event.element.rows.columns[:3])
        for place, name in enumerate(STREAMS):
            if name == FAILED:
                continue
            new = (stream == place) & (number > newest[place])
            if new.any():
                newest[place] = int(number[new].max())
                made.append(at[new] - EPOCH_US)
                delays.append(event.at_us + EPOCH_US - at[new])
    return np.concatenate(made), np.concatenate(delays)


def _outage_us(setup: Setup, history: History) -> int:
    for event in history:
        if isinstance(event, Received) and event.channel.stream == FAILED and event.at_us >= setup.heals_us:
            return event.at_us - FAILS_US if setup.failure_us else 0
    return 0


def _correcting_us(history: History) -> int:
    began: dict[str, int] = {}
    for event in history:
        if isinstance(event, StateChanged):
            if event.state is NodeState.STABILIZATION:
                began.setdefault(event.replica, event.at_us)
            elif event.replica in began:
                return event.at_us - began[event.replica]
    return 0


# --- the model ---


@dataclass(frozen=True, slots=True)
class Expected:
    """Delay_new in microseconds and N_tentative, as the model has them."""

    delay_us: int
    tentative: int


def expected(setup: Setup) -> Expected:
    """The model's measures of one node, for an ordinary delay of one bucket."""
    ordinary_us, wait_us, failed_us = setup.bucket_us, setup.alpha_x_us, setup.failure_us
    if failed_us <= wait_us:
        return Expected(failed_us + ordinary_us, 0)
    available = setup.rate * (len(STREAMS) - 1) / len(STREAMS)
    held_us = wait_us if setup.failure == "delay" else 0
    tentative = available * (failed_us - held_us) / SECOND
    if setup.stabilization == "suspend":
        suspended_us = 0 if setup.speed is None else round(setup.failure_us * setup.rate / setup.speed)  # R_s
        return Expected(ordinary_us + max(wait_us, held_us + suspended_us), round(tentative))
    return Expected(ordinary_us + wait_us, round(tentative + setup.rate * correcting_us(setup) / SECOND))


def correcting_us(setup: Setup) -> int:
    """R_c."""
    return 0 if setup.speed is None else round(setup.failure_us * setup.rate / (setup.speed - setup.rate))


def beside(ours: Measured, model: Expected) -> Row:
    """Both measures of the paper with those of the model, and what was broken."""
    return {
        "delay_s": ours.delay_us / SECOND,
        "model_delay_s": model.delay_us / SECOND,
        "tentative": ours.tentative,
        "model_tentative": model.tentative,
        "tentative_off": None if not model.tentative else ours.tentative / model.tentative - 1,
        "outage_s": ours.outage_us / SECOND,
        "findings": ours.findings,
    }
