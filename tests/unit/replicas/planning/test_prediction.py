"""How long a move takes (rule L4)."""

from __future__ import annotations

import pytest

from replicas.planning import prediction
from replicas.planning.load import LoadSample
from replicas.planning.prediction import PredictedMove, RefusedMove, Speeds, StateSource

SPEEDS = Speeds(network=100.0, disk=400.0)
PARTNER, CHECKPOINT = StateSource.PARTNER, StateSource.CHECKPOINT


def moved(load: LoadSample, free: float, age_s: float | None = None) -> tuple[float, StateSource]:
    found = prediction.predict(load, free, SPEEDS, age_s)
    assert isinstance(found, PredictedMove)
    return round(found.seconds, 9), found.source


def test_without_input_the_state_is_all_that_is_moved() -> None:
    assert moved(LoadSample(0.0, state=400), 0.5) == (4.0, PARTNER)
    assert moved(LoadSample(0.0, state=400), 0.5, 60.0) == (1.0, CHECKPOINT)


def test_input_since_checkpoint_is_processed_with_new_input() -> None:
    """λ needs 0.2 of a core and μ has 0.6: u/(μ - λ) is half of the time that u has come in."""
    load = LoadSample(0.2, rows=1000.0, state=400)
    assert moved(load, 0.6) == (4.0 + 4.0 / 2, PARTNER)
    assert moved(load, 0.6, 3.0) == (1.0 + (3.0 + 1.0) / 2, CHECKPOINT)


def test_the_faster_source_of_the_state_is_chosen() -> None:
    load = LoadSample(0.2, rows=1000.0, state=400)
    assert moved(load, 0.6, 8.9)[1] == CHECKPOINT
    assert moved(load, 0.6, 9.1) == (6.0, PARTNER)


@pytest.mark.parametrize("free", [-0.1, 0.0, 0.1, 0.3])
def test_a_move_that_never_catches_up_is_refused(free: float) -> None:
    refused = prediction.predict(LoadSample(0.3, rows=10.0, state=1.0), free, SPEEDS, 0.0)
    assert refused == RefusedMove(f"{free:.2f} of a core is free, and 0.30 would never catch up")
