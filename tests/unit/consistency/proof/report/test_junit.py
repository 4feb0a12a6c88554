"""Reports for CI: what passes, what fails, what is an error."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from consistency.proof.report.junit import Case, cases_of, junit, unknown, write_junit
from consistency.proof.report.model import Report, SourceFacts, Verdict
from spe.errors import SpeError
from tests.support.reports import altered, report


def suite(*reports: Report) -> ET.Element:
    return ET.fromstring(junit([(one.name, 1.5, cases_of(one)) for one in reports]))


def test_consistent_run_passes_a_case_per_output_and_source() -> None:
    (one,) = suite(report())
    assert one.attrib == {"name": "demo", "tests": "3", "failures": "0", "errors": "0", "time": "1.500"}
    assert [case.get("name") for case in one] == ["dashboard · per_second", "source shop_a", "source shop_b"]
    assert all(len(case) == 0 for case in one)


def test_a_wrong_output_fails_with_its_first_tuples() -> None:
    found = report([altered()], Verdict.INCONSISTENT)
    found = found.model_copy(
        update={"outputs": [o.model_copy(update={"reasons": ["1 tuple altered"]}) for o in found.outputs]}
    )
    (one,) = suite(found)
    (failure,) = one.findall("testcase/failure")
    assert (one.get("failures"), one.get("errors")) == ("1", "0")
    assert failure.attrib == {"type": "INCONSISTENT", "message": "1 tuple altered"}
    assert "partition 0, 17, at 2026-11-21 08:37:36.999999: key 3" in str(failure.text)


def test_unproved_run_is_an_error() -> None:
    (one,) = suite(report(verdict=Verdict.UNKNOWN))
    assert (one.get("failures"), one.get("errors")) == ("0", "1")


def test_wrong_source_fails_and_reason_of_run_is_a_case() -> None:
    wrong = report().model_copy(
        update={"sources": [SourceFacts(name="a", tuples=1, late=0, complete=True, flaws=["1 row is missing"])]}
    )
    (failure,) = suite(wrong)[0].findall("testcase/failure")
    assert failure.get("message") == "1 row is missing"
    empty = report().model_copy(
        update={"outputs": [], "verdict": Verdict.UNKNOWN, "reasons": ["no client recorded anything"]}
    )
    (error,) = suite(empty)[0].findall("testcase[@name='run']/error")
    assert error.get("message") == "no client recorded anything"


def test_several_runs_are_suites_and_texts_are_legal_xml(tmp_path: Path) -> None:
    assert len(suite(report(name="a"), report(name="b"))) == 2
    write_junit(tmp_path / "found.xml", [("<a>", 0.0, [unknown("\x00 & <b> 'ü' \ud800")])])
    root = ET.fromstring((tmp_path / "found.xml").read_bytes())
    assert root[0].get("name") == "<a>"
    assert root[0][0][0].get("message") == "\ufffd & <b> 'ü' \ufffd"
    with pytest.raises(SpeError, match=r"none/found\.xml cannot be written"):
        write_junit(tmp_path / "none" / "found.xml", [("a", 0.0, [Case("b", Verdict.CONSISTENT)])])
