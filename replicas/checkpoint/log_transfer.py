"""What of a checkpoint log goes from one node to another (rule G9): whole slices, as they were written.  Pure.

Records of one maker continue each other.  Those of two do not, for T and the numbers of rows are of one maker's slices:
whoever turns to another maker begins a log of its own anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from replicas.checkpoint.log_records import Commit, LogKind, LogRecord
from spe.errors import RemoteProtocolError


class SentSlice(NamedTuple):
    """Attributes: as :meth:`CheckpointLog.write` takes them; ``needs`` and ``first`` are numbers of the maker's."""

    time: int
    records: list[tuple[LogKind, bytes]]
    commit: bytes
    needs: int
    first: int


def slices_as_tree(records: Sequence[LogRecord], newest: Commit) -> list[dict[str, Any]]:
    """Consecutive whole slices up to a commit, as they can be encoded.

    Raises:
      RemoteProtocolError: they do not reach up to it.
    """
    slices: list[dict[str, Any]] = []
    kinds: list[int] = []
    payloads: list[bytes] = []
    for one in records:
        kinds.append(int(one.kind))
        payloads.append(one.payload)
        if one.kind is LogKind.COMMIT:
            first = one.sequence - len(kinds) + 1
            slices.append({"time": one.time, "needs": one.needs, "first": first, "kinds": kinds, "payloads": payloads})
            kinds, payloads = [], []
        if one.sequence == newest.last:
            return slices
    raise RemoteProtocolError(f"the log ends before record {newest.last}")


def slices_of(tree: Mapping[str, Any]) -> Iterator[SentSlice]:
    """Raises RemoteProtocolError: this is none."""
    try:
        for one in tree["slices"]:
            kinds = [LogKind(int(kind)) for kind in one["kinds"]]
            payloads = [bytes(payload) for payload in one["payloads"]]
            if not kinds or kinds[-1] is not LogKind.COMMIT or LogKind.COMMIT in kinds[:-1]:
                raise RemoteProtocolError("a slice of a checkpoint log ends with its commit, and has one")
            records = list(zip(kinds[:-1], payloads[:-1], strict=True))
            yield SentSlice(int(one["time"]), records, payloads[-1], int(one["needs"]), int(one["first"]))
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"no slices of a checkpoint log: {error!r}") from error
