"""A full disk is logged at once and then once a minute, also where it fills up repeatedly."""

from __future__ import annotations

import errno

import pytest
import trio

from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.cluster import SimCluster
from spe.errors import LogCorrupt, LogFull
from spe.runtime.disk_trouble import DiskTrouble, is_full
from tests.simulation.test_cluster import make_plan


async def test_a_disk_that_fills_up_repeatedly_is_logged_once_a_minute(
    jump_clock: JumpClock, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = SimCluster(*make_plan())
    trouble = DiskTrouble(cluster.env("n1a"), "source a")
    for _ in range(150):
        trouble.met(LogFull("no space"))
        trouble.over()
        trouble.over()
        await trio.sleep(1)
    said = capsys.readouterr().err.splitlines()
    assert said == ["source a: no space; waiting for room", "source a: there is room again"] * 3
    assert sum("disk_full" in line for line in cluster.log) == 150
    assert sum("disk_has_room" in line for line in cluster.log) == 150


def test_only_no_space_errors_are_waited_for() -> None:
    assert all(is_full(error) for error in (LogFull("x"), OSError(errno.ENOSPC, "x"), OSError(errno.EFBIG, "x")))
    assert not any(is_full(error) for error in (OSError(errno.EIO, "x"), LogCorrupt("x"), ValueError("x")))
