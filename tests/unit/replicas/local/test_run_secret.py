"""The secret of a run: where it is, who reads it, and when it is gone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replicas.local.run_secret import kept_secret, read_secret
from spe.errors import SpeError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return tmp_path


def test_only_its_owner_reads_it_and_only_while_the_run_lasts(home: Path) -> None:
    with kept_secret() as (token, path):
        assert path.parent == home / "state/spe"
        assert len(token) > 20
        assert read_secret(str(path)) == token
        assert (path.stat().st_mode | path.parent.stat().st_mode) & 0o077 == 0
    assert not path.exists()
    assert read_secret(str(path)) == read_secret("") == ""


def test_each_run_has_a_secret_and_dead_ones_are_removed(home: Path) -> None:
    folder = home / "state/spe"
    folder.mkdir(parents=True, mode=0o700)
    (folder / f"{2**22 + 1}-ab.token").write_text("old")  # beyond the largest pid
    with kept_secret() as (one, first), kept_secret() as (other, second):
        assert one != other
        assert {p.name for p in folder.iterdir()} == {first.name, second.name}


def test_a_folder_that_others_can_enter_is_not_used(home: Path) -> None:
    (home / "state/spe").mkdir(parents=True)
    (home / "state/spe").chmod(0o755)
    with kept_secret() as (_, path):
        assert path.parent == home / "home/.local/state/spe"
    (home / "home/.local/state/spe").chmod(0o777)
    with kept_secret() as (_, path):
        assert path.parent == home / f"temporary/spe-{os.getuid()}"
    (home / f"temporary/spe-{os.getuid()}").chmod(0o755)
    with pytest.raises(SpeError, match=r"kept in none of .*state/spe, .*expected one that is ours"), kept_secret():
        pass
