"""What a source that is pushed to states, checked by the kit: whoever dies, each batch is there once, and whole."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final

import pytest
import trio

from replicas.client.push import Pusher
from replicas.simulation.world.clock import SimClock
from replicas.simulation.world.disk import SimDisk
from replicas.simulation.world.host import SimCompute
from replicas.source.push import PushIntake
from replicas.testing import PromiseBroken, check_reader
from replicas.testing.tables import Layout
from spe.log.pushed_batches import PushLedger, encode_part
from spe.plan.deploy import Deployed
from spe.runtime.env import Env, Network
from spe.runtime.production import NullTrace
from spe.stream.batch import Rows

SOURCE: Final = {
    "schema": {"ts": "timestamp!", "n": "int64!", "text": "string"},
    "time": "ts",
    "from": {"push": ["etl"]},
    "address": "127.0.0.1:9000",
}
ROWS: Final = [{"ts": f"2026-01-01T12:00:{n:02}", "n": n, "text": f"é{n}" if n % 3 else None} for n in range(24)]
#: Rows of a batch and of a part of it, and crashes of each kind.
BATCH, PART, SOME = 6, 3, 6


class Writer:
    """Pushes batches of two parts, as Spark does: a driver that is started again repeats what it has not written down.

    Attributes:
      deployed: set by the kit.
      batch: the first one of which it has not written down that it was committed.
    """

    deployed: Deployed | None = None

    def __init__(self, rows: Sequence[Any] = ROWS) -> None:
        self._rows = rows
        self.batch = 0

    async def serve(self, network: Network, *, task_status: trio.TaskStatus[str]) -> None:
        task_status.started("")
        assert self.deployed is not None
        plan, directory = self.deployed
        (source,) = plan.sources.values()
        env = Env(SimClock(), network, SimDisk(), SimCompute(), Random(self.batch), NullTrace())
        pusher = Pusher(env, plan, directory, source.stream, "etl", patience_s=100)
        layout = Layout(source.schema, source.time, "rows")
        while rows := self._rows[self.batch * BATCH : (self.batch + 1) * BATCH]:
            parts = []
            for at in range(0, BATCH, PART):
                read = layout.read(rows[at : at + PART])
                made = Rows.from_tuples(source.schema, [row[0] for row in read], [row[1:] for row in read])
                parts.append(await pusher.stage("query", self.batch, encode_part([made], source.schema)))
            await pusher.commit("query", self.batch, parts)
            await pusher.commit("query", self.batch, parts)  # as if the answer had been lost
            self.batch += 1
        await trio.sleep_forever()


def test_each_batch_arrives_once_in_order_despite_crashes() -> None:
    assert check_reader(SOURCE, ROWS, Writer, most=SOME) == 4 * (SOME + 1)


def test_commit_answered_before_reaching_disk_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def in_memory(intake: PushIntake, ledger: PushLedger) -> None:
        await trio.lowlevel.checkpoint()
        intake._ledger = ledger.without(intake._consumed)
        intake._changed.wake()

    monkeypatch.setattr(PushIntake, "_write", in_memory)
    said = "^(the process is killed|its machine loses power) at step .*(is missing in the log|it ends: )"
    with pytest.raises(PromiseBroken, match=said):
        check_reader(SOURCE, ROWS, Writer, most=SOME)
