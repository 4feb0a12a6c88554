"""The part of a status that all processes have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from spe.errors import LinkBroken, LinkClosed, NoTls, PeerBusy, SpeError, TurnedAway
from spe.status.field_types import Integer, Many, Number, Text


@dataclass(frozen=True, slots=True)
class UnreachedStatus:
    """Why a process is not reached.

    Attributes:
      kind: `silent`: it does not answer, or the connection broke; `turned away`: its machine, or a firewall, refuses
        connections; `refused`: it answers, and refuses.
      why: the error.
    """

    kind: Literal["silent", "turned away", "refused"]
    why: Text

    @classmethod
    def of(cls, error: SpeError) -> UnreachedStatus:
        if isinstance(error, TurnedAway):
            return cls("turned away", str(error))
        is_silent = isinstance(error, (LinkBroken, LinkClosed)) and not isinstance(error, (PeerBusy, NoTls))
        return cls("silent" if is_silent else "refused", str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOfOtherLog:
    """A consumer that is refused because it has read another log than that of this process (rule S6).

    Attributes:
      reader: its name.
      count: number of its requests.
      why: difference of the logs.
    """

    reader: Text
    count: Integer
    why: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """Connections to a process.

    Attributes:
      connections: number of connections of each connected peer.
      sent_away: connections closed to make room for newer ones of the same peer.
      other_logs: consumers refused because they have read another log, the latest 64.
    """

    connections: Mapping[Text, Integer]
    sent_away: Integer
    other_logs: Many[ReaderOfOtherLog]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramStatus:
    """Counts of values between bounds.

    Attributes:
      bounds: upper bounds, ascending.
      counts: number of values in each interval; the last interval is above all bounds.
      sum: sum of all values.
      largest: largest value; 0 if there is none.
    """

    bounds: Many[Number]
    counts: Many[Integer]
    sum: Number
    largest: Number = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryStatus:
    """Version of a process's directory (docs/internals/directory.md).

    Attributes:
      epoch: epoch of the coordinator that issued it; 0 for the configuration.
      number: grows with each version.
    """

    epoch: Integer
    number: Integer


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateStatus:
    """The certificate that new connections of a process use.

    Attributes:
      expires_us: time of its expiry.
      ca_expires_us: first expiry of a certificate of the CA.
      refused: reason why the files of a new one are not used; "" if there are none.
    """

    expires_us: Integer
    ca_expires_us: Integer
    refused: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonStatus:
    """Fields of the status of every process.

    Attributes:
      kind: kind of the process.
      name: node id, `source:NAME`, `client:NAME`, `coordinator` or `supervisor`.
      incarnation: grows with each start of the process.
      server: connections to it; null if the status was not requested over a connection.
      directory: version of its directory; null as with `server`.
      disk_full: what it cannot write for lack of room, and the disk's error.
      certificate: null without TLS.
      away: servers outside the cluster that do not answer the source or client, and the reason.
      unreachable: processes that do not answer heartbeats, and the reason.
    """

    kind: str
    name: Text
    incarnation: Integer
    server: ServerStatus | None = None
    directory: DirectoryStatus | None = None
    disk_full: Mapping[Text, Text] = field(default_factory=dict)
    away: Mapping[Text, Text] = field(default_factory=dict)
    certificate: CertificateStatus | None = None
    unreachable: Mapping[Text, UnreachedStatus] = field(default_factory=dict)

    @property
    def waits_for(self) -> Mapping[str, str]:
        """Servers in ``away`` without which the process cannot continue."""
        return self.away


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderStatus:
    """A holder of log segments that `retain` would delete.

    Attributes:
      holder: a replica, standby or client, `spe report --follow`, or a partition whose state is in memory only.
      since_us: wall time since which it needs them; not before the start of the process.
      bytes: size of these segments.
    """

    holder: Text
    since_us: Integer
    bytes: Integer
