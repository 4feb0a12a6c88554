"""A directory in object storage, against a server that speaks S3 and goes away."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pytest
import trio

from replicas.simulation.world.disk import SimDisk
from replicas.testing import check_reader
from spe.plan.plan import Source
from spe.runtime.env import Network
from tests.support.file_formats import FORMATS, SCHEMA, parquet, rows
from tests.support.s3_server import S3Server, running_s3
from tests.unit.replicas.connectors.files.test_directory import aside, logged, read_all, reading, source

pytestmark = pytest.mark.servers
#: For an answer of the server, in real time.
_PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with running_s3() as one:
        yield one


@pytest.fixture
def bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    name = f"b{abs(hash(request.node.name)) % 10**9}"
    server.client().create_bucket(Bucket=name)
    return name


def put(server: S3Server, bucket: str, path: str, data: bytes) -> None:
    server.client().put_object(Bucket=bucket, Key=path, Body=data)


def of(server: S3Server, bucket: str, **options: Any) -> Source:
    return source(f"s3://{bucket}/in", endpoint=server.endpoint, **{"timestamps": None, **options})


async def until(condition: Any) -> None:
    with trio.fail_after(_PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.02)


@pytest.mark.parametrize("form", FORMATS)
async def test_every_format_is_read_from_s3(server: S3Server, bucket: str, form: str) -> None:
    write, options = FORMATS[form]
    put(server, bucket, "in/a", write(rows(0, 50)))
    put(server, bucket, "in/_temporary/x", b"no row")
    put(server, bucket, "in/b/c", write(rows(50, 7)))
    put(server, bucket, "other/a", b"no row")
    async with reading(of(server, bucket, **options, follow=False), disk := SimDisk()) as proxy:
        await until(lambda: proxy.ended or proxy.fault)
    assert proxy.fault is None
    assert logged(disk) == rows(0, 57)


async def test_a_dataset_of_arrow_is_read(server: S3Server, bucket: str) -> None:
    """As pyarrow.dataset writes it: parts in folders, whose names are columns."""
    from pyarrow import fs

    system = fs.S3FileSystem(endpoint_override=server.endpoint.removeprefix("http://"), scheme="http")
    table = pa.table({"ts": pa.array([1, 2, 3], pa.timestamp("us")), "n": [1, 2, 3], "shop": ["a", "b", None]})
    partitioning = pa.dataset.partitioning(pa.schema([("shop", pa.string())]), flavor="hive")
    pa.dataset.write_dataset(
        table, f"{bucket}/in", format="parquet", filesystem=system, partitioning=partitioning, create_dir=False
    )
    schema = {"ts": "timestamp!", "n": "int64!", "shop": "string"}
    one = source(
        f"s3://{bucket}/in", schema, endpoint=server.endpoint, format="parquet", timestamps=None,
        partitions=["shop"], follow=False,
    )  # fmt: skip
    async with reading(one, disk := SimDisk()) as proxy:
        await until(lambda: proxy.ended or proxy.fault)
    assert proxy.fault is None
    assert sorted(logged(disk, schema)) == [(1, 1, "a"), (2, 2, "b"), (3, 3, None)]


async def test_a_server_that_goes_away_is_waited_for(server: S3Server, bucket: str) -> None:
    put(server, bucket, "in/a", parquet(rows(0, 9)))
    async with reading(of(server, bucket, format="parquet"), disk := SimDisk()) as proxy:
        await until(lambda: proxy.last_id == 9)
        server.stop()
        try:
            await until(lambda: proxy.away)
            assert proxy.away.startswith(f"s3://{bucket}/in cannot be read: ")
            assert proxy.away.endswith("; trying again")
        finally:
            server.start()
        put(server, bucket, "in/b", parquet(rows(9, 9)))
        await until(lambda: proxy.last_id == 18)
        assert (proxy.away, proxy.fault) == ("", None)
    assert logged(disk) == rows(0, 18)


async def test_a_bucket_that_is_missing_stops_the_source(server: S3Server, bucket: str) -> None:
    proxy = await read_all(source("s3://nowhere-at-all/in", endpoint=server.endpoint), SimDisk(), 1.0)
    assert str(proxy.fault) == "s3://nowhere-at-all/in cannot be read: there is no such bucket"


async def test_an_object_that_is_torn_or_changes_is_noticed(server: S3Server, bucket: str) -> None:
    put(server, bucket, "in/a", parquet(rows(0, 9))[:-4])
    put(server, bucket, "in/b", parquet(rows(9, 9)))
    async with reading(of(server, bucket, format="parquet", bad_files="skip"), disk := SimDisk()) as proxy:
        await until(lambda: proxy.last_id == 9)
        put(server, bucket, "in/b", parquet(rows(0, 99)))
        await until(lambda: proxy.status().malformed == 2)
    torn, changed = aside(disk)
    assert torn[0] == "a"
    assert "cannot be read: Parquet magic bytes not found" in torn[1]
    assert changed[0] == "b"
    assert "it changed after it was read" in changed[1]
    assert logged(disk) == rows(9, 9)


def test_secrets_stay_out_of_messages(server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from replicas.connectors.files.file_store import FolderRefused, S3Store
    from spe.errors import ServerAway

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-key")
    store = S3Store({"folder": f"s3://{bucket}/in", "endpoint": "http://127.0.0.1:1", "region": "us-east-1"})
    with pytest.raises((FolderRefused, ServerAway)) as error:
        store.list()
    assert "a-secret-key" not in str(error.value)


# --- the kit ---


class Played:
    """A bucket of its own for each play; the server is stopped when this is, and has all afterwards."""

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self.bucket = f"played{next(_NAMES)}"
        client = server.client()
        client.create_bucket(Bucket=self.bucket)
        for n in range(3):
            client.put_object(Bucket=self.bucket, Key=f"in/{n}", Body=parquet(rows(10 * n, 10)))

    async def serve(self, network: Network, *, task_status: trio.TaskStatus[str]) -> None:
        try:
            await trio.to_thread.run_sync(self._server.start)
            task_status.started("")
            await trio.sleep_forever()
        finally:
            self._server.stop()


_NAMES = count()


def test_rows_come_once_despite_crashes(server: S3Server, bucket: str) -> None:
    def entry(played: Played) -> dict[str, Any]:
        keys = {"path": f"s3://{played.bucket}/in", "endpoint": server.endpoint, "every": "100ms"}
        return {"schema": SCHEMA, "time": "ts", "from": {"directory": keys, "format": "parquet"}}

    def played() -> Played:
        server.start()
        return Played(server)

    try:
        assert check_reader(entry, rows(0, 30), played, virtual=False, most=2) >= 9
    finally:
        server.start()
