"""The content of Spark's checkpoint of an output: position of each partition, and identity of the stream.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from spe.errors import SpeError, other_version

OFFSET_VERSION: Final = 1


@dataclass(frozen=True)
class Offset:
    """A position in an output.

    Attributes:
      query: fingerprint of everything that its tuples depend on (rule U14).
      ids: last stable id, by partition.
      origins: the source logs that the tuples come from (rule S6), by partition; "" where nothing was read yet.
      incarnation: of the last acknowledgement; the next one's is larger, whatever its clock says.
      session, change: in mode ``changes``: the session, and its last change.
      begins: ``ids`` at the beginning of the query.
    """

    output: str
    mode: str
    query: str
    ids: Mapping[int, int]
    origins: Mapping[int, str] = field(default_factory=dict)
    incarnation: int = 0
    session: str = ""
    change: int = 0
    begins: Mapping[int, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns data for JSON.  Equal offsets give equal texts."""
        data: dict[str, Any] = {
            "version": OFFSET_VERSION,
            "output": self.output,
            "mode": self.mode,
            "query": self.query,
            "ids": {str(p): self.ids[p] for p in sorted(self.ids)},
            "origins": {str(p): self.origins.get(p, "") for p in sorted(self.ids)},
            "incarnation": self.incarnation,
            "begins": {str(p): self.begins[p] for p in sorted(self.begins)},
        }
        return data if self.mode == "stable" else {**data, "session": self.session, "change": self.change}


def offset_of(data: Mapping[str, Any], expected: Offset) -> Offset:
    """Parses a checkpoint.

    Args:
      expected: any position in the output that is read.

    Raises:
      SpeError: it is of another output, mode or query; or it is none of ours.
    """
    offset = _parsed(data)
    for what, theirs, ours in (("output", offset.output, expected.output), ("mode", offset.mode, expected.mode)):
        if theirs != ours:
            raise SpeError(
                f"the checkpoint is of {what} {theirs!r}, and {ours!r} is to be read: use another checkpoint"
            )
    partitions = expected.ids.keys()
    if (
        offset.query != expected.query
        or offset.ids.keys() != partitions
        or offset.begins.keys() not in (partitions, set())
    ):
        raise SpeError(
            f"the checkpoint is of another query ({offset.query}) than the one that makes {expected.output!r} now "
            f"({expected.query}), whose ids mean other tuples: use another checkpoint"
        )
    return offset


def _parsed(data: Mapping[str, Any]) -> Offset:
    try:
        if why := other_version("the checkpoint", data["version"], OFFSET_VERSION):
            raise SpeError(f"{why}: use another checkpoint")
        return Offset(
            str(data["output"]),
            str(data["mode"]),
            str(data["query"]),
            {int(p): int(i) for p, i in data["ids"].items()},
            {int(p): str(o) for p, o in data["origins"].items()},
            int(data["incarnation"]),
            str(data.get("session", "")),
            int(data.get("change", 0)),
            {int(p): int(i) for p, i in data["begins"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise SpeError(f"the checkpoint is not of an output of a running cluster: {data}") from None


def start_of(start: Offset, end: Offset) -> Offset:
    """Returns the beginning of a micro-batch.

    Spark does not store the beginning of a query: it asks again while the first batch is under way, and after a
    restart.  The answer may be another one by then, so the end of the batch decides.

    Raises:
      SpeError: the batch would begin behind its end.
    """
    if end.begins and start.begins != end.begins:
        start = replace(start, ids=end.begins, begins=end.begins)
    for p, at in sorted(start.ids.items()):
        if at > end.ids[p]:
            raise SpeError(
                f"a micro-batch of {end.output}/{p} would begin behind id {at} and end with id {end.ids[p]}: the "
                "checkpoint was changed: use another checkpoint"
            )
    return start


def ahead(ids: Mapping[int, int], latest: Mapping[int, int], rows: int | None) -> dict[int, int]:
    """Returns the end of a micro-batch that begins at ``ids``: evenly over the partitions, at most ``latest``.

    Args:
      rows: of all partitions together; None: unlimited.
    """
    wanted = {p: max(0, latest.get(p, 0) - at) for p, at in ids.items()}
    left, ends = sum(wanted.values()) if rows is None else rows, dict(ids)
    for done, p in enumerate(sorted(wanted, key=lambda p: (wanted[p], p))):
        share = -(-left // (len(wanted) - done))
        taken = min(wanted[p], share)
        ends[p] += taken
        left -= taken
    return ends
