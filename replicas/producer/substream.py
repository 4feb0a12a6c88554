"""The part of a stream that a subscription asks for."""

from __future__ import annotations

from spe.plan.plan import Plan
from spe.wire.messages.feeds import Subscribe


def substream(plan: Plan, message: Subscribe) -> tuple[int, int, tuple[int, ...]] | None:
    """Returns (index, count, key columns) of the requested substream; None: the whole stream.

    The consumer's unit names the attributes that divide the stream.  Raises KeyError where it does not.
    """
    if message.substream_count == 1:
        return None
    unit = message.consumer.rsplit("@", 1)[0].rsplit("/", 1)[0]
    columns = plan.key_columns(unit, message.stream)
    if columns is None:
        raise KeyError(f"{unit} does not divide {message.stream}")
    return message.substream_index, message.substream_count, columns
