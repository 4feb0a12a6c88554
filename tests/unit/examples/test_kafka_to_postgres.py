"""The example's own judgement: what must not be in the table of results is seen, and named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

pytest.importorskip("confluent_kafka", reason="the example needs Kafka's client: confluent-kafka is not installed")

from examples.kafka_to_postgres.__main__ import HERE, judge
from examples.kafka_to_postgres.orders import PARTITIONS, SHOPS, ends, orders
from examples.kafka_to_postgres.places import results
from examples.kafka_to_postgres.watch import ChangesTable, PostgresTable, Row, Watch, first_difference
from examples.servers.postgres import PostgresServer
from replicas.faults.model import load_faults
from spe.config import load
from tests.support.postgres_server import environment, running_server

BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)


def row(second: int, product: str, count: int = 2, *, tentative: bool = False) -> Row:
    start = BEGIN + timedelta(seconds=second)
    return {
        "window_start": start, "window_end": start + timedelta(seconds=1), "product": product, "orders": count,
        "revenue": 1.5 * count, "_tentative": tentative,
    }  # fmt: skip


RIGHT = [row(second, product) for second in range(3) for product in ("apple", "bread")]


class Never:
    """A table that nobody asks."""

    def rows(self) -> list[Row] | None:
        return None


def seen(*looks: list[Row]) -> Watch:
    watch = Watch(Never())
    for rows in looks:
        watch.look(rows)
    return watch


def test_a_table_that_grows_and_corrects_itself_is_right() -> None:
    """Tentative rows go, and others take their places; rows come in any order."""
    watch = seen(RIGHT[:2], [*RIGHT[:2], row(1, "apple", 1, tentative=True)], RIGHT[:4], RIGHT[::-1])
    assert judge(RIGHT[::-1], RIGHT, watch, 12) == []
    assert (watch.looks, watch.final, watch.tentative, watch.twice) == (4, 6, 0, 0)


def test_duplicate_live_rows_are_seen_even_if_end_is_right() -> None:
    double = [*RIGHT[:2], row(0, "apple", 1, tentative=True)]
    watch = seen(RIGHT[:2], double, RIGHT)
    assert judge(RIGHT, RIGHT, watch, 12) == [
        "two live rows of one result: (12:00:00, apple, 2, 3.0) and (12:00:00, apple, 1, 1.5, tentative)"
    ]
    assert watch.twice == 1


def test_final_row_that_disappears_or_changes_is_noticed() -> None:
    assert seen(RIGHT[:2], RIGHT[:1], RIGHT).wrong == "a final row changed: (12:00:00, bread, 2, 3.0) is gone"
    changed = seen(RIGHT[:2], [RIGHT[0], row(0, "bread", 3)])
    assert changed.wrong == "a final row changed: (12:00:00, bread, 2, 3.0) is (12:00:00, bread, 3, 4.5)"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([*RIGHT[:3], *RIGHT[4:]], "(12:00:01, bread, 2, 3.0) of the reference is missing"),
        (RIGHT[:-1], "(12:00:02, bread, 2, 3.0) of the reference is missing"),
        ([*RIGHT, row(3, "apple")], "(12:00:03, apple, 2, 3.0) is not in the reference, or is there twice"),
        ([RIGHT[0], *RIGHT], "(12:00:00, apple, 2, 3.0) is not in the reference, or is there twice"),
        ([*RIGHT[:-1], row(2, "bread", 3)], "(12:00:02, bread, 3, 4.5) should be (12:00:02, bread, 2, 3.0)"),
        ([*RIGHT[:-1], row(2, "bread", tentative=True)],
         "(12:00:02, bread, 2, 3.0, tentative) should be (12:00:02, bread, 2, 3.0)"),
        ([], "(12:00:00, apple, 2, 3.0) of the reference is missing"),
    ],
)  # fmt: skip
def test_the_first_row_that_differs_from_the_reference_is_named(rows: list[Row], said: str) -> None:
    assert first_difference(rows, RIGHT) == said


def test_orders_that_are_not_counted_are_missed() -> None:
    assert judge(RIGHT, RIGHT, seen(RIGHT), 13) == ["12 of 13 orders are counted"]


def test_table_of_files_is_the_result_of_their_changes(tmp_path: Path) -> None:
    def change(kind: str, id_: int, second: int, tentative: bool = False) -> str:
        times = {f"window_{end}": f"2026-01-01T12:00:0{second + n}Z" for n, end in enumerate(("start", "end"))}
        values = {"product": "apple", "orders": 2, "revenue": 3.0} if kind == "insert" else {}
        return json.dumps({"_kind": kind, "_id": id_, "_tentative": tentative, **times, **values}) + "\n"

    table = ChangesTable(tmp_path)
    assert table.rows() is None
    changes = [change("insert", 1, 0), change("insert", 2, 1, True), change("undo", 1, 0), change("insert", 2, 1)]
    (tmp_path / "totals.0.jsonl").write_text("".join(changes) + '{"_kind": "ins')  # the last one is being written
    rows = table.rows()
    assert rows is not None
    assert first_difference(rows, [row(0, "apple"), row(1, "apple")]) == ""


@pytest.fixture(scope="module")
def started() -> Iterator[PostgresServer]:
    with running_server() as one:
        yield one


@pytest.fixture
def server(started: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    with environment(monkeypatch, started.environment):
        yield started


@pytest.mark.servers
def test_server_table_is_read_again_after_server_restart(server: PostgresServer) -> None:
    table = PostgresTable("", "totals")
    assert table.rows() is None
    columns = "window_start timestamptz, window_end timestamptz, product text, orders bigint, revenue double precision"
    server.query(f"create table totals ({columns}, _tentative boolean)")
    for one in [RIGHT[0], *RIGHT]:
        values = [one[name] for name in ("window_start", "window_end", "product", "orders", "revenue", "_tentative")]
        server.query("insert into totals values (%s, %s, %s, %s, %s, %s)", *values)
    assert table.rows() is not None
    with server.down():
        assert table.rows() is None
    rows = table.rows()
    table.close()
    assert rows is not None
    assert first_difference(rows[1:], RIGHT) == ""
    assert seen(rows).wrong.startswith("two live rows of one result: ")


@pytest.mark.servers
@pytest.mark.usefixtures("server")
def test_given_database_that_is_missing_ends_the_example(tmp_path: Path) -> None:
    with ExitStack() as stack, pytest.raises(SystemExit, match=r"PostgreSQL at 'dbname=nowhere': .* does not exist"):
        results("dbname=nowhere", False, "totals", tmp_path, stack)


def test_orders_follow_seed_and_one_partition_pauses() -> None:
    first, again, other = (list(orders(seed, 10)) for seed in (1, 1, 2))
    assert first == again != other
    assert sum(sum(ends(first, shop)) for shop in SHOPS) == len(first) == 2_000
    idle = {order.partition for order in first if 2 < order.sent_s < 4}
    assert idle == set(range(PARTITIONS - 1))
    assert {order.partition for order in first} == set(range(PARTITIONS))


def test_example_query_and_faults_are_valid_and_kill_all() -> None:
    _, directory = load(HERE / "shop.yaml")
    killed = [name for fault in load_faults(HERE / "faults.yaml", directory) for name in fault.first]
    sources = [f"source:{shop}" for shop in yaml.safe_load((HERE / "shop.yaml").read_text())["sources"]]
    assert sorted(killed) == sorted([*directory.nodes, *sources, "client:board", "coordinator"])
