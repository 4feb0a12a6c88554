"""One producer of one output channel, driven by text."""

from __future__ import annotations

from collections.abc import Sequence

from replicas.producer.output_log import OutputLog
from replicas.producer.subscription import OutputSubscription
from spe.plan.plan import Limits
from spe.stream.batch import Element
from spe.stream.ids import Channel
from spe.stream.names import NodeState, StreamId
from spe.stream.schema import Schema
from spe.wire.messages.feeds import StateChange
from tests.support.streams import PAYLOAD, parse, show

PLENTY = 1 << 20


class TextProducer:
    """An OutputLog that is written to, and read from, as text (tests.support.streams)."""

    def __init__(
        self,
        *,
        consumers: Sequence[str] = ("v/0@a",),
        schema: Schema = PAYLOAD,
        limits: Limits | None = None,
        standbys: Sequence[str] = (),
        tail_bytes: int = 0,
    ) -> None:
        self.schema = schema
        channel = Channel(StreamId("orders"), 0)
        self.log = OutputLog(channel, schema, consumers, limits or Limits(), standbys=standbys, tail_bytes=tail_bytes)
        self.log.set_state(NodeState.STABLE)

    def stable(self, text: str) -> None:
        self.log.append_stable(parse(text, self.schema, position=self.log.last_id))

    def tentative(self, text: str) -> None:
        self.log.append_tentative(parse(text, self.schema, position=self.log.suffix.last_id))

    def fails(self, text: str = "") -> None:
        """UP_FAILURE, and the first tentative elements."""
        self.log.clear_suffix()
        self.log.set_state(NodeState.UP_FAILURE)
        self.tentative(text)

    def stabilises(self, *, fresh: bool = False) -> None:
        self.log.set_state(NodeState.STABILIZATION, fresh)

    def done(self, state: NodeState = NodeState.STABLE) -> None:
        """REC_DONE (R7)."""
        self.log.clear_suffix()
        self.log.set_state(state)

    def subscribe(
        self,
        position: int,
        frontier: int,
        t_star: int | None = None,
        *,
        held: bool = False,
        mode: str = "main",
        share: tuple[int, int, tuple[int, ...]] | None = None,
    ) -> OutputSubscription:
        seen = frontier - 1 if t_star is None else t_star
        got = self.log.subscribe(mode, position, frontier, held, seen, share)  # type: ignore[arg-type]
        assert isinstance(got, OutputSubscription)
        return got


def pull(subscription: OutputSubscription, max_bytes: int = PLENTY) -> list[Element]:
    """The elements of one pull, without news of the state."""
    return [e for e in subscription.pull(max_bytes) if not isinstance(e, StateChange)]


def pulled(subscription: OutputSubscription, max_bytes: int = PLENTY) -> str:
    """What one pull brings, as text."""
    return show(pull(subscription, max_bytes))
