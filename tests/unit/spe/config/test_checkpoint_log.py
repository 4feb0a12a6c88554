"""``checkpoint: {continuous: true, …}``: what may be said where, and what is refused, with line and advice."""

from __future__ import annotations

import pytest

from spe.api import Environment, generator, tumbling
from spe.config import load_text
from spe.errors import ConfigError
from spe.plan.deploy import Deployed
from spe.plan.log_targets import Continuous
from spe.stream.ids import PartitionId
from spe.stream.names import UnitId

CONFIG = """\
sources:
  orders: {from: {generator: {name: orders, rate: 50, duration: 2s}}}
query:
  totals: {aggregate: {from: orders, window: 1s, group_by: key, compute: {n: count(*)}}}
  best: {topk: {from: totals, k: 3, order_by: [n desc]}}
defaults: {{DEFAULTS}}
fragments:
  count: {operators: [totals]{COUNT}}
  rank: {operators: [best]{RANK}}
"""


def config(count: str = "", rank: str = "", defaults: str = "") -> str:
    def checkpoint(text: str) -> str:
        return f", checkpoint: {text}" if text else ""

    text = CONFIG.replace("{COUNT}", checkpoint(count)).replace("{RANK}", checkpoint(rank))
    return text.replace("{DEFAULTS}", f"checkpoint: {defaults}" if defaults else "")


def logs(deployed: Deployed) -> dict[str, Continuous]:
    return {str(id): log for id, log in deployed.directory.logs.items()}


def mistake(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        load_text(text, "shop.yaml")
    (line,) = str(error.value).splitlines()
    return line


@pytest.mark.parametrize(
    ("written", "log"),
    [
        ("{continuous: true, recovery: 2s}", Continuous(2_000_000)),
        ("{continuous: true, recovery: 2s, share: 5%}", Continuous(2_000_000, 0.05)),
        ("{continuous: true, recovery: 500ms, share: 0.2}", Continuous(500_000, 0.2)),
        (
            "{continuous: true, recovery: 8s, share: 100%, groups: 1000000}",
            Continuous(8_000_000, 1.0, groups=1_000_000),
        ),
        (
            "{continuous: true, records: 90000, rows: 250000, interval: 5ms, period: 100ms}",
            Continuous(None, 0.05, 100_000, records=90_000, rows=250_000),
        ),
        ("{continuous: true, rows: 1, share: 1%}", Continuous(None, 0.01, rows=1)),
    ],
)
def test_a_fragment_has_a_log(written: str, log: Continuous) -> None:
    assert logs(load_text(config(count=written))) == {"count/0": log}


def test_defaults_hold_for_fragments_that_do_not_say_otherwise() -> None:
    log = "{continuous: true, recovery: 2s}"
    assert logs(load_text(config(defaults=log))) == dict.fromkeys(("count/0", "rank/0"), Continuous(2_000_000))
    assert set(logs(load_text(config(defaults=log, rank="{continuous: false}")))) == {"count/0"}
    with_standby = load_text(config(defaults=log, count="2s, standby: 1, replicas: 1"))
    assert set(logs(with_standby)) == {"rank/0"}
    assert with_standby.directory.standbys[PartitionId(UnitId("count"), 0)].every_us == 2_000_000


def test_defaults_hold_for_a_query_without_fragments() -> None:
    text = config(defaults="{continuous: true, recovery: 3s}").partition("fragments:")[0]
    assert logs(load_text(text)) == {"main/0": Continuous(3_000_000)}


def test_every_in_a_mapping_is_the_interval_of_standbys() -> None:
    short, long = (load_text(config(count=f"{every}, standby: 1, replicas: 1")) for every in ("2s", "{every: 2s}"))
    assert short.directory.standbys == long.directory.standbys
    assert [s.every_us for s in long.directory.standbys.values()] == [2_000_000]


def test_a_log_in_python_is_the_same() -> None:
    env = Environment("shop")
    orders = env.source("orders", generator("orders", rate=50, duration="2s"))
    totals = orders.window(tumbling("1s")).aggregate("totals", n="count(*)")
    env.outputs(totals).fragment("f", [totals], checkpoint={"continuous": True, "recovery": "2s"})
    assert logs(env.deployed()) == {"f/0": Continuous(2_000_000)}


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (
            "{continuous: true, recovery: 2s, every: 5s}",
            "checkpoint: continuous: true writes what changes, and every is for whole checkpoints; "
            "expected {continuous: true, recovery: 2s}, or {every: 5s, disk: true}",
        ),
        (
            "{continuous: true}",
            "checkpoint: continuous: true needs the time to recover in; expected {continuous: true, recovery: 2s}",
        ),
        ("{recovery: 2s}", "checkpoint: recovery is for a checkpoint log; expected {continuous: true, recovery: 2s}"),
        ("{continuous: true, recovery: 0s}", "checkpoint.recovery: expected a duration above zero, got '0s'"),
        ("{continuous: true, recovery: -1s}", "checkpoint.recovery: "),
        ("{continuous: true, recovery: 2}", "checkpoint.recovery: expected a duration with its unit"),
        *(
            (
                f"{{continuous: true, recovery: 2s, share: {share}}}",
                f"checkpoint.share: expected a share above 0 and at most 100%, such as 5% or 0.05, got {shown}",
            )
            for share, shown in (
                ("0%", "'0%'"),
                ("101%", "'101%'"),
                ("5", "5"),
                ("0", "0"),
                ("true", "True"),
                ("x", "'x'"),
            )
        ),
        (
            "{continuous: true, recovery: 2s, records: 9}",
            "checkpoint: records follows from recovery; expected one of them",
        ),
        ("{continuous: true, rows: 9, interval: 5ms}", "checkpoint: interval and period go together"),
        (
            "{continuous: true, rows: 9, interval: 5ms, period: 10ms, share: 5%}",
            "checkpoint: expected either share, or interval and period",
        ),
        ("{continuous: true, rows: 9, interval: 11ms, period: 10ms}", "checkpoint: interval is more than period"),
        ("{continuous: true, recovery: 2s, groups: 0}", "checkpoint.groups: expected a number of at least 1, got 0"),
        ("{continous: true}", "checkpoint.continous: unknown key (did you mean 'continuous'?)"),
        ("2", "checkpoint: expected a duration with its unit, such as 500ms, 2s or 1h30m, got 2; or a mapping"),
    ],
)
def test_mistakes_name_file_line_and_path(written: str, message: str) -> None:
    assert mistake(config(count=written)).startswith(f"shop.yaml:8: fragments.count.{message}")
    if "mapping" not in message:
        assert mistake(config(defaults=written)).startswith(f"shop.yaml:6: defaults.{message}")


@pytest.mark.parametrize("written", ["2s", "{every: 2s}"])
def test_an_interval_without_a_standby_is_refused_with_advice(written: str) -> None:
    where = "checkpoint.every" if written.startswith("{") else "checkpoint"
    assert mistake(config(count=written)) == (
        f"shop.yaml:8: fragments.count.{where}: has no effect: it is the interval of standbys' checkpoints, and the "
        "fragment has no standby; expected standby: 1 as well, defaults: {checkpoint: {every: 2s, disk: true}} for "
        "what each node writes to its own disk, or a log, checkpoint: {continuous: true, recovery: 2s}"
    )
    assert "has no effect" in mistake(config(count=f"{written}, standby: [[]]"))


def test_disk_belongs_to_nodes() -> None:
    assert mistake(config(count="{every: 10s, disk: true}")) == (
        "shop.yaml:8: fragments.count.checkpoint.disk: belongs to nodes; expected "
        "defaults: {checkpoint: {every: 10s, disk: true}}, or the same of a node"
    )


def test_a_node_has_no_log_of_its_own() -> None:
    line = mistake(config() + "nodes:\n  n1: {checkpoint: {continuous: true, recovery: 2s}}\n  n2: {}\n")
    assert line == (
        "shop.yaml:11: nodes.n1.checkpoint.continuous: belongs to a fragment, or in defaults to all fragments; "
        "expected fragments: {NAME: {checkpoint: {continuous: true, recovery: 2s}}}"
    )
