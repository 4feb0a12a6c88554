"""The JSON Schema of ``report.json``, stored as ``report.schema.json``: ``python -m`` writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from consistency.proof.report.model import VERSION, Report

SCHEMA: Final = Path(__file__).with_name("report.schema.json")


def json_schema() -> dict[str, Any]:
    """Returns the schema of the model."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"report.json of spe report, version {VERSION}",
        **{k: v for k, v in Report.model_json_schema().items() if k != "title"},
    }


def text() -> str:
    """Returns the content of the file."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(text(), encoding="utf-8")
