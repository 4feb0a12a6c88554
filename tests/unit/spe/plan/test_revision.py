"""Versions of the directory: what is sent comes back, and fits the configuration it began with (rules U11, D2)."""

from __future__ import annotations

import zlib
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from spe.errors import OtherConfiguration
from spe.plan.deploy import Deployed
from spe.plan.directory import Role, Version, roles_of
from spe.plan.nodes import Policy
from spe.plan.revision import REVISION_BYTES, Revision, revised, roles_fingerprint
from spe.plan.settings import NodeSettings
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, UnitId
from tests.support.plans import SEQUENCE, chain, pass_on, source

FIRST = PartitionId(UnitId("u1"), 0)
N1, N2, N9 = NodeId("n1a"), NodeId("n2a"), NodeId("n9")


def deployed() -> Deployed:
    return chain([source("a", reader={})], [("s1", pass_on("a"), SEQUENCE), ("s2", pass_on("s1"), SEQUENCE)])


def revision() -> Revision:
    """n9 has joined and runs the first partition; n1a stands by for it now."""
    _, directory = deployed()
    nodes = {**directory.nodes, N9: replace(directory.nodes[N1], id=N9, address="n9:1", x_us=7)}
    changed = replace(directory, nodes=nodes).with_role(FIRST, N9, Role.ACTIVE)
    return revised(directory, Version(5, 2), changed.with_role(FIRST, N1, Role.STANDBY))


def test_encoding_and_decoding_give_the_same_revision() -> None:
    one = revision()
    assert Revision.decode(one.encode()) == one
    assert list(one.nodes) == [N9], "what the configuration says is not sent"
    assert list(Revision.decode(one.encode()).roles[FIRST]) == list(one.roles[FIRST]), "the order counts"


def test_roles_come_from_revision_and_the_rest_from_file() -> None:
    _, configuration = deployed()
    moved = {**configuration.nodes, N2: replace(configuration.nodes[N2], address="elsewhere:1", x_us=9)}
    mine = replace(configuration, nodes=moved)
    found = revision().over(mine)

    assert found.version == Version(5, 2)
    assert found.hosts(FIRST) == ("n1b", "n9", "n1a")
    assert found.nodes[N9].address == "n9:1"
    assert found.nodes[N2] == mine.nodes[N2]
    assert (found.sources, found.clients) == (mine.sources, mine.clients)


def test_changed_settings_override_configuration_of_each_node() -> None:
    """X1: no more is sent than what was changed, and the rest of the node follows its file."""
    _, configuration = deployed()
    settings = NodeSettings(x_us=9_000_000, during_failure=Policy.DELAY)
    changed = configuration.with_settings(configuration.nodes[N2], settings)
    one = revised(configuration, Version(5, 2), changed)
    assert (one.nodes, one.settings) == ({}, {N2: settings})
    assert Revision.decode(one.encode()) == one
    file = {N2: replace(configuration.nodes[N2], address="elsewhere:1", x_us=5, alpha=0.25)}
    found = one.over(replace(configuration, nodes={**configuration.nodes, **file}))
    assert found.nodes[N2] == replace(file[N2], x_us=9_000_000, during_failure=Policy.DELAY)
    assert found.settings == {N2: settings}
    assert one.over(configuration) == replace(changed, version=Version(5, 2))


def test_another_configuration_is_refused_with_the_reason() -> None:
    _, configuration = deployed()
    other = configuration.with_role(FIRST, N2, Role.ACTIVE)
    with pytest.raises(OtherConfiguration, match="version 5/2 of the directory began with other roles"):
        revision().over(other)
    without_n9 = replace(revision(), nodes={})
    with pytest.raises(OtherConfiguration, match="the configuration has no node n9"):
        without_n9.over(configuration)


def test_the_fingerprint_is_of_roles_alone() -> None:
    _, configuration = deployed()
    known = roles_fingerprint(configuration)
    moved = {n: replace(node, address="x:1", x_us=1) for n, node in configuration.nodes.items()}
    assert roles_fingerprint(replace(configuration, nodes=moved, clients={})) == known
    assert roles_fingerprint(configuration.with_role(FIRST, N1, Role.STANDBY)) != known
    assert roles_fingerprint(configuration.with_role(FIRST, N1, None)) != known


def test_damage_is_noticed() -> None:
    data, random = revision().encode(), Random(3)
    for _ in range(2_000):
        damaged = bytearray(data)
        damaged[random.randrange(len(data))] ^= 1 << random.randrange(8)
        if bytes(damaged[3:]) != data[3:] or damaged[0] != data[0]:  # two bytes are of the compression only
            # Bits that fill up the last byte of the compressed data mean nothing.
            with suppress(ValueError):
                assert Revision.decode(bytes(damaged)) == revision()
    for cut in range(len(data)):
        with pytest.raises(ValueError, match="director"):
            Revision.decode(data[:cut])


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b'{"version": [0, 0], "configured": "f", "roles": [["u", 0, {"n": "active"}]], "nodes": []}',
        b'{"version": [1, -1], "configured": "f", "roles": [["u", 0, {"n": "active"}]], "nodes": []}',
        b'{"version": [1, 1], "configured": "f", "roles": [["u", 0, {"n": "boss"}]], "nodes": []}',
        b'{"version": [1, 1], "configured": "f", "roles": [["u", 0, {}]], "nodes": []}',
        b'{"version": [1, 1], "configured": "f", "roles": [["u", 0, {"n": "active"}]], "nodes": [{"id": "n"}]}',
        b'{"version": [1, 1], "configured": "f", "roles": [["u", 0, {"n": "active"}], ["u", 0, {"m": "active"}]],'
        b' "nodes": []}',
        b'{"version": [1, 1], "configured": "f", "roles": [["u", 0, {"n": "active"}]], "nodes": [],'
        b' "settings": {"n": {"x_us": 0}}, "lent": []}',
        b" " * (9 << 20),
    ],
)
def test_nonsense_is_refused(text: bytes) -> None:
    whole = text.removesuffix(b"}") + b', "settings": {}, "lent": []}' if b"settings" not in text else text
    with pytest.raises(ValueError, match="director"):
        Revision.decode(b"\1" + zlib.compress(whole))


def test_thousands_of_partitions_fit_one_message() -> None:
    roles = {
        PartitionId(UnitId(f"unit{u}"), p): roles_of([NodeId(f"n{(u + p) % 20}")], [NodeId(f"n{p % 19}x")])
        for u in range(20)
        for p in range(500)
    }
    assert len(Revision(Version(1, 1), "f", roles).encode()) < REVISION_BYTES // 2
