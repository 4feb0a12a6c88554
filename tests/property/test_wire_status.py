"""Any status of a process arrives unchanged, over the wire and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from spe.status import ClusterStatus, ProcessStatus, plain, status_of
from spe.stream.names import NodeState
from spe.wire.framing import CONTROL_BYTES, FrameReader
from spe.wire.messages.commands import Status
from spe.wire.messages.message import decode_message
from tests.support.distribution import Situations

KINDS = get_args(ProcessStatus)
VALUES: Mapping[type, st.SearchStrategy[Any]] = {
    str: st.text(max_size=8),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    NodeState: st.sampled_from(NodeState),
    type(None): st.none(),
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of the declared type of a field."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return st.just(inner[0])
    if origin in (Union, UnionType):
        return st.one_of(*map(values, inner))
    if origin is tuple:
        return st.lists(values(inner[0]), max_size=2).map(tuple)
    if origin is Mapping:
        return st.dictionaries(values(inner[0]), values(inner[1]), max_size=2)
    if is_dataclass(hint):
        return st.builds(hint, **{name: values(each) for name, each in get_type_hints(hint).items()})
    return VALUES[hint]


def entries(value: object) -> int:
    """All entries of its lists and maps."""
    if isinstance(value, tuple):
        return len(value) + sum(map(entries, value))
    if isinstance(value, Mapping):
        return len(value)
    return sum(entries(getattr(value, f.name)) for f in fields(value)) if is_dataclass(value) else 0


FULL = Situations({"three entries": 0.2, "a server": 0.2})


@FULL.required
@settings(max_examples=200, deadline=None)
@given(status=st.one_of(*map(values, KINDS)))
def test_a_status_arrives_unchanged(status: ProcessStatus) -> None:
    FULL.example({"three entries": entries(status) >= 3, "a server": status.server is not None})
    (found,) = FrameReader(CONTROL_BYTES).feed(Status(status).encode())

    assert decode_message(found.body) == Status(status)
    assert status_of(json.loads(json.dumps(plain(status)))) == status


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_status_is_known_by_its_name(kind: type[ProcessStatus]) -> None:
    @settings(max_examples=5, deadline=None)
    @given(status=values(kind))
    def check(status: ProcessStatus) -> None:
        assert type(status_of(plain(status))) is kind
        assert kind.__name__ == f"{status.kind.title()}Status"

    check()


@settings(max_examples=20, deadline=None)
@given(found=values(ClusterStatus))
def test_the_json_of_a_cluster_is_that_of_its_processes(found: ClusterStatus) -> None:
    adapter = TypeAdapter(ClusterStatus)
    written = adapter.dump_python(found, mode="json", warnings="error")

    assert adapter.validate_json(json.dumps(written)) == found
    assert {name: status_of(each) for name, each in written["processes"].items()} == found.processes


@settings(max_examples=300, deadline=None)
@given(status=st.one_of(*map(values, KINDS)), data=st.data())
def test_a_missing_or_wrong_field_of_a_status_is_named(status: ProcessStatus, data: st.DataObject) -> None:
    """Except ``kind``, which selects the type; a field with a default may be missing, not wrong."""
    said = plain(status)
    name = data.draw(st.sampled_from(sorted(said.keys() - {"kind"})))
    optional = {f.name for f in fields(status) if (f.default, f.default_factory) != (MISSING, MISSING)}
    if name not in optional and data.draw(st.booleans()):
        del said[name]
    else:
        said[name] = data.draw(st.sampled_from([b"bytes", 0.5, True]))

    with pytest.raises(ValueError, match=rf"^{name}\b"):
        status_of(said)
