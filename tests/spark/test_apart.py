"""Executors with a disk of their own: Java processes that do not see the folder in which driver and run are.

``local-cluster`` starts them, with a Java that first hides that folder from itself (a mount namespace, so root only).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from consistency.proof.session.java import java_home
from tests.spark.test_objects import URI, a_run
from tests.support.s3_server import S3WithKeys, s3_with_keys

pytestmark = [pytest.mark.long, pytest.mark.processes]

_NEEDED = ["unshare", "-m", "sh", "-c", "mount -t tmpfs none /mnt"]
_PATIENCE_S = 900  # three Java processes start, perhaps on two cores that others use, too


@pytest.fixture(scope="module")
def store() -> Iterator[S3WithKeys]:
    if subprocess.run(_NEEDED, capture_output=True).returncode:
        pytest.skip("the kernel lets us hide no folder from a process")
    with s3_with_keys() as found:
        yield found


@pytest.fixture
def hidden(tmp_path: Path) -> Path:
    """The folder that executors do not see."""
    (tmp_path / "hidden" / "tmp").mkdir(parents=True)
    return tmp_path / "hidden"


def spe(
    hidden: Path, environment: dict[str, str], *words: str, sets: str = "NOTHING=0"
) -> subprocess.CompletedProcess[str]:
    """A command whose executors see no ``hidden``, and have the variable that is ``sets``."""
    java, home = hidden.parent / "java", hidden.parent / "spark"
    (java / "bin").mkdir(parents=True)
    (java / "bin" / "java").write_text(
        f"#!/bin/sh\nexport {sets}\n"
        f'exec unshare -m sh -c \'mount -t tmpfs none {hidden} && exec {java_home()}/bin/java "$@"\' sh "$@"\n'
    )
    (java / "bin" / "java").chmod(0o755)
    home.mkdir()  # executors write into its folder work
    for one in Path(pyspark.__path__[0]).iterdir():
        (home / one.name).symlink_to(one)
    known = {**os.environ, **environment, "SPARK_HOME": str(home), "TMPDIR": str(hidden / "tmp")}
    conf = {
        "spark.executorEnv.JAVA_HOME": java,
        "spark.executor.memory": "512m",
        "spark.driver.memory": "1g",
        "spark.local.dir": hidden.parent / "local",
    }
    settings = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    command = [sys.executable, "-m", "replicas.cli", *words, "--master", "local-cluster[2,1,512]", *settings]
    return subprocess.run(command, env=known, capture_output=True, text=True, timeout=_PATIENCE_S)


@pytest.fixture(scope="module")
def archived(store: S3WithKeys, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A run lies in the store."""
    run = a_run(tmp_path_factory.mktemp("archived") / "mine")
    found = subprocess.run(
        [sys.executable, "-m", "replicas.cli", "archive", run, URI], env={**os.environ, **store.environment}, timeout=60
    )
    assert found.returncode == 0


@pytest.mark.usefixtures("archived")
def test_run_in_s3_is_proved_without_shared_disk(store: S3WithKeys, hidden: Path) -> None:
    found = spe(hidden, store.environment, "report", URI)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "CONSISTENT" in found.stdout


@pytest.mark.usefixtures("archived")
def test_executor_with_wrong_credentials_fails_before_first_job(store: S3WithKeys, hidden: Path) -> None:
    found = spe(hidden, store.environment, "report", URI, sets="AWS_SECRET_ACCESS_KEY=wrong")
    assert found.returncode == 2
    assert "an executor of Spark on " in found.stderr
    assert "access was denied" in found.stderr
    assert "org.apache" not in found.stdout + found.stderr


def test_directory_unseen_by_executor_fails_before_first_job(store: S3WithKeys, hidden: Path) -> None:
    run = a_run(hidden / "mine")
    found = spe(hidden, {}, "report", str(run))
    assert found.returncode == 2
    assert f"cannot read the run: it does not see {run}; expected a file system that" in found.stderr
    assert "org.apache" not in found.stdout + found.stderr
    assert "Traceback" not in found.stdout + found.stderr
