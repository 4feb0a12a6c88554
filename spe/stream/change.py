"""Changes: elements of channels with times of arrival, as clients get them."""

from __future__ import annotations

from dataclasses import dataclass

from spe.stream.batch import Element
from spe.stream.ids import Channel


@dataclass(frozen=True, slots=True)
class Change:
    """An element of a channel as the client received it.

    Attributes:
      element: a stable or tentative Batch, a Boundary, an Undo (delete everything after its id) or a RecDone.
      arrived_us: wall time of arrival, microseconds since the epoch.
    """

    channel: Channel
    element: Element
    arrived_us: int
