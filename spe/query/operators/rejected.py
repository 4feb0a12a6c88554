"""Rejected: the rows and results that another operator skips (rule U15)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spe.query.declaration import From, Guarantee, Keys, Logged, OneInput
from spe.stream.names import StreamId
from spe.stream.schema import Schema

#: ``kind`` is ``row`` or ``result``; ``n`` counts each kind in a partition from 1; ``input`` is the channel or stream
#: of a row, ``input_id`` its id in the channel, both null for a result; ``text`` is the row as JSON.
REJECTIONS: Final = Schema.of(
    kind="string!", n="int64!", input="string", input_id="int64", reason="string!", text="string!"
)


class RejectedKeys(Keys):
    """The rows that an operator with `on_error: skip` or `on_late: reject` leaves out, for clients to read."""

    from_: From


@dataclass(frozen=True, slots=True)
class RejectedSpec(OneInput):
    """Outputs the rejected rows of the operator of ``input``; does not read that stream itself."""

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
