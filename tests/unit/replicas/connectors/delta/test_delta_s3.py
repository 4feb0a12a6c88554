"""Delta tables in S3: an emulator that goes away, refuses keys, and takes each commit once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
import trio
from deltalake import DeltaTable

from replicas.connectors.delta import table as delta_place
from spe.connectors.declaration import CURRENT
from spe.errors import ServerAway, SpeError
from tests.support.s3_server import BUCKET, S3Server, running_s3, s3_with_keys
from tests.unit.replicas.connectors.delta.test_sink import COMPUTE, feed, opened, written

pytestmark = pytest.mark.servers

_NAMES = count()


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with running_s3() as one:
        one.client().create_bucket(Bucket=BUCKET)
        yield one


@pytest.fixture
def url(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    server.start()
    for name, value in {**server.environment, "AWS_ENDPOINT_URL": server.endpoint}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(delta_place, "S3_OPTIONS", {**delta_place.S3_OPTIONS, "max_retries": "0"})
    return f"s3://{BUCKET}/{next(_NAMES)}/table"


def held(server: S3Server, url: str) -> str:
    options = {"AWS_ENDPOINT_URL": server.endpoint, "AWS_ALLOW_HTTP": "true"}
    rows = pa.table(DeltaTable(url, storage_options=options).to_pyarrow_table()).to_pylist()
    return " ".join(sorted(f"{r['_id']}{r['x']}" for r in rows))


async def seen(server: S3Server, url: str) -> str:
    return await trio.to_thread.run_sync(held, server, url)


async def test_a_correction_is_one_commit(server: S3Server, url: str) -> None:
    sink = await written(url, "S1/5a T/6b", CURRENT)
    assert await seen(server, url) == "1a 2b"
    feed(sink, "U(1) S2/12e B20(2) R+", position=1)
    await sink.commit(COMPUTE)
    assert await seen(server, url) == "1a 2e"
    assert (await opened(url, CURRENT)).reached(sorted(sink.schemas)[0]) == 2


async def test_later_of_two_processes_continues(server: S3Server, url: str) -> None:
    first = await written(url, "S1/5a")
    second = await opened(url)
    for sink in (first, second):
        feed(sink, "S2/6b", position=1)
    await second.commit(COMPUTE)
    with pytest.raises(SpeError, match="another process writes to it since"):
        await first.commit(COMPUTE)
    assert await seen(server, url) == "1a 2b"


async def test_a_store_that_goes_away_is_waited_for(server: S3Server, url: str) -> None:
    sink = await written(url, "S1/5a")
    server.stop()
    feed(sink, "S2/6b", position=1)
    with pytest.raises(ServerAway, match=r"not reached|HTTP error"):
        await sink.commit(COMPUTE)
    server.start()
    await sink.commit(COMPUTE)
    assert (sink.position(sorted(sink.schemas)[0]), await seen(server, url)) == (2, "1a 2b")


async def test_commit_with_lost_answer_is_made_once(
    server: S3Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = await written(url, "S1/5a")
    commit = DeltaTable.create_write_transaction

    def lost(*given: object, **options: object) -> None:
        commit(*given, **options)  # type: ignore[arg-type]
        raise OSError("Generic S3 error: HTTP error: error sending request")

    feed(sink, "S2/6b", position=1)
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", lost)
        with pytest.raises(ServerAway, match="error sending request"):
            await sink.commit(COMPUTE)
    await sink.commit(COMPUTE)
    feed(sink, "S3/7c", position=2)
    await sink.commit(COMPUTE)
    assert await seen(server, url) == "1a 2b 3c"


async def test_a_bucket_that_is_missing_ends_the_client(url: str) -> None:
    with pytest.raises(SpeError, match="delta s3://missing/table: there is no such bucket"):
        await opened("s3://missing/table")


async def test_wrong_keys_end_the_client_and_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_with_keys() as service:
        for name, value in service.environment.items():
            monkeypatch.setenv(name, value)
        sink = await written(f"s3://{BUCKET}/table", "S1/5a")
        feed(sink, "S2/6b", position=1)
        await sink.commit(COMPUTE)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-one")
        with pytest.raises(SpeError, match="access was denied: expected credentials") as caught:
            await opened(f"s3://{BUCKET}/table", endpoint=service.environment["AWS_ENDPOINT_URL"])
        assert "not-the-one" not in str(caught.value)
