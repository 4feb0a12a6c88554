"""What ``spe run --on spark`` prepares: addresses, files of nodes, storage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from replicas.local import spark_job as on_spark
from replicas.local.spark_job import SparkNodes, cluster_file, keeps_on_disk, wait_for_room
from replicas.on_spark.spots import Executor, Fit, Spot
from spe.errors import SpeError
from tests.support.sights import CONFIG, deployed

STANDBY = CONFIG + "fragments: {m: {operators: [out], replicas: 1, standby: 1}}\n"
ON_DISK = CONFIG + "defaults: {checkpoint: {every: 5s, disk: true}}\n"
APART = {"n1": frozenset({"n2"}), "n2": frozenset({"n1"})}


def nodes(**changes: Any) -> SparkNodes:
    return SparkNodes(None, (), "127.0.0.1", False, **changes)  # type: ignore[arg-type]


def executors(*names: str) -> list[Executor]:
    return [Executor(Spot(name, "h"), 1) for name in names]


def test_spark_nodes_have_names_and_others_reachable_addresses() -> None:
    found = SparkNodes(None, (), "127.0.0.2", False).addresses(deployed(STANDBY).directory)  # type: ignore[arg-type]
    assert {name: address.rpartition(":")[0] for name, address in found.items()} == {
        "n1": "n1.node",
        "n2": "n2.node",
        "source:a": "127.0.0.2",
        "source:b": "127.0.0.2",
        "coordinator": "127.0.0.2",
        "client:client": "127.0.0.1",
        "supervisor": "127.0.0.1",
    }
    ports = [address.rpartition(":")[2] for name, address in found.items() if name not in ("n1", "n2")]
    assert len(set(ports)) == len(ports)


def test_node_reads_secret_next_to_its_files_without_metrics() -> None:
    text = json.dumps({"secret": "/home/me/x.token", "metrics": {"n1": "127.0.0.1:1"}, "cluster": "c"})
    assert json.loads(cluster_file(text)) == {"secret": "token", "metrics": {}, "cluster": "c"}


@pytest.mark.parametrize(
    ("text", "said"),
    [(CONFIG, ""), (STANDBY, "standbys keep checkpoints on disk"), (ON_DISK, "n1 writes checkpoints to disk")],
)
def test_fragments_with_state_only_on_disk_are_listed(text: str, said: str) -> None:
    assert keeps_on_disk(deployed(text).directory) == said


def test_executors_are_awaited_and_too_few_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(on_spark.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(on_spark.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))

    def there() -> Sequence[Executor]:
        return executors(*"ab"[: int(now[0] / 12)])

    assert wait_for_room(APART, there, 2) == (executors("a", "b"), Fit.BY_EXECUTOR)
    assert 24 <= now[0] < 25
    assert capsys.readouterr().out.count("waiting for executors: 2 nodes need 2 tasks at a time") == 2
    with pytest.raises(SpeError, match="there are 1 executors"):
        wait_for_room(APART, lambda: executors("a"), 1)
    with pytest.raises(SpeError, match="there are 0 executors"):
        wait_for_room(APART, list, None)
    assert now[0] > 24 + 60
