"""Every case of other systems' test suites, in the reference run: one process, no failure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consistency.comparison import ChannelRows
from replicas.reference import STEP_ROWS, reference_rows
from replicas.source.reference_stream import reference_elements
from spe.config import load_plan_data, load_plan_text, missing_files
from spe.plan.plan import Plan
from spe.stream.batch import Batch, Boundary, Element, concat_rows
from spe.stream.ids import Channel
from spe.stream.names import Kind
from spe.stream.times import BEFORE_TIME
from tests.support.conformance import CLUSTER_CASES, Case, cases, cluster_cases, configuration, load, write_inputs

CASES = cases()
pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not CASES, reason="the conformance cases are not beside this checkout"),
]

#: Ways to divide a case into partitions; the results are the same.
PARTITIONED: Mapping[str, Mapping[str, Any]] = {
    "arroyo_hourly_by_event_type": {"all": {"operators": ["w", "out"], "key": ["event_type"], "partitions": 3}},
    "arroyo_cascaded_windows": {
        "front": {"operators": ["f", "w1", "f2"], "key": ["driver_id"], "partitions": 4},
        "back": {"operators": ["w2", "out"]},
    },
    "arroyo_top1_hop_unaligned": {
        "front": {"operators": ["w"], "key": ["driver_id"], "partitions": 2},
        "back": {"operators": ["t", "out"]},
    },
    "flink_tumble_late": {"all": {"operators": ["out"], "key": ["name"], "partitions": 3}},
    "flink_interval_join": {"all": {"operators": ["j", "out"], "key": ["key"], "partitions": 2}},
    "nexmark_q5_hot_items": {
        "front": {"operators": ["w"], "key": ["auction"], "partitions": 3},
        "back": {"operators": ["t", "out"]},
    },
    "nexmark_q8_new_users": {
        "all": {"operators": ["p", "a", "j", "out"], "key": {"person": ["id"], "auction": ["seller"]}, "partitions": 2}
    },
    "rw_interval_join_left": {"all": {"operators": ["j", "out"], "key": ["id"], "partitions": 3}},
    "rw_tumble_sum_by_key": {"all": {"operators": ["out"], "key": ["uid"], "partitions": 5}},
}


def differences(case: Case, folder: Path, cut_rows: int | None = None, **options: Any) -> list[str]:
    """Differences between the reference run and the expected results.

    Args:
      cut_rows: a boundary after each so many rows, as far as it is true, and a pass over the units at each.
    """
    plan = load_plan_data(configuration(case, **options), case.id, write_inputs(case, folder))
    inputs = {name: list(reference_elements(source)) for name, source in plan.sources.items()}
    if not case.ends:
        inputs = {name: elements[:-1] for name, elements in inputs.items()}
    if cut_rows is not None:
        inputs = {name: cut(elements, cut_rows) for name, elements in inputs.items()}
    found = reference_rows(plan, inputs, step_rows=STEP_ROWS if cut_rows is None else 1)
    return case.differences(named(plan, found))


def named(plan: Plan, found: Mapping[Channel, ChannelRows]) -> Iterator[Mapping[str, Any]]:
    """Rows of all channels by attribute name."""
    for channel, (_, rows) in found.items():
        names = plan.query.schema_of(channel.stream).names
        for values in rows.to_tuples():
            yield dict(zip(names, values, strict=True))


def cut(elements: Sequence[Element], size: int) -> list[Element]:
    """The same stream in small batches, with every boundary between them that its tuples allow."""
    batches = [e for e in elements if isinstance(e, Batch)]
    last = max((e.time for e in elements if isinstance(e, Boundary)), default=BEFORE_TIME)
    if not batches:
        return list(elements)
    rows = concat_rows([b.rows for b in batches])
    least = np.minimum.accumulate(rows.time[::-1])[::-1]  # no later tuple has a smaller time
    out: list[Element] = []
    for start in range(0, len(rows), size):
        stop = min(start + size, len(rows))
        out.append(Batch(Kind.STABLE, start, stop, None, rows.slice(start, stop)))
        bound = last if stop == len(rows) else min(last, int(least[stop]))
        out.append(Boundary(Kind.STABLE, bound, stop))
    return out


@pytest.mark.parametrize("case", CASES, ids=[c.id for c in CASES])
def test_the_stable_output_equals_that_of_the_other_system(case: Case, tmp_path: Path) -> None:
    assert differences(case, tmp_path) == []


@pytest.mark.parametrize("id_", PARTITIONED)
def test_partitions_do_not_change_the_results(id_: str, tmp_path: Path) -> None:
    assert differences(load(id_), tmp_path, fragments=PARTITIONED[id_]) == []


@pytest.mark.parametrize("case", CASES, ids=[c.id for c in CASES])
def test_neither_buckets_nor_boundaries_change_the_results(case: Case, tmp_path: Path) -> None:
    """Many small slices, and few wide ones."""
    assert differences(case, tmp_path, cut_rows=7, bucket="10ms") == []
    assert differences(case, tmp_path, bucket="10m") == []


def test_the_cases_for_clusters_use_every_operator(tmp_path: Path) -> None:
    wanted = {operator for case in CASES for operator in case.operators}
    chosen = [one.case for one in cluster_cases(tmp_path)]
    assert [c.id for c in chosen] == list(CLUSTER_CASES)
    assert all(c.ends for c in chosen), "a real run must end"
    for one in cluster_cases(tmp_path):
        plan = load_plan_text(one.config, one.case.id, one.data)
        assert not missing_files(plan)
        assert plan.query.outputs == (one.case.output,)
    kinds = {operator.partition(":")[0] for operator in wanted} - {"window_assignment"}
    assert kinds <= {operator.partition(":")[0] for case in chosen for operator in case.operators}
