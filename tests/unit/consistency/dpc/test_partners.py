"""Partners take turns to correct: rules K1 to K5, R3 and R4 of docs/internals/rules.md."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from consistency.dpc.partners import Alone, Ask, Partners
from spe.stream.names import NodeState

STABLE, FAILING, STABILIZING, RECOVERING = (
    NodeState.STABLE,
    NodeState.UP_FAILURE,
    NodeState.STABILIZATION,
    NodeState.RECOVERING,
)
REQUEST = 500


def make(own: str = "n1", *others: str) -> Partners:
    return Partners(own, others or ("n2",), request_us=REQUEST, random=Random(1))


def poll(requests: Partners, now: int, states: Mapping[str, NodeState | None]) -> Ask | Alone | None:
    """Its decision for the given states of the partners; running partners can stand in."""
    for partner in requests.told:
        requests.heard(
            partner, state := states.get(partner), runs=not requests.stands_by(partner), stands_in=state is not None
        )
    return requests.poll(now)


def test_no_partner_is_asked_without_a_request() -> None:
    assert poll(make(), 0, {"n2": STABLE}) is None


def test_useful_partner_is_asked_each_interval_with_new_number() -> None:
    requests = make()
    requests.want(0)
    assert poll(requests, 0, {"n2": FAILING}) == Ask("n2", 1)
    assert poll(requests, 499, {"n2": FAILING}) is None
    assert poll(requests, 500, {"n2": FAILING}) == Ask("n2", 2)
    assert requests.granted(3) is None


def test_grant_slower_than_request_interval_counts() -> None:
    """K1: else a partner at the other end of a slow link would grant, and nobody would ever begin."""
    requests = make("n1", "n2", "n3")
    requests.want(0)
    asked = [poll(requests, at * REQUEST, {"n2": FAILING, "n3": STABLE}) for at in range(4)]
    assert [(a.partner, a.number) for a in asked if isinstance(a, Ask)] == [
        (requests.granted(number), number) for number in (1, 2, 3, 4)
    ]
    assert requests.asked("n2", FAILING), "K1: all of them are void"
    assert not any(map(requests.granted, (1, 2, 3, 4)))


def test_open_requests_are_bounded() -> None:
    requests = make()
    requests.want(0)
    for at in range(1000):
        poll(requests, at * REQUEST, {"n2": FAILING})
        requests.validate()
    assert requests.granted(1000) == "n2"
    assert requests.granted(900) is None


def test_a_withdrawn_request_cannot_be_granted() -> None:
    requests = make()
    requests.want(0)
    poll(requests, 0, {"n2": FAILING})
    requests.withdraw()
    assert requests.granted(1) is None
    requests.want(10)
    assert requests.granted(1) is None


def test_replica_begins_alone_without_useful_partner() -> None:
    requests = make()
    requests.want(0)
    assert poll(requests, 0, {"n2": None}) is None
    assert poll(requests, 499, {"n2": RECOVERING}) is None
    assert poll(requests, 500, {"n2": None}) == Alone()


def test_an_only_replica_does_not_wait() -> None:
    requests = Partners("n1", [], request_us=REQUEST, random=Random(1))
    requests.want(0)
    assert poll(requests, 0, {}) == Alone()


def test_a_standby_is_no_partner_until_it_runs() -> None:
    requests = make("n1", "n2", "n3")
    requests.heard("n2", None, runs=False)
    assert not requests.nobody, "nobody knows of n3 yet"
    requests.heard("n3", None, runs=False)
    assert requests.nobody
    assert requests.stands_by("n3")
    requests.want(0)
    assert poll(requests, 0, {"n2": None, "n3": None}) == Alone()
    requests.heard("n2", None, runs=True)
    assert not requests.nobody
    assert poll(requests, 1, {"n2": RECOVERING, "n3": None}) is None
    assert poll(requests, 2, {"n2": STABLE, "n3": None}) == Ask("n2", 1)


def test_replica_waits_for_partner_in_stabilization() -> None:
    requests = make()
    requests.want(0)
    assert poll(requests, 0, {"n2": STABILIZING}) is None
    assert poll(requests, 5_000, {"n2": STABILIZING}) is None
    assert poll(requests, 5_100, {"n2": STABLE}) == Ask("n2", 1)


def test_busy_replicas_refuse_and_stable_ones_grant() -> None:
    requests = make()
    assert not requests.asked("n2", STABILIZING)
    assert not requests.asked("n2", RECOVERING)
    assert requests.asked("n2", STABLE)
    assert requests.asked("n2", FAILING)


def test_two_replicas_that_ask_each_other_agree_on_one() -> None:
    """n1 grants, for n2 sorts after it, and ignores a grant to its own open request; n2 refuses."""
    first, second = make("n1", "n2"), make("n2", "n1")
    for requests in (first, second):
        requests.want(0)
    assert poll(first, 0, {"n2": FAILING}) == Ask("n2", 1)
    assert poll(second, 0, {"n1": FAILING}) == Ask("n1", 1)
    assert first.asked("n2", FAILING)
    assert not second.asked("n1", FAILING)
    assert second.granted(1) == "n1"
    assert first.granted(1) is None
    assert poll(first, 500, {"n2": FAILING}) == Ask("n2", 2)
    assert first.granted(2) == "n2"


def test_interval_without_useful_partner_has_no_break() -> None:
    """R4: the partner was useful for a moment, so the interval begins anew."""
    partners = make()
    partners.want(0)
    assert poll(partners, 0, {"n2": None}) is None
    assert poll(partners, 400, {"n2": FAILING}) == Ask("n2", 1)
    assert [poll(partners, now, {"n2": None}) for now in (450, 949, 950)] == [None, None, Alone()]


def test_time_of_a_correcting_partner_is_not_useless() -> None:
    """R4: it would have served soon; only then it is lost."""
    partners = make()
    partners.want(0)
    assert poll(partners, 0, {"n2": None}) is None
    assert poll(partners, 400, {"n2": STABILIZING}) is None
    assert [poll(partners, now, {"n2": None}) for now in (600, 1099, 1100)] == [None, None, Alone()]


def test_partner_that_can_no_longer_stand_in_is_not_asked() -> None:
    """K6: it answers, and its inputs are not fresh any more."""
    partners = make()
    partners.heard("n2", FAILING, stands_in=True)
    assert partners.serves("n2")
    partners.heard("n2", FAILING, stands_in=False)
    assert not partners.serves("n2")
    partners.want(0)
    assert partners.poll(0) is None


def test_grant_of_a_partner_that_has_left_does_not_count() -> None:
    """K1, D3."""
    requests = make("n1", "n2", "n3")
    requests.want(0)
    asked = poll(requests, 0, {"n2": FAILING})
    assert asked == Ask("n2", 1)
    requests.set_partners(["n3"])
    assert requests.granted(1) is None


def test_only_the_earlier_name_is_refused_while_both_ask() -> None:
    """K2: so of two replicas that ask each other exactly one is granted."""
    for own, asker, granted in (("n1", "n2", True), ("n2", "n1", False)):
        requests = make(own, asker)
        requests.want(0)
        poll(requests, 0, {asker: FAILING})
        assert requests.asked(asker, FAILING) is granted
        assert requests.granted(1) == (None if granted else asker)
