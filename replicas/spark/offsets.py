"""What Spark keeps in its checkpoint of an output: how far each partition is, and of which stream that is.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from spe.errors import SpeError


@dataclass(frozen=True)
class Offset:
    """A place in an output.

    Attributes:
      query: fingerprint of what its tuples depend on (rule U14).
      ids: last stable id, by partition.
      origins: the source logs that the tuples come from (rule S6), by partition; "" where nothing was read yet.
      incarnation: of who acknowledged last; the next one's is larger, whatever its clock says.
      session, change: of mode ``changes``: whose numbers, and the last one.
      begins: ``ids`` of where the query began.
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
        """Equal offsets give equal texts."""
        found: dict[str, Any] = {
            "output": self.output,
            "mode": self.mode,
            "query": self.query,
            "ids": {str(p): self.ids[p] for p in sorted(self.ids)},
            "origins": {str(p): self.origins.get(p, "") for p in sorted(self.ids)},
            "incarnation": self.incarnation,
            "begins": {str(p): self.begins[p] for p in sorted(self.begins)},
        }
        return found if self.mode == "stable" else {**found, "session": self.session, "change": self.change}


def offset_of(data: Mapping[str, Any], expected: Offset) -> Offset:
    """What a checkpoint holds.

    Args:
      expected: any place in the output that is read.

    Raises:
      SpeError: it is of another output, mode or query; or it is none of ours.
    """
    try:
        found = Offset(
            str(data["output"]),
            str(data["mode"]),
            str(data["query"]),
            {int(p): int(i) for p, i in data["ids"].items()},
            {int(p): str(o) for p, o in data["origins"].items()},
            int(data["incarnation"]),
            str(data.get("session", "")),
            int(data.get("change", 0)),
            {int(p): int(i) for p, i in data.get("begins", {}).items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise SpeError(f"the checkpoint is not of an output of a running cluster: {data}") from None
    for what, theirs, ours in (("output", found.output, expected.output), ("mode", found.mode, expected.mode)):
        if theirs != ours:
            raise SpeError(
                f"the checkpoint is of {what} {theirs!r}, and {ours!r} is to be read: use another checkpoint"
            )
    partitions = expected.ids.keys()
    if (
        found.query != expected.query
        or found.ids.keys() != partitions
        or found.begins.keys() not in (partitions, set())
    ):
        raise SpeError(
            f"the checkpoint is of another query ({found.query}) than the one that makes {expected.output!r} now "
            f"({expected.query}), whose ids mean other tuples: use another checkpoint"
        )
    return found


def start_of(start: Offset, end: Offset) -> Offset:
    """Where a micro-batch begins.

    Spark does not keep where a query began: it asks again while the first batch is under way, and after a restart.
    The answer may be another one by then, so the end of the batch says which one counts.

    Raises:
      SpeError: the batch would begin behind its end.
    """
    if end.begins and start.begins != end.begins:
        start = replace(start, ids=end.begins, begins=end.begins)
    for p, at in sorted(start.ids.items()):
        if at > end.ids[p]:
            raise SpeError(
                f"a micro-batch of {end.output}/{p} would begin behind id {at} and end with id {end.ids[p]}: the "
                "checkpoint was changed, or made by an older version: use another checkpoint"
            )
    return start


def ahead(ids: Mapping[int, int], latest: Mapping[int, int], rows: int | None) -> dict[int, int]:
    """How far a micro-batch goes from ``ids`` on: evenly over the partitions, and no further than ``latest``.

    Args:
      rows: of all partitions together; None: no bound.
    """
    wanted = {p: max(0, latest.get(p, 0) - at) for p, at in ids.items()}
    left, found = sum(wanted.values()) if rows is None else rows, dict(ids)
    for done, p in enumerate(sorted(wanted, key=lambda p: (wanted[p], p))):
        share = -(-left // (len(wanted) - done))
        taken = min(wanted[p], share)
        found[p] += taken
        left -= taken
    return found
