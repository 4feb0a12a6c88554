"""``make bench``: a short set of ratios beside those of the last release, and the ones that moved.

    python -m benchmarks.ratios                # compares with benchmarks/ratios.json
    python -m benchmarks.ratios --store        # writes it: at a release, on a quiet machine
    python -m benchmarks.ratios --beside PATH  # compares with another checkout, measured here in turn

The cost of bare NumPy and raw bytes differs between machines, and on a shared one from day to day, so stored ratios say
little elsewhere: a ratio that became worse there has to be measured beside a checkout of that release.

Two kinds: CPU time against bare NumPy or raw bytes of the same run, which noise moves, and counts of the simulation
against the model, which are exact.  No seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import checkpoint, codec, node_cpu, operators
from benchmarks.data import Shape
from benchmarks.experiments import failures, reconciling
from benchmarks.experiments.setup import Setup
from benchmarks.tables import WrongResult, demand, show
from spe import __version__
from spe.runtime.production import tune_gc, tune_malloc

STORED: Final = Path(__file__).with_name("ratios.json")
#: Changes of a measured ratio that are noise on a shared machine: up to a factor of 1.25, and of 1.5 and 3 where little
#: is measured.  An exact ratio may not change at all.
NOISE: Final = 0.25
MORE_NOISE: Final = 0.5
MUCH_NOISE: Final = 2.0
EXACT: Final = 1e-5
#: Times that the set is measured; medians count.
REPEATS: Final = 3


@dataclass(frozen=True, slots=True)
class Ratio:
    """Smaller is better.  ``within``: times or divided by 1 + within, it says nothing."""

    value: float
    within: float


@dataclass(frozen=True, slots=True)
class Compared:
    """One ratio then and now; ``verdict``: same, better, worse, new or gone."""

    name: str
    stored: float | None
    now: float | None
    verdict: str

    @property
    def change(self) -> float | None:
        """Relative; None where there is nothing to compare."""
        return None if not self.stored or self.now is None else self.now / self.stored - 1


def compare(stored: Mapping[str, Ratio], now: Mapping[str, Ratio]) -> list[Compared]:
    """The ratios by name, the present ones in their order, then the missing ones.  The wider of both margins counts."""
    compared = []
    for name, mine in now.items():
        old = stored.get(name)
        if old is None:
            compared.append(Compared(name, None, mine.value, "new"))
            continue
        margin = 1 + max(old.within, mine.within)
        worse, better = mine.value > old.value * margin, mine.value < old.value / margin
        compared.append(Compared(name, old.value, mine.value, "worse" if worse else "better" if better else "same"))
    return compared + [Compared(name, old.value, None, "gone") for name, old in stored.items() if name not in now]


def to_data(release: str, ratios: Mapping[str, Ratio]) -> dict[str, Any]:
    """As in the file."""
    data = {name: {"value": round(r.value, 6), "within": r.within} for name, r in ratios.items()}
    return {"release": release, "ratios": data}


def from_data(data: Mapping[str, Any]) -> tuple[str, dict[str, Ratio]]:
    """Release and ratios."""
    ratios = {name: Ratio(float(r["value"]), float(r["within"])) for name, r in data["ratios"].items()}
    return str(data["release"]), ratios


#: Measures the set once.
Measure = Callable[[], Iterator[tuple[str, Ratio]]]

# --- the set ---


def measured() -> Iterator[tuple[str, Ratio]]:
    """CPU ratios first, one after the other; then the exact ones."""
    for batch, batches, _ in node_cpu.SHAPES:
        node, bare = node_cpu.aggregated(Shape(batch, batches), 5)
        yield f"node / NumPy, {batch:,} per batch", _noisy(node, bare)
    for batch, slices, _ in operators.SUNION_SHAPES[:4]:
        yield f"SUnion / NumPy, {batch:,} per slice", _noisy(*operators.measure_sunion(Shape(batch, slices)))
    for batch, batches, *_ in node_cpu.PASSING_SHAPES[1:]:
        node, relay, _ = node_cpu.passed(Shape(batch, batches), 5)
        yield f"passing node / relay, {batch:,} per batch", _noisy(node, relay)
    for name in operators.MEASURED:
        for batch, slices, _ in operators.SHAPES[1:]:
            yield f"{name} / NumPy, {batch:,} per slice", _noisy(*operators.measure(name, Shape(batch, slices)))
    for rows, repeat, _ in codec.SHAPES[1:4]:
        ours, theirs = codec.measure(rows, repeat, alone=False)
        yield f"codec / raw bytes, {rows:,} rows streamed", _noisy(ours, theirs, MORE_NOISE)
    for keys in (100_000, 1_000_000):
        pause, step, first, _ = checkpoint.measure(keys)
        yield f"snapshot / step of 1,000 rows, {keys:,} keys", Ratio(pause / step, MUCH_NOISE)
        if keys < 1_000_000:  # beyond, it is a matter of caches and page faults: from 30 to 140 on one afternoon
            yield f"first step after a snapshot / step, {keys:,} keys", Ratio(first / step, MUCH_NOISE)
    setups = {"state of 4,000": Setup(rate=999, state=4000), "45,000 tuples": Setup(rate=9000, state=20)}
    for name, setup in setups.items():
        by_way = {row["way"]: row["correction_ms"] for row in reconciling.correction("", setup, 3)}
        yield f"undo / checkpoint, {name}", Ratio(by_way["undo"] / by_way["checkpoint"], MORE_NOISE)
    for row in failures.bound.rows(True):
        demand(not row["findings"], str(row["findings"]))
        yield f"N_tentative / least, {row['policy']}", Ratio(row["tentative"] / row["model_tentative"], EXACT)
    for row in failures.chains.rows(True):
        demand(not row["findings"], str(row["findings"]))
        yield f"Delay_new / αX, chain of {row['nodes']}", Ratio(row["delay_s"] / 0.9, EXACT)


#: Measures the set once with the code of the working directory; older releases have no option for it.
_ONCE: Final = """
from benchmarks import ratios
ratios.tune_malloc()
ratios.tune_gc()
for name, ratio in ratios.measured():
    print(name, ratio.value, ratio.within, sep="\\t", flush=True)
"""


def measured_in(checkout: Path) -> Iterator[tuple[str, Ratio]]:
    """The set as another checkout has it, in a process of its own.  Raises WrongResult."""
    done = subprocess.run([sys.executable, "-c", _ONCE], cwd=checkout, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise WrongResult(f"{checkout}: the measurement ended with status {done.returncode}; it said why above")
    for line in done.stdout.splitlines():
        name, value, within = line.split("\t")
        yield name, Ratio(float(value), float(within))


def _noisy(ours: Sequence[float], theirs: Sequence[float], within: float = NOISE) -> Ratio:
    return Ratio(median(a / b for a, b in zip(ours, theirs, strict=True)), within)


def run(measure: Measure, stored: Path, *, store: bool, beside: Measure | None = None, against: str = "") -> int:
    """1: a result was wrong.  A worse ratio is printed, and fails nothing: the machine may be the cause.

    Args:
      beside: the ratios to compare with, measured in turn; None: the stored ones.
      against: a name for that.
    """
    begun = time.monotonic()
    mine: dict[str, list[Ratio]] = {}
    others: dict[str, list[Ratio]] = {}
    print(f"load before: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
    try:
        for _ in range(REPEATS):
            for prefix, measures, into in ((f"{against}, ", beside, others), ("", measure, mine)):
                for name, ratio in measures() if measures is not None else ():
                    into.setdefault(name, []).append(ratio)
                    print(f"{prefix}{name}: {ratio.value:.3f}", flush=True)
    except WrongResult as error:
        print(f"WRONG RESULT: {error}", file=sys.stderr)
        return 1
    ratios = _medians(mine)
    if store:
        stored.write_text(json.dumps(to_data(__version__, ratios), indent=2, ensure_ascii=False) + "\n")
        print(stored)
        return 0
    if beside is not None:
        release, old = against, _medians(others)
    else:
        release, old = from_data(json.loads(stored.read_text())) if stored.exists() else ("none", {})
    compared = compare(old, ratios)
    rows = [[c.name, _number(c.stored), _number(c.now), _percent(c.change), c.verdict] for c in compared]
    show(f"Ratios beside those of {release}", ["ratio", release, "now", "change", "verdict"], rows)
    moved = [c for c in compared if c.verdict != "same"]
    for each in moved:
        print(f"{each.verdict}: {each.name} {_percent(each.change)}")
    print(f"{len(moved)} of {len(compared)} moved; {time.monotonic() - begun:.0f} s")
    return 0


def _medians(repeated: Mapping[str, Sequence[Ratio]]) -> dict[str, Ratio]:
    return {name: Ratio(median(r.value for r in all_of), all_of[0].within) for name, all_of in repeated.items()}


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f} %"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ratios", description=__doc__)
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--store", action="store_true", help="write the ratios for later comparisons")
    way.add_argument("--beside", metavar="PATH", type=Path, help="another checkout, to be measured in turn")
    chosen = parser.parse_args(arguments)
    tune_malloc()
    tune_gc()
    if chosen.beside is None:
        return run(measured, STORED, store=chosen.store)
    other = partial(measured_in, chosen.beside)
    return run(measured, STORED, store=chosen.store, beside=other, against=chosen.beside.name)


if __name__ == "__main__":
    sys.exit(main())
