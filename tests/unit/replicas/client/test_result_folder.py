"""A folder of results belongs to one process and to one query (U14)."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from replicas.client.result_folder import ResultFolder
from replicas.simulation.world.disk import SimDisk
from spe.errors import LogError, SpeError
from spe.stream.ids import Channel
from spe.stream.names import StreamId

FOLDER = PurePosixPath("sinks/final")
ONE, TWO = Channel(StreamId("out"), 0), Channel(StreamId("other"), 0)


def take(disk: SimDisk, **queries: str) -> ResultFolder:
    return ResultFolder(disk, FOLDER, "sink final", {Channel(StreamId(s), 0): q for s, q in queries.items()})


async def test_results_of_another_query_are_refused_with_a_remedy() -> None:
    disk = SimDisk()
    await take(disk, out="f00d").keep()
    with pytest.raises(SpeError, match=r"sink final .*holds out/0 of another query: it was made for f00d, .*beef") as e:
        take(disk.restarted(), out="beef")
    assert "another folder" in str(e.value)
    take(disk.restarted(), out="f00d")


async def test_an_additional_stream_is_added() -> None:
    disk = SimDisk()
    await take(disk, out="f00d").keep()
    again = take(disk := disk.restarted(), out="f00d", other="cafe")
    assert (again.unlabelled(ONE), again.unlabelled(TWO)) == (False, True)
    await again.keep()
    await take(disk := disk.restarted(), out="f00d").keep()
    with pytest.raises(SpeError, match="other/0"):
        take(disk.restarted(), other="beef")


async def test_a_second_process_is_refused() -> None:
    disk = SimDisk()
    take(disk, out="f00d")
    with pytest.raises(LogError, match=r"sink final is written by another process: .*is held by another process"):
        take(disk, out="f00d")


async def test_a_damaged_provenance_file_is_named() -> None:
    disk = SimDisk()
    await take(disk, out="f00d").keep()
    damaged = disk.with_file(FOLDER / ".spe.json", b'{"version": 1, "chan')
    with pytest.raises(SpeError, match=r"sink final: .*\.spe\.json: expected"):
        take(damaged, out="f00d")
