"""Partitions that moved in a run, and the output of clients during each move.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from consistency.proof.report.model import MoveReport, OutputReport
from spe.log.issued_directories import MadeMove

_OVER: Final = ("done", "dropped")


def move_reports(moves: Iterable[MadeMove], outputs: Sequence[OutputReport], begun_us: int) -> list[MoveReport]:
    """Returns a report for each move.

    Args:
      begun_us: when the run began, wall time in microseconds.
    """
    return [_report(move, outputs, begun_us) for move in moves]


def _report(move: MadeMove, outputs: Sequence[OutputReport], begun_us: int) -> MoveReport:
    phase = move.phases[-1][1] if move.phases else "wait"
    from_us = move.phases[0][0] - begun_us if move.phases else None
    until_us = move.phases[-1][0] - begun_us if phase in _OVER else None
    tentative, delay_max_us = (0, None) if from_us is None else received_during(outputs, from_us, until_us)
    return MoveReport(
        number=move.number,
        partition=move.partition,
        source=move.source,
        target=move.target,
        reason=move.reason,
        phase=phase,
        why=move.why,
        from_us=from_us,
        until_us=until_us,
        predicted_us=move.predicted_us,
        tentative=tentative,
        delay_max_us=delay_max_us,
    )


def received_during(outputs: Sequence[OutputReport], from_us: int, until_us: int | None) -> tuple[int, int | None]:
    """Returns the number of tentative tuples received in a time, and the longest delay of a result; None: no result."""
    bins = [
        bin_
        for output in outputs
        for bin_ in output.bins
        if bin_.at_us + output.bin_us > from_us and (until_us is None or bin_.at_us <= until_us)
    ]
    delays = [bin_.delay_max_us for bin_ in bins if bin_.delay_max_us is not None]
    return sum(bin_.tentative for bin_ in bins), max(delays, default=None)
