"""Runs the code of a page that adds to the tables of the engine, and takes the additions back."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from consistency.proof.recorded.query_file import WINDOWS
from spe.query.aggregates import AGGREGATES
from spe.query.windows import KINDS

PAGES = Path(__file__).parents[2] / "docs" / "internals"


@contextmanager
def added_by_page(name: str) -> Iterator[None]:
    (code,) = re.findall(r"^```python\n(.*?)^```", (PAGES / name).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    tables: tuple[Any, ...] = (AGGREGATES, KINDS, WINDOWS)
    before = [len(table) for table in tables]
    page = ModuleType(name)
    with patch.dict(AGGREGATES), patch.dict(KINDS), patch.dict(WINDOWS), patch.dict(sys.modules, {name: page}):
        exec(compile(code, name, "exec"), page.__dict__)
        assert [len(table) for table in tables] != before
        yield
