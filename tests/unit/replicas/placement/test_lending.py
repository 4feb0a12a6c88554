"""Lent roles are taken back once nobody needs them (O5)."""

from __future__ import annotations

from replicas.placement.deciders.lending import Lending, Lent
from replicas.placement.deciders.move import RoleChange
from replicas.placement.view import ClusterView
from tests.support.moves import PARTITION, A, B, C, plan_of

TAKEN_BACK = RoleChange(PARTITION, ((B, None),))


def lending() -> Lending:
    """A runs the partition, and B has a lent role for it."""
    plan, directory = plan_of([A])
    return Lending(ClusterView(plan, directory.with_lent(PARTITION, B), 0, recovery_us=1))


def test_lent_role_is_taken_back_when_it_can_be_spared() -> None:
    assert lending().step({}, lambda replica: True, ()) == TAKEN_BACK
    assert lending().step({}, lambda replica: False, ()) is None


def test_lent_role_stays_while_its_partition_moves() -> None:
    """The move relies on the roles that it began with."""
    assert lending().step({}, lambda replica: True, {PARTITION}) is None


def test_lent_role_stays_while_its_node_is_to_restore() -> None:
    assert lending().step({PARTITION: B}, lambda replica: True, ()) is None


def test_a_role_is_lent_before_another_is_taken_back() -> None:
    assert lending().step({PARTITION: C}, lambda replica: True, ()) == Lent(PARTITION, C)
