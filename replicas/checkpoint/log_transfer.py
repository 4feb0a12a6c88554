"""Encodes the part of a checkpoint log that one node sends to another (rule G9): whole slices, as they were written.
Pure.

Records of one maker continue each other.  Those of two makers do not, because T and the counts of rows refer to slices
of one maker: a standby that changes to another maker begins a new log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from replicas.checkpoint.log_records import Commit, LogKind, LogRecord
from spe.errors import RemoteProtocolError


class SentSlice(NamedTuple):
    """A slice of a maker, with the arguments of :meth:`CheckpointLog.write`; ``needs`` and ``first`` are the maker's
    numbers.
    """

    time: int
    records: list[tuple[LogKind, bytes]]
    commit: bytes
    needs: int
    first: int


def slices_as_tree(records: Sequence[LogRecord], newest: Commit) -> list[dict[str, Any]]:
    """Encodes consecutive whole slices up to a commit.

    Raises:
      RemoteProtocolError: the records end before the commit.
    """
    slices: list[dict[str, Any]] = []
    kinds: list[int] = []
    payloads: list[bytes] = []
    for record in records:
        kinds.append(int(record.kind))
        payloads.append(record.payload)
        if record.kind is LogKind.COMMIT:
            first = record.sequence - len(kinds) + 1
            slices.append(
                {"time": record.time, "needs": record.needs, "first": first, "kinds": kinds, "payloads": payloads}
            )
            kinds, payloads = [], []
        if record.sequence == newest.last:
            return slices
    raise RemoteProtocolError(f"the log ends before record {newest.last}")


def slices_of(tree: Mapping[str, Any]) -> Iterator[SentSlice]:
    """Decodes slices.  Raises RemoteProtocolError: not a list of slices."""
    try:
        for entry in tree["slices"]:
            kinds = [LogKind(int(kind)) for kind in entry["kinds"]]
            payloads = [bytes(payload) for payload in entry["payloads"]]
            if not kinds or kinds[-1] is not LogKind.COMMIT or LogKind.COMMIT in kinds[:-1]:
                raise RemoteProtocolError("a slice of a checkpoint log ends with its commit, and has one")
            records = list(zip(kinds[:-1], payloads[:-1], strict=True))
            yield SentSlice(int(entry["time"]), records, payloads[-1], int(entry["needs"]), int(entry["first"]))
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"no slices of a checkpoint log: {error!r}") from error
