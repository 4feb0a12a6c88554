"""``retain``, ``late`` and ``rejected`` in a configuration."""

from __future__ import annotations

import pytest

from spe.config import load_text
from spe.errors import ConfigError
from spe.plan.deploy import Deployed
from spe.plan.plan import Retain
from spe.plan.retention import memory_only
from spe.stream.names import StreamId

SOURCE = "schema: {ts: timestamp!, n: int64}, time: ts, from: {csv: a.csv}"
QUERY = "query:\n  q: {filter: {from: a, where: n > 1}}\n"
DISK = "defaults: {checkpoint: {every: 5s, disk: true}}\n"


def plan_of(more: str, rest: str = DISK) -> Deployed:
    return load_text(f"sources:\n  a: {{{SOURCE}, {more}}}\n{QUERY}{rest}", "test.yaml", home="/home/of")


def problem(more: str, rest: str = DISK) -> str:
    with pytest.raises(ConfigError) as caught:
        plan_of(more, rest)
    (one,) = caught.value.problems
    return one


def test_source_retention_is_configured() -> None:
    plan, _ = plan_of("retain: {for: 7d, size: 200GB, archive: s3://bucket/logs}")
    assert plan.sources[StreamId("a")].retain == Retain(7 * 86_400_000_000, 200 * 10**9, "s3://bucket/logs", False)


def test_client_retention_is_configured() -> None:
    _, directory = plan_of("ahead: 1h", "clients:\n  c: {reads: q, retain: {size: 1GB, unproved: delete}}\n")
    assert directory.clients["c"].retain == Retain(None, 10**9, "", True)


def test_a_folder_of_an_archive_starts_from_that_of_the_data() -> None:
    retain = plan_of("retain: {for: 1d, archive: old}").plan.sources[StreamId("a")].retain
    assert retain is not None
    assert retain.archive.endswith("/old")
    assert retain.archive.startswith("/")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "expected for, size, or both"),
        ("{archive: old}", "expected for, size, or both"),
        ("{for: 0s}", "expected a duration above zero"),
        ("{size: 1KB}", "expected at least 16KiB, got 1000 bytes"),
        ("{for: 1d, archive: 's3://key:secret@bucket/x'}", "expected no credentials and no options in a URL"),
        ("{for: 1d, archive: ''}", "expected a folder, or a URL such as s3://bucket/logs"),
        ("{for: 1d, unproved: drop}", "unproved"),
        ("{after: 1d}", "after"),
    ],
)
def test_a_mistake_in_it_is_named(text: str, said: str) -> None:
    found = problem(f"retain: {text}")
    assert found.startswith("test.yaml:2")
    assert said in found


def test_a_state_in_memory_only_is_refused_by_name() -> None:
    found = problem("retain: {for: 1d}", "")
    assert "main/0 would need the whole log if all its replicas died" in found
    assert "defaults: {checkpoint: {every: 5s, disk: true}}" in found


def test_disk_or_standby_anywhere_downstream_is_enough() -> None:
    deep = """query:
  q: {filter: {from: a, where: n > 1}}
  r: {filter: {from: q, where: n > 2}}
fragments:
  one: {operators: q, replicas: [[n1, n2]]}
  two: {operators: r, replicas: [[n3]]%s}
nodes: {n1: {checkpoint: {every: 5s, disk: true}}, n2: {}, n3: {}, n4: {}}
"""
    text = f"sources:\n  a: {{{SOURCE}%s}}\n"
    plan, directory = load_text(text % "" + deep % "", "test.yaml")
    assert [str(one) for one in memory_only(plan, directory, StreamId("a"))] == ["two/0"]
    plan, directory = load_text(text % ", retain: {for: 1d}" + deep % ", standby: [[n4]]", "test.yaml")
    assert memory_only(plan, directory, StreamId("a")) == []


def test_an_external_client_has_no_recording_to_keep() -> None:
    found = problem("ahead: 1h", "clients:\n  c: {external: true, retain: {size: 1GB}}\n")
    assert "expected no retain" in found


def test_ids_do_not_depend_on_it() -> None:
    assert plan_of("retain: {for: 7d}").plan.fingerprint == plan_of("ahead: 1h").plan.fingerprint


def test_late_rows_go_to_a_sink() -> None:
    late = plan_of("late: {jsonl: late}").plan.sources[StreamId("a")].late
    assert late == {"kind": "jsonl", "path": "late", "mode": "stable"}


def test_late_sink_has_one_mode_and_needs_event_time() -> None:
    assert "late rows are final; expected no mode, got 'corrections'" in problem("late: {jsonl: x, mode: corrections}")
    with pytest.raises(ConfigError, match="so none is late; expected time: ATTRIBUTE"):
        load_text(f'sources:\n  a: {{schema: {{n: int64}}, from: {{tcp: "127.0.0.1:7"}}, late: {{jsonl: x}}}}\n{QUERY}')


def test_rejected_rows_go_to_a_sink_also_without_an_event_time() -> None:
    assert plan_of("rejected: {parquet: aside}").plan.sources[StreamId("a")].rejected == {
        "kind": "parquet",
        "path": "aside",
        "mode": "stable",
    }
    text = f'sources:\n  a: {{schema: {{n: int64}}, from: {{tcp: "127.0.0.1:7"}}, rejected: {{jsonl: x}}}}\n{QUERY}'
    assert load_text(text).plan.sources[StreamId("a")].rejected


def test_rejected_sink_has_one_mode_and_needs_skipping() -> None:
    assert "rejected rows are final; expected no mode" in problem("rejected: {jsonl: x, mode: corrections}")
    assert "expected on_malformed: skip, or no rejected" in problem("rejected: {jsonl: x}, on_malformed: stop")


def test_late_and_rejected_rows_do_not_share_a_place() -> None:
    assert "a.late writes to 'x'; expected a place for each" in problem("late: {jsonl: x}, rejected: {jsonl: x}")


def test_sources_do_not_share_a_sink_of_late_rows() -> None:
    text = f"sources:\n  a: {{{SOURCE}, late: {{jsonl: x}}}}\n  b: {{{SOURCE}, late: {{jsonl: x}}}}\n{QUERY}"
    with pytest.raises(ConfigError, match=r"a\.late writes to 'x'; expected a place for each"):
        load_text(text)
