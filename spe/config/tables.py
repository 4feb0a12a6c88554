"""Tables of the documentation that declarations make: ``python -m spe.config.tables docs/reference/*.md``.

In a page, what stands between the lines ``<!-- generated: NAME -->`` and ``<!-- end -->`` is replaced.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic.fields import FieldInfo

from spe.query.operators import OPERATORS

_PLACE: Final = re.compile(r"(<!-- generated: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str) -> str:
    """The page with its tables as they are to be."""
    return _PLACE.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], page)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return (
        "".join("| " + " | ".join(line) + " |\n" for line in lines).replace("| --- ", "|---").replace("--- |", "---|")
    )


def _guarantees() -> str:
    rows = [
        (f"{keyword}, {one.what}" if one.what else keyword, one.time, one.order)
        for keyword, declared in OPERATORS.items()
        for one in declared.GUARANTEES
    ]
    return _table(("operator", "time of a result", "order of results of equal time"), rows)


def _keys() -> str:
    rows = [
        (f"`{keyword}`" if i == 0 else "", f"`{field.alias or name}`", _default(field), str(field.description))
        for keyword, declared in OPERATORS.items()
        for i, (name, field) in enumerate(declared.KEYS.model_fields.items())
    ]
    return _table(("operator", "key", "default", ""), rows)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True)
    if value is None or value in ((), {}):
        return "none"
    if isinstance(value, tuple):
        return f"`[{', '.join(value)}]`"
    return f"`{str(value).lower()}`"


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "guarantees of the operators": _guarantees,
    "keys of the operators": _keys,
}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(filled(Path(name).read_text(encoding="utf-8")), encoding="utf-8")
