"""Options of a running cluster: each mistake is told with the option's name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replicas.spark.options import read_options, token
from spe.errors import SpeError


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "shop.yaml"
    path.write_text("")
    return str(path)


def test_option_names_ignore_case_and_spark_options(config: str) -> None:
    found = read_options(
        {"Cluster": config, "OUTPUT": "best", "client": "spark", "Rows": "7", "checkpointLocation": "x", "path": "y"}
    )

    assert (found.output, found.client, found.rows, found.mode, found.begin) == ("best", "spark", 7, "stable", "first")
    assert found.patience == 60.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"output": None}, "the option output is missing"),
        ({"client": None}, "the option client is missing"),
        ({"rows": "many"}, "option rows: expected a number of rows, from 1, got 'many'"),
        ({"rows": "0"}, "option rows: expected a number of rows"),
        ({"mode": "changed"}, "option mode: expected .*stable, changes.*did you mean 'changes'"),
        ({"begin": "latest"}, "option begin: expected .*first, oldest, now"),
        ({"patience": "soon"}, "option patience: "),
        ({"cluster": "nowhere.yaml"}, "option cluster: expected the configuration of the cluster"),
        ({"cluster": "h1:7001,h2:7001"}, "addresses alone do not say what the streams are"),
        ({"outputs": "best"}, r"no option 'outputs' \(did you mean 'output'\?\)"),
    ],
)
def test_wrong_option_is_reported(config: str, change: dict[str, str | None], said: str) -> None:
    options = {"cluster": config, "output": "best", "client": "spark", **change}
    with pytest.raises(SpeError, match=said):
        read_options({name: value for name, value in options.items() if value is not None})


@pytest.mark.parametrize("name", ["token", "Password", "tls.key", "ssl_key", "client_secret", "certificate", "pem"])
def test_a_credential_is_refused_and_not_repeated(config: str, name: str) -> None:
    with pytest.raises(SpeError, match=r"Spark shows options on its pages.*SPE_TOKEN") as caught:
        read_options({"cluster": config, "output": "best", "client": "spark", name: "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_token_comes_from_file_then_environment_then_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("of the run")
    (tmp_path / "cluster.json").write_text(json.dumps({"secret": str(tmp_path / "secret")}))
    (tmp_path / "token").write_text("of the file\n")
    monkeypatch.delenv("SPE_TOKEN", raising=False)
    assert token(Path(), tmp_path) == "of the run"
    assert token(Path(), tmp_path / "shop.yaml") == ""
    monkeypatch.setenv("SPE_TOKEN", "of the environment")
    assert token(Path(), tmp_path) == "of the environment"
    assert token(tmp_path / "token", tmp_path) == "of the file"
    with pytest.raises(SpeError, match="token of the cluster cannot be read"):
        token(tmp_path / "none", tmp_path)
