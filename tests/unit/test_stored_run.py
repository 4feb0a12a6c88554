"""The stored run of each release is read: so a later release is tested against an earlier one."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from random import Random
from typing import Any, Final

import pytest

from replicas.checkpoint.log_reader import LogReader
from replicas.checkpoint.log_records import LogKind
from replicas.checkpoint.store import decode_snapshot
from replicas.link.directory import revision_file
from replicas.link.stored_number import decode_number
from replicas.local.run_dir import Target, load_target
from replicas.placement.store import CoordinatorStore
from replicas.reference import ReferenceRun
from spe import __version__
from spe.log.announced_settings import announced_folder, read_announced
from spe.log.origin import read_identity
from spe.log.provenance import PROVENANCE, read_provenance
from spe.log.recording import channel_folder, client_folder, read_recorded
from spe.log.source_log import read_source_log, source_folder
from spe.plan.revision import Revision
from spe.runtime.env import Env
from spe.runtime.production import NullTrace
from spe.runtime.storage import DiskStorage
from spe.stream.batch import Batch
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import NodeId, StreamId, UnitId
from spe.stream.schema import Schema
from tests.support.stored_run import FOLDER, directory_of

RELEASES: Final = sorted(path.name for path in FOLDER.iterdir())
ORDERS: Final = StreamId("orders")


@pytest.fixture(params=RELEASES)
def run(request: pytest.FixtureRequest) -> Target:
    return load_target(FOLDER / request.param)


def storage_of(run: Target) -> DiskStorage:
    assert run.folder is not None
    return DiskStorage(run.folder)


def rows_of(elements: Any, schema: Schema) -> list[tuple[Any, ...]]:
    return [row for one in elements if isinstance(one, Batch) for row in one.rows.to_tuples()]


def test_this_release_has_a_stored_run_that_is_small() -> None:
    assert __version__ in RELEASES
    size = sum(path.stat().st_size for path in (FOLDER / __version__).rglob("*") if path.is_file())
    assert size < 200_000


def test_this_release_writes_the_files_that_are_stored() -> None:
    folder = FOLDER / __version__
    stored = {path.parent.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    assert {Path(name).parent for name in directory_of()} == stored


def test_results_in_a_stored_recording_follow_from_its_log(run: Target) -> None:
    storage, schema = storage_of(run), run.plan.sources[ORDERS].schema
    assert read_identity(storage, source_folder(ORDERS))
    elements = list(read_source_log(storage, source_folder(ORDERS), schema))
    reference = ReferenceRun(run.plan)
    for element in elements:
        list(reference.feed(Channel(ORDERS, 0), element))
    made = list(reference.run())
    for stream in (StreamId("totals"), StreamId("best")):
        channel, folder = Channel(stream, 0), client_folder("board")
        received = read_recorded(storage, channel_folder(folder, channel), run.plan.query.schema_of(stream))
        rows = rows_of((one.element for one in received), run.plan.query.schema_of(stream))
        expected = rows_of((e for c, e in made if c == channel), run.plan.query.schema_of(stream))
        assert rows
        assert rows == expected[: len(rows)]
        assert str(channel) in read_provenance(storage, folder / PROVENANCE)
    assert {one.announcement.node for one in read_announced(storage, announced_folder(client_folder("board")))} == {
        "n1",
        "n2",
    }


def test_a_stored_checkpoint_is_read(run: Target) -> None:
    storage, folder = storage_of(run), PurePosixPath("nodes/n1/first-0")
    found = [name for name in storage.list(folder) if name.endswith(".checkpoint")]
    assert found
    for name in found:
        snapshot = decode_snapshot(run.plan, PartitionId(UnitId("first"), 0), storage.read(folder / name))
        assert snapshot["positions"]


async def test_a_stored_checkpoint_log_is_read(run: Target) -> None:
    folder = PurePosixPath("nodes/n1/second-0/log", run.plan.fingerprint, "0")
    log = await LogReader.open_to_read(storage_of(run), folder)
    assert log.commits
    assert LogKind.COMMIT in {record.kind for record in log.read(1)}


def test_the_stored_directory_is_read(run: Target) -> None:
    storage, nothing = storage_of(run), None
    env: Any = Env(nothing, nothing, storage, nothing, Random(0), NullTrace())  # type: ignore[arg-type]
    with CoordinatorStore(env) as store:
        revision = store.revision(run.plan.fingerprint)
        assert store.issued(run.plan.fingerprint)
    assert revision is not None
    assert revision.settings[NodeId("n1")].x_us == 5_000_000
    for node in ("n1", "n2", "n3"):
        place = PurePosixPath("nodes", node)
        assert Revision.decode(storage.read(revision_file(place, run.plan))) == revision
        assert decode_number(storage.read(place / "epoch")) == revision.version.epoch
        assert decode_number(storage.read(place / "incarnation"))


def test_the_folder_is_of_releases_alone() -> None:
    assert all(Path(FOLDER, release, "cluster.json").is_file() for release in RELEASES)
