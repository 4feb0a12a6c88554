"""Announcements of X and waits (T8): what is kept and passed on."""

from __future__ import annotations

import pytest

from replicas.link.announcements import Announcements
from spe.config import load_text
from spe.wire.messages.feeds import Announcement

PLAN, DIRECTORY = load_text("""
sources:
  a: {from: {generator: {name: orders, rate: 10, duration: 10s}}}
query:
  big: {filter: {from: a, where: price > 10}}
fragments: {main: {operators: [big], replicas: [n1, n2]}}
nodes: [n1, n2, n3]
defaults: {x: 2s, alpha: 0.9, policy: process}
""")
UNIT = str(PLAN.units[0].id)
ONE = Announcement("n1", UNIT, 5, 5, 2_000_000, 2_000_000, 0.9, "process", "process", "checkpoint", 100)


def test_a_new_announcement_is_passed_on_once() -> None:
    known = Announcements(PLAN, DIRECTORY)
    assert known.heard([ONE, ONE]) == [ONE]
    assert known.heard([ONE]) == []
    assert known.since(0, 10) == (1, [ONE])
    assert known.since(1, 10) == (1, [])


@pytest.mark.parametrize(
    ("later", "taken"),
    [
        (ONE._replace(waited_us=101), True),
        (ONE._replace(waited_us=99), False),
        (ONE._replace(incarnation=6, waited_us=0, x_us=9_000_000), True),  # the node restarted with another X
        (ONE._replace(since_us=6, waited_us=0, x_us=9_000_000), True),  # it was changed while it runs
        (ONE._replace(since_us=4, waited_us=900), False),
        (ONE._replace(incarnation=4, waited_us=900), False),  # a peer still passes on the earlier value
    ],
)
def test_a_longer_wait_and_a_later_start_count(later: Announcement, taken: bool) -> None:
    known = Announcements(PLAN, DIRECTORY)
    known.heard([ONE])
    assert known.heard([later]) == ([later] if taken else [])
    assert known.since(0, 10)[1] == [later if taken else ONE]


@pytest.mark.parametrize("stranger", [ONE._replace(node="n3"), ONE._replace(node="x"), ONE._replace(unit="x")])
def test_only_announcements_of_the_plan_are_stored(stranger: Announcement) -> None:
    known = Announcements(PLAN, DIRECTORY)
    assert known.heard([stranger]) == []
    assert known.since(0, 10) == (0, [])


def test_more_announcements_than_fit_are_sent_in_turn() -> None:
    known = Announcements(PLAN, DIRECTORY)
    two = ONE._replace(node="n2")
    known.heard([ONE, two])
    version, first = known.since(0, 1)
    assert known.since(version, 1)[1] + first == [two, ONE]
    known.heard([ONE._replace(waited_us=200)])
    assert [one.waited_us for one in known.since(version, 10)[1]] == [100, 200]
