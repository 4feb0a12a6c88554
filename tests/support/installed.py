"""A package with connectors, installed for the length of a test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from spe.connectors import installed_connectors as installed

#: Declarations of a reader and a sink that exist nowhere.
SHELF = '''
from typing import Annotated
from pydantic import Field
from spe.connectors.declaration import CURRENT, STABLE, Guarantees, Reader, SinkDeclaration
from spe.values import Address, Model

class Options(Model):
    """Where the shelf is."""
    address: Address = Field(description="of the shelf")
    row: Annotated[int, Field(ge=1)] = Field(default=1, description="from below")

class Shelf(Reader):
    live = True

states = Guarantees("on the shelf", "nothing is lost", "nothing is lost", {"it falls": "waits"})
READER = Shelf("shelf", Options, "{address: …}", "rows on a shelf", ("format",), states, "shelf.impl:ShelfReader")
SINK = SinkDeclaration("shelf", Options, "{address: …}", "a shelf", {STABLE: "final rows", CURRENT: "all rows"}, states,
            "shelf.impl:ShelfSink")
NO_STATES = Shelf("empty", Options, "", "")
'''


def install(
    monkeypatch: pytest.MonkeyPatch, folder: Path, readers: dict[str, str], sinks: dict[str, str], name: str = "shelves"
) -> None:
    """Makes a distribution that pip could have put there, and the module ``shelf`` with SHELF.

    Args:
      readers, sinks: entry points, ``kind -> module:name``.
    """
    (folder / "shelf").mkdir(exist_ok=True)
    (folder / "shelf" / "__init__.py").write_text(SHELF)
    install_points(monkeypatch, folder, {installed.READERS_GROUP: readers, installed.SINKS_GROUP: sinks}, name)


def install_points(
    monkeypatch: pytest.MonkeyPatch, folder: Path, groups: Mapping[str, Mapping[str, str]], name: str
) -> None:
    """A distribution with these entry points; to be forgotten by ``installed.cache_clear()``."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for group, points in groups.items():
        lines += [f"[{group}]", *(f"{kind} = {value}" for kind, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(installed, "_LOADED", {})
    installed.installed.cache_clear()
