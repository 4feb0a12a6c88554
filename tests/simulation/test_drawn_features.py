"""Features that campaigns choose: their runs hold, are their seeds, and their judges notice mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from replicas.connectors.files import parquet_sink
from replicas.connectors.server_sink import ChannelEntry
from replicas.simulation.features.pushed_sources import Writer
from replicas.simulation.features.sinks import TableSink
from replicas.simulation.scenarios.feature_set import Feature
from replicas.simulation.scenarios.random_scenario import random_scenario
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.simulate import Outcome, simulate
from spe.errors import ConfigError
from spe.stream.batch import Column, Rows
from tests.simulation.test_simulate import scenario, story
from tests.support.long_forms import long_but
from tests.support.rows_compared import judge_rows

#: Seeds whose runs take about a second.
SEED = 7
#: What a run with a feature counts.
COUNTED = {
    Feature.OPTIONS: "stable tuples compared",
    Feature.ALL_SINKS: "sinks compared, parquet",
    Feature.PROVED: "times that a proof went on",
    Feature.PUSHES: "pushed rows compared",
    Feature.SOURCE_DISKS: "stable tuples compared",
}


def drawn(seed: int, feature: Feature) -> Scenario:
    return random_scenario(seed, frozenset({feature}))


@pytest.mark.parametrize("feature", COUNTED)
@pytest.mark.parametrize("seed", long_but([SEED], [SEED, 9, 2]))
def test_a_run_holds_and_is_its_seed(feature: Feature, seed: int) -> None:
    one, other = (simulate(drawn(seed, feature), also=judge_rows) for _ in range(2))
    assert one.holds, story(one)
    assert one.counters.amounts[COUNTED[feature]] > 0
    assert list(map(repr, one.history)) == list(map(repr, other.history))
    assert Scenario.from_data(drawn(seed, feature).to_data()) == drawn(seed, feature)


def rules(outcome: Outcome) -> set[str]:
    return {finding.rule for finding in outcome.findings}


def test_a_table_that_lacks_rows_is_noticed() -> None:
    store = TableSink.store

    async def less(sink: TableSink, before: bytes, after: bytes, entries: Sequence[ChannelEntry]) -> bool:
        return await store(sink, before, after, entries[1:])

    with patch.object(TableSink, "store", less):
        assert rules(simulate(drawn(SEED, Feature.ALL_SINKS))) == {"a sink is complete, mode current"}


def test_parquet_files_of_other_values_are_noticed() -> None:
    array = parquet_sink.arrow_array

    def shifted(column: Column, type_: Any) -> Any:
        moved = column.dictionary is None and len(column) > 1 and type_ == "int64"
        return array(Column(column.values + 1, column.valid) if moved else column, type_)

    with patch.object(parquet_sink, "arrow_array", shifted):
        found = rules(simulate(drawn(SEED, Feature.ALL_SINKS)))
    assert found == {"a sink is complete, mode stable", "a sink is complete, mode corrections"}


def ignored(where: str) -> AbstractContextManager[Any]:
    return patch(f"replicas.{where}.retention.needed_from", lambda *_: None)


@pytest.mark.parametrize("where", ["source", "client"])
def test_a_log_that_is_deleted_without_a_proof_is_noticed(where: str) -> None:
    with ignored(where):
        outcome = simulate(drawn(SEED, Feature.PROVED))
    assert rules(outcome) == {"what is not proved is kept"}
    assert {finding.consumer.partition(":")[0] for finding in outcome.findings} == {where}


def test_a_pushed_row_that_is_logged_twice_is_noticed() -> None:
    batches = Writer._batches

    def twice(writer: Writer, source: Any) -> Iterator[Rows]:
        for rows in batches(writer, source):
            writer.committed = writer.committed[:-1]  # as if the log had one more
            yield rows

    with patch.object(Writer, "_batches", twice):
        assert "a committed row is logged once" in rules(simulate(drawn(SEED, Feature.PUSHES)))


def damaged(faults: Callable[[int], list[dict[str, Any]]]) -> Scenario:
    made = replace(scenario(1), options={"source_disks": True})
    return made.with_faults([fault for at in range(2, 8) for fault in faults(at)])


def flips(at: int) -> list[dict[str, Any]]:
    many = [{"at": f"{at}s", "kind": "flip", "target": "source:a"}] * 8
    return [*many, {"at": f"{at}s", "kind": "kill", "target": "source:a", "for": "300ms"}]


def lies(at: int) -> list[dict[str, Any]]:
    lie = {"at": f"{at}s", "kind": "lie", "target": "source:a", "for": "800ms"}
    return [lie, {"at": f"{at}.7s", "kind": "power", "target": "source:a", "for": "100ms"}]


def test_source_names_changes_on_its_disk() -> None:
    outcome = simulate(damaged(flips))
    assert outcome.holds, story(outcome)
    assert any("source:a cannot go on: " in line for line in outcome.story)
    assert outcome.counters.amounts["fault flip"] >= 8


def test_a_lie_of_the_disk_of_a_source_is_counted() -> None:
    outcome = simulate(damaged(lies))
    assert outcome.holds, story(outcome)
    assert outcome.counters.amounts["runs in which the disk of a source lied"] == 1


def test_other_scenarios_refuse_disks_of_sources_that_lie() -> None:
    with pytest.raises(ConfigError, match="the disk of source:a is outside the fault model"):
        scenario(1).with_faults(lies(2))
