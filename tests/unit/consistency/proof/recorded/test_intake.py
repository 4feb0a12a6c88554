"""The number of rows in an input, compared with the number in the log."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from consistency.proof.recorded.intake import input_rows, unaccounted
from consistency.proof.recorded.query_file import SourceEntry
from consistency.proof.recorded.run import Run
from replicas.cli.run.summary import figures
from replicas.local.history import EventList
from replicas.source.proxy import SourceProxy
from spe.config import load_data
from spe.log.source_log import SourceState
from spe.runtime.storage import DiskStorage
from spe.status import SourceStatus
from spe.stream.names import StreamId
from spe.stream.times import END_OF_TIME
from tests.support.file_formats import FORMATS, rows
from tests.support.source_env import source_env
from tests.support.statuses import a_source

A = StreamId("a")
#: After every file was written.
NOW_US = 2**60


def source(kind: str, **reader: Any) -> SourceEntry:
    return SourceEntry(None, "ts", 0, kind, reader, {})


def run_of(path: Path, *starts: dict[str, int]) -> Run:
    """A run whose summary is what ``spe run`` makes of the last status of each start of the source."""
    config = {
        "sources": {name: {"from": {"generator": "orders"}} for name in ("a", "other")},
        "query": {"f": {"filter": {"from": "a", "where": "true"}}, "g": {"filter": {"from": "other", "where": "true"}}},
    }
    (plan, directory), history = load_data(config), EventList()
    history.heard(a_source("source:other", incarnation=0, malformed=99, refused_ahead=99))
    for incarnation, counters in enumerate(starts):
        history.heard(a_source("source:a", incarnation=incarnation, **counters))
    return Run(path, plan, directory, {"data": str(path)}, (), figures(plan, directory, history, (), 0, NOW_US))


def counters(malformed: int = 0, refused: int = 0) -> dict[str, int]:
    """As a source reports them."""
    return {"malformed": malformed, "refused_ahead": refused, "late": 0, "late_by_us": 0}


def keep(path: Path, *lines: int) -> None:
    (path / "malformed").mkdir()
    kept = [json.dumps({"line": n, "reason": "", "text": ""}) + "\n" for n in lines]
    (path / "malformed" / "a.jsonl").write_text("".join(kept))


@pytest.mark.parametrize(
    ("text", "reader", "rows"),
    [
        ("ts,n\n1,2\n\n3,4\n", {}, 2),
        ("1,2\r\n3,4", {"header": "false"}, 2),
        ('ts;n\n1;"two\nlines"\n2;x\n', {"delimiter": ";"}, 2),
        ("ts|n\n1|'two\n\nlines'\n", {"delimiter": "|", "quote": "'"}, 1),
        ('ts,n\n1,2\n"3"x,4\n5,6\n', {}, 3),
        ("\ufeffts,n\n \n", {}, 1),
        ("\n1,2\n3,4\n", {}, 2),
        ("", {}, 0),
        ("", {"header": "False"}, 0),
    ],
)
def test_csv_rows_are_counted_as_records(tmp_path: Path, text: str, reader: dict[str, Any], rows: int) -> None:
    (tmp_path / "a.csv").write_bytes(text.encode())
    assert input_rows(source("csv", csv="a.csv", **reader), tmp_path, NOW_US) == rows


def test_json_rows_are_the_lines_that_are_not_blank(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n\n  \nno json\n{}')
    assert input_rows(source("jsonl", jsonl=str(tmp_path / "a.jsonl")), Path("elsewhere"), NOW_US) == 3


def test_rows_of_parquet_files_and_generators_are_counted(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"n": range(7)}), tmp_path / "a.parquet")
    assert input_rows(source("parquet", parquet="a.parquet"), tmp_path, NOW_US) == 7
    assert input_rows(source("generator", count="12", duration=None), tmp_path, NOW_US) == 12
    assert input_rows(source("generator", rate="33.3", duration="10s"), tmp_path, NOW_US) == 333
    assert input_rows(source("generator", duration="2s"), tmp_path, NOW_US) == 2000


@pytest.mark.parametrize("form", ["arrow", "arrow_stream", "avro"])
def test_rows_of_arrow_and_avro_files_are_counted(tmp_path: Path, form: str) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "a").write_bytes(FORMATS[form][0](rows(0, 11)))
    kind = form.removesuffix("_stream")
    assert not source(kind).live
    assert input_rows(source(kind, **{kind: "a"}), tmp_path, NOW_US) == 11


@pytest.mark.parametrize("kind", ["parquet", "arrow", "avro"])
def test_rows_of_a_file_that_was_damaged_since_are_not_counted(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "a").write_bytes(b"Obj\x01, or anything else")
    assert input_rows(source(kind, **{kind: "a"}), tmp_path, NOW_US) is None


def test_live_inputs_are_not_counted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("ts,n\n1,2\n")
    assert input_rows(source("tcp", tcp="h:1"), tmp_path, NOW_US) is None
    assert input_rows(source("generator"), tmp_path, NOW_US) is None
    assert input_rows(source("csv", csv="gone.csv"), tmp_path, NOW_US) is None
    changed_since = 1_000_000
    assert input_rows(source("csv", csv="a.csv"), tmp_path, changed_since) is None


ENDED = SourceState(last_id=95, bound_us=END_OF_TIME)
HUNDRED = source("generator", count="100")


def found(run: Run, of: SourceEntry = HUNDRED) -> list[str]:
    return unaccounted(run, A, of, ENDED, NOW_US)


def test_every_row_is_a_tuple_or_rejected(tmp_path: Path) -> None:
    assert found(run_of(tmp_path, counters(malformed=3, refused=2))) == []
    assert found(run_of(tmp_path, counters(malformed=3, refused=1))) == [
        "1 row of its input is missing in its log: 100 rows, 95 tuples, 3 malformed, 1 refused"
    ]
    assert found(run_of(tmp_path, counters(malformed=5, refused=1))) == [
        "its log has too many tuples: 100 rows, 95 tuples, 5 malformed, 1 refused"
    ]


async def test_a_refused_row_of_a_real_source_is_accounted_for(tmp_path: Path) -> None:
    """The counters of the source reach the proof through the summary, under the same names."""
    (tmp_path / "a.csv").write_text(f"ts,n\n1,1\n{2**61 + 1},2\n3,3\nwhat,4\n")
    config = {
        "sources": {
            "a": {
                "schema": {"ts": "timestamp!", "n": "int64!"},
                "time": "ts",
                "from": {"csv": "a.csv", "timestamps": "us"},
                "replay": {"max": True},
            }
        },
        "query": {"f": {"filter": {"from": "a", "where": "true"}}},
    }
    plan, directory = load_data(config, folder=tmp_path)
    proxy = await SourceProxy.open(replace(source_env(), storage=DiskStorage(tmp_path)), plan.sources[A])
    await proxy.run()
    told, last_id = proxy.status(), proxy.last_id
    proxy.close()
    history = EventList()
    history.heard(SourceStatus(name="source:a", incarnation=1, log=told))
    run = Run(tmp_path, plan, directory, {"data": str(tmp_path)}, (), figures(plan, directory, history, (), 0, NOW_US))
    state = SourceState(last_id=last_id, bound_us=END_OF_TIME)
    assert (told.malformed, told.refused_ahead, last_id) == (1, 1, 2)
    assert unaccounted(run, A, source("csv", csv="a.csv"), state, NOW_US) == []


def test_an_unfinished_source_is_not_counted(tmp_path: Path) -> None:
    assert unaccounted(run_of(tmp_path), A, HUNDRED, SourceState(last_id=10, bound_us=5), NOW_US) == []


def test_malformed_rows_read_twice_are_counted_once(tmp_path: Path) -> None:
    """The summary counts them for each start; the lines that were kept do not."""
    keep(tmp_path, 3, 7, 8, 9, 40, 3, 7, 8, 9, 40)
    assert found(run_of(tmp_path, counters(5), counters(5))) == []
    assert found(run_of(tmp_path, counters(2), counters(5))) == []  # the first start was killed before it reported all


@pytest.mark.parametrize(
    "torn", [b'{"line": 4, "rea', b"\x00" * 9, b'{"line": 4, "rea{"line": 5}\n{"line": 6}\n', b"7\n"]
)
def test_torn_malformed_rows_leave_count_open(tmp_path: Path, torn: bytes) -> None:
    """The run was broken off, so no summary says how many there were."""
    keep(tmp_path, 1, 2, 3)
    with (tmp_path / "malformed" / "a.jsonl").open("ab") as file:
        file.write(torn)
    assert found(run_of(tmp_path)) == []
    assert found(run_of(tmp_path, counters(5))) == []
    assert found(run_of(tmp_path, counters(4))) == [
        "1 row of its input is missing in its log: 100 rows, 95 tuples, 4 malformed, 0 refused"
    ]


def test_missing_row_is_reported_although_malformed_are_reread(tmp_path: Path) -> None:
    keep(tmp_path, 3, 7, 8, 9, 3, 7)
    assert found(run_of(tmp_path, counters(2), counters(4))) == [
        "1 row of its input is missing in its log: 100 rows, 95 tuples, 4 malformed, 0 refused"
    ]


def test_excess_tuples_are_reported(tmp_path: Path) -> None:
    keep(tmp_path, 1, 2, 3, 4, 5, 6, 6)
    assert found(run_of(tmp_path, counters(6), counters(1))) == [
        "its log has too many tuples: 100 rows, 95 tuples, 6 malformed, 0 refused"
    ]


def test_counts_of_several_starts_are_upper_bounds(tmp_path: Path) -> None:
    """No rejected row was kept, because the disk was full or the file is gone."""
    assert found(run_of(tmp_path, counters(5), counters(5))) == []
    assert found(run_of(tmp_path, counters(5, refused=3), counters(2, refused=3))) == []
    assert found(run_of(tmp_path, counters(1, refused=1), counters(1, refused=1))) == [
        "1 row of its input is missing in its log: 100 rows, 95 tuples, 2 malformed, 2 refused"
    ]


def test_refused_rows_of_several_starts_may_be_the_same(tmp_path: Path) -> None:
    keep(tmp_path, 3, 7, 8)
    assert found(run_of(tmp_path, counters(3, refused=2), counters(0, refused=2))) == []
    assert found(run_of(tmp_path, counters(3, refused=1), counters(0))) == [
        "1 row of its input is missing in its log: 100 rows, 95 tuples, 3 malformed, 1 refused"
    ]


def test_with_one_start_its_count_replaces_lost_malformed_rows(tmp_path: Path) -> None:
    keep(tmp_path, *range(10_000))
    many = source("generator", count="20000")
    assert found(run_of(tmp_path, counters(19_905)), many) == []
    assert found(run_of(tmp_path, counters(19_904)), many) == [
        "1 row of its input is missing in its log: 20,000 rows, 95 tuples, 19,904 malformed, 0 refused"
    ]


def test_lost_malformed_rows_of_several_starts_leave_count_open(tmp_path: Path) -> None:
    keep(tmp_path, *range(10_000))
    many = source("generator", count="20000")
    assert found(run_of(tmp_path), many) == []
    assert found(run_of(tmp_path, counters(10_000), counters(12_000)), many) == []
    # The first start had counted more when it was killed.
    assert found(run_of(tmp_path, counters(10_000), counters(5)), many) == []
