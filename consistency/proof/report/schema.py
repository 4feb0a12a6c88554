"""The JSON Schemas of ``report.json`` and ``follow.json``, stored beside this module: ``python -m`` writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from consistency.proof.report import follow_model, model

_HERE: Final = Path(__file__).parent
REPORT_SCHEMA: Final = _HERE / "report.schema.json"
FOLLOW_SCHEMA: Final = _HERE / "follow.schema.json"
#: By file, the title and the model.
_MODELS: Final[Mapping[Path, tuple[str, type[model.ReportData]]]] = {
    REPORT_SCHEMA: (f"report.json of spe report, version {model.VERSION}", model.Report),
    FOLLOW_SCHEMA: (f"follow.json of spe report --follow, version {follow_model.VERSION}", follow_model.Followed),
}


def schema_text(file: Path) -> str:
    """Returns the content of one of the files."""
    title, described = _MODELS[file]
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    fields = {k: v for k, v in described.model_json_schema().items() if k != "title"}
    return json.dumps({**draft, **fields}, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for file in _MODELS:
        file.write_text(schema_text(file), encoding="utf-8")
