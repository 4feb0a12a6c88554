"""A run that does not end is a finding like any other."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from replicas.cli.campaigns import campaign


def test_endless_step_is_detected_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def spin(_: Any, *, also: Any) -> None:
        while True:
            pass

    before = signal.getsignal(signal.SIGVTALRM)
    monkeypatch.setattr(campaign, "simulate", spin)
    monkeypatch.setattr(campaign, "ENDLESS_S", 0.05)
    (finding,), outcome = campaign.run(None)  # type: ignore[arg-type]
    assert outcome is None
    assert (finding.property, finding.rule) == ("run", "Stuck")
    assert "a step does not end in test_endless_step_is_detected_and_named.<locals>.spin" in finding.what
    assert signal.getsignal(signal.SIGVTALRM) == before
