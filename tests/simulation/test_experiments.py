"""Each of the paper's experiments, in small: it runs, leaves its results, and shows the shape that it is about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from benchmarks.experiments.__main__ import main
from benchmarks.experiments.model import expected
from benchmarks.experiments.setup import Setup
from spe.times import SECOND


def results(name: str, folder: Path) -> list[dict[str, Any]]:
    assert main([name, "--quick", "--out", str(folder)]) == 0, "a promise was not kept"
    assert "<polyline" in (folder / f"{name}.svg").read_text()
    rows: list[dict[str, Any]] = pq.read_table(folder / f"{name}.parquet").to_pylist()
    return rows


def test_delaying_saves_what_it_holds_back_and_keeps_x(tmp_path: Path) -> None:
    delay, process = results("delaying", tmp_path)
    assert delay["delay_s"] == process["delay_s"] == delay["alpha_x_s"]
    assert process["tentative"] - delay["tentative"] == pytest.approx(40 * delay["alpha_x_s"], abs=4)


def test_the_model_of_one_node() -> None:
    """D = 10 s, αX = 2.7 s; 2,000 of 3,000 tuples/s still arrive; 12,000/s are reprocessed: R_s = 2.5, R_c = 3.33 s."""
    setup = Setup(failure_us=10 * SECOND, speed=12_000)
    assert expected(setup).tentative == 20_000 + 10_000
    assert expected(setup).delay_us == round(2.8 * SECOND)
    suspended = Setup(failure_us=10 * SECOND, speed=12_000, failure="delay", stabilization="suspend")
    assert expected(suspended).tentative == 2000 * 7.3
    assert expected(suspended).delay_us == round((0.1 + 2.7 + 2.5) * SECOND)
    assert expected(Setup(failure_us=2 * SECOND)).tentative == 0
