"""Readers of a running cluster: a notebook, programs at once, the command line; with certificates."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from replicas.cli.view.reader import read
from replicas.client import connect
from spe.errors import ConfigError, SpeError
from tests.unit.test_readme import NOTEBOOK

pytestmark = pytest.mark.processes

CONFIG = """
cluster: attached
bucket: 50ms
sources: {a: {from: {generator: {name: orders, rate: 200, keys: 5, seed: 1, duration: 600s}}, boundary: 50ms}}
query: {best: {aggregate: {from: a, window: 200ms, group_by: key, compute: {n: count(*), revenue: sum(price * qty)}}}}
nodes: [n1, n2]
clients: {board: {reads: [best]}}
"""
SPE = [sys.executable, "-m", "replicas.cli"]
PATIENCE_S = 60.0


@contextmanager
def running(folder: Path, config: str) -> Iterator[Path]:
    """The directory of a run, once its client has results."""
    (folder / "shop.yaml").write_text(config)
    run, log = folder / "run", folder / "log"
    command = [*SPE, "run", "shop.yaml", "--run-dir", str(run), "--no-view"]
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file, cwd=folder) as process:
        try:
            end = time.monotonic() + PATIENCE_S
            while not (run / "cluster.json").exists():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.1)
            yield run
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with running(tmp_path_factory.mktemp("attached"), CONFIG) as path:
        yield path


class Notebook:
    """Runs cells as a notebook's kernel does: in one namespace, inside a running loop, with ``await`` at the top."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}

    async def run(self, cell: str) -> Any:
        """The value of the cell's last line."""
        assert asyncio.get_running_loop().is_running()
        tree = ast.parse(cell)
        assert isinstance(tree.body[-1], ast.Expr)
        tree.body[-1] = ast.Assign([ast.Name("Out", ast.Store())], tree.body[-1].value)
        code = compile(ast.fix_missing_locations(tree), "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        value = eval(code, self.names)
        if inspect.iscoroutine(value):
            await value
        return self.names["Out"]


def test_the_cells_of_the_page_show_results(run: Path) -> None:
    async def kernel() -> None:
        notebook = Notebook()
        frame = await notebook.run(NOTEBOOK.replace("shop.yaml", str(run)).replace("seconds=5", "seconds=2"))
        assert list(frame.columns) == ["key", "window_start", "window_end", "n", "revenue", "_tentative"]
        assert str(frame["window_start"].dtype) == "datetime64[us, UTC]"
        assert str(frame["n"].dtype) == "Int64"
        rows = 0
        while rows <= len(frame):
            rows = await notebook.run('changes.collect(seconds=1).stable("best").to_arrow().num_rows')
        assert await notebook.run("changes.close()") is None

    asyncio.run(kernel())


def test_cell_with_await_reads_with_other_readers(run: Path) -> None:
    cell = """
import asyncio
from replicas.client import connect

async def first(start):
    ids = []
    async with connect(RUN, start=start) as changes:
        async for change in changes:
            ids += change.batch.row_ids().tolist()
            if len(ids) > 20:
                return ids

await asyncio.gather(first("stored"), first("now"), first("now"))
"""

    async def kernel() -> list[list[int]]:
        notebook = Notebook()
        notebook.names["RUN"] = str(run)
        found: list[list[int]] = await notebook.run(cell)
        return found

    for ids in asyncio.run(kernel()):
        assert ids == list(range(ids[0], ids[0] + len(ids)))


def test_plain_code_reads_as_the_command_line_prints(run: Path) -> None:
    command = [*SPE, "client", str(run), "--start", "stored", "--print", "stable"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as printing:
        assert printing.stdout is not None
        printed = [json.loads(printing.stdout.readline()) for _ in range(20)]
        printing.terminate()
    with connect(run, client="notebook", start="beginning", streams=["best"]) as changes:
        records: dict[int, dict[str, Any]] = {}
        for change in changes:
            if hasattr(change, "records"):
                records |= zip(change.batch.row_ids().tolist(), change.records(), strict=True)
            if printed[-1]["_id"] in records:
                break
    assert [(p["_id"], p["key"], p["n"]) for p in printed] == [
        (p["_id"], records[p["_id"]]["key"], records[p["_id"]]["n"]) for p in printed
    ]


@pytest.mark.parametrize(
    ("client", "stream", "print_", "said"),
    [
        ("", "best", "no", "expected --print stable or corrections"),
        ("board", "best", "stable", "client board of the configuration goes on"),
        ("", "bst", "stable", r"no stream 'bst' \(did you mean 'best'\?\)"),
    ],
)
def test_mistakes_of_the_command_are_named(run: Path, client: str, stream: str, print_: str, said: str) -> None:
    with pytest.raises((ConfigError, SpeError), match=said):
        read(run, client, "now", [stream], print_)


@pytest.mark.long
def test_a_reader_needs_a_certificate_of_its_name(tmp_path: Path) -> None:
    config = CONFIG + "security: {certificates: keys}\n"
    (tmp_path / "shop.yaml").write_text(config)
    certs = [*SPE, "certs", "shop.yaml", "--reader", "reader"]
    subprocess.run(certs, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    with running(tmp_path, config) as path:
        with connect(path, start="now") as changes:
            assert next(iter(changes)).stream == "best"
        with pytest.raises(ConfigError, match="client-other"), connect(path, client="other", start="now"):
            pass
