"""Faults that a process causes itself: cuts and delays of its links, a hanging disk.  For experiments only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from replicas.faults.network import FaultyNetwork
from replicas.faults.state import Conditions
from replicas.faults.storage import FaultyStorage
from spe.runtime.env import Env


class FaultInjector:
    """Wraps an environment so that it can fail, and controls the faults.

    Args:
      env: the working environment.
      addresses: of every process that listens, by name; a fault names peers, a connect knows addresses only.

    Attributes:
      env: the environment with faults.
    """

    def __init__(self, env: Env, addresses: Mapping[str, str]) -> None:
        self._network = FaultyNetwork(env.network)
        self._storage = FaultyStorage(env.storage)
        self._addresses = dict(addresses)
        self._trace = env.trace
        self.env = replace(env, network=self._network, storage=self._storage)

    def apply(self, conditions: Conditions) -> None:
        """Sets exactly these conditions.  A cut that is in both old and new ones holds without a gap."""
        self._network.heal()
        for peer, way in conditions.cuts:
            for name in self._names(peer):
                self._network.cut(name, "in" if way == "in" else "out")
        for peer, us in conditions.delays:
            for name in self._names(peer):
                self._network.delay(name, us / 1e6)
        self._storage.stall(conditions.stalled)
        self._trace.event("conditions", **conditions.to_data())

    async def __call__(self, fault: Mapping[str, Any]) -> str:
        """Handles an Inject message; returns "" or why not (replicas.producer.server.Injector)."""
        try:
            self.apply(Conditions.from_data(fault))
        except ValueError as error:
            return str(error)
        return ""

    def _names(self, peer: str) -> list[str]:
        address = self._addresses.get(peer)
        return [peer] if address is None else [peer, address]
