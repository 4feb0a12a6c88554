"""The wheel has every file of its packages, and the smallest query of the README runs where nothing else is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

import numpy
import pytest

from spe import __version__

pytestmark = [pytest.mark.processes, pytest.mark.long]

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("spe", "operators", "consistency", "replicas")
#: One of each kind that is no module.
DATA: Final = {
    "spe/py.typed",
    "spe/testing.pyi",
    "replicas/cli/dashboard/static/index.html",
    "replicas/cli/dashboard/static/main.js",
    "replicas/cli/dashboard/static/style.css",
    "consistency/proof/report/report.schema.json",
    "consistency/proof/report/follow.schema.json",
    "consistency/proof/session/conf/log4j2.properties",
}


def done(*command: Any, cwd: Path) -> str:
    """Runs a command without this checkout on its path, and returns what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=240
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    try:
        known = subprocess.run([*pip, "download", "--no-deps", "-d", folder / "tools", "hatchling"], timeout=120)
    except subprocess.TimeoutExpired:
        pytest.skip("no package index answers: the wheel is built with hatchling")
    if known.returncode:
        pytest.skip("no package index has hatchling, which builds the wheel, or there is no pip")
    done(*pip, "wheel", "--no-deps", "-w", folder, ROOT, cwd=folder)
    (made,) = folder.glob("*.whl")
    return made


def test_the_wheel_has_every_file_of_its_packages(wheel: Path) -> None:
    names = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()}
    expected = {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}
    assert names == expected | {"pyspark_spe.py"}
    assert expected >= DATA


def test_the_readmes_query_runs_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """Other packages are those of this Python: nothing is fetched but what builds the wheel."""
    place, work = tmp_path / "installed", tmp_path / "work"
    work.mkdir()
    venv.create(place, with_pip=True)
    done(place / "bin/pip", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=work)
    (site,) = (place / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(f"{Path(numpy.__file__).parents[1]}\n")  # .pth files there are not followed
    where = done(place / "bin/python", "-c", "import spe; print(spe.__file__)", cwd=work)
    assert Path(where.strip()) == site / "spe/__init__.py"
    spe = place / "bin/spe"
    assert done(spe, "--version", cwd=work).strip() == __version__ == "0.1.0"
    smallest = (ROOT / "README.md").read_text(encoding="utf-8").partition("## The smallest query")[2]
    query = re.search(r"```yaml\n(.*?)```", smallest, re.DOTALL)
    assert query is not None
    (work / "orders.yaml").write_text(query[1])
    said = done(spe, "run", "orders.yaml", "--run-dir", "run", cwd=work)
    assert (work / "run/cluster.json").is_file(), said
    assert done(spe, "reference", "orders.yaml", cwd=work).count("\n") > 30
