"""Waiting for a node, and for its partners, in a simulated cluster."""

from __future__ import annotations

import pytest

from replicas.cli.restart import Rolling
from replicas.local.run_dir import Target
from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.cluster import SimCluster
from spe.errors import ConfigError
from spe.stream.times import SECOND
from tests.simulation.test_cluster import make_plan


async def test_a_node_may_stop_as_soon_as_its_partner_is_back(
    jump_clock: JumpClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with SimCluster(*make_plan(1)) as cluster:
        target = Target(cluster.plan, cluster.directory, cluster.directory.addresses(), "")
        rolling = Rolling(cluster.env("control"), target, 5 * SECOND)
        await cluster.start()
        assert await rolling.wait_for("n1a") == 0
        assert await rolling.wait_for_partners("n1a") == 0
        cluster.kill("n1b")
        assert await rolling.wait_for_partners("n1a") == 1
        assert await rolling.wait_for("n1b") == 1
        cluster.restart("n1b")
        assert await rolling.wait_for_partners("n1a") == 0
        with pytest.raises(ConfigError, match="no node 'n9'"):
            await rolling.wait_for("n9")
    assert capsys.readouterr().out.splitlines() == [
        "n1a: STABLE",
        "n1a may stop",
        "n1a may not stop: u1/0: n1b is silent",
        "n1b: it does not answer yet",
        "n1a may stop",
    ]
