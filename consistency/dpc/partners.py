"""The partner protocol, by which replicas take turns to reconcile (K1-K5).  Pure.

Replicas of a partition take turns, so that while one corrects another continues with fresh data.  A grant is not
stored (K2): a replica in STABILIZATION refuses requests of others.  So a lost grant does not block a replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from spe.stream.names import NodeState

#: States in which a replica has new results.
SERVING: Final = (NodeState.STABLE, NodeState.UP_FAILURE)
#: Requests that may still be granted: the answer may take longer than the time to the next one.
_OPEN: Final = 16


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask ``partner`` for leave to reconcile; ``number`` identifies this request."""

    partner: str
    number: int


@dataclass(frozen=True, slots=True)
class Alone:
    """Reconcile without leave, while live runs: there was no useful partner for a whole request interval (R4)."""


class Partners:
    """One replica's side of the protocol, with the known states of the others.

    Args:
      own: our name; only the order of names breaks ties.
      partners: the other replicas of the partition.
      request_us: how often to ask again, and how long to look for a useful partner.
      random: seeded; picks the partner to ask.

    Attributes:
      told: last announced state of each partner; None: unreachable.
    """

    def __init__(self, own: str, partners: Sequence[str], *, request_us: int, random: Random) -> None:
        self._own = own
        self._partners = sorted(partners)
        self._request_us = request_us
        self._random = random
        self._number = 0
        self._since: int | None = None
        self._useless_since: int | None = None
        self._asked_at: int | None = None
        #: Open requests, the oldest first.
        self._asked: dict[int, str] = {}
        self._idle: set[str] = set()
        self.told: dict[str, NodeState | None] = dict.fromkeys(partners)
        #: Partners that have fresh results for our consumers while we reconcile (K6).
        self._stand_ins: set[str] = set()

    def set_partners(self, partners: Sequence[str]) -> None:
        """Changes the partners; new ones were not heard yet."""
        self._partners = sorted(partners)
        self.told = {name: self.told.get(name) for name in partners}
        self._idle.intersection_update(partners)
        self._stand_ins.intersection_update(partners)
        self._asked = {number: name for number, name in self._asked.items() if name in self.told}

    def heard(self, partner: str, state: NodeState | None, *, runs: bool = True, stands_in: bool = False) -> None:
        """Takes the state of a partner.  ``runs``: False for a standby, which is no partner until it runs (H3)."""
        self.told[partner] = state
        (self._idle.discard if runs else self._idle.add)(partner)
        (self._stand_ins.add if stands_in else self._stand_ins.discard)(partner)

    def lost(self, partner: str) -> None:
        """Notes that a partner is lost: it cannot serve in our place, whatever its last state was (K5)."""
        if partner in self.told:
            self.told[partner] = None

    def serves(self, partner: str) -> bool:
        """Has a partner fresh results for our consumers while we reconcile (K6)?"""
        return self.told.get(partner) in SERVING and partner in self._stand_ins

    def stands_by(self, partner: str) -> bool:
        return partner in self._idle

    def validate(self) -> None:
        """Asserts what holds between two events."""
        assert len(self._asked) <= _OPEN, "K1: few requests are open"
        assert self.pending or not self._asked, "R3: what is withdrawn can not be granted"

    @property
    def nobody(self) -> bool:
        """Is this the only replica that runs the partition?"""
        return self._idle.issuperset(self._partners)

    @property
    def pending(self) -> bool:
        return self._since is not None

    def want(self, now: int) -> None:
        """Notes that we could reconcile (R1 or R2 holds)."""
        if self._since is None:
            self._since = now
            self._useless_since = None
            self._asked_at = None

    def withdraw(self) -> None:
        """Withdraws the requests: neither R1 nor R2 holds any more, or we have started (R3)."""
        self._since = None
        self._asked.clear()

    def poll(self, now: int) -> Ask | Alone | None:
        """Returns the next action while a request is pending."""
        if self._since is None:
            return None
        assert now >= self._since, "K1: time does not go back"
        useful = [p for p in self._partners if self.serves(p)]
        waiting = [p for p in self._partners if self.told[p] is NodeState.STABILIZATION]
        if not useful:
            if waiting:
                self._useless_since = None  # it will finish, and then serve in our place
                return None
            if self.nobody:
                return Alone()
            if self._useless_since is None:
                self._useless_since = now
            return Alone() if now - self._useless_since >= self._request_us else None
        self._useless_since = None
        if self._asked_at is not None and now - self._asked_at < self._request_us:
            return None
        self._asked_at = now
        self._number += 1
        partner = self._random.choice(useful)
        self._asked[self._number] = partner
        if len(self._asked) > _OPEN:
            del self._asked[next(iter(self._asked))]
        return Ask(partner, self._number)

    def granted(self, number: int) -> str | None:
        """Takes a grant; returns the partner if it is for an open request."""
        return self._asked.get(number)

    def asked(self, asker: str, state: NodeState) -> bool:
        """Answers a partner that asks for leave.  True: we grant, and withdraw our own requests (K1, K2)."""
        if state in (NodeState.STABILIZATION, NodeState.RECOVERING):
            return False
        if self.pending:
            if asker < self._own:
                return False
            self._asked.clear()
        return True
