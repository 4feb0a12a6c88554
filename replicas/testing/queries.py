"""Reads the query of a test, in any of its forms."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from replicas.testing.blame import caller, wrong
from replicas.testing.tables import GivenTable, Layout, Timed
from spe.config import load_document, read_document
from spe.config.document import Document, parse
from spe.config.script import make_importable
from spe.errors import ConfigError
from spe.plan.deploy import Deployed
from spe.plan.plan import Plan
from spe.problems import Problems, did_you_mean, one_of
from spe.stream.names import StreamId


class _HasDocument(Protocol):
    def document(self) -> Document: ...


#: An :class:`spe.api.Environment`, a file, YAML as text (of several lines), or its data.
Query = _HasDocument | str | os.PathLike[str] | Mapping[str, Any]


def read_query(query: Query) -> tuple[Document, Deployed]:
    """Returns the document and the deployed plan of a query.  Raises ConfigError."""
    if isinstance(query, Mapping):
        document = Document(_place(), dict(query))
    elif isinstance(query, str) and "\n" in query:
        problems = Problems()
        document = parse(query, _place(), problems)
        if problems:
            raise ConfigError(document.in_order(problems))
    elif isinstance(query, str | os.PathLike):
        document = read_document(query)
        make_importable(Path(query).parent)
    elif hasattr(query, "document"):
        document = query.document()
    else:
        raise wrong(f"expected an Environment, a file, or a configuration as text or data, got {query!r}")
    return document, load_document(document)


def _place() -> str:
    mark = caller()
    return f"{mark.file}:{mark.line}: the configuration"


def layout_of_source(plan: Plan, name: str) -> Layout:
    """Returns the layout of a source's rows.  Raises ConfigError: there is no such source."""
    source = plan.sources.get(StreamId(name))
    if source is None:
        known = [str(s) for s in plan.sources]
        raise wrong(f"no source {name!r}{did_you_mean(name, known)}; expected {one_of(known)}")
    return Layout(source.schema, source.time, f"source {name}")


def layout_of_output(plan: Plan, name: str) -> Layout:
    """Returns the layout of an output's rows.  Raises ConfigError: clients cannot read such a stream."""
    if name not in plan.query.outputs:
        known = [str(s) for s in plan.query.outputs]
        raise wrong(f"no output {name!r}{did_you_mean(name, known)}; expected {one_of(known)}")
    return Layout(plan.query.schema_of(StreamId(name)), None, name)


def read_sources(plan: Plan, tables: Mapping[str, GivenTable]) -> dict[str, list[Timed]]:
    """Returns the tuples of every source; those without given rows have none.  Raises ConfigError."""
    nothing: dict[str, list[Timed]] = {str(name): [] for name in plan.sources}
    return nothing | {name: layout_of_source(plan, name).read(rows) for name, rows in tables.items()}
