"""What the paper measures at the client, from the history of a run.

Delay_new: of each tuple of a stream that does not fail, from when it was made until its result was first received; the
tuples of the first two seconds do not count.  N_tentative: tentative tuples received, until all is corrected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.experiments.setup import CLIENT, FAILED, FAILS_US, STREAMS, Setup
from replicas.simulation.simulate import Outcome
from replicas.simulation.world.clock import EPOCH_US
from spe.stream.batch import Batch, Int64Array, RecDone, Undo
from spe.stream.history import Delivered, History, Received, StateChanged
from spe.stream.names import Kind, NodeState
from spe.stream.times import SECOND

WARM_UP_US: Final = 2 * SECOND


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one run; times in microseconds.

    Attributes:
      delay_us: Delay_new, the longest.
      ordinary_us: the longest delay before the failure.
      tentative: N_tentative.
      outage_us: how long nothing of the failed stream came to a node, reconnecting included; 0: it did not fail.
      correcting_us: how long the first replica to correct took.
      first_undo_us, rec_done_us: from the healing until the first correction, and until the end of the last one; None:
        there was none.
      findings: promises of this system that were not kept.
    """

    delay_us: int
    ordinary_us: int
    tentative: int
    outage_us: int
    correcting_us: int
    first_undo_us: int | None
    rec_done_us: int | None
    findings: tuple[str, ...]


def measured(setup: Setup, outcome: Outcome) -> Measured:
    history = outcome.history
    made, delays = new_tuples(history)
    counted = made >= WARM_UP_US
    before = counted & (made < FAILS_US - SECOND)
    elements = [(e.at_us - setup.heals_us, e.element) for e in deliveries(history)]
    undone = [at for at, e in elements if isinstance(e, Undo)]
    done = [at for at, e in elements if isinstance(e, RecDone)]
    # P1 is what is measured where a node has the speed of another machine, and not to be asked for.
    findings = [str(f) for f in outcome.findings if setup.speed is None or f.property != "P1"]
    if not outcome.finished:
        findings.append("not everything was corrected when the run ended")
    return Measured(
        int(delays[counted].max()),
        int(delays[before].max()),
        sum(len(e) for _, e in elements if isinstance(e, Batch) and e.kind is Kind.TENTATIVE),
        _outage_us(setup, history),
        _correcting_us(history),
        undone[0] if undone else None,
        done[-1] if done else None,
        tuple(findings),
    )


def deliveries(history: History) -> Iterator[Delivered]:
    """What the client's application got."""
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
        for one, name in enumerate(STREAMS):
            if name == FAILED:
                continue
            new = (stream == one) & (number > newest[one])
            if new.any():
                newest[one] = int(number[new].max())
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
