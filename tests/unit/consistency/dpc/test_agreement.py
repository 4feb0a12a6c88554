"""Replicas compare digests of their stable output (invariant 4); a partner may be ahead or behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consistency.dpc.agreement import Agreement, Divergence, suspects
from spe.plan.plan import InputStream, Unit
from spe.query.operators.custom import CustomSpec
from spe.query.operators.filter import FilterSpec
from spe.query.query import QueryOperator
from spe.stream.names import StreamId, UnitId
from spe.stream.schema import Schema

OURS = {1000: 11, 2000: 22, 3000: 33}


def test_a_partner_that_is_not_ahead_is_compared_at_once() -> None:
    agreement = Agreement()
    agreement.heard(0, "n2", 2000, 22)
    assert agreement.compare(0, 3500, lambda: OURS) == []
    assert agreement.compared == 1


def test_a_partner_that_is_ahead_is_compared_later() -> None:
    agreement = Agreement()
    for id, digest in [(1000, 11), (2000, 22), (3000, 99)]:
        agreement.heard(0, "n2", id, digest)
    assert agreement.compare(0, 900, dict) == []
    assert agreement.compare(0, 2100, lambda: OURS) == []
    assert agreement.compare(0, 3000, lambda: OURS) == [Divergence(0, "n2", 3000)]
    assert agreement.compared == 3


def test_a_difference_is_reported_once_per_output_and_partner() -> None:
    agreement = Agreement()
    for output, partner in [(0, "n2"), (1, "n2"), (0, "n3")]:
        for id in (1000, 2000):
            agreement.heard(output, partner, id, 0)
    assert agreement.compare(0, 3000, lambda: OURS) == [Divergence(0, "n2", 1000), Divergence(0, "n3", 1000)]
    agreement.heard(0, "n2", 3000, 0)
    assert agreement.compare(0, 3000, lambda: OURS) == []
    assert agreement.compare(1, 3000, lambda: OURS) == [Divergence(1, "n2", 1000)]


def test_stored_digests_of_a_partner_are_bounded() -> None:
    agreement = Agreement()
    for id in range(1000, 200_000, 1000):
        agreement.heard(0, "n2", id, id)
    agreement.heard(0, "n2", 0, 0)

    def never() -> dict[int, int]:
        raise AssertionError("there is nothing to compare")

    assert agreement.compare(0, 100_000, never) == []  # its places up to there are forgotten
    assert agreement.compare(0, 200_000, lambda: {i: i for i in range(1000, 200_000, 1000)}) == []
    assert agreement.compared == 64


def test_ends_of_outputs_are_compared_once_both_have_ended() -> None:
    """Also below 1,000 tuples, where there is no other place."""
    agreement = Agreement()
    agreement.heard(0, "n2", 61, 5)
    assert agreement.compare(0, 61, dict) == agreement.compare(0, 70, dict) == []
    assert agreement.compare(0, 61, lambda: {61: 5}, ended=True) == []
    assert agreement.compared == 1
    agreement.heard(0, "n2", 61, 6)
    assert agreement.compare(0, 61, lambda: {61: 5}, ended=True) == [Divergence(0, "n2", 61)]


@pytest.mark.parametrize(("told", "last_id"), [(61, 70), (61, 60), (61, 0), (2000, 1999), (2000, 0)])
def test_an_output_of_another_length_differs(told: int, last_id: int) -> None:
    agreement = Agreement()
    agreement.heard(0, "n2", told, 22)
    assert agreement.compare(0, last_id, lambda: {last_id: 22}, ended=True) == [Divergence(0, "n2", told)]


@pytest.mark.parametrize("ended", [False, True])
def test_places_before_a_restore_are_not_compared(ended: bool) -> None:
    """A restored output has no digest of them."""
    agreement = Agreement()
    agreement.heard(0, "n2", 1000, 11)
    assert agreement.compare(0, 2500, lambda: {2000: 22, 2500: 33}, ended=ended) == []
    assert agreement.compared == 0


def test_the_users_own_code_before_an_output_is_suspected_first() -> None:
    schema = Schema.of(x="int64")
    a, own, beside, out = (StreamId(n) for n in ("a", "own", "beside", "out"))
    operators = (
        QueryOperator(own, CustomSpec((a,), "module:Class"), schema),
        QueryOperator(beside, CustomSpec((a,), "module:Class"), schema),
        QueryOperator(out, FilterSpec(own, "x > 1"), schema),
    )
    unit = Unit(UnitId("u"), "f", (InputStream(a, schema, 1, None),), operators, (out,), partitions=1)
    assert suspects(unit, out) == "operator 'own' is code of your own and must be deterministic"
    plain = replace(unit, operators=(QueryOperator(out, FilterSpec(a, "x > 1"), schema),))
    assert suspects(plain, out) == "operator 'out', or one before it, is not deterministic"
