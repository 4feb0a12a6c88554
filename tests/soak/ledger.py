"""The record of simulation campaigns: seeds, commit and findings.

    python -m tests.soak.simulation --hours 1 --ledger      plays, and appends an entry
    python -m tests.soak.ledger                             prints the entries as a table, with their totals

An entry is one line of JSON in ``ledger.jsonl``.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from replicas.cli.campaigns.campaign import Sums
from replicas.cli.campaigns.campaign_report import ranges
from replicas.local.run_dir import commit, versions

LEDGER: Final = Path(__file__).with_name("ledger.jsonl")
#: Heads of the columns of the table.
_COLUMNS: Final = (
    *("date", "commit", "Python", "seeds", "runs", "faults", "simulated hours"),
    *("seeds with findings", "what became of them"),
)


@dataclass(frozen=True)
class Campaign:
    """One campaign.

    Attributes:
      seeds: in the words of ``--seeds``.
      faults: how many of each kind were injected.
      findings: per failed seed, the rules that were broken.
      outcome: what became of the findings; "" before they were examined.
    """

    date: str
    commit: str
    python: str
    seeds: str
    runs: int
    faults: dict[str, int]
    simulated_hours: float
    cpu_seconds: float
    findings: dict[str, list[str]] = field(default_factory=dict)
    outcome: str = ""


def campaign_of(sums: Sums) -> Campaign:
    """The entry of a campaign that has just ended."""
    return Campaign(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        commit=commit() or "unknown",
        python=versions().get("python", "unknown"),
        seeds=ranges(sums.seeds),
        runs=len(sums.seeds),
        faults=dict(sorted(sums.faults.items())),
        simulated_hours=round(sums.virtual_s / 3600, 2),
        cpu_seconds=round(sums.cpu_s),
        findings={str(r.seed): sorted({f"{f.property}: {f.rule}" for f in r.findings}) for r in sums.failed},
    )


def read_ledger(path: Path = LEDGER) -> list[Campaign]:
    """All entries, in the order in which they were added."""
    if not path.exists():
        return []
    return [Campaign(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines() if line]


def append(entry: Campaign, path: Path = LEDGER) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(entry), sort_keys=True) + "\n")


def table(entries: list[Campaign]) -> str:
    """The entries for people, with their totals."""
    runs = sum(e.runs for e in entries)
    faults = sum(sum(e.faults.values()) for e in entries)
    hours = sum(e.simulated_hours for e in entries)
    lines = [
        f"In total {runs:,} seeds, {faults:,} faults, {hours:,.0f} simulated hours.",
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "|" + "---|" * len(_COLUMNS),
    ]
    for e in entries:
        found = Counter(rule for rules in e.findings.values() for rule in rules)
        shown = f"{len(e.findings)}" + (
            f" ({', '.join(f'{r} {n}' for r, n in sorted(found.items()))})" if found else ""
        )
        lines.append(
            f"| {e.date} | `{e.commit}` | {e.python} | {e.seeds} | {e.runs:,} | {sum(e.faults.values()):,} "
            f"| {e.simulated_hours:,.1f} | {shown} | {e.outcome} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(read_ledger()), end="")
