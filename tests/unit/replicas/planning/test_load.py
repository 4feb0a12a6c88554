"""Samples of load (rule L1): silence is no sample, and series that do not vary say nothing of each other."""

from __future__ import annotations

import numpy as np
import pytest

from replicas.planning.load import KEPT_US, SAMPLE_US, LoadHistory, LoadSample, correlations
from spe.stream.ids import PartitionId
from spe.stream.names import UnitId

P, Q = PartitionId(UnitId("f"), 0), PartitionId(UnitId("f"), 1)


def history(**series: list[float | None]) -> tuple[LoadHistory, int]:
    """A sample each 10 s of p and of q, where there is one; and the time of the last one."""
    found = LoadHistory()
    now = 0
    for at in range(max(map(len, series.values()))):
        now = (at + 1) * SAMPLE_US
        for name, loads in series.items():
            if at < len(loads) and (cpu := loads[at]) is not None:
                found.sample({"p": P, "q": Q}[name], LoadSample(cpu), now)
    return found, now


def test_silence_is_no_sample_and_no_load_of_zero() -> None:
    kept, now = history(p=[0.4, None, 0.6, None])
    mean = kept.mean(P, now)
    assert mean is not None
    assert mean.cpu == pytest.approx(0.5)
    assert kept.mean(P, now, SAMPLE_US) is None, "nothing is known of the last 10 s"
    assert kept.series(P, now)[-4:].tolist() == pytest.approx([0.4, np.nan, 0.6, np.nan], nan_ok=True)


def test_samples_are_stored_for_15_minutes() -> None:
    kept, now = history(p=[0.4])
    assert kept.mean(P, now + KEPT_US - SAMPLE_US) is not None
    assert kept.mean(P, now + KEPT_US) is None


def test_busier_of_two_replicas_counts() -> None:
    kept = LoadHistory()
    kept.sample(P, LoadSample(0.2, state=10.0), SAMPLE_US)
    kept.sample(P, LoadSample(0.3, state=9.0), SAMPLE_US + 1)
    assert kept.mean(P, 2 * SAMPLE_US) == LoadSample(0.3, state=10.0)


def test_a_pause_leaves_no_old_samples_behind_in_the_ring() -> None:
    kept, now = history(p=[0.1] * 90)
    kept.sample(P, LoadSample(0.9), now + 50 * SAMPLE_US)
    series = kept.series(P, now + 50 * SAMPLE_US)
    assert np.isnan(series[-50:-1]).all()
    assert np.nansum(series) == pytest.approx(0.1 * 40 + 0.9)


def test_on_a_node_a_silent_partition_counts_with_its_mean() -> None:
    kept, now = history(p=[0.2, 0.4, None, None], q=[0.1, 0.2, 0.3, None])
    together = kept.together([P, Q], now)[-4:]
    assert together.tolist() == pytest.approx([0.3, 0.6, 0.6, np.nan], nan_ok=True), "0 would look like less load"


def test_node_without_partitions_has_constant_zero_load() -> None:
    kept, now = history(p=[0.2, 0.4, 0.6])
    assert not kept.together([], now).any()
    assert correlations(kept.series(P, now)[None], kept.together([], now)[None]).tolist() == [[0.0]]


def test_correlations_are_those_of_common_samples() -> None:
    rows = np.array([[1, 2, 3, 4, np.nan], [8, 6, 4, 2, 9], [5, 5, 5, 5, 5], [1, 2, np.nan, np.nan, np.nan]])
    found = correlations(rows, rows)
    assert found[0, 1] == found[1, 0] == -1.0
    assert found[0, 0] == 1.0
    assert not found[2].any(), "it does not vary, not even with itself"
    assert found[0, 3] == 0.0, "any two points lie on a line"


@pytest.mark.parametrize("seed", range(5))
def test_correlations_equal_those_of_numpy(seed: int) -> None:
    random = np.random.default_rng(seed)
    left, right = random.random((3, 90)), random.random((4, 90)) * 1000
    expected = np.corrcoef(np.vstack([left, right]))[:3, 3:]
    assert correlations(left, right) == pytest.approx(expected, abs=1e-8)


def test_rounding_is_no_variance() -> None:
    tenth = np.full((1, 90), 0.1)
    tenth[0, ::2] += 1e-17
    assert correlations(tenth, np.arange(90.0)[None]).tolist() == [[0.0]]
    tenth[0, ::3] = np.nextafter(0.1, 1)
    assert correlations(tenth, np.arange(90.0)[None]).tolist() == [[0.0]]
