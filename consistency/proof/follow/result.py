"""Turns the state of a proof that goes on into ``follow.json``.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from consistency.proof.decision import overall
from consistency.proof.follow.state import State, Tally
from consistency.proof.recorded.run import Run
from consistency.proof.report.follow_model import Followed, FollowedOutput, FollowedSource
from consistency.proof.report.model import Flaw, Verdict
from consistency.proof.report.words import moment, plural
from spe.stream.names import StreamId
from spe.stream.times import BEFORE_TIME, END_OF_TIME

_HOUR_US = 3_600_000_000
_GOES_ON = "the run goes on, or what is left of it was not proved yet"


def followed(
    run: Run, state: State, lookback_us: Mapping[StreamId, int], waits_for: str, altered: str, spark: str
) -> Followed:
    """Returns the content of ``follow.json``.

    Args:
      altered: what earlier steps read and has been changed.
      spark: its version; "": it was not started.
    """
    outputs = [_output(run, state, c, o, tally) for c, each in state.tallies.items() for o, tally in each.items()]
    verdict, reasons = _verdict(state, outputs, altered)
    proved, stream_us = state.proved_us, _stream_us(state)
    consistent = proved if state.wrong_us is None else min(proved, state.wrong_us)
    return Followed(
        name=run.path.resolve().name,
        folder=run.where,
        fingerprint=state.fingerprint,
        verdict=verdict,
        reasons=reasons,
        ended=state.over,
        judged_from=moment(BEFORE_TIME if state.judged_us is None else state.judged_us),
        judged_from_us=state.judged_us,
        proved_until=moment(proved),
        proved_us=_finite(proved),
        consistent_until=moment(consistent),
        consistent_us=_finite(consistent),
        waits_for=[waits_for] if waits_for else [],
        lookback_us={str(s): lookback_us[s] for s in run.plan.sources},
        stream_us=stream_us,
        steps=state.steps,
        seconds=round(state.seconds, 3),
        seconds_per_hour=round(state.seconds * _HOUR_US / stream_us, 3) if stream_us else None,
        outputs=outputs,
        sources=[
            FollowedSource(name=s, tuples=log.last_id, until=moment(log.bound_us), flaws=[*state.flaws.get(s, ())[:1]])
            for s, log in state.logs.items()
        ],
        versions={**run.facts.get("versions", {}), **({"spark": spark} if spark else {})},
        latest=state.latest,
    )


def _verdict(state: State, outputs: Sequence[FollowedOutput], altered: str) -> tuple[Verdict, list[str]]:
    judged = [(o.verdict, o.title, o.reasons) for o in outputs]
    flawed = [(Verdict.INCONSISTENT, f"source {s}", [text]) for s, (text, _) in state.flaws.items()]
    verdict, reasons = overall([*judged, *flawed])
    if altered:
        verdict, reasons = Verdict.INCONSISTENT, [*altered.splitlines(), *reasons]
    elif not outputs and not state.over:
        verdict, reasons = Verdict.UNKNOWN, [_GOES_ON]
    return verdict, [*reasons, state.not_judged] if state.not_judged else reasons


def _output(run: Run, state: State, client: str, output: str, tally: Tally) -> FollowedOutput:
    tracks = [state.channels[client][str(c)].track for c in run.channels(StreamId(output))]
    verdict, reasons = tally.verdict, tally.reasons
    if verdict is None:
        wrong = [f"{plural(tally.counts[f], 'tuple')} {f}" for f in Flaw if f in tally.counts]
        reasons = [*tally.mistyped, *wrong] or [_GOES_ON]
        verdict = Verdict.INCONSISTENT if tally.mistyped or wrong else Verdict.UNKNOWN
    return FollowedOutput(
        client=client,
        output=output,
        partitions=len(tracks),
        verdict=verdict,
        reasons=reasons,
        truth=tally.truth,
        stable=sum(t.stable for t in tracks),
        tentative=sum(t.tentative for t in tracks),
        undone=sum(t.undone for t in tracks),
        corrections=sum(t.corrections for t in tracks),
        findings=tally.findings,
    )


def _stream_us(state: State) -> int:
    """Returns the time from the first tuple to the end of the proved range; in the end, to the last event time."""
    if state.first_us is None:
        return 0
    ends = [state.proved_us, *(max(log.peak_us, log.promise_us) for log in state.logs.values())]
    known = [end for end in ends if BEFORE_TIME < end < END_OF_TIME]
    until = state.proved_us if state.proved_us < END_OF_TIME else max(known, default=state.first_us)
    return max(0, until - state.first_us)


def _finite(time_us: int) -> int | None:
    return None if abs(time_us) >= END_OF_TIME else time_us
