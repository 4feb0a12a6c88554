"""Decides from the findings: CONSISTENT, INCONSISTENT or UNKNOWN, and why.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from consistency.proof.report.model import Flaw, Verdict
from consistency.proof.report.words import moment, plural
from spe.stream.times import END_OF_TIME


@dataclass(frozen=True)
class Circumstances:
    """Circumstances of a verdict besides the tuples.

    Attributes:
      known_us: tuple time up to which the sources' logs tell the truth; END_OF_TIME: to its end.
      received_us: tuple time up to which the client has final output (the smallest stable boundary of all partitions).
      reached_us: the largest stable boundary.
      failed: was there any failure: a fault, a process that died, a tentative tuple?
      cause: why the run was broken off; "" where it ended by itself.
    """

    known_us: int
    received_us: int
    reached_us: int
    failed: bool
    cause: str = ""


def decide(
    flaws: Mapping[Flaw, int], *, to_come: int, now: Circumstances, mistyped: Sequence[str] = ()
) -> tuple[Verdict, list[str]]:
    """Returns the verdict on one output at one client, and its reasons, the weightiest first; none for CONSISTENT.

    Args:
      flaws: number of tuples with each flaw.
      to_come: number of true tuples beyond the client's final output, not received.
      mistyped: a sentence for each attribute of another type than the truth has: then the output is INCONSISTENT.

    A tentative tuple that was never revoked is wrong at the end of a stream; earlier, it may still be revoked.
    Final output rests on what the sources have logged and synced (S3): where it goes beyond the logs, a part of them is
    lost, or never existed.
    """
    ended = now.received_us >= END_OF_TIME
    open_ = 0 if ended else flaws.get(Flaw.UNCORRECTED, 0)
    wrong = {flaw: n for flaw, n in flaws.items() if n and (ended or flaw is not Flaw.UNCORRECTED)}
    beyond = now.reached_us > now.known_us
    if wrong or beyond or mistyped:
        why = [*mistyped, *(f"{plural(n, 'tuple')} {flaw}" for flaw, n in sorted(wrong.items(), key=_weight))]
        if beyond:
            why.append(
                f"final until {moment(now.reached_us)}, but the sources' logs imply no more than "
                f"{moment(now.known_us)}: what was published had been synced before, so a log has lost its end"
            )
        return Verdict.INCONSISTENT, why
    still = f"still tentative: {plural(open_, 'tuple')}, of which nobody can say yet whether they stay"
    reasons = [still] if open_ else []
    if now.known_us < END_OF_TIME:
        reasons.append(f"log incomplete: the sources' logs tell the truth until {moment(now.known_us)} only")
    elif not ended:
        reasons.append(
            f"recording incomplete: final until {moment(now.received_us)}"
            + (f"; {plural(to_come, 'true tuple')} still to come" if to_come else "")
        )
    if reasons and now.cause:
        reasons.append(f"the run was broken off: {now.cause}")
    if not now.failed:
        reasons.append("nothing failed: whether failures are put right was not tried")
    return (Verdict.UNKNOWN, reasons) if reasons else (Verdict.CONSISTENT, [])


def overall(verdicts: Iterable[tuple[Verdict, str, list[str]]]) -> tuple[Verdict, list[str]]:
    """Returns the verdict on a run from (verdict, title, reasons) of each output: the worst; equal reasons once."""
    each = list(verdicts)
    worst = next((v for v in (Verdict.INCONSISTENT, Verdict.UNKNOWN) if any(v is w for w, _, _ in each)), None)
    if not each:
        return Verdict.UNKNOWN, ["no client recorded anything: there is nothing to judge"]
    if worst is None:
        return Verdict.CONSISTENT, []
    titles_of: dict[str, list[str]] = {}
    for verdict, title, reasons in each:
        for reason in reasons if verdict is worst else ():
            titles_of.setdefault(reason, []).append(title)
    return worst, [
        r if len(titles) == len(each) > 1 else f"{', '.join(titles)}: {r}" for r, titles in titles_of.items()
    ]


def _weight(item: tuple[Flaw, int]) -> int:
    return list(Flaw).index(item[0])
