"""Status of a source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from spe.status.field_types import Flag, Integer, Many, Text
from spe.status.process_status import CommonStatus, HolderStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLogStatus:
    """The log of a source.

    Attributes:
      identity: identity of the log; another one means another history (rule S6).
      last_id: tuples logged.
      frontier: largest boundary published.
      ended: the input has ended.
      note: hint for users who wait for the first tuple; "" if there is none.
      fault: reason why the source takes no more rows; null if it does.
      malformed: rows left out because they do not fit the schema.
      refused_ahead: rows refused because their times are too far in the future.
      late: tuples stamped later than their event time.
      late_by_us: disorder that would have been enough for all of these; 0 if none was late.
      first_id: id of the first tuple in the log.
      first_us: the log is complete from this tuple time on; null if nothing was deleted.
      bytes: size of the log.
      held: holders of segments that are due, the largest first.
      archive: reason why segments that are due cannot be copied or deleted; "" if they can.
    """

    identity: Text
    last_id: Integer
    frontier: Integer
    ended: Flag
    note: Text
    fault: Text | None
    malformed: Integer
    refused_ahead: Integer
    late: Integer
    late_by_us: Integer
    first_id: Integer = 1
    first_us: Integer | None = None
    bytes: Integer = 0
    held: Many[HolderStatus] = ()
    archive: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus(CommonStatus):
    """A source.

    Attributes:
      log: its log; null until the log is open.
    """

    kind: Literal["source"] = "source"
    log: SourceLogStatus | None

    @property
    def waits_for(self) -> Mapping[str, str]:
        """Servers in ``away`` except those of sinks for late and rejected rows, for which the log is kept."""
        return {what: why for what, why in self.away.items() if what == "reader"}
