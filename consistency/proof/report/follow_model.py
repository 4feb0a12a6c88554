"""The proof of a run that goes on, as data: what ``follow.json`` holds.  Pure.

Its size does not depend on that of the run.  Tuple times are microseconds since 1970, and text in UTC.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from consistency.proof.report.model import FlawCount, Verdict

#: Changes when a field means something else or is gone; new fields do not change it.
VERSION: Final = 1
SCHEMA: Final = Path(__file__).with_name("follow.schema.json")


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FollowedStep(_Data):
    """A range of tuple time that was proved.

    Attributes:
      since_us, until_us: None: the beginning, and the end.
      source_bytes: of the sources' logs, not read before.
      truth, received: results in the range, over all outputs and clients.
      flaws: tuples that are wrong.
      seconds: it took.
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
    """One output at one client, as far as it was proved.

    Attributes:
      truth, stable: tuples of a run without failures, and stable ones received.
      tentative, undone, corrections: tentative tuples, those that were taken back, and how often that was.
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
    """A source's log: tuples up to where it was read, how far they go in tuple time, and what is wrong."""

    name: str
    tuples: int
    until: str
    flaws: list[str]


class Followed(_Data):
    """Everything about one run, so far.

    Attributes:
      verdict: on what was judged; UNKNOWN as long as the run goes on and nothing is wrong.
      reasons: why the verdict is not CONSISTENT, and what was not judged.
      ended: the run is over, and all of it was proved: the verdict is final.
      judged_from, judged_from_us: nothing before was compared, since something of it was deleted; None: the beginning.
      proved_until, proved_us: everything else before was compared; None: nothing, or all of it.
      consistent_until, consistent_us: everything before that was compared is CONSISTENT.
      waits_for: what the next step waits for, with how far it is.
      lookback_us: by source, how much of its log each step reads again.
      stream_us: tuple time proved, from the first tuple on.
      steps, seconds: how many, and what they took together.
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
    """What the model says."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"follow.json of spe report --follow, version {VERSION}",
        **{k: v for k, v in Followed.model_json_schema().items() if k != "title"},
    }


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
