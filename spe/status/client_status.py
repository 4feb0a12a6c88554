"""Status of a client: its channels and its recording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spe.status.field_types import Flag, Integer, Many, Text
from spe.status.process_status import CommonStatus, HistogramStatus, HolderStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingStatus:
    """The recording of a client with `retain`.

    Attributes:
      bytes: bytes on disk.
      deleted_bytes: bytes deleted so far.
      held: holders of segments that are due, the largest first.
      archive: reason why segments that are due cannot be copied or deleted; "" if they can.
    """

    bytes: Integer
    deleted_bytes: Integer
    held: Many[HolderStatus]
    archive: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStatus:
    """A channel of a client since the start of its process.

    Attributes:
      channel: stream and partition.
      producer: replica that it is read from; null: none.
      stable: stable tuples received.
      tentative: tentative tuples received.
      undone: tentative tuples that were undone.
      switches: number of changes of the producer between two arrivals.
      position: id of the last stable tuple.
      frontier: largest stable boundary.
      held: the client holds tentative tuples that are not undone.
      delay_us: Delay_new of the latest new tuples; null if unknown.
      delay_max_us: the longest delay.
      gap_max_us: longest time between two arrivals, the present silence included.
      stable_gap_max_us: the same for stable arrivals.
      last_arrival_us: wall time of the latest arrival; null before the first.
      ended: the stream has ended.
      bound_us: sum of X along the slowest path to the output; null if unknown.
      x_used: delays of new tuples; 1 is `bound_us`; null if unknown.
    """

    channel: Text
    producer: Text | None
    stable: Integer
    tentative: Integer
    undone: Integer
    switches: Integer
    position: Integer
    frontier: Integer
    held: Flag
    delay_us: Integer | None
    delay_max_us: Integer | None
    gap_max_us: Integer
    stable_gap_max_us: Integer
    last_arrival_us: Integer | None
    ended: Flag
    bound_us: Integer | None = None
    x_used: HistogramStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchStatus:
    """A change of the producer that a channel is read from.

    Attributes:
      channel: stream and partition.
      before: previous producer.
      after: new producer.
      silence_us: time from the last arrival of the previous to the first of the new producer.
      at_us: wall time of that first arrival.
    """

    channel: Text
    before: Text
    after: Text
    silence_us: Integer
    at_us: Integer


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultStatus:
    """A row of an output, as a client has received it.

    Attributes:
      tentative: the row is tentative, and will be undone.
      values: values as texts, each cut to 40 characters.
    """

    tentative: Flag
    values: Many[Text]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestStatus:
    """The last rows of an output, for display; sinks and `spe client` have all rows.

    Attributes:
      stream: name of the output.
      columns: its first 12 attributes.
      rows: the last 5 received rows, without undone ones.
    """

    stream: Text
    columns: Many[Text]
    rows: Many[ResultStatus]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatus(CommonStatus):
    """A client of a run; external clients have no status.

    Attributes:
      channels: channels that it reads.
      switches: the latest 100 switches.
      recording: its recording; null if it is kept for ever, or there is none.
      newest: newest rows of its first 8 outputs.
    """

    kind: Literal["client"] = "client"
    channels: Many[ChannelStatus]
    switches: Many[SwitchStatus]
    recording: RecordingStatus | None = None
    newest: Many[NewestStatus] = ()
