"""Reports rows that operators with ``on_error: skip`` or ``on_late: reject`` rejected (rule U15).

The rows themselves are in the streams of ``rejected`` operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from operators.rejections import Rejection, shortened
from spe.runtime.env import Env
from spe.stream.ids import ReplicaId
from spe.stream.names import StreamId
from spe.stream.times import iso_timestamp

#: Time between two reports of one operator.
_TELL_AGAIN_US: Final = 60_000_000

#: (replica, operator, whether a result was rejected): rejections are numbered for each of these.
_Sequence = tuple[ReplicaId, StreamId, bool]


class ToldRejections:
    """Reports the first rejection of each operator, then once a minute the number of further ones."""

    def __init__(self, env: Env) -> None:
        self._env = env
        #: Largest numbers so far: a redo or restart repeats some rejections.
        self._known: dict[_Sequence, int] = {}
        #: Per sequence: time of the last report, and number of rejections since.
        self._told: dict[_Sequence, tuple[int, int]] = {}

    def tell(self, replica: ReplicaId, rejections: Sequence[Rejection]) -> None:
        now = self._env.clock.monotonic_us()
        for rejection in rejections:
            key = (replica, rejection.operator, rejection.result)
            if rejection.number <= self._known.get(key, 0):
                continue
            self._known[key] = rejection.number
            at, count = self._told.get(key, (None, 0))
            if at is not None and now - at < _TELL_AGAIN_US:
                self._told[key] = at, count + 1
                continue
            self._told[key] = now, 0
            self._env.trace.event(
                "rejected",
                replica=str(replica),
                operator=str(rejection.operator),
                what="a result" if rejection.result else f"a row of {rejection.input}",
                time=iso_timestamp(rejection.time),
                more=f" and {count:,} more since the last one told" if count else "",
                why=shortened(rejection.reason.splitlines()[0]),
            )
