"""The fidelity of a plan as a mixed-integer linear program, for the exact planner.

One binary variable per task: it has a replica.  The remaining share of an output is a product of such variables and of
sums over inputs; every *product* of outputs that occurs gets a variable of its own, which is at most each of its latest
task's variable and the sum over that task's inputs.  Where all binaries are 0 or 1 that is exactly the loss model,
joins included, because the sums run over products and not over their factors.  A chain of operators needs one product
per task, a join of two chains pairs of tasks, and so on; outputs that all receivers share are summed once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, Final

import numpy as np

from replicas.planning.topology import Bools, Floats, PlannedOperator, StreamEdge, Topology
from spe.errors import ConfigError

#: Number of products beyond which those of several outputs are bounded by each of them: the bound still holds.
MOST_PRODUCTS: Final = 20_000
#: The solver stops at an absolute gap of 1e-6; fidelities are scaled to thousands.
_SCALE: Final = 1000.0

#: Outputs that are multiplied: tasks, and after them the mean of each operator's output; ascending.
Product = tuple[int, ...]


def solver() -> Any:
    """Returns SciPy's solver; its import is slow.  Raises ConfigError if it is not installed."""
    try:
        from scipy import optimize
    except ImportError as error:
        raise ConfigError(["the exact planner needs SciPy: pip install '.[plan]'"]) from error
    return optimize


@dataclass(frozen=True)
class Solution:
    """The best plan found, and an upper bound.  ``tasks`` is None where time was up before any plan."""

    tasks: Bools | None
    bound: float


class LinearProgram:
    """Maximises the remaining share of some operators' output.

    Args:
      goal: operators (by index), and the value of the whole output of each.
      provided: operators whose output counts as whole: other modules provide it.
      failed: [failures, tasks], the failed tasks.
      weights: of the failures; their sum is 1.
      most: maximum number of products.
    """

    def __init__(
        self,
        topology: Topology,
        goal: Mapping[int, float],
        *,
        provided: Collection[int],
        failed: Bools,
        weights: Floats,
        cost: Floats,
        most: int = MOST_PRODUCTS,
    ) -> None:
        self._topology = topology
        self._provided = frozenset(provided)
        self._most = most
        self._cost = cost
        self._rows: list[tuple[int, dict[int, float], float]] = []  # (variable, at most the sum of these, plus so much)
        self._task_variable: dict[int, int] = {}
        self._worth: dict[int, float] = {}
        self._constant = 0.0
        self._variables = 0
        for mask, weight in zip(failed, weights, strict=True):
            self._failed = mask
            self._made: dict[Product, int] = {}
            for operator, worth in goal.items():
                self._add(self._worth, (topology.tasks + operator,), float(weight) * worth)

    def solve(self, budget: float, seconds: float) -> Solution:
        """Returns the best plan within a budget that is found in time."""
        optimize = solver()
        if not self._variables:
            return Solution(np.zeros(self._topology.tasks, np.bool_), self._constant)
        worth, whole = np.zeros(self._variables), np.zeros(self._variables)
        worth[list(self._worth)] = list(self._worth.values())
        whole[list(self._task_variable.values())] = 1
        limits = np.array([*(constant for *_, constant in self._rows), budget])
        result = optimize.milp(
            -worth * _SCALE,
            integrality=whole,
            bounds=optimize.Bounds(0, 1),
            constraints=optimize.LinearConstraint(self._matrix, ub=limits),
            options={"time_limit": max(seconds, 0.01), "mip_rel_gap": 0.0},
        )
        dual = getattr(result, "mip_dual_bound", None)
        bound = min(1.0, self._constant + (-dual / _SCALE if dual is not None and np.isfinite(dual) else 1.0))
        if result.x is None:
            return Solution(None, bound)
        chosen = np.zeros(self._topology.tasks, np.bool_)
        chosen[[t for t, v in self._task_variable.items() if result.x[v] > 0.5]] = True
        return Solution(chosen, bound)

    @cached_property
    def _matrix(self) -> Any:
        """Returns the matrix of all rows, that of the budget last."""
        from scipy.sparse import csr_array

        entries: list[tuple[int, int, float]] = []
        for row, (variable, most, _) in enumerate(self._rows):
            entries += [(row, variable, 1.0), *((row, v, -factor) for v, factor in most.items())]
        entries += [(len(self._rows), v, float(self._cost[t])) for t, v in self._task_variable.items()]
        rows, columns, values = zip(*entries, strict=True)
        return csr_array((values, (rows, columns)), shape=(len(self._rows) + 1, self._variables))

    def _add(self, terms: dict[int, float], product: Product, factor: float) -> float:
        """Adds a product to a sum; returns its constant part."""
        if not product:
            if terms is self._worth:
                self._constant += factor
            return factor
        variable = self._variable(product)
        terms[variable] = terms.get(variable, 0.0) + factor
        return 0.0

    def _variable(self, outputs: Product) -> int:
        """Returns the variable of a product, with its limits."""
        if outputs in self._made:
            return self._made[outputs]
        latest = max(outputs, key=self._rank)
        factors = self._factors(latest)
        gate = latest if latest < self._topology.tasks and self._failed[latest] else None
        if gate is not None and not factors and set(outputs) == {latest}:
            self._made[outputs] = self._binary(gate)
            return self._made[outputs]
        self._made[outputs] = variable = self._new()
        if gate is not None:
            self._rows.append((variable, {self._binary(gate): 1.0}, 0.0))
        if len(set(outputs)) > 1 and len(self._made) > self._most:
            for output in set(outputs):
                self._rows.append((variable, {self._variable((output,)): 1.0}, 0.0))
            return variable
        rest = [output for output in outputs if output != latest]
        terms: dict[int, float] = {}
        constant = 0.0
        for choice in product(*(factors * outputs.count(latest))):
            members = [output for output, _ in choice if output is not None]
            factor = float(np.prod([f for _, f in choice]))
            constant += self._add(terms, tuple(sorted(self._live([*rest, *members]))), factor)
        self._rows.append((variable, terms, constant))
        return variable

    def _live(self, outputs: Iterable[int]) -> list[int]:
        """Drops sources that do not fail: they are always present."""
        return [o for o in outputs if o >= self._topology.tasks or self._failed[o] or self._operator(o).inputs]

    def _factors(self, output: int) -> list[list[tuple[int | None, float]]]:
        """Factors an output: each is a sum of (output, factor); None: an output that is always present."""
        tasks = self._topology.tasks
        if output >= tasks:
            operator = self._topology.operators[output - tasks]
            total = operator.rate.sum()
            return [[(operator.first + t, float(r / total)) for t, r in enumerate(operator.rate) if r > 0]]
        operator = self._operator(output)
        if not operator.inputs:
            return []
        at = output - operator.first
        inputs = [self._inputs(stream, at) for stream in operator.inputs]
        if operator.correlated:
            return inputs
        loads = np.array([stream.load[at] for stream in operator.inputs])
        if loads.sum() == 0:
            return []  # an output without input loses nothing
        return [[(o, f * load / loads.sum()) for load, terms in zip(loads, inputs) for o, f in terms if load > 0]]

    def _inputs(self, stream: StreamEdge, at: int) -> list[tuple[int | None, float]]:
        """Returns an input of one task as a mean."""
        if stream.load[at] == 0 or stream.upstream in self._provided:
            return [(None, 1.0)]
        if stream.same:
            return [(self._topology.tasks + stream.upstream, 1.0)]
        first = self._topology.operators[stream.upstream].first
        mine = np.flatnonzero((stream.target == at) & (stream.rate > 0))
        return [(first + int(stream.source[i]), float(stream.rate[i] / stream.load[at])) for i in mine]

    def _operator(self, task: int) -> PlannedOperator:
        return self._topology.operators[int(self._topology.operator_of[task])]

    def _rank(self, output: int) -> tuple[int, int]:
        """Ranks outputs: later ones are made of earlier ones."""
        tasks = self._topology.tasks
        return (
            (2 * (output - tasks) + 1, 0) if output >= tasks else (2 * int(self._topology.operator_of[output]), output)
        )

    def _binary(self, task: int) -> int:
        if task not in self._task_variable:
            self._task_variable[task] = self._new()
        return self._task_variable[task]

    def _new(self) -> int:
        self._variables += 1
        return self._variables - 1
