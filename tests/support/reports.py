"""Reports made by hand: what a run of the quickstart might give."""

from __future__ import annotations

import json
from pathlib import Path

from jsonschema import Draft202012Validator

from consistency.proof.report.model import (
    Accuracy,
    Bin,
    Delay,
    FaultSpan,
    Flaw,
    FlawCount,
    Gaps,
    Healing,
    Offender,
    OutputReport,
    Promise,
    Report,
    Settings,
    SourceFacts,
    Span,
    Tentative,
    Track,
    Verdict,
    WindowAccuracy,
)
from consistency.proof.report.schema import REPORT_SCHEMA

SECOND = 1_000_000


def report(
    findings: list[FlawCount] | None = None, verdict: Verdict = Verdict.CONSISTENT, *, name: str = "demo"
) -> Report:
    """Forty seconds: a replica dies from 8 s to 12 s, a source is cut off from 18 s to 24 s."""
    return Report(
        name=name,
        folder=f"runs/{name}",
        cluster="quickstart",
        fingerprint="43ebddcaf09f1c003144dd34",
        begun="2026-11-21 08:37:34",
        duration_us=40 * SECOND,
        verdict=verdict,
        reasons=[] if verdict is Verdict.CONSISTENT else ["dashboard · per_second: as said below"],
        tolerance="Floats may differ by 1e-9 of their size, everything else not at all.",
        outputs=[output(findings or [], verdict)],
        faults=[
            FaultSpan(name="kill n1 for 4s", from_us=8 * SECOND, until_us=12 * SECOND, kind="kill", targets=["n1"]),
            FaultSpan(
                name="cut source:shop_a for 6s",
                from_us=18 * SECOND,
                until_us=24 * SECOND,
                kind="cut",
                targets=["source:shop_a"],
            ),
        ],
        replicas=[
            track(
                "totals/0@n1", "STABLE 0 8", "down 8 12", "RECOVERING 12 13", "STABLE 13 19.7", "UP_FAILURE 19.7 24.1"
            ),
            track("totals/0@n2", "STABLE 0 19.7", "UP_FAILURE 19.7 24.8", "STABILIZATION 24.8 25", "STABLE 25 40"),
        ],
        sources=[
            SourceFacts(name="shop_a", tuples=20_000, late=0, complete=True),
            SourceFacts(name="shop_b", tuples=12_000, late=None, complete=True),
        ],
        promises=[promise("n1"), promise("n2")],
        settings=Settings(x="2s", alpha="0.9", policies="process", reconcile="checkpoint", replicas=2, nodes=2),
        configuration="cluster: quickstart\nbucket: 100ms\n",
        versions={"spe": "0.1.0", "spark": "4.3.0"},
        timings_s={"start-up": 6.1, "truth and comparison": 9.4},
    )


def promise(node: str) -> Promise:
    """A promise that was kept, as the file says."""
    return Promise(
        node=node,
        unit="totals",
        x_us=2 * SECOND,
        share_us=2 * SECOND,
        alpha=0.9,
        policies="process",
        reconcile="checkpoint",
        since_us=-SECOND,
        waited_us=1_800_000,
        kept=True,
        differs="",
    )


def track(name: str, *spans: str) -> Track:
    """Spans as ``STATE FROM UNTIL``, in seconds."""
    parts = [text.split() for text in spans]
    return Track(
        name=name,
        spans=[Span(name=s, from_us=int(float(a) * SECOND), until_us=int(float(b) * SECOND)) for s, a, b in parts],
    )


def output(findings: list[FlawCount], verdict: Verdict = Verdict.CONSISTENT) -> OutputReport:
    """Eight groups a second; six seconds of them tentative, taken back at 24.2 s."""
    bins = []
    for second in range(41):
        cut = 20 <= second < 26
        bins.append(
            Bin(
                at_us=second * SECOND,
                stable=0 if 19 <= second < 24 else 56 if second == 24 else 8,
                tentative=8 if cut else 0,
                undone=48 if second == 24 else 0,
                delay_max_us=1_010_000 if cut else 330_000 + second % 3 * 20_000,
            )
        )
    windows = [
        WindowAccuracy(
            time=f"2026-11-21 08:37:{34 + n}.999999",
            at_us=(20 + n) * SECOND,
            tentative=8,
            truth=8,
            measures={"overlap": 1.0, "exact": 0.125 if n else 0.5, "error revenue": 0.46, "error mean_price": 0.02},
        )
        for n in range(6)
    ]
    measures = list(windows[0].measures)
    return OutputReport(
        client="dashboard",
        output="per_second",
        operator="aggregate",
        partitions=1,
        k=1,
        verdict=verdict,
        reasons=[],
        truth=328,
        stable=328,
        findings=findings,
        delay=Delay(
            max_us=1_013_000,
            p99_us=1_000_000,
            median_us=340_000,
            bound_us=2 * SECOND,
            predicted_us=2_100_000,
            kept=True,
        ),
        tentative=Tentative(
            count=48,
            right=4,
            wrong=44,
            undone=48,
            corrections=1,
            stood_median_us=2_100_000,
            stood_max_us=4_400_000,
            predicted=48,
        ),
        gaps=Gaps(any_us=1_650_000, stable_us=6_030_000),
        healing=Healing(healed_us=24 * SECOND, corrected_us=24_200_000, took_us=200_000),
        accuracy=Accuracy(
            key=["window_start", "key"],
            measures=measures,
            overall={"overlap": 1.0, "exact": 0.083, "error revenue": 0.44, "error mean_price": 0.019},
            worst=windows[1:4],
            windows=windows,
        ),
        bin_us=SECOND,
        bins=bins,
    )


def altered() -> FlawCount:
    """One tuple whose revenue is not the true one."""
    return FlawCount(
        flaw=Flaw.ALTERED,
        count=1,
        offenders=[
            Offender(
                partition=0,
                place=17,
                time="2026-11-21 08:37:36.999999",
                tuple={"key": 3, "orders": 76, "revenue": 44729.22},
                expected={"key": 3, "orders": 76, "revenue": 44729.0},
                at_us=3_300_000,
                around=["3.2 s  stable 16: key 2", "▸ 3.3 s  stable 17: key 3", "3.4 s  boundary 08:37:37"],
            )
        ],
    )


def check_schema(text: str, shipped: Path = REPORT_SCHEMA) -> None:
    """Raises ValidationError where a ``report.json`` is not valid by the schema that is shipped."""
    schema = json.loads(shipped.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(json.loads(text))
