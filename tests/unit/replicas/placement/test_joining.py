"""A node that no configuration names joins (D4)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from replicas.placement.deciders.move import Move
from replicas.placement.joining import JoinRefused, LeaveRefused, joined, left
from spe.config.load import load_newcomer
from spe.errors import ConfigError
from spe.plan.directory import Role, Version
from spe.plan.revision import decode_node, encode_node, revised
from spe.stream.names import NodeId
from tests.support.moves import PARTITION, A, plan_of

CONFIGS = Path(__file__).parents[4] / "configs"
CONFIGURED = plan_of([A])[1]
NEW = replace(CONFIGURED.nodes[A], id=NodeId("n9"), address="n9:1", spare=True)


def test_a_node_that_joins_is_a_spare() -> None:
    directory = joined(CONFIGURED, NEW, CONFIGURED.nodes, set())
    assert directory.nodes[NEW.id] == NEW
    assert directory.roles == CONFIGURED.roles
    assert directory.addresses() == {**CONFIGURED.addresses(), "coordinator": "127.0.0.1:0", "n9": "n9:1"}


def test_rejoining_node_keeps_roles_at_new_address() -> None:
    directory = joined(CONFIGURED, NEW, CONFIGURED.nodes, set()).with_role(PARTITION, NEW.id, Role.ACTIVE)
    assert joined(directory, NEW, CONFIGURED.nodes, {"n9"}) is directory
    elsewhere = replace(NEW, address="n9:2")
    again = joined(directory, elsewhere, CONFIGURED.nodes, set())
    assert (again.nodes[NEW.id].address, again.roles) == ("n9:2", directory.roles)
    with pytest.raises(JoinRefused, match="n9 runs at n9:1; stop it first, or give this one another name"):
        joined(directory, elsewhere, CONFIGURED.nodes, {"n9"})


def test_name_or_address_in_use_is_refused() -> None:
    with pytest.raises(JoinRefused, match="the configuration names n1a; start it with that file, without --join"):
        joined(CONFIGURED, replace(NEW, id=A), CONFIGURED.nodes, set())
    taken = CONFIGURED.nodes[A].address
    with pytest.raises(JoinRefused, match=f"{taken} is the address of n1a; expected another one"):
        joined(CONFIGURED, replace(NEW, address=taken), CONFIGURED.nodes, set())


def test_a_node_is_decoded_as_encoded_and_other_data_are_refused() -> None:
    assert decode_node(encode_node(NEW)) == NEW
    for data in (b"", b"{}", b"[1]", b'{"id": "n9"}'):
        with pytest.raises(ValueError, match="no node: "):
            decode_node(data)


def test_file_defaults_apply_to_unnamed_node(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text((CONFIGS / "moves.yaml").read_text().replace("{x: 4s,", "{x: 7s,"))
    node = load_newcomer(file, "n9", {"address": "10.0.0.9:7000", "capacity": 2.0, "memory": "4GB"})
    assert (node.x_us, node.capacity, node.memory, node.spare) == (7_000_000, 2.0, 4_000_000_000, True)
    with pytest.raises(ConfigError, match="memory"):
        load_newcomer(file, "n9", {"memory": "much"})
    for name in ("../n9", "control", "\u202en9"):
        with pytest.raises(ConfigError, match="expected"):
            load_newcomer(file, name, {"address": "10.0.0.9:7000"})


def test_a_node_that_has_joined_and_is_needed_no_more_leaves() -> None:
    directory = joined(CONFIGURED, NEW, CONFIGURED.nodes, set())
    gone = left(directory, NEW.id, CONFIGURED.nodes, set(), [])
    assert (gone.nodes, gone.joined) == (CONFIGURED.nodes, {})
    read = revised(CONFIGURED, Version(5, 2), gone).over(CONFIGURED)
    assert NEW.id not in read.nodes


def test_a_node_that_is_needed_cannot_leave() -> None:
    directory = joined(CONFIGURED, NEW, CONFIGURED.nodes, set())
    n9 = NEW.id
    move = Move(3, PARTITION, A, n9, Role.ACTIVE, "ordered")
    for now, node, alive, moves, why in (
        (directory, A, {A}, [], "the configuration names n1a; drain it, stop it, and take it out of the file"),
        (directory, NodeId("n8"), {A}, [], "there is no node n8; there are n1a, n1b, n1c, n9"),
        (directory, n9, {A}, [move], r"n9 cannot leave: move 3 \(u1/0 from n1a to n9\) has not ended"),
        (
            directory.with_role(PARTITION, n9, Role.STANDBY),
            n9,
            {A},
            [],
            "n9 cannot leave: it hosts u1/0; drain it first",
        ),
        (directory, n9, {A, n9}, [], "n9 cannot leave: it runs; stop its process first"),
    ):
        with pytest.raises(LeaveRefused, match=why):
            left(now, node, CONFIGURED.nodes, alive, moves)
