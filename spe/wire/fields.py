"""Types of the fields of control messages, each with its check.

A check takes an unpacked value and returns the field's value, or raises ValueError with the expected form.  The same
checks apply to outgoing messages: a message that a peer would refuse is a bug, and is found here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, get_type_hints

from spe.stream.names import NodeState
from spe.stream.times import BEFORE_TIME, END_OF_TIME

#: Most bytes of a snapshot per SnapshotPart: a quarter of a control frame, so that heartbeats are not delayed.
SNAPSHOT_PART_BYTES: Final = 64 << 10
#: Most bytes of a revision of the directory (spe.plan.revision).
REVISION_BYTES: Final = 192 << 10
#: Most entries of a list.
MANY: Final = 4_096
#: Number of checked records of one kind that are cached.
RECORDS_KEPT: Final = 4_096

_NAME_LENGTH: Final = 512
_REASON_LENGTH: Final = 4_096
_ID_MAX: Final = 2**63 - 1

Check = Callable[[Any], Any]


def integer(low: int, high: int) -> Check:
    def check(value: Any) -> Any:
        if type(value) is int and low <= value <= high:
            return value
        raise ValueError(f"expected an integer from {low} to {high}")

    return check


def is_name(value: Any) -> Any:
    if type(value) is str and len(value) <= _NAME_LENGTH:
        return value
    raise ValueError(f"expected a text of at most {_NAME_LENGTH} characters")


def is_reason(value: Any) -> Any:
    """Checks a text for users; cuts a long one, because it often is the text of an exception."""
    if type(value) is not str:
        raise ValueError("expected a text")
    return value[:_REASON_LENGTH].encode("utf-8", "replace").decode()


def one_of(*options: str) -> Check:
    def check(value: Any) -> Any:
        if type(value) is str and value in options:
            return value
        raise ValueError(f"expected one of {', '.join(options)}")

    return check


def is_boolean(value: Any) -> Any:
    if type(value) is bool:
        return value
    raise ValueError("expected a boolean")


def is_share(value: Any) -> Any:
    if type(value) in (float, int) and 0 <= value <= 1:
        return float(value)
    raise ValueError("expected a number from 0 to 1")


def is_amount(value: Any) -> Any:
    if type(value) in (float, int) and 0 <= value <= _ID_MAX:
        return float(value)
    raise ValueError("expected a number from 0 to 2^63")


def is_state(value: Any) -> Any:
    if type(value) in (int, NodeState) and 0 <= value < len(NodeState):
        return NodeState(value)
    raise ValueError("expected a state from 0 to 3")


def snapshot_data(value: Any) -> Any:
    if type(value) is bytes and len(value) <= SNAPSHOT_PART_BYTES:
        return value
    raise ValueError(f"expected at most {SNAPSHOT_PART_BYTES} bytes")


def revision_data(value: Any) -> Any:
    if type(value) is bytes and len(value) <= REVISION_BYTES:
        return value
    raise ValueError(f"expected at most {REVISION_BYTES} bytes")


def names(value: Any) -> Any:
    if type(value) in (list, tuple) and len(value) <= MANY:
        return tuple(map(is_name, value))
    raise ValueError(f"expected a list of at most {MANY} names")


def text_map(value: Any) -> Any:
    if isinstance(value, Mapping) and all(type(k) is str for k in value):
        return dict(value)
    raise ValueError("expected a map with text keys")


def checks_of(kind: type) -> list[tuple[str, Check]]:
    """Returns name and check of each annotated field of a message or a record."""
    hints = get_type_hints(kind, include_extras=True)
    return [(name, hint.__metadata__[0]) for name, hint in hints.items() if hasattr(hint, "__metadata__")]


def records_of(make: type) -> Check:
    """Returns the check of a list of records of the named tuple ``make``.

    Most records are repeated, to several peers and while nothing changes, so checked records are cached by their values
    and types.
    """
    checks = [check for _, check in checks_of(make)]

    @lru_cache(RECORDS_KEPT, typed=True)
    def record(*values: Any) -> Any:
        return make(*[c(v) for c, v in zip(checks, values)])

    def check_all(value: Any) -> Any:
        if type(value) not in (list, tuple) or len(value) > MANY:
            raise ValueError(f"expected a list of at most {MANY}")
        records = []
        for item in value:
            if not isinstance(item, (list, tuple)) or len(item) != len(checks):
                raise ValueError(f"expected records of {len(checks)} fields")
            try:
                records.append(record(*item))
            except TypeError:  # a list or a map among the values: the checks raise the proper error
                records.append(make(*[c(v) for c, v in zip(checks, item)]))
        return tuple(records)

    return check_all


is_id = integer(0, _ID_MAX)
is_count = integer(0, 2**31 - 1)
is_time = integer(BEFORE_TIME, END_OF_TIME)

#: Types of fields, each with its check for incoming and outgoing values.
Count = Annotated[int, is_count]
Id = Annotated[int, is_id]
Time = Annotated[int, is_time]
Name = Annotated[str, is_name]
Reason = Annotated[str, is_reason]
Flag = Annotated[bool, is_boolean]
State = Annotated[NodeState, is_state]
Share = Annotated[float, is_share]
Amount = Annotated[float, is_amount]
Policy = Annotated[str, one_of("suspend", "delay", "process")]
Reconcile = Annotated[str, one_of("checkpoint", "undo")]
Role = Annotated[
    Literal["node", "source", "client", "coordinator", "control", "newcomer", "writer"],
    one_of("node", "source", "client", "coordinator", "control", "newcomer", "writer"),
]
Mode = Annotated[Literal["main", "corrections"], one_of("main", "corrections")]
Start = Annotated[Literal["", "now", "stored", "left"], one_of("", "now", "stored", "left")]
Verb = Annotated[Literal["install", "restore", "retire", "replay"], one_of("install", "restore", "retire", "replay")]
MoveVerb = Annotated[
    Literal["move", "drain", "cancel", "balance", "propose", "leave"],
    one_of("move", "drain", "cancel", "balance", "propose", "leave"),
]
