"""Sessions that are refused, before anything is started."""

from __future__ import annotations

import socket
from typing import Any

import pytest

import spe
from consistency.proof.session.session import check_version, session, within
from spe.errors import SpeError


@pytest.fixture(autouse=True)
def _no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "consistency.proof.session.session._prepare_environment", lambda: pytest.fail("Spark is started")
    )
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("master", "conf", "env", "said"),
    [
        ("sc://host:15002", {}, {}, "--master sc://host:15002: Spark Connect is not supported"),
        (None, {"spark.remote": "local"}, {}, "--conf spark.remote local: Spark Connect is not supported"),
        (None, {}, {"SPARK_REMOTE": "sc://host"}, "SPARK_REMOTE sc://host: Spark Connect is not supported"),
        ("local[*]", {}, {"SPARK_CONNECT_MODE_ENABLED": "1"}, "expected the master of a cluster, such as local"),
    ],
)
def test_spark_connect_is_refused_by_name(
    master: str | None, conf: dict[str, str], env: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SpeError) as caught:
        session("test", master=master, conf=conf)
    assert said in str(caught.value)


def test_absent_master_is_reported_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark would take a minute, and say that its context was stopped."""
    monkeypatch.setattr("consistency.proof.session.session.java_home", lambda: pytest.fail("Java is looked for"))
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{nobody.getsockname()[1]}"
        for given, conf in ((master, {}), (None, {"spark.master": master})):
            with pytest.raises(SpeError, match=f"--master {master} does not answer: .* Connection refused"):
                session("test", master=given, conf=conf)


def test_a_session_of_spark_connect_is_refused_by_name() -> None:
    pytest.importorskip("pyspark")
    made: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    for refuse in (within, lambda one: spe.prove(one, "runs/none")):
        with pytest.raises(SpeError, match="this session is of Spark Connect: Spark Connect is not supported"):
            refuse(made)
    nothing: Any = None
    with pytest.raises(SpeError, match="expected a SparkSession, got NoneType"):
        within(nothing)


@pytest.mark.parametrize("version", ["3.5.4", "4.0.1", "4.2.0", "5.0.0"])
def test_a_release_that_was_never_tried_is_refused(version: str) -> None:
    with pytest.raises(SpeError, match=rf"Spark {version} is not supported; expected 4\.3 or later, before 5\.0"):
        check_version(version)


@pytest.mark.parametrize("version", ["4.3.0", "4.10.2", "4.4.0.dev1"])
def test_other_releases_are_taken(version: str) -> None:
    check_version(version)


def test_the_package_has_nothing_else_that_is_loaded_later() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'proof'"):
        spe.proof  # noqa: B018
