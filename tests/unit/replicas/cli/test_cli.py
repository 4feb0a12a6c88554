"""The command line: arguments, messages, the live view, and when a run is over."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from replicas.cli.app import INTERRUPTED, execute, run_command
from replicas.cli.control import fault_data
from replicas.cli.run.narrator import how_it_died
from replicas.cli.run.processes import metrics_address
from replicas.cli.run.run_end import without_whom
from replicas.cli.run.summary import failures, figures, summary_text
from replicas.cli.sweep import lengths_of_x
from replicas.cli.view.formats import moment, seconds
from replicas.cli.view.view import render
from replicas.client.process import SwitchWatch, _after
from replicas.faults.model import Fault
from replicas.faults.runner import Happening
from replicas.faults.state import Conditions
from replicas.local.continuation import earlier_run
from replicas.local.history import EventList
from replicas.local.job import common_origins, local_addresses, metrics_addresses
from replicas.local.ports import PORTS
from replicas.local.process import Phase
from replicas.local.progress import ProgressWatch, UnreadWatch
from replicas.local.run_dir import SUPERVISOR, RunDirectory, file_name, load_target
from replicas.local.run_over import while_it_runs, why_over
from replicas.local.story import Story
from replicas.local.supervisor import fault_status
from spe.config import load_plan_text, load_text, read_document
from spe.errors import SpeError
from spe.figures.histogram import Histogram
from spe.figures.sight import Seen, Sight
from spe.plan.delays import ReplayEpoch, delay_bound_us, epochs, longest_path, source_epoch
from spe.plan.deploy import Deployed, with_default_client, without_external
from spe.plan.describe import show_bound
from spe.plan.directory import Standbys
from spe.plan.draw import check_text
from spe.plan.plan import Watermark
from spe.status import (
    ActivationStatus,
    CertificateStatus,
    CoordinatorStatus,
    DirectoryStatus,
    HistogramStatus,
    LoadStatus,
    PartitionLoad,
    PartitionStatus,
    ProcessStatus,
    SettingsStatus,
    SourceStatus,
    SwitchStatus,
    UnreachedStatus,
)
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import NodeId, NodeState, StreamId
from spe.stream.times import END_OF_TIME, SECOND, parse_timestamp
from tests.support.plans import placed
from tests.support.statuses import (
    a_channel,
    a_checkpoint_log,
    a_client,
    a_node,
    a_replica,
    a_source,
    a_standby,
    an_input,
)
from tests.support.streams import parse

ROOT = Path(__file__).parents[4]

#: Two nodes, one fragment, one generated source with its own start.
CONFIG = """
cluster: small
sources:
  shop: {from: {generator: {name: orders, rate: 100, keys: 3, count: 400, start: 2024-01-01T00:00:00}}}
query:
  per_second:
    aggregate: {from: shop, window: {tumbling: 1s}, group_by: key, compute: {n: count(*)}}
outputs: [per_second]
nodes: [n1, n2]
"""
#: As above, then joined by a second unit on slower nodes.
TWO_UNITS = CONFIG.replace(
    "outputs: [per_second]\nnodes: [n1, n2]",
    """
  busy: {filter: {from: per_second, where: n > 1}}
outputs: [per_second, busy]
fragments:
  first: {operators: [per_second], replicas: [n1, n2]}
  second: {operators: [busy], replicas: [n3]}
nodes: {n1: {x: 2s}, n2: {x: 2s}, n3: {x: 5s}}
clients: {screen: {}, archive: {reads: [busy]}}
""",
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(CONFIG)
    return path


def plan_of(text: str = CONFIG) -> Deployed:
    return load_text(text)


# -- what it takes and says ------------------------------------------------------------------------------------------


def test_help_imports_neither_the_engine_nor_numpy() -> None:
    """So that it answers at once."""
    code = (
        "import sys, replicas.cli.app\n"
        "slow = {'numpy', 'trio', 'pydantic', 'sqlglot', 'yaml', 'replicas.node', 'operators', 'consistency.dpc'}\n"
        "sys.exit(' '.join(slow & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "command",
    [
        "check",
        "reference",
        "run",
        "node",
        "source",
        "client",
        "coordinator",
        "status",
        "top",
        "restart",
        "wait",
        "inject",
        "set",
    ],
)
def test_every_command_has_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([command, "--help"]) == 0
    assert f"Usage: spe {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chekc", "x.yaml"], "Unknown command"),
        (["check"], "requires an argument"),
        (["run", "x.yaml", "--spede", "3"], "Unknown option"),
        (["run", "x.yaml", "--spede", "3"], "Try: spe run --help"),
        (["check", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["run", "nowhere.yaml", "--duration", "5"], "--duration: expected a duration"),
        (["status", "tests"], "tests is not the directory of a run: it has no cluster.json"),
        (["inject", "tests", "heal"], "not the directory of a run"),
        (
            ["restart", "tests"],
            "expected nodes, or --rolling for all; spe inject RUN restart NODE",
        ),
        (["restart", "configs/quickstart.yaml", "n1", "n2"], "is a configuration; expected the directory of a run"),
        (["report", "tests"], "tests is not the directory of a run: it has no cluster.json"),
        (["restart", "configs/quickstart.yaml", "--rolling"], "is a configuration; expected the directory of a run"),
        (["inject", "runs/x", "kill", "n1", "--for", "soon"], "--for: expected a duration"),
        (["inject", "runs/x", "delay", "n1", "n2", "--by", "3"], "--by: expected a duration"),
        (["wait", "configs/quickstart.yaml", "n1", "--within", "5"], "--within: expected a duration"),
        (["report", "nowhere"], "nowhere: there is no such directory"),
        (["set", "configs/quickstart.yaml", "n1", "x"], "expected NAME=VALUE such as x=4s, got 'x'"),
        (["set", "configs/quickstart.yaml", "n1", "x=4"], "expected a duration such as 500ms"),
        (["set", "configs/quickstart.yaml", "n1", "x=4s"], "quickstart.yaml has no coordinator, which changes nodes"),
        (["node", "configs/quickstart.yaml", "--node", "n1", "--join"], "names n1; start it without --join"),
        (["node", "configs/quickstart.yaml", "--node", "n9", "--join"], "--join needs --address host:port"),
        (["node", "configs/quickstart.yaml", "--node", "n1", "--x", "3s"], "--x goes with --join"),
    ],
)
def test_a_users_mistake_is_reported_without_a_traceback(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert execute(words) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.startswith("spe: ")
    assert "Traceback" not in told


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_interrupt_inside_nurseries_gives_one_line(depth: int, capsys: pytest.CaptureFixture[str]) -> None:
    error: BaseException = KeyboardInterrupt()
    for _ in range(depth):
        error = BaseExceptionGroup("Exceptions from Trio nursery", [SpeError("n1 did not answer"), error])

    def command() -> None:
        raise error

    assert run_command(command) == INTERRUPTED
    assert capsys.readouterr().err == "spe: interrupted\n"


def test_all_configuration_errors_are_reported_at_once(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(CONFIG.replace("rate: 100", "rate: fast").replace("count(*)", "cuont(*)"))
    assert execute(["check", str(config)]) == 2
    told = capsys.readouterr().err
    assert "small.yaml:4" in told
    assert "small.yaml:7" in told


def test_check_draws_the_plan_and_its_faults(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(CONFIG + "faults: [{at: 3s, kind: kill, target: n1, for: 2s}]\n")
    assert execute(["check", str(config)]) == 0
    told = capsys.readouterr().out
    assert "UNIT main" in told
    assert "at 3s       kill n1 for 2s" in told


def test_check_names_a_mistake_in_the_faults(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(CONFIG + "faults: [{at: 3s, kind: kill, target: n9}]\n")
    assert execute(["check", str(config)]) == 2
    assert "small.yaml:10: faults[0].target: no process 'n9'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "option", "said"),
    [
        ("node", "--node", "no node 'n3'; expected one of: n1, n2"),
        ("source", "--source", "no source 'n3'; expected one of: shop"),
        ("client", "--client", "no client 'n3'; expected one of: client"),
    ],
)
def test_a_process_outside_the_plan_is_refused(
    kind: str, option: str, said: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute([kind, str(config), option, "n3"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [["status"], ["node", "--node", "n1"]])
def test_without_addresses_no_process_is_started_or_asked(
    words: list[str], config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute([words[0], str(config), *words[1:]]) == 2
    assert "small.yaml gives no address for n1, n2, source:shop" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "reference"])
def test_a_data_file_that_does_not_exist_is_named(
    command: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(
        CONFIG.replace(
            "{from: {generator: {name: orders, rate: 100, keys: 3, count: 400, start: 2024-01-01T00:00:00}}}",
            "{schema: {ts: timestamp!, key: int64}, time: ts, from: {csv: gone.csv}}",
        )
    )
    assert execute([command, str(config)]) == 2
    assert f"sources.shop: {config.parent / 'gone.csv'}: there is no such file" in capsys.readouterr().err


def test_a_run_refuses_a_directory_that_is_not_empty(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["run", str(config), "--run-dir", str(config.parent)]) == 2
    assert "not empty" in capsys.readouterr().err


# -- the reference ---------------------------------------------------------------------------------------------------


def test_reference_prints_one_line_per_tuple(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """400 orders at 100 a second, 3 keys: four windows, every order counted once."""
    assert execute(["reference", str(config)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [r["_id"] for r in rows] == list(range(1, 13))
    assert {r["_stream"] for r in rows} == {"per_second"}
    assert sum(r["n"] for r in rows) == 400
    assert rows[0]["window_start"] == "2024-01-01T00:00:00Z"


READINGS = CONFIG.replace(
    "{from: {generator: {name: orders, rate: 100, keys: 3, count: 400, start: 2024-01-01T00:00:00}}}",
    "{schema: {ts: timestamp!, key: int64!}, time: ts, from: {csv: shop.csv}}",
)


def test_a_generator_that_never_ends_has_no_reference(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(CONFIG.replace("count: 400, ", ""))
    assert execute(["reference", str(config)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "sources.shop.from.generator: never ends" in told.err
    assert "add duration: 60s or count: 1000" in told.err


def test_reference_reports_rejected_and_late_rows(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(READINGS)
    rows = ["ts,key", "2024-01-01T00:00:03,1", "2024-01-01T00:00:01.5,2", "2024-01-01T00:00:04,x"]
    (config.parent / "shop.csv").write_text("\n".join(rows) + "\n")
    assert execute(["reference", str(config)]) == 0
    told = capsys.readouterr().err
    assert told.startswith("shop: 3 rows, 1 malformed (first: line 4: key: expected int64, got 'x'), ")
    assert told.endswith("1 late by up to 1.5s (disorder 0s)\n")


def test_a_source_that_lost_all_its_rows_gives_no_reference(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(READINGS)
    (config.parent / "shop.csv").write_text("ts,key\nyesterday,1\n")
    assert execute(["reference", str(config)]) == 1
    assert capsys.readouterr().err.startswith("shop: 1 rows, 1 malformed (first: line 2: ts: ")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("time,key\n2024-01-01T00:00:00,1\n", "shop.csv: no column ts; the header has: time, key"),
        (
            "ts,key\nyesterday,1\n",
            "none of the first 1 rows fits the schema (line 2: ts: expected an ISO",
        ),
    ],
)
def test_check_reads_the_first_rows_of_files(
    config: Path, rows: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(READINGS)
    (config.parent / "shop.csv").write_text(rows)
    assert execute(["check", str(config)]) == 1
    told = capsys.readouterr().out
    assert said in told
    assert "No warnings" not in told


@pytest.mark.parametrize("rows", ["", "yesterday,1\n2024-01-01T00:00:00,1\n"])
def test_check_ignores_single_malformed_rows_and_empty_files(config: Path, rows: str) -> None:
    config.write_text(READINGS)
    (config.parent / "shop.csv").write_text("ts,key\n" + rows)
    assert execute(["check", str(config)]) == 0


SEEN = """
from operators.custom import CustomOperator

class Seen(CustomOperator):
    def __init__(self, inputs, first):
        super().__init__(inputs, first=first)
        self._seen = {"set": set(), "list": [], "wrong": None, "counts": [0], "needs": [1]}[first]
        self._fresh = first != "wrong"

    @classmethod
    def output_schema(cls, inputs, first):
        return inputs[0]

    def step(self, ports, boundary):
        return ports[0]

    def snapshot(self):
        return {"seen": self._seen, "fresh": 1 / self._fresh}

    def counters(self):
        return {"seen": len(self._seen.lost if self._seen == [0] else self._seen)}

    def oldest_needed(self):
        return self._seen[1] if self._seen == [1] else None
"""


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (
            "set",
            "query.q.custom.class: snapshot of seen_before:Seen: state.seen: cannot store a builtins.set; expected",
        ),
        ("wrong", "query.q.custom.class: snapshot of seen_before:Seen: ZeroDivisionError: division by zero"),
        (
            "counts",
            "query.q.custom.class: counters of seen_before:Seen: AttributeError: 'list' object has no attribute",
        ),
        ("needs", "query.q.custom.class: oldest_needed of seen_before:Seen: IndexError: list index out of range"),
        ("none", "query.q.custom.arguments: seen_before:Seen cannot be made: KeyError: 'none'"),
        ("list", ""),
    ],
)
def test_check_tries_user_operators_and_their_snapshots(
    config: Path, first: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (config.parent / "seen_before.py").write_text(SEEN)
    monkeypatch.syspath_prepend(str(config.parent))
    monkeypatch.delitem(sys.modules, "seen_before", raising=False)
    query = f"query:\n  q: {{custom: {{class: seen_before:Seen, from: shop, arguments: {{first: {first}}}}}}}\n"
    config.write_text(CONFIG[: CONFIG.index("query:")] + query)
    assert execute(["check", str(config)]) == (2 if said else 0)
    assert said in capsys.readouterr().err


def test_a_missing_data_file_is_no_mistake_of_the_configuration(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(READINGS)
    assert execute(["check", str(config)]) == 0
    told = capsys.readouterr().out
    assert told.endswith(f"FILES\n  missing: sources.shop: {config.parent / 'shop.csv'}\n")
    assert "No warnings" not in told


@pytest.fixture
def ended(config: Path) -> Path:
    """The directory of a run, with a coordinator, whose supervisor is gone."""
    config.write_text(text := CONFIG + "coordinator: {}\n")
    plan, directory = plan_of(text)
    run = RunDirectory.create(config.parent / "run", read_document(config))
    run.write_cluster(plan, data=str(config.parent), addresses=local_addresses(directory), origins={}, token="")
    cluster = json.loads((run.path / "cluster.json").read_text())
    run.write("cluster.json", {**cluster, "pid": 2**22 + 1})  # beyond the largest pid
    return run.path


@pytest.mark.skipif(os.name != "posix", reason="folders have no modes")
def test_the_directory_of_a_run_is_for_owner_and_group(config: Path) -> None:
    before = os.umask(0o022)
    try:
        run = RunDirectory.create(config.parent / "deep" / "run", read_document(config))
        os.umask(0o077)
        private = RunDirectory.create(config.parent / "deep" / "private", read_document(config))
    finally:
        os.umask(before)
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o750
    assert stat.S_IMODE(private.path.stat().st_mode) == 0o700


def test_status_of_a_run_that_is_over_says_nothing_else(ended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["status", str(ended)]) == 1
    assert capsys.readouterr().out == f"the run in {ended} is over; it was ended before it wrote its figures\n"
    (ended / "summary.json").write_text("{}")
    assert execute(["status", str(ended)]) == 1
    assert capsys.readouterr().out == f"the run in {ended} is over; its figures are in {ended / 'summary.json'}\n"


COMMANDS_TO_PROCESSES = [
    ["explain-stall"],
    ["wait", "n1"],
    ["wait", "n1", "--partners"],
    ["inject", "kill", "n1"],
    ["move", "main", "n1", "n2"],
    ["drain", "n1"],
    ["balance"],
    ["cancel", "1"],
    ["set", "n1", "x=4s"],
    ["restart", "--rolling"],
    ["top"],
]


@pytest.mark.parametrize("words", COMMANDS_TO_PROCESSES, ids=" ".join)
def test_commands_that_ask_processes_refuse_ended_run(
    words: list[str], ended: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute([words[0], str(ended), *words[1:]]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.startswith(f"spe: the run in {ended} is over;")) == ("", True)


@pytest.fixture
def comparing(ended: Path) -> Path:
    """The directory of a run whose processes have ended, while its supervisor compares."""
    run = RunDirectory(ended)
    run.write("cluster.json", {**json.loads((ended / "cluster.json").read_text()), "pid": os.getpid()})
    run.write("ended.json", {"pid": os.getpid()})
    return ended


def test_a_command_says_that_the_run_compares(comparing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    over = f"the run in {comparing} is over; its results are compared now, then its figures are in "
    for words in COMMANDS_TO_PROCESSES:
        assert execute([words[0], str(comparing), *words[1:]]) == 2
        assert capsys.readouterr().err.startswith(f"spe: {over}")
    assert execute(["status", str(comparing)]) == 1
    assert capsys.readouterr().out.startswith(over)


def test_a_run_that_goes_on_again_is_not_over(comparing: Path) -> None:
    RunDirectory(comparing).write("ended.json", {"pid": os.getpid() + 1})
    assert why_over(load_target(comparing)) == ""


def test_a_run_that_compares_is_not_continued_yet(comparing: Path) -> None:
    with pytest.raises(SpeError, match=rf"goes on, with process {os.getpid()}; stop it first"):
        earlier_run(comparing)


def test_a_question_that_fails_as_the_run_ends_gets_that_reason(comparing: Path) -> None:
    (comparing / "ended.json").unlink()
    target = load_target(comparing)
    with pytest.raises(SpeError, match="connection refused"), while_it_runs(target):
        raise SpeError("connection refused")

    def fail_at_the_end() -> None:
        RunDirectory(comparing).write("ended.json", {"pid": os.getpid()})
        raise SpeError("connection refused")

    with pytest.raises(SpeError, match="is over; its results are compared now"), while_it_runs(target):
        fail_at_the_end()


@pytest.mark.parametrize("name", ["n9", "supervisor"])
def test_wait_for_unknown_node_names_the_nodes_only(name: str, ended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = json.loads((ended / "cluster.json").read_text())
    cluster["pid"], cluster["addresses"]["supervisor"] = os.getpid(), "127.0.0.1:1"
    (ended / "cluster.json").write_text(json.dumps(cluster))
    assert execute(["wait", str(ended), name, "--within", "1s"]) == 2
    assert capsys.readouterr().err == f"spe: no node {name!r}; expected one of: n1, n2\n"


@pytest.mark.parametrize("address", ["nowhere", "in use"])
def test_unservable_dashboard_leaves_no_run_directory(
    address: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the next try would be refused, because the directory of the run is there already."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        if address == "in use":
            address = f"127.0.0.1:{taken.getsockname()[1]}"
        run = config.parent / "run"
        assert execute(["run", str(config), "--run-dir", str(run), "--dashboard", address, "--no-view"]) == 2
    assert capsys.readouterr().err.startswith("spe: --dashboard: ")
    assert not run.exists()


@pytest.mark.parametrize("duration", ["0s", "-5s"])
def test_a_run_of_no_duration_is_refused(duration: str, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["run", str(config), f"--duration={duration}", "--dashboard", "nowhere"]) == 2
    assert capsys.readouterr().err == f"spe: --duration: expected a duration above zero, got '{duration}'\n"


def test_full_disk_is_reported_without_traceback(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory.create(config.parent / "run", read_document(config))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("replicas.local.run_dir.os.replace", full)
    with pytest.raises(SpeError, match=r"faults\.json cannot be written: No space left on device"):
        run.write("faults.json", [])


@pytest.mark.parametrize(
    ("number", "file", "said"),
    [
        (errno.ENOSPC, None, "No space left on device"),
        (errno.EROFS, "out/a.jsonl", "out/a.jsonl: Read-only file system"),
    ],
)
def test_disk_error_is_reported_without_traceback(
    number: int, file: str | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> int:
        raise ExceptionGroup("", [OSError(number, os.strerror(number), file)])

    assert run_command(command) == 2
    assert said in capsys.readouterr().err


def test_unreadable_configuration_gives_error_without_errno(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["check", str(config.parent)]) == 2
    assert capsys.readouterr().err == (
        f"spe: {config.parent}: is a directory; expected a YAML file or a Python script\n"
    )
    assert execute(["check", "none.yaml"]) == 2
    assert capsys.readouterr().err == "spe: none.yaml: cannot be read: No such file or directory\n"
    assert execute(["run", str(config), "--faults", "none.yaml"]) == 2
    assert capsys.readouterr().err == "spe: none.yaml: cannot be read: No such file or directory\n"


def test_a_node_that_is_listed_twice_is_refused(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(CONFIG.replace("[n1, n2]", "[n1, n2, n1]"))
    assert execute(["check", str(config)]) == 2
    assert "nodes[2]: 'n1' is listed twice" in capsys.readouterr().err


def test_reference_writes_the_rows_it_prints(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    execute(["reference", str(config)])
    printed = capsys.readouterr().out
    one, folder = config.parent / "all.jsonl", config.parent / "out"
    assert execute(["reference", str(config), "--output", str(one)]) == 0
    assert one.read_text() == printed
    assert execute(["reference", str(config), "--output", str(folder)]) == 0
    lines = [json.loads(line) for line in (folder / "per_second.0.jsonl").read_text().splitlines()]
    expected = [json.loads(line) for line in printed.splitlines()]
    assert lines == [{k: v for k, v in e.items() if k not in ("_stream", "_partition")} for e in expected]


def test_reference_writes_parquet_as_well(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = config.parent / "out"
    assert execute(["reference", str(config), "--output", str(folder), "--format", "parquet"]) == 0
    assert parquet.read_table(folder / "per_second").column("n").to_numpy().sum() == 400
    assert execute(["reference", str(config), "--output", str(folder)]) == 2
    assert "not empty" in capsys.readouterr().err


# -- faults by hand --------------------------------------------------------------------------------------------------


def test_a_fault_on_the_command_line_equals_one_in_a_file() -> None:
    assert fault_data("kill", ["n1", "n2"], "3s", None, False) == {"kind": "kill", "target": ["n1", "n2"], "for": "3s"}
    assert fault_data("cut", ["source:a"], None, None, False) == {"kind": "cut", "target": ["source:a"]}
    assert fault_data("delay", ["n1", "n2,n3"], None, "1s", True) == {
        "kind": "delay",
        "from": ["n1"],
        "to": ["n2", "n3"],
        "by": "1s",
        "one_way": True,
    }
    with pytest.raises(SpeError, match="the two ends of a link, got 3"):
        fault_data("cut", ["a", "b", "c"], None, None, False)


def test_injecting_a_simulated_fault_is_refused_with_the_choices(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["inject", str(a_run(config).path), "flip", "n1"]) == 2
    told = capsys.readouterr().err
    assert (
        "'flip' cannot be injected into a run; expected one of cut, delay, freeze, heal, kill, restart, stall; " in told
    )
    assert told.endswith("with spe run --links proxy also half-open, refuse, reset, slow\n")


def test_faults_can_be_injected_only_into_runs(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["inject", str(config), "kill", "n1"]) == 2
    assert "expected the directory of a run" in capsys.readouterr().err


# -- the directory of a run ------------------------------------------------------------------------------------------


def a_run(config: Path, **facts: Any) -> RunDirectory:
    run = RunDirectory.create(config.parent / "r", read_document(config))
    plan = plan_of(config.read_text()).plan
    addresses = {"n1": "127.0.0.1:20001", "client:client": "127.0.0.1:20002"}
    (config.parent / "secret").write_text("secret")
    secret = str(config.parent / "secret")
    known = {"data": str(config.parent), "addresses": addresses, "origins": {"shop": 5}, "secret": secret}
    run.write_cluster(plan, **{**known, **facts})
    return run


def test_a_run_directory_holds_the_plan_with_its_addresses(config: Path) -> None:
    run = a_run(config)
    target = load_target(run.path)
    assert target.plan.fingerprint == plan_of().plan.fingerprint
    assert target.directory.nodes["n1"].address == "127.0.0.1:20001"  # type: ignore[index]
    assert target.plan.sources["shop"].replay["origin_us"] == 5  # type: ignore[index]
    assert (target.token, target.folder, target.supervisor_pid) == ("secret", run.path, os.getpid())


def test_a_damaged_run_directory_is_reported(config: Path) -> None:
    run = a_run(config)
    (run.path / "cluster.json").write_text('{"data": ')
    with pytest.raises(SpeError, match=r"cluster\.json is damaged"):
        load_target(run.path)


def test_process_serves_metrics_where_run_or_option_says(config: Path) -> None:
    target = load_target(a_run(config, metrics={"n1": "127.0.0.1:20003"}).path)

    assert metrics_address(target, "n1", None) == "127.0.0.1:20003"
    assert metrics_address(target, "joined", None) is None
    assert metrics_address(target, "n1", "off") is None
    assert metrics_address(target, "n1", "9000") == "127.0.0.1:9000"
    assert metrics_address(target, "n1", "0.0.0.0:9000") == "0.0.0.0:9000"
    for wrong in ("here", "70000", "1.2.3.4", ""):
        with pytest.raises(SpeError, match="--metrics: expected HOST:PORT, a port or off"):
            metrics_address(target, "n1", wrong)


def test_a_process_serves_metrics_where_the_configuration_says(config: Path) -> None:
    assert load_target(config).metrics == {}
    config.write_text(CONFIG + "metrics: {port: 9000}\n")
    found = load_target(config).metrics
    assert set(found) == {"n1", "n2", "source:shop", "client:client"}
    assert set(found.values()) == {"127.0.0.1:9000"}


def test_ports_for_metrics_are_unique() -> None:
    addresses = local_addresses(plan_of().directory)
    found = metrics_addresses(addresses)
    assert found.keys() == addresses.keys() - {"supervisor"}
    assert len({*found.values(), *addresses.values()}) == len(found) + len(addresses)


def test_a_starting_process_reads_its_conditions(config: Path) -> None:
    run = a_run(config)
    conditions = Conditions((("n1", "in"),))
    run.write_conditions("source:shop", conditions)
    assert run.read_conditions("source:shop") == conditions
    assert run.read_conditions("n2") == Conditions()
    assert file_name("source:a b/c") == "source-a-b-c"


def test_a_run_without_a_client_gets_one_that_reads_everything() -> None:
    plan, directory = plan_of(CONFIG + "clients: {}\n")
    assert not directory.clients
    given = with_default_client(plan, directory)
    assert given.clients["client"].reads == ("per_second",)


def test_external_client_holds_output_but_is_not_started() -> None:
    plan, directory = plan_of(CONFIG + "clients: {board: , spark: {external: true}}\n")
    channel = Channel(StreamId("per_second"), 0)
    assert directory.consumers_of(plan, channel) == ("client:board", "client:spark")
    assert re.search(r"spark +reads per_second +external", check_text(plan, directory))
    assert list(local_addresses(without_external(directory))) == ["n1", "n2", "source:shop", "client:board", SUPERVISOR]


def test_a_run_needs_a_client_that_records(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(config.read_text() + "clients: {spark: {external: true}}\n")
    assert execute(["run", str(config), "--run-dir", str(config.parent / "run")]) == 2
    assert "clients: all are external, so a run would record nothing" in capsys.readouterr().err
    assert not (config.parent / "run").exists()


def test_every_process_gets_its_own_loopback_address() -> None:
    """Configured loopback addresses are kept; addresses of other machines are replaced."""
    text = CONFIG.replace(
        "nodes: [n1, n2]", "nodes: {n1: {address: '127.0.0.1:20005'}, n2: {address: '10.0.0.5:7000'}}"
    )
    addresses = local_addresses(plan_of(text).directory)
    assert list(addresses) == ["n1", "n2", "source:shop", "client:client", SUPERVISOR]
    assert addresses["n1"] == "127.0.0.1:20005"
    assert len(set(addresses.values())) == 5
    assert all(int(a.rpartition(":")[2]) in PORTS for a in addresses.values())


def test_replayed_sources_share_the_smallest_first_event_time(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("ts,key\n2024-01-01T00:00:07,1\n")
    (tmp_path / "b.csv").write_text("ts,key\n2024-01-01T00:00:03,1\n")
    text = """
        cluster: x
        sources:
          a: &it {schema: {ts: timestamp!, key: int64}, time: ts, from: {csv: a.csv}}
          b: {<<: *it, from: {csv: b.csv}}
          c: {<<: *it, from: {csv: a.csv}, replay: {origin: 2024-01-01T00:00:06}}
          d: {<<: *it, from: {csv: a.csv}, replay: {max: true}}
          e: {<<: *it, from: {jsonl: a.csv}, replay: {rate: 5}}
        query: {all: {union: [a, b, c, d, e]}}
        outputs: [all]
    """
    first = parse_timestamp("2024-01-01T00:00:03")
    assert common_origins(load_plan_text(text, data=tmp_path)) == {"a": first, "b": first}


# -- delays ----------------------------------------------------------------------------------------------------------


def test_k_and_the_delay_bound_follow_the_longest_path() -> None:
    plan, directory = plan_of(TWO_UNITS)
    assert [longest_path(plan, StreamId(s)) for s in ("shop", "per_second", "busy")] == [0, 1, 2]
    assert delay_bound_us(plan, directory, StreamId("per_second")) == 2 * SECOND
    assert delay_bound_us(plan, directory, StreamId("busy")) == 7 * SECOND


def test_the_replay_speed_relates_tuple_time_to_the_clock() -> None:
    (source,) = plan_of().plan.sources.values()
    start = parse_timestamp("2024-01-01T00:00:00")
    assert source_epoch(source, 777) == ReplayEpoch(start, 777, 1.0)
    assert source_epoch(replace(source, replay={"speed": 20.0, "origin_us": 5}), 777) == ReplayEpoch(5, 777, 20.0)
    assert source_epoch(replace(source, replay={"max": True}), 777) is None
    assert source_epoch(replace(source, replay={"rate": 9.0}), 777) is None
    assert source_epoch(source, None) is None
    clockwork = {k: v for k, v in source.reader.items() if k != "start"}
    assert source_epoch(replace(source, reader=clockwork), 777) == ReplayEpoch()
    live = replace(source, reader={"kind": "tcp"})
    assert source_epoch(live, None) == ReplayEpoch()
    by_data = replace(live, watermark=Watermark.DATA)
    assert source_epoch(by_data, 777) is None
    assert source_epoch(replace(by_data, idle_to_now=True), 777) == ReplayEpoch()


def test_an_output_of_sources_with_different_speeds_has_no_delay() -> None:
    plan = plan_of().plan
    assert epochs(plan, 5) == {"per_second": ReplayEpoch(parse_timestamp("2024-01-01T00:00:00"), 5, 1.0)}
    two = plan_of(
        CONFIG.replace("query:", "  hall: {from: {generator: orders}, replay: {speed: 2}}\nquery:")
        .replace("from: shop,", "from: both,")
        .replace("query:\n", "query:\n  both: {union: [shop, hall]}\n")
    )
    assert epochs(two.plan, 5) == {}


# -- the client process ----------------------------------------------------------------------------------------------

CHANNEL = Channel(StreamId("per_second"), 0)


def test_switch_is_timed_between_old_and_new_arrivals() -> None:
    watch = SwitchWatch()
    for producer, now in (("n1", 100), ("n1", 200), (None, 250), ("n2", 500), ("n2", 600), ("n1", 610)):
        watch.arrived(CHANNEL, producer, now)
    assert [(s.before, s.after, s.silence_us, s.at_us) for s in watch.switches] == [
        ("n1", "n2", 300, 500),
        ("n2", "n1", 10, 610),
    ]
    assert watch.counts == {CHANNEL: 2}


def test_a_recording_accepts_only_new_changes() -> None:
    """A restarted client may receive changes again that its recording has and a sink lacks."""
    (batch, boundary) = parse("S4/10a S5/11b S6/12c B20(6)", position=3)
    whole = Change(CHANNEL, batch, 0)
    assert _after(whole, 3, 0) == whole
    assert _after(whole, 6, 0) is None
    part = _after(whole, 5, 0)
    assert part is not None
    assert list(part.element.row_ids()) == [6]  # type: ignore[union-attr]
    assert _after(Change(CHANNEL, boundary, 0), 6, 19) is not None
    assert _after(Change(CHANNEL, boundary, 0), 6, 20) is None
    assert _after(Change(CHANNEL, boundary, 0), 7, 19) is None


# -- when a run is over ----------------------------------------------------------------------------------------------


def statuses(
    last_id: int = 10, *, source_ended: bool = False, position: int = 3, ended: bool = False, fault: str | None = None
) -> dict[str, ProcessStatus]:
    return {
        "source:shop": a_source(last_id=last_id, frontier=last_id, ended=source_ended, fault=fault),
        "client:client": a_client(a_channel(position=position, ended=ended)),
    }


def test_a_run_is_complete_when_clients_have_everything() -> None:
    watch = ProgressWatch(*plan_of())
    watch.look(statuses(), 0)
    assert not watch.complete
    watch.look(statuses(source_ended=True), 1)
    assert not watch.complete
    assert watch.what_is_open(SECOND) == "client:client per_second/0 not complete"
    watch.look(statuses(source_ended=True, ended=True), 2)
    assert watch.complete


def test_external_clients_are_done_when_nothing_is_held() -> None:
    """Or when they get no further: they have died, or never came."""
    plan, directory = plan_of(CONFIG + "clients: {board: , spark: {external: true}}\n")
    external = {name: client.reads for name, client in directory.clients.items() if client.external}
    assert not UnreadWatch(plan, {}, SECOND).left
    watch = UnreadWatch(plan, external, 5 * SECOND)
    now, node = statuses(), NodeId("n1")

    def filled(fill: float, **change: Any) -> dict[str, ProcessStatus]:
        unit = plan.producer[StreamId("per_second")].id
        return {**now, "n1": a_node(node, a_replica(unit=unit, fill=fill, **change))}

    assert watch.left
    assert not watch.over(filled(0.5), 0)
    assert not watch.over(filled(0.3), 4 * SECOND)
    assert not watch.over(filled(0.3), 8 * SECOND)
    assert watch.over(filled(0.3, state=NodeState.RECOVERING), 8 * SECOND)
    assert watch.over(filled(0.0), 8 * SECOND)
    assert not watch.left
    assert not watch.over(filled(0.3), 9 * SECOND)
    assert watch.over(filled(0.3), 14 * SECOND)
    assert watch.left


def test_an_unheard_client_is_not_complete() -> None:
    watch = ProgressWatch(*plan_of())
    watch.look({"source:shop": a_source(ended=True)}, 0)
    assert not watch.complete


def test_sources_without_progress_are_quiet_after_a_while() -> None:
    watch = ProgressWatch(*plan_of())
    watch.look(statuses(10), 0)
    watch.look(statuses(11), 2 * SECOND)
    assert not watch.sources_quiet(4 * SECOND, 3 * SECOND)
    assert watch.sources_quiet(5 * SECOND, 3 * SECOND)
    watch.look(statuses(11, source_ended=True), 5 * SECOND)
    assert watch.sources_quiet(5 * SECOND, 3 * SECOND)


def test_live_sources_may_be_silent_for_ever() -> None:
    text = CONFIG.replace(
        "{from: {generator: {name: orders, rate: 100, keys: 3, count: 400, start: 2024-01-01T00:00:00}}}",
        "{schema: {ts: timestamp!, key: int64}, time: ts, from: {tcp: '127.0.0.1:9999'}}",
    )
    watch = ProgressWatch(*plan_of(text))
    watch.look(statuses(), 0)
    assert not watch.sources_quiet(3600 * SECOND, SECOND)


def test_a_run_without_progress_for_too_long_is_stuck() -> None:
    """X is 2 s on both nodes: 2·(2 + 2) s plus the patience."""
    watch = ProgressWatch(*plan_of())
    watch.look(statuses(fault="the disk is full"), 0)
    assert not watch.stuck(8 * SECOND, SECOND)
    watch.look(statuses(position=4, fault="the disk is full"), 8 * SECOND)
    assert not watch.stuck(16 * SECOND, SECOND)
    assert watch.stuck(17 * SECOND, SECOND)
    assert watch.what_is_open(SECOND) == "source:shop: the disk is full"
    watch.restart(18 * SECOND)
    assert not watch.stuck(18 * SECOND, SECOND)


def test_run_with_starting_process_is_not_stuck_for_a_while() -> None:
    """On a busy machine a node that is started again takes longer than a run may stand still (17 s here)."""
    watch = ProgressWatch(*plan_of())
    watch.look(statuses(), 0)
    for now in range(0, 60 * SECOND, SECOND):
        watch.starting(["n1"], now, 60 * SECOND)
        assert not watch.stuck(now, SECOND)
    watch.starting(["n1"], 67 * SECOND, 60 * SECOND)
    assert not watch.stuck(67 * SECOND, SECOND)
    assert watch.stuck(68 * SECOND, SECOND)
    watch.starting([], 68 * SECOND, 60 * SECOND)
    watch.starting(["n1"], 69 * SECOND, 60 * SECOND)
    assert not watch.stuck(69 * SECOND, SECOND), "it starts once more"


def test_run_is_hopeless_once_source_failed_and_rest_arrived() -> None:
    watch = ProgressWatch(*plan_of())
    watch.look(statuses(), 0)
    assert watch.hopeless(0, SECOND) == ""
    watch.look(statuses(fault="the disk is full"), SECOND)
    assert watch.hopeless(SECOND, SECOND) == ""
    assert watch.hopeless(2 * SECOND, SECOND) == "source:shop: the disk is full"


@pytest.mark.parametrize(("n2", "gone", "hopeless"), [("x", [], True), ("", [], False), ("", ["n2"], True)])
def test_run_is_hopeless_when_all_replicas_have_stopped(n2: str, gone: list[str], hopeless: bool) -> None:
    watch = ProgressWatch(*plan_of())
    replicas = {
        "n1": a_node("n1", a_replica(error="operator 'hot' raised")),
        "n2": a_node("n2", a_replica(error=n2 or None)),
    }
    watch.look({**statuses(), **replicas}, 0)
    assert bool(watch.hopeless(0, 0, gone)) is hopeless


def test_a_replica_that_lacks_something_for_x_is_named_once() -> None:
    """X is 2 s."""
    watch = ProgressWatch(*plan_of())
    recovers = a_node("n1", a_replica(NodeState.RECOVERING, installed=False, missing=("s/0: n2 begins at id 5",)))
    watch.look({**statuses(), "n1": recovers}, 0)
    assert watch.newly_stranded(SECOND) == []
    watch.look({**statuses(), "n1": recovers}, 2 * SECOND)
    assert watch.newly_stranded(2 * SECOND) == ["main/0@n1 lacks s/0: n2 begins at id 5"]
    assert watch.newly_stranded(3 * SECOND) == []
    assert watch.what_is_open(3 * SECOND).endswith("; main/0@n1 lacks s/0: n2 begins at id 5")
    watch.look({**statuses(), "n1": a_node("n1", a_replica())}, 3 * SECOND)
    assert watch.stranded(9 * SECOND) == []


# -- history and summary ---------------------------------------------------------------------------------------------


def test_the_history_reports_changes_of_state() -> None:
    history = EventList()
    first = a_node("n1", a_replica(NodeState.RECOVERING))
    assert history.heard(first) == [("main/0@n1", "", "RECOVERING")]
    assert history.heard(first) == []
    assert history.heard(a_node("n1", a_replica())) == [("main/0@n1", "RECOVERING", "STABLE")]


SWITCH = SwitchStatus(channel="per_second/0", before="n1", after="n2", silence_us=90_000, at_us=6 * SECOND)


def a_history() -> EventList:
    """n1 was started twice, n2 once; the client was undone seven tuples."""
    history = EventList()
    for incarnation, tentative, corrections, dropped in ((1, 5, 1, 4), (2, 2, 1, 6)):
        one = a_replica(tentative=tentative, reconciliations=corrections, counters={"late": dropped, "none": 0})
        history.heard(a_node("n1", one, incarnation=incarnation))
    history.heard(a_node("n2", a_replica()))
    history.heard(a_source(last_id=300, late=2))
    history.heard(a_source(incarnation=2, last_id=400, ended=True, late=1, malformed=3))
    channel = a_channel(position=12, tentative=7, undone=7, switches=1, ended=True)
    history.heard(a_client(channel, switches=(SWITCH,)))
    return history


def a_summary(**verdict: Any) -> dict[str, Any]:
    kill = Happening(Fault("kill", ("n1",), for_us=3 * SECOND, at_us=5 * SECOND), 6 * SECOND, 6 * SECOND + 9, None)
    summary = figures(*plan_of(), a_history(), [kill], SECOND, 11 * SECOND)
    equal = {"equal": True, "complete": True, "rows": 12, "differences": [], "reason": ""}
    return {**summary, "verdict": {**equal, **verdict}, "died": {}, "never_returned": [], "run_dir": "runs/x"}


def test_figures_are_summed_over_restarts_of_a_process() -> None:
    """Counters of operators are restored with the snapshot, so the last values are complete."""
    summary = a_summary()
    n1, n2 = summary["replicas"]
    assert (n1["starts"], n1["tentative"], n1["reconciliations"], n1["counters"]) == (2, 7, 2, {"late": 6})
    assert (n2["starts"], n2["tentative"]) == (1, 0)
    (source,) = summary["sources"]
    assert (source["tuples"], source["late"], source["malformed"], source["starts"]) == (400, 3, 3, 2)
    (channel,) = summary["channels"]
    assert (channel["stable"], channel["shares_us"], channel["bound_us"], channel["complete"]) == (
        *(12, [2 * SECOND], 2 * SECOND, True),
    )
    (fault,) = summary["faults"]
    assert (fault["planned_us"], fault["began_us"], fault["ended_us"]) == (5 * SECOND, 5 * SECOND + 9, None)
    assert json.loads(json.dumps(summary)) == summary


def test_a_bound_over_several_units_is_shown_as_a_sum() -> None:
    """``2X`` would say nothing where X differs."""
    summary = figures(*plan_of(TWO_UNITS), a_history(), [], SECOND, 11 * SECOND)
    shares = {c["channel"]: (c["shares_us"], c["bound_us"]) for c in summary["channels"]}
    assert shares["busy/0"] == ([2 * SECOND, 5 * SECOND], 7 * SECOND)
    assert [show_bound([2 * SECOND]), show_bound(shares["busy/0"][0])] == ["X = 2s", "2s + 5s = 7s"]


def test_errors_in_logs_are_counted_and_fail_a_run() -> None:
    summary = {**a_summary(), "errors": {"n2": {"count": 12, "first": "no room", "log": "n2.log"}}}
    assert failures(summary) == ["n2: 12 errors in logs/n2.log, the first: no room"]
    assert "FAILED ON THE WAY: n2: 12 errors in logs/n2.log, the first: no room" in shown(summary_text(summary), 100)


def test_a_sink_that_is_not_as_recorded_fails_the_run() -> None:
    wrong = {
        "sink": "jsonl results of client c",
        "rows": 5,
        "equal": False,
        "text": "5 rows, not as recorded: 1 missing",
    }
    unread = {"sink": "http h of client c", "rows": 0, "equal": None, "text": "not compared: it is not read again"}
    summary = a_summary() | {"sinks": [wrong, unread]}
    assert failures(summary) == [f"sink {wrong['sink']}: {wrong['text']}"]
    text = shown(summary_text(summary), width=120)
    assert "sink jsonl results of client c: 5 rows, not as recorded: 1 missing" in text
    assert "sink http h of client c: not compared: it is not read again" in text


def test_replica_without_process_at_the_end_is_down() -> None:
    """Whatever it was last heard to be: who is killed says nothing of it."""
    heard = figures(*plan_of(), a_history(), [], SECOND, 11 * SECOND)["replicas"]
    down = figures(*plan_of(), a_history(), [], SECOND, 11 * SECOND, down={"n1"})["replicas"]
    assert [one["state"] for one in heard] == ["STABLE", "STABLE"]
    assert [one["state"] for one in down] == ["DOWN", "STABLE"]


def shown(renderable: Any, width: int = 80) -> str:
    console = Console(width=width, color_system=None, force_terminal=False, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        console.print(renderable)
    return console.export_text()


def test_the_summary_compares_delays_with_their_bounds() -> None:
    text = shown(summary_text(a_summary()))
    assert "longest delay of a new tuple   1.50 s, allowed X = 2s: kept" in text
    assert "tentative tuples received      7, of which 7 were undone" in text
    assert "longest gap in stable output   0.40 s" in text
    assert "n1 → n2   0.09 s" in text
    assert "stable stream equals the reference run, tuple for tuple (12 tuples)" in text
    assert "…" not in text


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (
            {"complete": False, "reason": "stopped after 5 s"},
            "NOT COMPLETE: stopped after 5 s; the 12 tuples so far agree with the reference",
        ),
        (
            {"complete": False, "reason": "source:shop: line 7: no number", "rows": 0},
            "NOT COMPLETE: source:shop: line 7: no number; no stable tuple has come",
        ),
        (
            {
                "equal": None,
                "reference": "operator 'hot' raised on a slice: ValueError: x",
                "where": "  hot.py:3 in step",
            },
            "the reference run fails too: operator 'hot' raised on a slice: ValueError: x hot.py:3 in step",
        ),
        ({"equal": None, "reason": "interrupted"}, "not compared with the reference: interrupted"),
        (
            {"equal": False, "differences": ["client c: out/0: 1 missing; first id 7 is missing"]},
            "first id 7 is missing",
        ),
    ],
)
def test_the_verdict_has_a_reason(verdict: dict[str, Any], said: str) -> None:
    assert said in " ".join(shown(summary_text(a_summary(**verdict))).split())


def test_failures_come_before_the_comparison() -> None:
    summary = a_summary()
    summary["replicas"][1]["error"] = "operator 'hot' raised"
    text = shown(summary_text(summary), 120)
    assert "FAILED ON THE WAY: main/0@n2: operator 'hot' raised\nstable stream equals" in text
    assert line_of(text, "main/0@n2")[1] == "STOPPED"


def test_replicas_that_differ_fail_a_run_and_name_the_operator() -> None:
    summary = a_summary()
    summary["replicas"][0]["differs"] = ["out/0 differs from n2's by id 9: operator 'hot' is code of your own"]
    assert failures(summary) == ["main/0@n1: out/0 differs from n2's by id 9: operator 'hot' is code of your own"]
    assert "FAILED ON THE WAY: main/0@n1: out/0 differs" in shown(summary_text(summary), 140)


def test_a_replica_that_never_returned_fails_a_run() -> None:
    summary = a_summary()
    summary["replicas"][1]["state"] = "RECOVERING"
    summary["never_returned"] = ["main/0@n2"]
    text = shown(summary_text(summary), 140)
    assert "FAILED ON THE WAY: main/0@n2 never returned: RECOVERING at the end; what it did: trace/n2.jsonl" in text
    assert text.count("trace/n2.jsonl") == 1


def test_recovering_replicas_are_those_of_running_processes() -> None:
    watch = ProgressWatch(*plan_of())
    watch.look({n: a_node(n, a_replica(NodeState.RECOVERING)) for n in ("n1", "n2")}, 0)
    assert watch.recovering() == ["main/0@n1", "main/0@n2"]
    assert watch.recovering(gone=["n2"]) == ["main/0@n1"]
    stopped = a_replica(NodeState.RECOVERING, error="operator 'hot' raised")
    watch.look({"n1": a_node("n1", stopped), "n2": a_node("n2", a_replica())}, 1)
    assert watch.recovering() == []


def test_late_tuples_give_a_warning_with_the_disorder() -> None:
    summary = a_summary()
    summary["sources"][0] |= {"late_by_us": 1_980_000}
    assert "shop: 3 late by up to 1.98s (disorder 0s)" in shown(summary_text(summary))


def test_replicas_not_stable_at_the_end_are_named() -> None:
    summary = a_summary()
    assert "at the end" not in shown(summary_text(summary))
    summary["replicas"][1]["state"] = "RECOVERING"
    assert "main/0@n2 was RECOVERING at the end; what it did: trace/n2.jsonl" in shown(summary_text(summary))


def test_malformed_rows_are_reported_with_the_first_one() -> None:
    summary = a_summary()
    summary["sources"][0]["first_malformed"] = "line 4: key: expected int64, got 'x'"
    assert "shop: 3 malformed (first: line 4: key: expected int64, got 'x')" in shown(summary_text(summary))


def test_first_malformed_row_is_read_from_stored_rows(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert directory.first_malformed("shop") == ""
    (tmp_path / "malformed").mkdir()
    (tmp_path / "malformed" / "shop.jsonl").write_text('{"line": 4, "reason": "no number", "text": "x"}\n{"line": 5}\n')
    assert directory.first_malformed("shop") == "line 4: no number"
    (tmp_path / "malformed" / "shop.jsonl").write_text("torn")
    assert directory.first_malformed("shop") == ""


@pytest.mark.parametrize(("verdict", "said"), [({"late": []}, True), ({"late": ["P1: x"]}, False), ({}, False)])
def test_delay_above_bound_says_if_no_promise_is_broken(verdict: dict[str, Any], said: bool) -> None:
    summary = a_summary(**verdict)
    summary["worst"]["delay_max_us"] = 3 * SECOND
    text = shown(summary_text(summary), 120)
    assert "3.00 s, allowed X = 2s: EXCEEDED" in text
    assert ("no promise is broken" in text) == said


def test_negative_delay_is_not_called_fulfilled() -> None:
    summary = a_summary()
    summary["worst"]["delay_max_us"] = -3599 * SECOND
    text = shown(summary_text(summary), 120)
    assert "longest delay of a new tuple   unknown: all came before their time" in text
    assert "kept" not in text


def test_a_failure_is_reported_once() -> None:
    story = Story()
    failed = a_source(fault="line 7: no number")
    assert story.heard(failed) == ["source:shop FAILED: line 7: no number"]
    assert story.heard(failed) == []
    stopped = a_node("n1", a_replica(error="operator 'hot' raised"))
    assert story.heard(stopped) == ["main/0@n1 STOPPED: operator 'hot' raised"]


def test_the_note_of_a_source_is_reported_once() -> None:
    story = Story()
    waits = a_source(note="source:shop: the first row lies 5 s ahead")
    assert story.heard(waits) == ["source:shop: the first row lies 5 s ahead"]
    assert story.heard(waits) == []


def test_a_source_without_an_open_log_is_running_and_empty() -> None:
    opening = SourceStatus(name="source:shop", incarnation=1, log=None)
    assert Story().heard(opening) == []
    watch, history = ProgressWatch(*plan_of()), EventList()
    watch.look({**statuses(ended=True), "source:shop": opening}, 0)
    assert watch.what_is_open(SECOND) == "source:shop not complete"
    assert history.heard(opening) == []
    (source,) = figures(*plan_of(), history, [], 0, SECOND)["sources"]
    assert (source["tuples"], source["ended"], source["late"], source["starts"]) == (0, False, 0, 1)
    seen = {**a_sight().seen, "source:shop": Seen(opening, NOW)}
    assert line_of(drawn(a_sight(seen=seen)), "shop") == ["shop", "running", "0"]


def test_the_story_reports_undos_and_switches() -> None:
    story = Story()

    def told(tentative: int, undone: int, *switches: SwitchStatus) -> list[str]:
        return story.heard(a_client(a_channel(tentative=tentative, undone=undone), switches=switches))

    assert told(0, 0) == []
    assert told(0, 0, SWITCH) == ["client:client reads per_second/0 from n2, before from n1"]
    assert told(20, 0, SWITCH) == ["client:client: tentative tuples on per_second/0"]
    assert told(24, 0, SWITCH) == []
    assert told(24, 24, SWITCH) == ["client:client: undo of 24 tentative tuples on per_second/0, stable again"]
    assert told(30, 24, SWITCH) == ["client:client: tentative tuples on per_second/0"]


def test_a_restart_between_two_polls_is_a_recovery() -> None:
    history = EventList()
    history.heard(a_node("n1", a_replica()))
    assert history.heard(a_node("n1", a_replica(), incarnation=2)) == [("main/0@n1", "RECOVERING", "STABLE")]


# -- what is drawn ---------------------------------------------------------------------------------------------------

NOW = 1_000_000


def a_sight(**changes: Any) -> Sight:
    plan_time = parse_timestamp("2024-01-01T00:00:03.500000")
    statuses: list[ProcessStatus] = [
        a_source(last_id=1_234, frontier=plan_time, late=5),
        a_node("n1", a_replica(NodeState.UP_FAILURE, tentative=40)),
        a_node("n2", a_replica(NodeState.STABILIZATION, reconciliations=1)),
        a_client(a_channel(tentative=40, undone=8)),
    ]
    names = ("n1", "n2", "source:shop", "client:client")
    standard: dict[str, Any] = {
        "title": "small   runs/x",
        "now_us": NOW,
        "begun_us": NOW - 4 * SECOND,
        "phases": dict.fromkeys(names, Phase.RUNNING),
        "seen": {each.name: Seen(each, NOW) for each in statuses},
    }
    return Sight(**{**standard, **changes})


def drawn(sight: Sight, width: int = 80) -> str:
    return shown(render(*plan_of(), sight), width)


def test_certificates_that_need_attention_are_named() -> None:
    day = 86_400 * SECOND
    ends = {"n1": (13 * day + 1, ""), "n2": (-1, "n2.pem: no key"), "n3": (15 * day, "")}
    told = {
        name: Seen(
            replace(
                a_node(name),
                certificate=CertificateStatus(expires_us=NOW + left, ca_expires_us=NOW + 90 * day, refused=refused),
            ),
            NOW,
        )
        for name, (left, refused) in ends.items()
    }
    text = drawn(a_sight(seen=told))
    assert text.splitlines()[-3:] == [
        "n1: its certificate expires in 13 days",
        "n2: its certificate has expired",
        "n2 does not use its new certificate: n2.pem: no key",
    ]


def line_of(text: str, beginning: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.startswith(beginning))


def test_view_shows_states_counts_and_delay_in_80_columns() -> None:
    text = drawn(a_sight())
    assert line_of(text, "small")[-2:] == ["4.00", "s"]
    assert line_of(text, "shop") == ["shop", "running", "1,234", "01-01", "00:00:03.5", "5"]
    assert line_of(text, "n1 main") == ["n1", "main", "UP_FAILURE", "12", "40", "25%"]
    assert line_of(text, "n2 main") == ["n2", "main", "STABILIZATION", "12", "1", "25%"]
    assert line_of(text, "per_second") == ["per_second", "3", "40", "8", "█░░░░░░░", "0.25", "1.50", "0.40", "n1"]
    assert "delay / X = 2s" in text
    assert "…" not in text


def test_the_shown_delay_grows_while_nothing_arrives() -> None:
    """The last tuple was 0.25 s late, but came 2.5 s ago, so the delay is now beyond X."""
    text = drawn(a_sight(now_us=NOW + 2_500_000))
    assert "████████ 2.50" in text


def test_node_with_settings_other_than_file_is_shown() -> None:
    def has(x_us: int) -> Sight:
        told = SettingsStatus(x_us=x_us, alpha=0.9, during_failure="process", during_stabilization="process")
        seen = {**a_sight().seen, "n1": Seen(replace(a_node("n1", a_replica()), settings=told), NOW)}
        return a_sight(seen=seen)

    assert "in the file" not in drawn(has(2 * SECOND))
    text = drawn(has(4 * SECOND))
    assert "n1        X 4s, α 0.9, policy process  X 2s, α 0.9, policy process" in text
    assert "delay / X = 4s" in text, "kX follows"


def test_the_summary_allows_the_longest_x_of_the_run() -> None:
    history = EventList()
    for x_us in (2 * SECOND, 5 * SECOND, 3 * SECOND):
        told = SettingsStatus(x_us=x_us, alpha=0.9, during_failure="process", during_stabilization="process")
        history.heard(replace(a_node("n1", a_replica()), settings=told))
    (channel,) = figures(*plan_of(), history, [], 0, SECOND)["channels"]
    assert channel["bound_us"] == 5 * SECOND


@pytest.mark.parametrize("phase", [Phase.KILLED, Phase.FROZEN, Phase.DIED])
def test_the_phase_of_a_process_hides_its_last_status(phase: Phase) -> None:
    text = drawn(a_sight(phases={"n1": phase, "n2": Phase.RUNNING}))
    assert line_of(text, "n1 main")[2] == phase
    assert line_of(text, "n2 main")[2] == "STABILIZATION"


def test_processes_without_answer_are_silent_or_unreachable() -> None:
    seen = {"n1": Seen(a_node("n1", a_replica()), NOW - 5 * SECOND)}
    text = drawn(a_sight(phases={}, seen=seen, errors={"n1": UnreachedStatus("silent", "no answer within 1 s")}))
    assert line_of(text, "n1 main")[2] == "silent"
    assert line_of(text, "n2 main")[2] == "unreachable"


def test_an_unserved_input_is_named() -> None:
    seen = {"n1": Seen(a_node("n1", a_replica(inputs=(an_input(main=None),))), NOW)}
    assert line_of(drawn(a_sight(seen=seen)), "n1 main")[-3:] == ["shop/0", "←", "nobody"]


def test_faults_are_shown_with_their_progress() -> None:
    kill = Fault("kill", ("n1",), for_us=3 * SECOND)
    begun = NOW - 4 * SECOND
    happenings = [
        Happening(kill, begun + SECOND, began_us=begun + SECOND, ended_us=begun + 4 * SECOND),
        Happening(replace(kill, first=("n2",)), began_us=NOW - SECOND),
        Happening(Fault("cut", ("n1",), ("n2",)), began_us=NOW, errors=["tell n2: it is deaf"]),
        Happening(Fault("heal"), NOW + 3 * SECOND),
    ]
    text = drawn(a_sight(faults=[fault_status(h) for h in happenings]))
    rows = [line.strip("│ ").split("  ") for line in text.splitlines() if line.startswith("│")]
    found = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert found == [
        ["1.00 s", "kill n1 for 3s", "over after 3.00 s"],
        ["3.00 s", "kill n2 for 3s", "now, 2.00 s left"],
        ["4.00 s", "cut n1 ↔ n2", "tell n2: it is deaf"],
        ["7.00 s", "heal", "in 3.00 s"],
    ]


def test_a_cluster_without_any_status_can_be_drawn() -> None:
    phases = dict.fromkeys(("n1", "n2", "source:shop", "client:client"), Phase.STARTING)
    text = drawn(Sight("small", NOW, phases=phases))
    assert line_of(text, "n1 main")[2] == "starting"


def test_standbys_and_the_coordinator_are_drawn() -> None:
    plan, directory = plan_of()
    (partition,) = directory.placement
    directory = placed(directory, {partition: (NodeId("n1"),)}, {partition: Standbys((NodeId("n2"),), SECOND)})
    sight = a_sight()
    coordinator = CoordinatorStatus(
        name="coordinator",
        incarnation=1,
        partitions=(
            PartitionStatus(
                partition="main/0", running={}, placed=("n1",), standbys=("n2",), wanted=("n2",), served=False
            ),
        ),
        activation=ActivationStatus(budget=1, active=("main/0",), target=("main/0",), of=None),
    )
    standby = a_node("n2", standbys=(a_standby(checkpoints=12),))
    seen = {**sight.seen, "n2": Seen(standby, NOW), "coordinator": Seen(coordinator, NOW)}
    phases = {**sight.phases, "coordinator": Phase.RUNNING}
    text = shown(render(plan, directory, replace(sight, seen=seen, phases=phases)), 100)
    assert line_of(text, "n2 main")[2:] == ["stands", "by", "12", "checkpoints", "taken"]
    told = " ".join(line_of(text, "coordinator"))
    assert told == "coordinator running nobody serves main/0 active for a budget of 1: main/0"
    seen["n2"] = Seen(a_node("n2", a_replica()), NOW)
    text = shown(
        render(plan, directory, replace(sight, seen=seen, phases={**phases, "coordinator": Phase.KILLED})), 100
    )
    assert line_of(text, "n2 main")[2] == "STABLE", "it has taken over"
    assert line_of(text, "coordinator")[1] == "killed"


def a_load(cpu: float, **changes: Any) -> LoadStatus:
    standard = {"memory_bytes": 2_500_000, "network_bytes": 83_000, "rows": 1_234.4, "state_bytes": 999}
    return LoadStatus(cpu=cpu, **{**standard, **changes})


def test_loads_are_drawn_for_replicas_and_mean_of_partitions() -> None:
    sight = a_sight()
    replicas = [
        a_replica(load=a_load(share), load_age_us=age) for share, age in ((0.124, 3 * SECOND), (0.2, 40 * SECOND))
    ]
    coordinator = CoordinatorStatus(
        name="coordinator",
        incarnation=1,
        partitions=(),
        activation=ActivationStatus(budget=0, active=(), target=(), of=None),
        loads=(PartitionLoad(partition="main/0", samples=45, mean=a_load(0.15)),),
    )
    nodes = {name: Seen(a_node(name, one), NOW) for name, one in zip(("n1", "n2"), replicas, strict=True)}
    sight = replace(sight, seen={**sight.seen, **nodes, "coordinator": Seen(coordinator, NOW)})
    assert "mean" not in drawn(sight), "the live view has no room"
    table = drawn(replace(sight, loads=True)).partition("load ")[2]
    assert line_of(table, "n1 main")[2:] == ["12.4%", "1,234", "83.0", "kB", "2.5", "MB", "999", "B"]
    assert line_of(table, "n2 main")[-3:] == ["40", "s", "ago"]
    assert line_of(table, "main/0")[1:] == [
        *["15.0%", "1,234", "83.0", "kB", "2.5", "MB", "999", "B"],
        *["mean", "of", "45", "of", "90", "samples"],
    ]


def test_directory_version_is_drawn_with_nodes_that_lack_it() -> None:
    sight = a_sight()
    assert "directory" not in drawn(sight)

    def with_versions(**numbers: int) -> Sight:
        versions = {name: DirectoryStatus(epoch=7, number=number) for name, number in numbers.items()}
        seen = {n: replace(one, status=replace(one.status, directory=versions.get(n))) for n, one in sight.seen.items()}
        return replace(sight, seen=seen)

    assert line_of(drawn(with_versions(n1=3, n2=3)), "directory") == ["directory", "version", "3"]
    assert line_of(drawn(with_versions(n1=3, n2=2)), "directory")[3:] == ["n2", "has", "2"]


def test_clients_without_a_server_are_not_drawn() -> None:
    """In a real deployment clients have no server."""
    text = drawn(
        Sight("small", NOW, errors=dict.fromkeys(("n1", "n2", "source:shop"), UnreachedStatus("refused", "no")))
    )
    assert "client" not in text


@pytest.mark.parametrize(
    ("status", "said", "told"),
    [
        (-11, "n1: serving", "killed by SIGSEGV"),
        (2, "a\nspe: port in use\n", "exit status 2: spe: port in use"),
        (1, "    | TypeError: x\n    +-------\n", "exit status 1: TypeError: x"),
        (1, "", "exit status 1"),
    ],
)
def test_the_death_of_a_process_is_described_in_a_line(status: int, said: str, told: str) -> None:
    assert how_it_died(status, said) == told


def test_a_run_continues_while_each_partition_has_a_live_node() -> None:
    directory = plan_of(TWO_UNITS).directory
    assert without_whom(directory, {}) == ""
    assert without_whom(directory, {"n1": ""}) == ""
    assert without_whom(directory, {"n1": "", "n2": ""}) == "n2"
    assert without_whom(directory, {"n3": ""}) == "n3"
    assert without_whom(directory, {"n1": "", "source:shop": ""}) == "source:shop"


def test_times_are_written_in_short() -> None:
    assert moment(END_OF_TIME) == "end"
    assert moment(parse_timestamp("2024-03-05T06:07:08.987654")) == "03-05 06:07:08.9"
    assert [seconds(us) for us in (0, 1_234_567, -280_000, 12_345_678)] == ["0.00", "1.23", "-0.28", "12.3"]


def used(*values: float) -> HistogramStatus:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram.status()


def test_summary_has_used_x_of_all_starts_of_a_replica() -> None:
    history = a_history()
    history.heard(a_node("n1", a_replica(x_used=used(0.3, 0.97)), incarnation=3))
    history.heard(a_node("n1", a_replica(x_used=used(0.4)), incarnation=4))
    replicas = {r["replica"]: r["x_used"] for r in figures(*plan_of(), history, [], 0, SECOND)["replicas"]}
    assert replicas == {"main/0@n1": {"largest": 0.97, "p99": 0.97, "releases": 3}, "main/0@n2": None}


def test_status_shows_how_much_of_x_is_used() -> None:
    one = a_replica(x_us=2 * SECOND, waiting_us=SECOND, x_used=used(*[0.3] * 99, 0.95))
    text = drawn(replace(a_sight(seen={"n1": Seen(a_node("n1", one), NOW)}), loads=True))
    head = text.splitlines().index(next(line for line in text.splitlines() if line.startswith("X used")))
    assert text.splitlines()[head + 1].split() == ["n1", "main", "2s", "50%", "50%", "95%"]
    assert "X used" not in drawn(a_sight(seen={"n1": Seen(a_node("n1", one), NOW)}))


def test_status_shows_checkpoint_logs() -> None:
    log = a_checkpoint_log(
        recovery_us=1_500_000, least_us=250_000, recovered_us=SECOND, records=12_345, kept_bytes=67_890
    )
    text = drawn(replace(a_sight(seen={"n1": Seen(a_node("n1", a_replica(log=log)), NOW)}), loads=True))
    lines = text.splitlines()
    row = lines[next(at for at, line in enumerate(lines) if line.startswith("checkpoint log")) + 1]
    assert row.split() == ["n1", "main", "1.5s", "250ms", "1s", "12,345", "67,890"]


# -- spe sweep


@pytest.mark.parametrize("value", ["", "2,x", "1,,2", "0", "-1s", "1s 2s", ","])
def test_a_wrong_x_of_a_sweep_is_named(value: str, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["sweep", str(config), f"--x={value}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("spe: --x: expected durations above zero, with commas, such as 500ms,1s,2s; got ")


def test_a_sweep_takes_each_x_once() -> None:
    assert lengths_of_x("500ms, 1s,2") == [500_000, 1_000_000, 2_000_000]
    with pytest.raises(SpeError, match="--x: 2s is given twice"):
        lengths_of_x("2,2s")
