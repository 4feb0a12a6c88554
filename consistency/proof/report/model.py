"""The content of ``report.json``, from which the page is drawn.  Pure.

Times ``at_us`` are microseconds of wall time since the sources began; ``time`` is tuple time, as text in UTC.  Every
list but that of the files has a bound that does not depend on the size of the run.
"""

from __future__ import annotations

import enum
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from spe.descriptions import DescribedName

#: Changes when a field changes its meaning or is removed; new fields do not change it.
VERSION: Final = 1


class Verdict(enum.StrEnum):
    """The result of the proof of a run."""

    CONSISTENT = "CONSISTENT"
    INCONSISTENT = "INCONSISTENT"
    UNKNOWN = "UNKNOWN"


class Flaw(DescribedName):
    """Flaws of received output, the worst first."""

    UNDONE = "undone", "stable, and a later undo reached behind it"
    MISSING = "missing", "true, and not received although the client had its time as final"
    EXTRA = "extra", "stable, and not true"
    UNFOUNDED = "unfounded", "stable, from a time beyond what the source logs imply"
    ALTERED = "altered", "received under the id of a true tuple, with other contents"
    DUPLICATED = "duplicated", "stable more often than it is true"
    REORDERED = "reordered", "stable after one that is later in the truth"
    MISNUMBERED = "misnumbered", "stable behind a gap in the ids, of which none is missing in the truth"
    BELATED = "belated", "stable behind a boundary that had declared its time complete"
    OVERTAKEN = "overtaken", "tentative, and stable tuples followed before it was taken back"
    UNCORRECTED = "uncorrected", "tentative, and never taken back"


class ReportData(BaseModel):
    """A part of a report; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Offender(ReportData):
    """One wrong tuple.

    Attributes:
      place: its place in the stable stream of its partition, counted from 1: its id; of a tentative tuple its number
        among those received.
      time: its tuple time.
      tuple: the received values; of a missing tuple the true ones.
      expected: of an altered tuple, the true values.
      at_us: when it was received; None if it never was.
      around: elements that the client received before and after, in words, oldest first.
    """

    partition: int
    place: int
    time: str
    tuple: dict[str, Any]
    expected: dict[str, Any] | None = None
    at_us: int | None = None
    around: list[str] = Field(default_factory=list)


class FlawCount(ReportData):
    """All tuples of one output with the same flaw; ``offenders`` are the first ones."""

    flaw: Flaw
    count: int
    offenders: list[Offender]


class Span(ReportData):
    """A span of time; ``until_us`` is None where it had not ended when the run did."""

    name: str
    from_us: int
    until_us: int | None


class Track(ReportData):
    """States of a replica, over time."""

    name: str
    spans: list[Span]


class FaultSpan(Span):
    """A fault that was injected.

    Attributes:
      targets: the processes affected, or the ends of the links.
      kind: as in a fault file.
    """

    kind: str
    targets: list[str]


class Loss(ReportData):
    """A stretch of time in which no node ran some partitions.

    Attributes:
      fidelity: output fidelity that PPA's model expects for that time, 0 to 1.
      measured: by output, recall, or its first measure, over the windows with results in that time; None: no results.
    """

    from_us: int
    until_us: int
    partitions: list[str]
    fidelity: float
    measured: dict[str, float | None]


class Delay(ReportData):
    """Delay_new: how late new tuples came, by the definition of DPC, with the allowed and the predicted delay.

    Attributes:
      max_us, p99_us, median_us: of new tuples, on first receipt, at least 0; None where they are not known.
      bound_us: kX, as nodes announced it, or else by the copy of the configuration; where it changed, the bound that
        was missed by most or met by least.
      predicted_us: the longest delay by the model of DPC; None where nothing was tentative.
      kept: the longest was within the bound; None where that is not known.
      why: the reason why it is not known; "" where it is known, or where nothing new came.
    """

    max_us: int | None
    p99_us: int | None
    median_us: int | None
    bound_us: int
    predicted_us: int | None
    kept: bool | None
    why: str = ""


class Promise(ReportData):
    """The settings that a node announced for a unit that it ran, and how long it let its buckets wait.

    Attributes:
      x_us: X of the node.
      share_us: the share of X that the unit may use there.
      since_us: when the settings began to hold; before the run: negative.
      waited_us: the longest time from the first arrival of a bucket to its release.
      kept: waited_us is no more than the share.
      differs: differences from the copy of the configuration in the directory; "" if there are none.
      used_p99: 99 % of its releases had waited for at most this share of X, over the whole run; None: not known.
    """

    node: str
    unit: str
    x_us: int
    share_us: int
    alpha: float
    policies: str
    reconcile: str
    since_us: int
    waited_us: int
    kept: bool
    differs: str
    used_p99: float | None = None


class DirectoryChange(ReportData):
    """A version of the directory that the coordinator issued.

    Attributes:
      at_us: when; before the run: negative.
      number: of the version.
      why: the cause of the change.
    """

    at_us: int
    number: int
    why: str


class MoveReport(ReportData):
    """A partition that moved, or was to move; times count from the beginning of the run.

    Attributes:
      phase: the last phase that it reached.
      from_us, until_us: beginning and end of the move; None: it did not begin, or was not over.
      predicted_us: its expected duration; None: unknown.
      tentative: number of tuples that clients received in that time.
      delay_max_us: the longest delay of a result in that time; None: no result.
    """

    number: int
    partition: str
    source: str
    target: str
    reason: str
    phase: str
    why: str
    from_us: int | None
    until_us: int | None
    predicted_us: int | None
    tentative: int
    delay_max_us: int | None


class RecoveryStep(ReportData):
    """A partition that was lost while nodes had too little room for all; times count from the beginning of the run.

    Attributes:
      node: ordered to restore it, or ran it again without an order; "": it waited until the end.
      wanted_us: since when plans named it.
      assigned_us: when the node was first ordered; None: it was not.
      back_us: when the node ran it; None: it did not.
      predicted_us: the expected duration from then on; None: the configuration does not say.
      value_before, value: value of the results before and after, 0 to 1; None: it did not come back.
      tentative: tuples that came to clients since plans named it, until it was back.
      delay_max_us: the longest delay of a result in that time; None: no result.
      why: why the node did not run it; "": it did, or the reason is unknown.
    """

    partition: str
    node: str
    wanted_us: int
    assigned_us: int | None
    back_us: int | None
    predicted_us: int | None
    value_before: float | None
    value: float | None
    tentative: int
    delay_max_us: int | None
    why: str


class RecoveryReport(ReportData):
    """The order in which partitions came back while nodes had too little room for all of them (rules O1 to O6).

    Attributes:
      goal: ``fidelity`` or ``complete``, as ``recovery.value`` of the configuration.
      plans: how many the coordinator made.
      steps: in the order in which nodes were ordered, or ran a partition without an order.
    """

    goal: str
    plans: int
    steps: list[RecoveryStep]


class Tentative(ReportData):
    """The tentative tuples of one output at one client.

    Attributes:
      count: N_tentative, all that were received.
      right: number of tuples equal to a true one, within the float tolerance.
      wrong: number of the others.
      undone: number of revoked tuples.
      corrections: number of times that tuples were revoked.
      stood_median_us, stood_max_us: time from the receipt of a wrong tuple until it was revoked.
      predicted: the count by the model.
      impossible: number of tuples that no part of the sources' logs yields; None: not known for this query, or from
        logs that end early.
    """

    count: int
    right: int
    wrong: int
    undone: int
    corrections: int
    stood_median_us: int | None
    stood_max_us: int | None
    predicted: int | None
    impossible: int | None = None


class Gaps(ReportData):
    """The longest gaps: of any tuples, and of stable ones."""

    any_us: int
    stable_us: int


class Healing(ReportData):
    """Time from the end of the last failure to the last correction.

    Attributes:
      healed_us: when the last fault that made anything tentative ended; None: none did.
      corrected_us: when the last correction was complete.
      took_us: time between the two.
    """

    healed_us: int | None
    corrected_us: int | None
    took_us: int | None


class WindowAccuracy(ReportData):
    """Tentative results of one tuple time against the truth.

    Attributes:
      at_us: when the first of them was received; None where none was, though results of later times were.
      tentative, truth: number of results.
      measures: by name, 0 to 1 (or an error, 0 being none).
    """

    time: str
    at_us: int | None
    tentative: int
    truth: int
    measures: dict[str, float | None]


class Accuracy(ReportData):
    """Accuracy of the tentative results.

    Attributes:
      key: attributes that make a tentative tuple and a true one the same result.
      measures: names in the order of the configuration.
      overall: of all windows together.
      worst: the worst windows by the first measure.
      windows: at most a few hundred, merged over time where there are more.
    """

    key: list[str]
    measures: list[str]
    overall: dict[str, float | None]
    worst: list[WindowAccuracy]
    windows: list[WindowAccuracy]


class Bin(ReportData):
    """Tuples of an output that a client received within one interval of wall time."""

    at_us: int
    stable: int = 0
    tentative: int = 0
    undone: int = 0
    delay_max_us: int | None = None


class OutputReport(ReportData):
    """One output stream at one client.

    Attributes:
      operator: kind of the operator that makes it.
      k: SUnions on the longest path from a source.
      truth: stable tuples of a run without failures, as far as the logs tell.
      stable: stable tuples received.
      reasons: why the verdict is not CONSISTENT; or its evidence.
    """

    client: str
    output: str
    operator: str
    partitions: int
    k: int
    verdict: Verdict
    reasons: list[str]
    truth: int
    stable: int
    findings: list[FlawCount]
    delay: Delay
    tentative: Tentative
    gaps: Gaps
    healing: Healing
    accuracy: Accuracy | None
    bin_us: int
    bins: list[Bin]

    @property
    def title(self) -> str:
        return f"{self.client} · {self.output}"


class SourceFacts(ReportData):
    """A source's log: number of tuples, of late tuples, whether the source came to its end, and flaws.

    Attributes:
      compared: how it was compared with the input, or why not.
    """

    name: str
    tuples: int
    late: int | None
    complete: bool
    flaws: list[str] = Field(default_factory=list)
    compared: str = ""


class SinkFacts(ReportData):
    """A sink of a client, or of a source's late or rejected rows, against its recording.

    Attributes:
      sink: kind, place and owner.
      rows: number of final rows.
      equal: None: it was not compared; ``text`` has the reason.
    """

    sink: str
    rows: int
    equal: bool | None
    text: str


class Settings(ReportData):
    """The settings that decide delay and tentative tuples, for comparing runs."""

    x: str
    alpha: str
    policies: str
    reconcile: str
    replicas: int
    nodes: int


class LogReport(ReportData):
    """The checkpoint log of a replica (rule G7); times are without the start of the process.

    Attributes:
      recovered_us: duration of the longest restart from it; None: there was none.
      expected_us: expected duration of that restart.
      recovery_us: expected duration of a restart at the end of the run.
      least_us: the shortest that its share of the time allowed then.
      written_bytes, rewritten_bytes, kept_bytes: of one copy.
    """

    replica: str
    recoveries: int
    recovered_us: int | None
    expected_us: int | None
    recovery_us: int
    least_us: int
    written_bytes: int
    rewritten_bytes: int
    kept_bytes: int


class FileDigest(ReportData):
    """State of a file when the report was made.

    Attributes:
      path: below the directory of the run; the whole path of a file elsewhere.
      sha256: of the whole file.
      blocks: the CRC-32 of each block, in hexadecimal: a power of two of bytes, at least 4,096, at most 64 blocks.
    """

    path: str
    bytes: int
    sha256: str
    blocks: list[str]


class Evidence(ReportData):
    """The files that the report rests on.

    Attributes:
      files: configuration, logs, recordings and events; one for each segment.
      outside: files that sources replayed, and modules that the query names.
    """

    files: list[FileDigest]
    outside: list[FileDigest]


class Report(ReportData):
    """The report on one run.

    Attributes:
      recovery: None where there was room for all lost partitions.
      evidence: None while the run goes on.
    """

    version: Literal[1] = VERSION
    name: str
    folder: str
    cluster: str
    fingerprint: str
    begun: str
    duration_us: int
    verdict: Verdict
    reasons: list[str]
    tolerance: str
    outputs: list[OutputReport]
    faults: list[FaultSpan]
    replicas: list[Track]
    losses: list[Loss] = Field(default_factory=list)
    promises: list[Promise] = Field(default_factory=list)
    logs: list[LogReport] = Field(default_factory=list)
    changes: list[DirectoryChange] = Field(default_factory=list)
    moves: list[MoveReport] = Field(default_factory=list)
    recovery: RecoveryReport | None = None
    sources: list[SourceFacts]
    sinks: list[SinkFacts] = Field(default_factory=list)
    settings: Settings
    configuration: str
    versions: dict[str, str]
    timings_s: dict[str, float]
    evidence: Evidence | None = None
