"""Each fault file in configs/faults fits the configuration of the same name."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicas.faults.model import load_faults
from spe.config import load

CONFIGS = Path(__file__).parents[4] / "configs"


@pytest.mark.parametrize("path", sorted((CONFIGS / "faults").glob("*.yaml")), ids=lambda p: p.stem)
def test_a_fault_file_fits_its_configuration(path: Path) -> None:
    assert load_faults(path, load(CONFIGS / path.name).directory)
