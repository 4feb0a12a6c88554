"""Rows of an input, counted beside those that are in the log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from consistency.proof.intake import input_rows, unaccounted
from consistency.proof.reading import Source
from consistency.proof.run import Run
from spe.config import load_plan_data
from spe.log.source_log import SourceState
from spe.stream.names import StreamId
from spe.stream.times import END_OF_TIME

A = StreamId("a")
#: After every file was written.
NOW_US = 2**60


def source(kind: str, **reader: Any) -> Source:
    return Source(None, "ts", 0, kind, reader, {})


def run_of(path: Path, **counted: int) -> Run:
    config = {
        "sources": {"a": {"from": {"generator": "orders"}}},
        "query": {"f": {"filter": {"from": "a", "where": "true"}}},
    }
    summary = {"sources": [{"source": "other", "malformed": 99, "refused": 99}, {"source": "a", **counted}]}
    return Run(path, load_plan_data(config), {"data": str(path)}, (), summary)


@pytest.mark.parametrize(
    ("text", "reader", "rows"),
    [
        ("ts,n\n1,2\n\n3,4\n", {}, 2),
        ("1,2\r\n3,4", {"header": "false"}, 2),
        ('ts;n\n1;"two\nlines"\n2;x\n', {"delimiter": ";"}, 2),
        ("ts|n\n1|'two\n\nlines'\n", {"delimiter": "|", "quote": "'"}, 1),
        ('ts,n\n1,2\n"3"x,4\n5,6\n', {}, 3),
        ("\ufeffts,n\n \n", {}, 1),
        ("", {"header": "False"}, 0),
    ],
)
def test_rows_of_csv_are_records(tmp_path: Path, text: str, reader: dict[str, Any], rows: int) -> None:
    (tmp_path / "a.csv").write_bytes(text.encode())
    assert input_rows(source("csv", csv="a.csv", **reader), tmp_path, NOW_US) == rows


def test_rows_of_json_lines_are_lines_that_are_not_blank(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n\n  \nno json\n{}')
    assert input_rows(source("jsonl", jsonl=str(tmp_path / "a.jsonl")), Path("elsewhere"), NOW_US) == 3


def test_rows_of_parquet_and_of_generators(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"n": range(7)}), tmp_path / "a.parquet")
    assert input_rows(source("parquet", parquet="a.parquet"), tmp_path, NOW_US) == 7
    assert input_rows(source("generator", count="12", duration=None), tmp_path, NOW_US) == 12
    assert input_rows(source("generator", rate="33.3", duration="10s"), tmp_path, NOW_US) == 333
    assert input_rows(source("generator", duration="2s"), tmp_path, NOW_US) == 2000


def test_what_nobody_can_count_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("ts,n\n1,2\n")
    assert input_rows(source("tcp", tcp="h:1"), tmp_path, NOW_US) is None
    assert input_rows(source("generator"), tmp_path, NOW_US) is None
    assert input_rows(source("csv", csv="gone.csv"), tmp_path, NOW_US) is None
    changed_since = 1_000_000
    assert input_rows(source("csv", csv="a.csv"), tmp_path, changed_since) is None


ENDED = SourceState(last_id=95, bound_us=END_OF_TIME)
HUNDRED = source("generator", count="100")


def test_every_row_is_a_tuple_or_was_set_aside(tmp_path: Path) -> None:
    assert unaccounted(run_of(tmp_path, malformed=3, refused=2), A, HUNDRED, ENDED, NOW_US) == []
    assert unaccounted(run_of(tmp_path, malformed=3, refused=1), A, HUNDRED, ENDED, NOW_US) == [
        "1 row of its input is missing in its log: 100 rows, 95 tuples, 3 malformed, 1 refused"
    ]
    assert unaccounted(run_of(tmp_path, malformed=5, refused=1), A, HUNDRED, ENDED, NOW_US) == [
        "its log has too many tuples: 100 rows, 95 tuples, 5 malformed, 1 refused"
    ]


def test_a_source_that_did_not_come_to_its_end_is_not_counted(tmp_path: Path) -> None:
    assert unaccounted(run_of(tmp_path), A, HUNDRED, SourceState(last_id=10, bound_us=5), NOW_US) == []


def test_malformed_rows_from_before_a_restart_are_those_that_were_kept(tmp_path: Path) -> None:
    """The summary counts from the last start on; a row that was read twice is one."""
    (tmp_path / "malformed").mkdir()
    lines = [json.dumps({"line": n, "reason": "", "text": ""}) for n in (3, 7, 8, 8, 40)]
    (tmp_path / "malformed" / "a.jsonl").write_text("\n".join(lines) + "\n")
    assert unaccounted(run_of(tmp_path, malformed=1, refused=1), A, HUNDRED, ENDED, NOW_US) == []


def test_where_not_all_malformed_rows_were_kept_their_number_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "malformed").mkdir()
    lines = [json.dumps({"line": n, "reason": "", "text": ""}) for n in range(10_000)]
    (tmp_path / "malformed" / "a.jsonl").write_text("\n".join(lines) + "\n")
    many = source("generator", count="20000")
    assert unaccounted(run_of(tmp_path), A, many, ENDED, NOW_US) == []
