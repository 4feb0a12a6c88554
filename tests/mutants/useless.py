"""Live replicas without results: mistakes of F4, K6, A3 and R6 that no checker found at first."""

from __future__ import annotations

from typing import Any

from consistency.dpc.manager import DpcManager
from operators.sunion.sunion import SUnion
from replicas.consumer.input import Input
from replicas.consumer.selection import ProducerSelector
from spe.stream.times import BEFORE_TIME
from tests.mutants.patching import mutant


@mutant(ProducerSelector, "_useful", "a producer that gives nothing is kept beside one that has results (F4)")
def useless_producer_is_kept(original: Any, self: Any, producer: Any, now: int) -> bool:
    return True


@mutant(DpcManager, "stands_in", "a partner that has lost all its inputs grants leave to correct (K6)")
def useless_partner_grants(original: Any, self: Any, now: int) -> bool:
    return True


@mutant(Input, "caught_up", "caught up is who has what the furthest of all producers has (A3)")
def caught_up_with_the_furthest(original: Any, self: Any) -> bool:
    known = max((p.frontier for p in self.producers.values() if p.alive), default=BEFORE_TIME)
    return self.main is not None and self.main.opened and bool(self.port.frontier >= known)


@mutant(SUnion, "begin_redo", "live results lack the rows that redo has released before them (R6)")
def live_lacks_what_redo_took(original: Any, self: Any, *, live_runs: bool = False) -> None:
    original(self, live_runs=False)
