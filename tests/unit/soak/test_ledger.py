"""The record of simulation campaigns."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from consistency.checking.finding import Finding
from replicas.cli.campaigns.campaign import SeedResult, Sums
from tests.soak.ledger import append, campaign_of, read_ledger, table


def sums_of_two() -> Sums:
    sums = Sums()
    sums.add(SeedResult(7, faults=Counter(cut=3), cpu_s=1.0))
    sums.add(SeedResult(8, (Finding("P1", "results come within kX", 5, "client:c", "…"),), Counter(kill=2), cpu_s=1.0))
    return sums


def test_an_entry_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    entry = campaign_of(sums_of_two())
    append(entry, tmp_path / "ledger.jsonl")
    append(entry, tmp_path / "ledger.jsonl")
    assert read_ledger(tmp_path / "ledger.jsonl") == [entry, entry]
    assert (entry.runs, entry.seeds, entry.faults) == (2, "7:9", {"cut": 3, "kill": 2})
    assert entry.findings == {"8": ["P1: results come within kX"]}


def test_the_table_sums_up_all_entries() -> None:
    entry = campaign_of(sums_of_two())
    shown = table([entry, entry])
    assert "In total 4 seeds, 10 faults" in shown
    assert "1 (P1: results come within kX 1)" in shown
