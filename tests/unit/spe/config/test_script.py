"""A configuration as a Python script: which environment counts, and the lines of mistakes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from replicas.cli.app import execute
from spe.config import load, load_plan, load_text, read_document
from spe.errors import ConfigError

SHOP = """\
from spe.api import Environment, generator, tumbling

env = Environment("shop", x="2s")
orders = env.source("orders", generator("orders", rate=10))
totals = (
    orders.filter("price >= 10", name="large")
    .window(tumbling("1s"))
    .aggregate("totals", n="count(*)")
)
env.outputs(totals).node("n1").node("n2")
if __name__ == "__main__":
    env.run()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    path = tmp_path / "shop.py"
    path.write_text(SHOP)
    return path


def mistakes(path: Path, *changes: tuple[str, str]) -> list[str]:
    """The messages about the script with these changes, without its folder."""
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_plan(path)
    return [p.replace(f"{path.parent}/", "") for p in caught.value.problems]


def test_a_script_gives_the_plan_of_its_yaml(script: Path) -> None:
    deployed = load(script)

    assert deployed == load_text(read_document(script).to_yaml())
    assert sorted(deployed.directory.nodes) == ["n1", "n2"]


def test_every_mistake_names_the_line_of_its_call(script: Path) -> None:
    changes = ('"price >= 10"', '"prise >= 10"'), ('n="count(*)"', 'n="cuont(*)"'), ('x="2s"', 'x="2 parsecs"')

    assert [p.partition(": ")[0] for p in mistakes(script, *changes)] == ["shop.py:3", "shop.py:6", "shop.py:8"]


def test_a_mistake_of_an_expression_shows_its_place(script: Path) -> None:
    (problem,) = mistakes(script, ('"price >= 10"', '"price >= ten"'))
    head, line, caret = problem.splitlines()

    assert head.startswith("shop.py:6: query.large.filter.where: ")
    assert line[caret.index("^") :].startswith("ten")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"orders", generator', '"orders", generato', "shop.py:4: NameError: name 'generato' is not defined"),
        ("rate=10))", "rate=10), disorde='1s')", "shop.py:4: TypeError: Environment.source() got an unexpected"),
        ('name="large"', 'name="orders"', "shop.py:6: query.orders: there is a stream 'orders' already (shop.py:4)"),
        ('.aggregate("totals", ', ".top_k(1, lambda: ", "shop.py:8: not Python: "),
        ("if __name__", "raise SystemExit\nif __name__", "shop.py:11: ends itself while it is read"),
        ('if __name__ == "__main__":', "if True:", "shop.py:12: env.run() while the script is read; expected it under"),
        ("env.outputs", "other = Environment()\nenv.outputs", ""),
    ],
)
def test_an_exception_in_a_script_is_reported_with_its_line(script: Path, old: str, new: str, problem: str) -> None:
    if problem:
        assert mistakes(script, (old, new))[0].startswith(problem)
    else:  # of two environments, the one named env counts
        script.write_text(SHOP.replace(old, new))
        assert load_plan(script).cluster == "shop"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = 1\n", "shop.py: makes no environment; expected one spe.api.Environment, or one of the name `env`"),
        (
            "from spe.api import Environment\na = Environment()\nb = Environment()\n",
            "shop.py: makes 2 environments (shop.py:2, shop.py:3); expected one",
        ),
    ],
)
def test_a_script_has_one_environment(script: Path, text: str, problem: str) -> None:
    script.write_text(text)

    assert mistakes(script)[0].startswith(problem)


def test_data_files_are_relative_to_the_script(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script.write_text("""\
from spe.api import Environment, csv
env = Environment()
env.source("a", csv("a.csv"), {"ts": "timestamp!"}, time="ts").filter("ts is not null").output()
plan = env.plan()
""")
    monkeypatch.chdir("/")

    assert load_plan(script).sources["a"].reader["path"] == str(script.parent / "a.csv")  # type: ignore[index]


def test_user_operators_may_be_in_the_script(script: Path) -> None:
    script.write_text("""\
from operators.custom import CustomOperator
from spe.api import Environment, generator
env = Environment()

class Same(CustomOperator):
    @classmethod
    def output_schema(cls, inputs):
        return inputs[0]
    def step(self, ports, boundary):
        return ports[0]

env.source("a", generator("orders", rate=10)).process("shop:Same", name="same").output()
""")

    assert "same" in load_plan(script).query.outputs


@pytest.mark.parametrize("words", [["check"], ["certs", "--out", "c"], ["plan", "--budget", "1"], ["reference"]])
def test_commands_take_a_script(
    words: list[str], script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(SHOP.replace("rate=10", "rate=10, count=20"))
    monkeypatch.chdir(script.parent)
    command, *options = words

    assert execute([command, "shop.py", *options]) == 0
    assert capsys.readouterr().out


def test_a_mistake_of_a_script_is_reported_without_a_traceback(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(SHOP.replace("price", "prise"))

    assert execute(["check", str(script)]) == 2
    assert capsys.readouterr().err.startswith(f"spe: {script}:6: query.large.filter.where: ")


def test_mistakes_are_reported_before_anything_starts(script: Path) -> None:
    script.write_text(SHOP.replace("price", "prise"))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert f"spe.errors.ConfigError: {script}:6: query.large.filter.where: " in done.stderr
    assert not (script.parent / "runs").exists()
