"""The content of ``follow.json``: the proof of a run that goes on, as data.  Pure.

Its size does not depend on that of the run.  Tuple times are microseconds since 1970, and text in UTC.
"""

from __future__ import annotations

from typing import Final, Literal

from consistency.proof.report.model import FlawCount, ReportData, Verdict

#: Changes when a field changes its meaning or is removed; new fields do not change it.
VERSION: Final = 1


class FollowedStep(ReportData):
    """A range of tuple time that was proved.

    Attributes:
      since_us, until_us: None: the beginning, and the end.
      source_bytes: size of the new part of the sources' logs.
      truth, received: results in the range, over all outputs and clients.
      flaws: number of wrong tuples.
      seconds: duration of the step.
    """

    number: int
    since_us: int | None
    until_us: int | None
    source_bytes: int
    truth: int
    received: int
    flaws: int
    seconds: float


class FollowedOutput(ReportData):
    """The part of one output at one client that was proved.

    Attributes:
      truth, stable: tuples of a run without failures, and stable ones received.
      tentative, undone, corrections: number of tentative tuples, of revoked ones, and of corrections.
      reasons: why the verdict is not CONSISTENT.
    """

    client: str
    output: str
    partitions: int
    verdict: Verdict
    reasons: list[str]
    truth: int
    stable: int
    tentative: int
    undone: int
    corrections: int
    findings: list[FlawCount]

    @property
    def title(self) -> str:
        return f"{self.client} · {self.output}"


class FollowedSource(ReportData):
    """A source's log: number of tuples read, their last tuple time, and flaws."""

    name: str
    tuples: int
    until: str
    flaws: list[str]


class Followed(ReportData):
    """The proof of one run, so far.

    Attributes:
      verdict: on the part judged; UNKNOWN as long as the run goes on and nothing is wrong.
      reasons: why the verdict is not CONSISTENT, and which part was not judged.
      ended: the run is over, and all of it was proved: the verdict is final.
      judged_from, judged_from_us: where the comparison begins, since earlier data were deleted; None: the beginning.
      proved_until, proved_us: end of the part compared; None: nothing, or all of it.
      consistent_until, consistent_us: end of the part that is CONSISTENT.
      waits_for: the processes that the next step waits for, with their progress.
      lookback_us: by source, the part of its log that each step reads again.
      stream_us: tuple time proved, from the first tuple on.
      steps, seconds: number of steps, and their total duration.
      seconds_per_hour: of tuple time; None: nothing was proved yet.
      latest: the last steps.
    """

    version: Literal[1] = VERSION
    name: str
    folder: str
    fingerprint: str
    verdict: Verdict
    reasons: list[str]
    ended: bool
    judged_from: str = "the beginning"
    judged_from_us: int | None = None
    proved_until: str
    proved_us: int | None
    consistent_until: str
    consistent_us: int | None
    waits_for: list[str]
    lookback_us: dict[str, int]
    stream_us: int
    steps: int
    seconds: float
    seconds_per_hour: float | None
    outputs: list[FollowedOutput]
    sources: list[FollowedSource]
    versions: dict[str, str]
    latest: list[FollowedStep]
