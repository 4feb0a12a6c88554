"""Reports in JUnit's format, which CI systems show: a suite per run, a case per output and source.  Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from consistency.proof.report.model import OutputReport, Report, Verdict
from consistency.proof.report.words import count
from spe.errors import SpeError

#: Characters that XML 1.0 forbids.
_FORBIDDEN: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Case:
    """One test case.

    Attributes:
      name: name of the case.
      verdict: CONSISTENT passes, INCONSISTENT fails, UNKNOWN is an error.
      message, details: the flaw, in one line and in full.
    """

    def __init__(self, name: str, verdict: Verdict, reasons: Sequence[str] = (), details: Iterable[str] = ()) -> None:
        self.name = name
        self.verdict = verdict
        self.message = "; ".join(reasons)
        self.details = [*reasons, *details]


def cases_of(report: Report) -> list[Case]:
    """Returns a case per output at each client, source and compared sink; one for the run if all of them pass."""
    cases = [Case(o.title, o.verdict, o.reasons, _offenders(o)) for o in report.outputs]
    cases += [
        Case(f"source {s.name}", Verdict.INCONSISTENT if s.flaws else Verdict.CONSISTENT, s.flaws)
        for s in report.sources
    ]
    cases += [
        Case(f"sink {s.sink}", Verdict.CONSISTENT if s.equal else Verdict.INCONSISTENT, [] if s.equal else [s.text])
        for s in report.sinks
        if s.equal is not None
    ]
    if report.verdict is not Verdict.CONSISTENT and all(c.verdict is Verdict.CONSISTENT for c in cases):
        cases.append(Case("run", report.verdict, report.reasons))
    return cases


def junit(suites: Iterable[tuple[str, float, Sequence[Case]]]) -> str:
    """Returns the content of the file.

    Args:
      suites: name, seconds, cases.
    """
    root = ET.Element("testsuites", name="spe")
    for name, took_s, cases in suites:
        failed = sum(c.verdict is Verdict.INCONSISTENT for c in cases)
        unknown = sum(c.verdict is Verdict.UNKNOWN for c in cases)
        suite = ET.SubElement(
            root,
            "testsuite",
            name=_text(name),
            tests=str(len(cases)),
            failures=str(failed),
            errors=str(unknown),
            time=f"{took_s:.3f}",
        )
        for case in cases:
            made = ET.SubElement(suite, "testcase", classname=_text(name), name=_text(case.name))
            if case.verdict is not Verdict.CONSISTENT:
                kind = "failure" if case.verdict is Verdict.INCONSISTENT else "error"
                problem = ET.SubElement(made, kind, type=str(case.verdict), message=_text(case.message))
                problem.text = _text("\n".join(case.details))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def unknown(why: str) -> Case:
    """Returns the case of a run that could not be judged."""
    return Case("run", Verdict.UNKNOWN, [why])


def write_junit(file: Path, suites: Iterable[tuple[str, float, Sequence[Case]]]) -> None:
    """Writes the file.  Takes the arguments of :func:`junit`; raises SpeError where it cannot be written."""
    try:
        file.write_text(junit(suites), encoding="utf-8")
    except OSError as error:
        raise SpeError(f"{file} cannot be written: {error.strerror}") from error


def _offenders(output: OutputReport) -> Iterable[str]:
    for finding in output.findings:
        yield f"{count(finding.count)} {finding.flaw}"
        for offender in finding.offenders:
            shown = ", ".join(f"{k} {v}" for k, v in offender.tuple.items())
            yield f"  partition {offender.partition}, {count(offender.place)}, at {offender.time}: {shown}"


def _text(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
