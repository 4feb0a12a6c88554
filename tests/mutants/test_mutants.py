"""Every mutant is killed by its scenario, and the unmodified engine passes all of these.

Mutants that reverse a fix are in :mod:`tests.mutants.test_mended`, those that no run shows in
:mod:`tests.mutants.test_units`.

``python -m tests.mutants.find`` finds a scenario for each new mutant.  ``make soak`` plays those of several
seconds, and so does ``MUTANTS=all``.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from operators.sunion.sunion import SUnion
from replicas.simulation.simulate import simulate
from spe.stream.times import BEFORE_TIME
from tests.mutants.catalogue import MUTANTS
from tests.mutants.find import complaints, is_killed
from tests.mutants.kept import CASES, COSTLY, costly, kept, killer
from tests.mutants.mended import PAIRS
from tests.mutants.patching import Edit, Unfit, aside, edited, mutant
from tests.mutants.scenarios import KILLS
from tests.mutants.units import UNITS

pytestmark = pytest.mark.long

KEPT = kept()
_ALL = os.environ.get("MUTANTS") == "all"
_HAS_CASE = {path.stem for path in CASES.glob("*.json")}
#: Mutants that a scenario of this folder shows; regressions and unit tests show the others.
SHOWN = [name for name in MUTANTS if name in KILLS or name in _HAS_CASE]
PLAYED = [name for name in SHOWN if _ALL or not costly(name)]


@pytest.mark.parametrize("name", PLAYED)
def test_a_mutant_is_killed(name: str) -> None:
    assert is_killed(MUTANTS[name], KEPT[killer(name)])


@pytest.mark.parametrize("name", [name for name in KEPT if _ALL or name not in COSTLY])
def test_the_killing_scenario_holds_without_the_mutant(name: str) -> None:
    assert simulate(KEPT[name]).findings == []


def test_an_engine_without_a_mistake_has_no_complaints() -> None:
    """Else each mutant would be killed, whatever it does."""
    unchanged = SimpleNamespace(on=nullcontext)
    assert complaints(unchanged, min(KEPT.values(), key=lambda one: one.heal_us)) == []  # type: ignore[arg-type]


def test_there_are_enough_mutants_and_no_unused_case() -> None:
    assert len(MUTANTS) >= 105
    assert len(PLAYED) >= 35
    assert {killer(name) for name in SHOWN} == set(KEPT)
    assert set(KEPT) >= COSTLY
    assert set(MUTANTS) == {*SHOWN, *PAIRS.values(), *UNITS}


def test_a_mutant_that_does_not_fit_the_engine_is_an_error() -> None:
    @mutant(SUnion, "stable_end", "it takes nothing, though it is given something")
    def does_not_fit(original: Any) -> Any:
        return original()

    sunion = SUnion(inputs=[(0, True)], streams=1, bucket_us=10)
    with (
        MUTANTS.pop("does-not-fit").on(),
        pytest.raises(Unfit, match=r"does-not-fit: TypeError: .* positional argument"),
    ):
        sunion.stable_end  # noqa: B018 - a property


def test_edit_of_missing_text_is_an_error() -> None:
    edited("no-such-text", "it changes what nobody has written", Edit(SUnion, "taint", "no such text", "pass"))
    with pytest.raises(Unfit, match="no-such-text: taint has 'no such text' 0 times"), MUTANTS.pop("no-such-text").on():
        pass


def test_an_edit_lasts_as_long_as_its_context() -> None:
    mutant = edited("never-tainted", "it forgets that", Edit(SUnion, "tainted", "is not None", "is None"))
    del MUTANTS["never-tainted"]
    sunion = SUnion(inputs=[(0, True)], streams=1, bucket_us=10)
    with mutant.on():
        assert sunion.tainted
        with aside():
            assert not sunion.tainted
    assert not sunion.tainted


def test_the_reference_is_computed_without_the_mutant() -> None:
    sunion = SUnion(inputs=[(0, True), (0, True)], streams=1, bucket_us=10)
    sunion.inputs[0].frontier = 30
    with MUTANTS["frontier-of-the-fastest"].on():
        assert sunion.stable_end == 30
        with aside():
            assert sunion.stable_end == BEFORE_TIME
        assert sunion.stable_end == 30
