"""The verdict on a finished run that was proved in ranges; the same as on a run that is proved at once."""

from __future__ import annotations

from collections.abc import Mapping

from consistency.proof.decision import Circumstances, decide
from consistency.proof.follow.state import State
from consistency.proof.recorded.intake import unaccounted
from consistency.proof.recorded.run import Run
from consistency.proof.recorded.story import ended_us, something_failed
from consistency.proof.recorded.table_source import last_state
from consistency.proof.report.model import Verdict
from spe.stream.names import StreamId
from spe.stream.times import BEFORE_TIME


def judge_the_end(run: Run, state: State, known_us: Mapping[StreamId, int]) -> None:
    """Notes the verdicts, the flaws of the sources' inputs, and that the run is over.

    Args:
      known_us: tuple time up to which the sources' logs tell the truth of each output.
    """
    since_us = state.judged_at_us
    failed = something_failed(e for e in run.events if since_us is None or e["t"] >= since_us)
    cause = str(run.summary.get("verdict", {}).get("reason", "")) if run.summary else "it has no summary"
    for client, each in state.tallies.items():
        for output, tally in each.items():
            tracks = [state.channels[client][str(c)].track for c in run.channels(StreamId(output))]
            now = Circumstances(
                known_us=known_us[StreamId(output)],
                received_us=min(track.frontier_us for track in tracks),
                reached_us=max(track.frontier_us for track in tracks),
                failed=failed or any(track.tentative for track in tracks),
                cause=cause,
            )
            verdict, reasons = decide(tally.counts, to_come=tally.to_come, now=now, mistyped=tally.mistyped)
            tally.verdict, tally.reasons = verdict, reasons
            if verdict is Verdict.INCONSISTENT and not tally.findings:
                tally.is_wrong(now.known_us)  # the end of a log is lost
    for stream, source in run.reading.sources.items():
        name = StreamId(stream)
        input_flaws = unaccounted(run, name, source, last_state(run, name), ended_us(run.events))
        input_flaws = [*run.signature_flaws(name), *input_flaws]
        if input_flaws:
            state.flaws.setdefault(stream, (input_flaws[0], BEFORE_TIME))
    state.over = True
