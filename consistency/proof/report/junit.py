"""Reports in the form of JUnit, which CI systems show: a suite per run, a case per output and source.  Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from consistency.proof.report.model import OutputReport, Report, Verdict
from consistency.proof.report.words import count
from spe.errors import SpeError

#: What XML 1.0 cannot hold.
_FORBIDDEN: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Case:
    """One test case.

    Attributes:
      name: of it.
      verdict: CONSISTENT passes, INCONSISTENT fails, UNKNOWN is an error.
      message, details: what is wrong, in one line and in all.
    """

    def __init__(self, name: str, verdict: Verdict, reasons: Sequence[str] = (), details: Iterable[str] = ()) -> None:
        self.name = name
        self.verdict = verdict
        self.message = "; ".join(reasons)
        self.details = [*reasons, *details]


def cases_of(report: Report) -> list[Case]:
    """A case per output at each client, source and sink that was compared; one of the run where they are right."""
    found = [Case(o.title, o.verdict, o.reasons, _offenders(o)) for o in report.outputs]
    found += [
        Case(f"source {s.name}", Verdict.INCONSISTENT if s.flaws else Verdict.CONSISTENT, s.flaws)
        for s in report.sources
    ]
    found += [
        Case(f"sink {s.sink}", Verdict.CONSISTENT if s.equal else Verdict.INCONSISTENT, [] if s.equal else [s.text])
        for s in report.sinks
        if s.equal is not None
    ]
    if report.verdict is not Verdict.CONSISTENT and all(c.verdict is Verdict.CONSISTENT for c in found):
        found.append(Case("run", report.verdict, report.reasons))
    return found


def junit(suites: Iterable[tuple[str, float, Sequence[Case]]]) -> str:
    """The file.

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
        for one in cases:
            made = ET.SubElement(suite, "testcase", classname=_text(name), name=_text(one.name))
            if one.verdict is not Verdict.CONSISTENT:
                kind = "failure" if one.verdict is Verdict.INCONSISTENT else "error"
                found = ET.SubElement(made, kind, type=str(one.verdict), message=_text(one.message))
                found.text = _text("\n".join(one.details))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def unknown(why: str) -> Case:
    """The case of a run that could not be judged."""
    return Case("run", Verdict.UNKNOWN, [why])


def write_junit(file: Path, suites: Iterable[tuple[str, float, Sequence[Case]]]) -> None:
    """Writes the file.  Takes what :func:`junit` takes; raises SpeError where it cannot be written."""
    try:
        file.write_text(junit(suites), encoding="utf-8")
    except OSError as error:
        raise SpeError(f"{file} cannot be written: {error.strerror}") from error


def _offenders(output: OutputReport) -> Iterable[str]:
    for finding in output.findings:
        yield f"{count(finding.count)} {finding.flaw}"
        for one in finding.offenders:
            shown = ", ".join(f"{k} {v}" for k, v in one.tuple.items())
            yield f"  partition {one.partition}, {count(one.place)}, at {one.time}: {shown}"


def _text(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
