"""What failures do to queries that they do not reach, by where and how many nodes fail (DEBS 2021, figures 9, 12-14).

The queries of ``incremental``, in simulation.

* downstream, upstream: the node with the last three operators is lost, or the one with the first three and one that
  reads them; the node with its checkpoints comes 3 s later.
* one, two, three in sequence: nodes of four are lost 5 s apart; those that hold their checkpoints are there.  Beside
  each the baseline of figure 9: with each loss all that runs begins anew from the sources' logs.  A node works four
  times as fast as rows come.
* two for good: of four nodes, and one comes, with room for one of them; nobody else does (figure 10).
* four, eight: of eight nodes with two operators each, so many are lost together, from the last one on or from the first
  one on; as many come, 3 s apart, in the coordinator's order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.experiments.incremental import EACH, QUERIES, SLICE_US, Case, simulated
from benchmarks.experiments.results import Row
from spe.plots import Line, Panel

TITLE = "Queries that failed, and those that did not"
APART_S = 3.0
BY_TWO = 8
#: What a slice of work takes where that counts.
TURN_US = SLICE_US // 4


def cases(quick: bool) -> Iterator[tuple[str, Case]]:
    """(what happens, how)."""
    away = [0.0, 0.0, 0.0, 0.0]
    yield "downstream", Case("operators", EACH, {4: 0.0}, [*away[:3], APART_S], 15)
    yield "upstream", Case("operators", EACH, {1: 0.0}, [APART_S, *away[:3]], 15)
    if quick:
        return
    for many in (1, 2, 3):
        lost = {n: 5.0 * (n - 1) for n in range(1, many + 1)}
        for name, replays in (("in sequence", False), ("in sequence, all replay", True)):
            yield f"{many} {name}", Case("operators", EACH, lost, away, 35, TURN_US, replays)
    yield "two for good", Case("complete queries", EACH, {3: 0.0, 4: 0.0}, [APART_S], 15)
    for many in (4, 8):
        arrive = [APART_S * n for n in range(1, many + 1)]
        for name, first in (("last", BY_TWO - many + 1), ("first", 1)):
            lost = dict.fromkeys(range(first, first + many), 0.0)
            if many < BY_TWO or name == "first":
                label = f"{many} nodes" if many == BY_TWO else f"{many} nodes from the {name}"
                yield label, Case("complete queries", 2, lost, arrive, APART_S * many + 8)


def measure(quick: bool) -> Iterator[Row]:
    for what, case in cases(quick):
        one, findings = simulated(case)
        yield {
            "fails": what,
            "failed": one.failed,
            "first_s": one.first_s,
            "all_s": one.all_s,
            "recovered_s": one.recovered_s,
            "lag_before_s": one.before_s,
            "lag_s": one.longest_s,
            "normal_lag_s": one.normal_s,
            "curve": " ".join(f"{count:g}" for count in one.curve),
            "findings": findings,
        }


def panels(rows: Sequence[Row]) -> list[Panel]:
    """Queries that are available, over time."""
    longest = max(len(row["curve"].split()) for row in rows)
    found = []
    for row in rows:
        curve = [float(count) for count in row["curve"].split()]
        found.append(Line([*curve, *[None] * (longest - len(curve))], row["fails"]))
    xs = [float(s) for s in range(longest)]
    return [Panel(f"available queries of {len(QUERIES)}", xs, found, "seconds after the failure")]
