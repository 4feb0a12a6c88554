"""What of Spark cannot run nodes is refused in a sentence, before anything starts."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicas.cli.app import execute
from replicas.on_spark.session import check_master, check_settings, expected_executors
from spe.errors import SpeError
from tests.support.sights import CONFIG


@pytest.fixture
def free_port() -> Iterator[int]:
    """Nobody listens there."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        yield one.getsockname()[1]


@pytest.mark.parametrize("master", ["local", "local[*]", "local[4]", "local[2,3]"])
def test_a_spark_of_one_process_is_refused(master: str) -> None:
    with pytest.raises(SpeError, match=r"in one process, .* expected a cluster, or local-cluster"):
        check_master(master)


def test_silent_master_is_reported_at_once(free_port: int) -> None:
    for master in (f"spark://127.0.0.1:{free_port}", f"k8s://https://127.0.0.1:{free_port}"):
        with pytest.raises(SpeError, match=f"does not answer: 127.0.0.1:{free_port}: Connection refused"):
            check_master(master)
    with pytest.raises(SpeError, match="expected HOST:PORT, got 'host:http'"):
        check_master("spark://host:http")


def test_one_of_several_masters_has_to_answer(free_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        check_master(f"spark://127.0.0.1:{free_port},127.0.0.1:{one.getsockname()[1]}")


def test_spark_connect_and_unknown_yarn_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpeError, match="Spark Connect cannot run nodes"):
        check_master("sc://host")
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SpeError, match="yarn needs HADOOP_CONF_DIR or YARN_CONF_DIR"):
        check_master("yarn")
    monkeypatch.setenv("YARN_CONF_DIR", "/etc/hadoop")
    check_master("yarn")


@pytest.mark.parametrize("name", ["spark.speculation", "spark.dynamicAllocation.enabled"])
def test_settings_that_would_stop_nodes_are_refused(name: str) -> None:
    check_settings({name: "false"})
    with pytest.raises(SpeError, match=f"{name} must be false for nodes: it (starts|takes) "):
        check_settings({name: "True"})


def test_expected_executors_come_from_master_or_setting() -> None:
    assert expected_executors("local-cluster[3, 1, 1024]", {}) == 3
    assert expected_executors("yarn", {"spark.executor.instances": "4"}) == 4
    assert expected_executors("spark://host:7077", {}) is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--on", "spark"], "--on spark needs --master URL"),
        (["--on", "spark", "--master", "local[2]"], "runs all tasks in one process"),
        (["--on", "spark", "--master", "yarn", "--links", "proxy"], "--links proxy does not go with --on spark"),
        (
            ["--on", "spark", "--master", "local-cluster[2,1,512]", "--conf", "spark.speculation=true"],
            "spark.speculation must be false",
        ),
        (["--master", "yarn"], "--master and --conf go with --on spark"),
    ],
)
def test_a_run_that_is_refused_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    (tmp_path / "small.yaml").write_text(CONFIG)
    assert execute(["run", str(tmp_path / "small.yaml"), "--run-dir", str(tmp_path / "run"), *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
