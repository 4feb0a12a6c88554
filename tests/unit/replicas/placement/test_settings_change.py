"""Another X, α or policy for a node that runs is refused where ``spe check`` would refuse it (X4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from replicas.placement.deciders.move import Move
from replicas.placement.settings_change import SettingsChange, SettingsRefused
from spe.plan.deploy import Deployed
from spe.plan.directory import Directory, Role, Version
from spe.plan.plan import Plan
from spe.plan.review import least_x_us, refused_share
from spe.plan.revision import revised
from spe.plan.settings import NodeSettings
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, UnitId
from tests.simulation.test_cluster import X_US, make_plan

FIRST, SECOND = PartitionId(UnitId("u1"), 0), PartitionId(UnitId("u2"), 0)
N1A, N2A = NodeId("n1a"), NodeId("n2a")


def change(deployed: Deployed, *changes: tuple[str, str], moves: Sequence[Move] = (), node: str = "n1a") -> Directory:
    plan, directory = deployed
    return SettingsChange(plan, directory, NodeId(node), changes, lambda: moves)(directory)


def test_change_overrides_configuration_and_earlier_change() -> None:
    plan, directory = make_plan(2)
    changed = change(Deployed(plan, directory), ("x", "4s"))
    assert changed.nodes[N1A] == replace(directory.nodes[N1A], x_us=4_000_000)
    assert changed.settings == {N1A: NodeSettings(x_us=4_000_000)}
    again = SettingsChange(plan, directory, N1A, [("alpha", "0.5")], list)(changed)
    assert (again.nodes[N1A].x_us, again.nodes[N1A].alpha) == (4_000_000, 0.5)
    back = SettingsChange(plan, directory, N1A, [("alpha", "file"), ("x", "file")], list)(again)
    assert (back.nodes, back.settings) == (directory.nodes, {})


def test_share_that_check_refuses_is_refused_with_least_x() -> None:
    deployed = make_plan(2)
    with pytest.raises(SettingsRefused, match=r"n1a cannot have X 80ms, α .*: αX = .* is too short for unit 'u1'.*; "):
        change(deployed, ("x", "80ms"))
    with pytest.raises(SettingsRefused) as refused:
        change(deployed, ("x", "80ms"))
    least = str(refused.value).rpartition("; X of ")[2].partition(" or more")[0]
    assert change(deployed, ("x", least)).nodes[N1A].x_us < X_US


@pytest.mark.parametrize("alpha", [0.1, 0.37, 0.9, 1.0])
@pytest.mark.parametrize("shared", [False, True])
def test_the_least_x_is_not_refused_and_one_less_than_a_share_is(alpha: float, shared: bool) -> None:
    plan, directory = make_plan(2)
    if shared:
        directory = directory.with_role(SECOND, N1A, Role.STANDBY)

    def having(plan: Plan, x_us: int) -> str | None:
        node = replace(directory.nodes[N1A], x_us=x_us, alpha=alpha)
        return refused_share(plan, replace(directory, nodes={**directory.nodes, N1A: node}), N1A)

    node = replace(directory.nodes[N1A], alpha=alpha)
    least = least_x_us(plan, replace(directory, nodes={**directory.nodes, N1A: node}), N1A)
    assert having(plan, least) is None
    assert having(plan, least - round(4 / alpha)) is not None


def test_moves_under_way_count() -> None:
    """X would do for one unit on the node, and not when the second, which reads it, has come."""
    deployed = make_plan(2, bucket_us=40_000)
    move = Move(7, SECOND, N2A, N1A, Role.ACTIVE, "ordered")
    x = ("x", "150ms")
    assert change(deployed, x).nodes[N1A].x_us == 150_000
    with pytest.raises(SettingsRefused, match=r"share of one unit there, .* once move 7 \(u2/0 from n2a to n1a\) ends"):
        change(deployed, x, moves=[move])


def test_joined_node_can_be_changed_and_regains_its_settings() -> None:
    plan, directory = make_plan(2)
    n9 = replace(directory.nodes[N1A], id=NodeId("n9"), address="n9:1")
    now = directory.with_node(n9)

    def having(*changes: tuple[str, str], before: Directory = now) -> Directory:
        return SettingsChange(plan, directory, n9.id, changes, list)(before)

    changed = having(("x", "4s"))
    read = revised(directory, Version(5, 2), changed).over(directory)
    assert read.nodes[n9.id] == replace(n9, x_us=4_000_000)
    assert having(("x", "file"), before=read).nodes[n9.id] == n9
    again = read.with_node(replace(n9, address="n9:2"))
    assert again.nodes[n9.id] == replace(n9, address="n9:2", x_us=4_000_000), "it has joined again"


@pytest.mark.parametrize(
    ("node", "changes", "why"),
    [
        ("n9", [("x", "1s")], "there is no node n9; there are n1a"),
        ("n1a", [], "nothing to change"),
        ("n1a", [("address", "x:1")], "'address' cannot be changed while a node runs"),
    ],
)
def test_nonsense_is_refused(node: str, changes: list[tuple[str, str]], why: str) -> None:
    with pytest.raises(SettingsRefused, match=why):
        change(make_plan(2), *changes, node=node)
