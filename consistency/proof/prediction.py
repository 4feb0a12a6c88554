"""Predicts the delay and tentative tuples of a run by the model of DPC (Balazinska et al., section 5).  Pure.

For a failure of length D of an input, availability threshold X, share α, ordinary delay p, and λ results per second:

| | N_tentative | longest delay of a new tuple |
| D ≤ αX | 0 | D + p |
| process | λ·D | αX + p |
| delay | λ·(D − αX) | k·αX + p |
| suspend | 0 | D + p |

Failures of replicas that another replica covers make nothing tentative.  The model does not know other causes of
tentative tuples (links between nodes, slow processes): then there is no prediction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from consistency.faults.kind import Do
from consistency.faults.kinds import HEAL, kind_of
from consistency.proof.report.model import FaultSpan
from spe.plan.directory import Directory
from spe.plan.nodes import Node, Policy
from spe.plan.plan import Plan
from spe.plan.timing import origins
from spe.stream.ids import PartitionId
from spe.stream.names import StreamId


@dataclass(frozen=True)
class Prediction:
    """The model's prediction.

    Attributes: as in the table above; None where the model says nothing.
    """

    tentative: int | None
    delay_us: int | None


def predict(
    plan: Plan,
    directory: Directory,
    output: StreamId,
    faults: Iterable[FaultSpan],
    *,
    results_per_s: float,
    ordinary_us: int | None,
    ended_us: int,
) -> Prediction:
    """Predicts the figures of one output.

    Args:
      results_per_s: λ, true results per second of wall time.
      ordinary_us: p, the delay without failures; None: not known.
      ended_us: the end of the run, for faults that did not end before.
    """
    path = _path(plan, directory, output)
    alpha_x = [max(n.alpha_x_us for n in nodes) for nodes in path]
    policies = {n.during_failure for nodes in path for n in nodes}
    failures = _failures(plan, directory, output, faults, ended_us)
    if failures is None or not path or len(policies) > 1:
        return Prediction(None, None)
    (policy,) = policies
    tentative, waited = 0.0, 0
    for length_us in failures:
        if length_us <= max(alpha_x):
            waited = max(waited, length_us)
        elif policy is Policy.PROCESS:
            tentative, waited = tentative + results_per_s * length_us / 1e6, max(waited, max(alpha_x))
        elif policy is Policy.DELAY:
            tentative += results_per_s * (length_us - max(alpha_x)) / 1e6
            waited = max(waited, sum(alpha_x))
        else:
            waited = max(waited, length_us)
    delay = None if ordinary_us is None or not failures else ordinary_us + waited
    return Prediction(round(tentative), delay)


def _failures(
    plan: Plan, directory: Directory, output: StreamId, faults: Iterable[FaultSpan], ended_us: int
) -> list[int] | None:
    """Returns lengths of the failures of the output's sources; None after a fault that the model does not know."""
    sources = {f"source:{s.stream}" for s in origins(plan, output)}
    lengths = []
    for fault in faults:
        length = (ended_us if fault.until_us is None else fault.until_us) - fault.from_us
        kind = kind_of(fault.kind)
        if kind.silences and set(fault.targets) & sources:
            lengths.append(length)
        elif kind.stops and all(_covered(directory, t) for t in fault.targets):
            continue
        elif fault.kind != HEAL and kind.begins is not Do.RESTART:
            return None
    return lengths


def _covered(directory: Directory, target: str) -> bool:
    """Does every partition on a node have another replica?"""
    return target in directory.nodes and all(
        len(nodes) > 1 for nodes in directory.placement.values() if target in nodes
    )


def _path(plan: Plan, directory: Directory, stream: StreamId) -> list[list[Node]]:
    """Returns the nodes, with their share of X, of each unit on the longest path to a stream."""
    if stream in plan.sources:
        return []
    unit = plan.producer[stream]
    nodes = [
        directory.share(plan, unit.id, n)
        for p in range(unit.partitions)
        for n in directory.placement[PartitionId(unit.id, p)]
    ]
    return [*max((_path(plan, directory, i.stream) for i in unit.inputs), key=len), nodes]
