"""What a configuration may say of tables of PostgreSQL."""

from __future__ import annotations

import pytest

from spe.config import load_plan_text
from spe.connectors.postgres import table_parts
from spe.errors import ConfigError

CONFIG = """
sources: {{s: {{schema: {{ts: timestamp!, n: int64}}, time: ts, from: {{postgres: {source}}}}}}}
query: {{q: {{filter: {{from: s, where: n > 0}}}}}}
outputs: [q]
nodes: [n1]
clients: {{c: {{reads: [q], sinks: [{{postgres: {sink}}}]}}}}
"""


def problems(source: str, sink: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_plan_text(CONFIG.format(source=source, sink=sink))
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("orders", ("", "orders")),
        ("shop.Orders", ("shop", "Orders")),
        ('"a.b"."c ""d"""', ("a.b", 'c "d"')),
        ("out_{stream}", ("", "out_{stream}")),
    ],
)
def test_names_of_tables(text: str, parts: tuple[str, str]) -> None:
    assert table_parts(text) == parts


@pytest.mark.parametrize("text", ["", "a.b.c", "a.", '"a', ".b"])
def test_invalid_table_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected TABLE or SCHEMA\.TABLE"):
        table_parts(text)


@pytest.mark.parametrize(
    "connection",
    [
        "host=db password=hunter2",
        "host=db PASSWORD = 'hunter2'",
        "host=db sslpassword=hunter2",
        "postgresql://shop:hunter2@db/shop",
        "postgresql://db/shop?user=shop&password=hunter2",
    ],
)
def test_password_in_configuration_is_refused_and_not_repeated(connection: str) -> None:
    keys = f"{{table: t, connection: {connection!r}}}"
    for said in (problems(keys, "t"), problems("t", keys)):
        assert "postgres.connection: expected no password here; PGPASSWORD, a password file or a service file" in said
        assert "hunter2" not in said


def test_more_mistakes_have_their_place() -> None:
    assert "sources.s.from.postgres.changes: " in problems("{table: t, changes: take}", "t")
    assert "sources.s.from.postgres.slot: " in problems("{table: t, slot: Not a slot}", "t")
    assert "{stream} stands in the name of the table" in problems("t", "'{stream}.t'")


def test_a_table_has_its_slot_and_is_described_without_more() -> None:
    plan = load_plan_text(CONFIG.format(source="shop.Order-lines", sink="{table: t, connection: service=shop}"))
    loaded = getattr(plan, "plan", plan)
    assert loaded.sources["s"].reader["slot"] == "spe_order_lines"
