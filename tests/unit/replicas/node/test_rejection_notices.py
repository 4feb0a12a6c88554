"""The log says that an operator goes on without rows, once a minute."""

from __future__ import annotations

import trio

from operators.rejections import Rejection
from replicas.node.rejection_notices import ToldRejections
from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.disk import SimDisk
from spe.stream.ids import ReplicaId
from spe.stream.names import NodeId, StreamId, UnitId
from tests.support.source_env import ListTrace, source_env

ID = ReplicaId(UnitId("u"), 0, NodeId("n1"))


def rejections(*numbers: int, result: bool = False) -> list[Rejection]:
    input_ = None if result else "a/0"
    return [Rejection(StreamId("s"), result, n, input_, None, n, {}, "ValueError: bad\nmore") for n in numbers]


async def test_rejections_are_reported_once_a_minute(jump_clock: JumpClock) -> None:
    trace = ListTrace()
    told = ToldRejections(source_env(SimDisk(), trace=trace))
    told.tell(ID, rejections(1, 2))
    told.tell(ID, rejections(1, 2, 3))  # a redo makes some again
    told.tell(ID, rejections(1, result=True))
    assert [(f["what"], f["more"], f["why"]) for f in trace.named("rejected")] == [
        ("a row of a/0", "", "ValueError: bad"),
        ("a result", "", "ValueError: bad"),
    ]
    await trio.sleep(61)
    told.tell(ID, rejections(4))
    assert trace.named("rejected")[-1]["more"] == " and 2 more since the last one told"
