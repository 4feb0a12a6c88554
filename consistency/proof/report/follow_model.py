"""The content of ``follow.json``: the proof of a run that goes on, as data.  Pure.

Its size does not depend on that of the run.  Tuple times are microseconds since 1970, and text in UTC.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from consistency.proof.report.model import FlawCount, Verdict

#: Changes when a field changes its meaning or is removed; new fields do not change it.
VERSION: Final = 1
SCHEMA: Final = Path(__file__).with_name("follow.schema.json")


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FollowedStep(_Data):
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


class FollowedOutput(_Data):
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


class FollowedSource(_Data):
    """A source's log: number of tuples read, their last tuple time, and flaws."""

    name: str
    tuples: int
    until: str
    flaws: list[str]


class Followed(_Data):
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


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema of the model."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"follow.json of spe report --follow, version {VERSION}",
        **{k: v for k, v in Followed.model_json_schema().items() if k != "title"},
    }


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
