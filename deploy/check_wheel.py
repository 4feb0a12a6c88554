"""Installs the wheel with each extra into an empty environment: ``python deploy/check_wheel.py [EXTRA …]``.

Each environment checks and computes the demonstration's query with the installed command; the sizes are printed.
Needs a Python with pip, and a package index that it reaches.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: What an extra brings, and shows that it works; "" is the wheel alone.
EXTRAS = {
    "": "spe.api",
    "tls": "spe.runtime.certificates",
    "plan": "scipy.optimize",
    "dashboard": "replicas.cli.dashboard.site",
    "otel": "spe.runtime.span_trace",
    "parquet": "pyarrow.parquet",
    "delta": "replicas.connectors.delta.sink",
    "avro": "replicas.connectors.formats.avro_messages, replicas.connectors.formats.schema_registry",
    "http": "replicas.connectors.http.sink",
    "kafka": "confluent_kafka, replicas.connectors.kafka.source",
    "postgres": "psycopg, replicas.connectors.postgres.source",
    "spark": "consistency.proof.judge",
}
PACKAGES = ("spe", "operators", "consistency", "replicas")


def run(*command: Any, cwd: Path) -> str:
    return subprocess.run([*map(str, command)], cwd=cwd, check=True, capture_output=True, text=True).stdout


def size_mb(folder: Path) -> float:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file() and not f.is_symlink()) / 1e6


def check(wheel: Path, extra: str, folder: Path) -> None:
    """Raises CalledProcessError, AssertionError: it does not install, or does not work."""
    venv.create(folder, with_pip=True)
    before = size_mb(folder)
    pip = [folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
    run(*pip, f"{wheel}[{extra}]" if extra else wheel, cwd=folder)
    grown = size_mb(folder) - before
    run(folder / "bin/python", "-c", f"import {EXTRAS[extra]}", cwd=folder)
    rows = run(folder / "bin/spe", "reference", ROOT / "configs/quickstart.yaml", cwd=folder).count("\n")
    assert rows > 300, rows
    (site,) = (folder / "lib").glob("python*/site-packages")
    untyped = [name for name in PACKAGES if not (site / name / "py.typed").is_file()]
    assert not untyped, untyped
    assert (site / "replicas/cli/dashboard/static/index.html").is_file()
    print(f"{extra or '(none)':8} {grown:6.0f} MB", flush=True)


def main(extras: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT, cwd=folder)
        (wheel,) = folder.glob("*.whl")
        print(f"{wheel.name} {wheel.stat().st_size / 1e6:.1f} MB")
        for extra in extras or EXTRAS:
            check(wheel, extra, folder / (extra or "alone"))


if __name__ == "__main__":
    main(sys.argv[1:])
