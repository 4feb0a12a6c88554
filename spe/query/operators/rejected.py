"""Rejected: the rows and results that another operator goes on without (rule U15)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spe.query.declaration import From, Guarantee, Keys, Logged, OneInput
from spe.stream.names import StreamId
from spe.stream.schema import Schema

#: ``kind`` is ``row`` or ``result``, ``n`` counts those of a kind in a partition from 1.  ``input`` is the channel or
#: stream that a row came from, ``input_id`` its id in the channel; null for a result.  ``text`` is the row as JSON.
REJECTIONS: Final = Schema.of(
    kind="string!", n="int64!", input="string", input_id="int64", reason="string!", text="string!"
)


class RejectedKeys(Keys):
    """What an operator with `on_error: skip` or `on_late: reject` leaves out, for clients to read."""

    from_: From


@dataclass(frozen=True, slots=True)
class RejectedSpec(OneInput):
    """What the operator that makes ``input`` rejects; it does not read the stream itself."""

    KEYWORD = "rejected"
    KEYS = RejectedKeys
    GUARANTEES = (Guarantee("", "the row's or the result's", "rows, then results; then by `n`"),)
    SHORTHAND = "from"
    TAKES_REJECTED = True

    input: StreamId

    def output_schema(self, inputs: Sequence[Schema]) -> Schema:
        return REJECTIONS

    def described(self) -> str:
        return f"what {self.input} rejects"

    @property
    def logged(self) -> Logged:
        return Logged.NOTHING
