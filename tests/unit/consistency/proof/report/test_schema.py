"""The JSON Schema that is shipped is that of the model, and reports are valid by it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import ValidationError

from consistency.proof.report.model import Evidence, FileDigest, Verdict
from consistency.proof.report.schema import FOLLOW_SCHEMA, REPORT_SCHEMA, schema_text
from tests.support.reports import altered, check_schema, report


@pytest.mark.parametrize("file", [REPORT_SCHEMA, FOLLOW_SCHEMA])
def test_schema_file_equals_the_model(file: Path) -> None:
    written = file.read_text(encoding="utf-8")
    assert written == schema_text(file), "python -m consistency.proof.report.schema writes it"


def test_reports_are_valid() -> None:
    digest = FileDigest(path="config.yaml", bytes=1, sha256="0" * 64, blocks=["0" * 16])
    for one in (report(), report([altered()], Verdict.INCONSISTENT)):
        check_schema(one.model_dump_json())
        check_schema(one.model_copy(update={"evidence": Evidence(files=[digest], outside=[])}).model_dump_json())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"verdict": "FINE"}, "FINE"),
        ({"version": 2}, "2"),
        ({"sources": {}}, "array"),
        ({"more": 1}, "more"),
        ({"outputs": [{}]}, "client"),
    ],
)
def test_invalid_report_is_rejected(change: dict[str, object], said: str) -> None:
    data = json.loads(report().model_dump_json()) | change
    with pytest.raises(ValidationError, match=said):
        check_schema(json.dumps(data))
