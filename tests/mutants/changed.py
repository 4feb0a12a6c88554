"""A pytest plugin: the engine with the mistake that MUTANT names (tests.mutants.texts).

The text changes as its module is imported, and no file is written.  A run that never imports the module ends with an
error, for its tests say nothing of the mistake.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from types import CodeType, ModuleType

import pytest

from tests.mutants.texts import ROOT, TEXTS

MUTANT = TEXTS[os.environ["MUTANT"]]
MODULE = MUTANT.path.removesuffix(".py").replace("/", ".")
if MODULE in sys.modules:
    raise pytest.UsageError(f"{MODULE} was imported before it could be changed")


class _Changing(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        return compile(MUTANT.changed(), self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != MODULE:
            return None
        file = str(ROOT / MUTANT.path)
        return spec_from_file_location(fullname, file, loader=_Changing(fullname, file))


sys.meta_path.insert(0, _Finder())


def pytest_sessionfinish(session: pytest.Session) -> None:
    if MODULE not in sys.modules:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
