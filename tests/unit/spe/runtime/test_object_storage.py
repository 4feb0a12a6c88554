"""An archive in object storage: what is written there is read back, and what cannot be is told."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from replicas.retention.archiving import keep_copy, open_archive
from spe.errors import SpeError
from spe.runtime.object_storage import ObjectStorage
from tests.support.s3_server import S3Server, running_s3
from tests.support.source_env import AtOnceCompute

pytestmark = pytest.mark.servers
PLACE = PurePosixPath("sources/orders/0123456789abcdef")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with running_s3() as one:
        one.client().create_bucket(Bucket="logs")
        yield one


@pytest.fixture
def s3(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    return server


async def test_segments_are_copied_once_and_listed_again(s3: S3Server) -> None:
    archive = open_archive("s3://logs/shop/")
    assert archive.list(PLACE) == []
    for name, data in (("b.seg", b"second" * 1000), ("a.seg", b"first")):
        await keep_copy(archive, PLACE / name, data, AtOnceCompute())
        await keep_copy(archive, PLACE / name, data, AtOnceCompute())
    assert archive.list(PLACE) == ["a.seg", "b.seg"]
    assert archive.read(PLACE / "b.seg") == b"second" * 1000
    stored = s3.client().list_objects_v2(Bucket="logs")["Contents"]
    assert [one["Key"] for one in stored] == [f"shop/{PLACE}/a.seg", f"shop/{PLACE}/b.seg"]
    with pytest.raises(SpeError, match="holds something else"):
        await keep_copy(archive, PLACE / "a.seg", b"other", AtOnceCompute())


async def test_missing_object_is_reported(s3: S3Server) -> None:
    archive = ObjectStorage.open("s3://logs/none")
    assert not archive.exists(PLACE)
    with pytest.raises(FileNotFoundError) as missing:
        archive.read(PLACE)
    assert missing.value.errno == errno.ENOENT
    with pytest.raises(OSError, match=r"s3://nowhere/x/.*: there is no such bucket"):
        await ObjectStorage.open("s3://nowhere/x").write_atomic(PLACE, b"x")


async def test_absent_service_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(OSError, match=r"s3://logs/x.*: the service is not reached"):
        ObjectStorage.open("s3://logs/x").list(PLACE)


async def test_files_of_a_url_of_the_disk(tmp_path: Path) -> None:
    archive = ObjectStorage.open(tmp_path.as_uri())
    await archive.write_atomic(PLACE, b"here")
    assert (tmp_path / PLACE).read_bytes() == b"here"


def test_another_kind_of_store_is_refused_by_name() -> None:
    with pytest.raises(SpeError, match="ftp://host/x: expected a folder, or a URL such as s3://bucket/logs"):
        ObjectStorage.open("ftp://host/x")
