"""A simulated run as data: the configuration, the faults, and the seed of everything else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from replicas.faults.model import Fault, processes_of, read_faults
from replicas.simulation.world.given_rows import with_rows
from replicas.simulation.world.link import LinkState
from replicas.simulation.world.producer import live_source, pushed_source
from spe.config import load_data
from spe.errors import ConfigError
from spe.plan.deploy import Deployed
from spe.plan.directory import Directory
from spe.plan.nodes import Node
from spe.plan.plan import Plan, Source
from spe.problems import Problems
from spe.stream.names import NodeId

VERSION: Final = 1
_LINK: Final = "link"
_LIVE: Final = "live"
_ROWS: Final = "rows"


def named_nodes(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration says of each node, also where it only lists them."""
    nodes = config["nodes"]
    return dict(nodes) if isinstance(nodes, Mapping) else {name: {} for name in nodes}


@dataclass(frozen=True)
class Scenario:
    """One run.

    Attributes:
      seed: drives the order of tasks, jitter, loss, and whatever else is random in the run.
      config: a configuration, as YAML would hold it.
      options: what the configuration does not say.  ``limits`` and ``timing``: fields of the plan's; ``link``: fields
        of LinkState, for every link while nothing is wrong; ``turn_us``: microseconds that each slice of a replica's
        work takes; ``state_ns``: nanoseconds that a step takes for each row or group held; ``live``: sources whose rows
        happen once, and how (``world.producer.live_source``); ``rows``: rows of sources (``world.given_rows``);
        ``source_disks``: disks of sources may lose or change what they hold, which is outside the fault model.  Of
        features, each with a number from which follows what happens: ``moves``, ``settings``, ``joins``, ``row_ns``
        (what a row costs on a partition, and from when on), ``proofs`` and ``pushes``.
      faults: what happens; times count from the beginning.
      heal_us: everything heals at this time.
      grace_us: after it, the time to become complete and quiet.
    """

    seed: int
    config: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    heal_us: int = 0
    grace_us: int = 20_000_000

    def deployed(self) -> Deployed:
        """The plan, and its directory of simulated hosts.  Raises ConfigError."""
        plan, directory = load_data(self.config)
        # Without a tail a client that turns to another replica finds only what rule A2 promises it.
        limits, timing = {"tail_bytes": 0} | self.options.get("limits", {}), self.options.get("timing", {})
        plan = replace(
            plan,
            sources={n: self._lively(source, n) for n, source in plan.sources.items()},
            limits=replace(plan.limits, **limits),
            timing=replace(plan.timing, **timing) if timing else plan.timing,
        )
        directory = replace(
            directory,
            nodes={n: replace(one, address=f"{n}:1") for n, one in directory.nodes.items()},
            sources={n: f"source-{n}:1" for n in directory.sources},
        )
        return Deployed(plan, directory)

    def newcomers(self) -> dict[str, Node]:
        """Nodes that join, as they do so first.  Raises ConfigError."""
        found: dict[str, Node] = {}
        for entry in self.joins():
            if entry["do"] == "join" and entry["node"] not in found:
                found[entry["node"]] = self.newcomer(entry)
        return found

    def newcomer(self, entry: Mapping[str, Any]) -> Node:
        """A node that joins: what is said of it, with the defaults of the configuration.  Raises ConfigError."""
        name = entry["node"]
        given = {**named_nodes(self.config), name: {**entry.get("own", {}), "spare": True}}
        return replace(load_data({**self.config, "nodes": given}).directory.nodes[NodeId(name)], address=f"{name}:1")

    def processes(self) -> list[str]:
        """Everybody to whom a fault can happen.  Raises ConfigError."""
        return processes_of(self._known())

    def with_faults(self, entries: Any) -> Scenario:
        """With the faults of plain data, and no others.  Raises ConfigError."""
        problems = Problems()
        faults = read_faults(entries, ("faults",), self._known(), problems, source_disks=self.source_disks())
        if problems:
            raise ConfigError([p.message for p in problems.found])
        return replace(self, faults=tuple(faults))

    def _known(self) -> Directory:
        directory = self.deployed().directory
        for node in self.newcomers().values():
            directory = directory.with_node(node)
        return directory

    def plan(self) -> Plan:
        """The plan alone.  Raises ConfigError."""
        return self.deployed().plan

    def _lively(self, source: Source, name: str) -> Source:
        given = self.options.get(_ROWS, {}).get(name)
        if given is not None:
            return with_rows(source, given)
        if name in self.pushes():
            return pushed_source(source)
        how = self.options.get(_LIVE, {}).get(name)
        return source if how is None else live_source(source, how)

    def link(self) -> LinkState:
        return LinkState(**self.options.get(_LINK, {}))

    def turn_us(self) -> int:
        return int(self.options.get("turn_us", 0))

    def state_ns(self) -> int:
        return int(self.options.get("state_ns", 0))

    def moves(self) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = self.options.get("moves", ())
        return found

    def pushes(self) -> Mapping[str, int]:
        found: Mapping[str, int] = self.options.get("pushes", {})
        return found

    def proofs(self) -> Sequence[int] | None:
        found: Sequence[int] | None = self.options.get("proofs")
        return found

    def source_disks(self) -> bool:
        return bool(self.options.get("source_disks", False))

    def row_ns(self) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = self.options.get("row_ns", ())
        return found

    def joins(self) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = self.options.get("joins", ())
        return found

    def settings(self) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = self.options.get("settings", ())
        return found

    def to_data(self) -> dict[str, Any]:
        """Plain data, the same for the same scenario."""
        return {
            "version": VERSION,
            "seed": self.seed,
            "config": self.config,
            "options": self.options,
            "faults": [f.to_data() for f in self.faults],
            "heal_us": self.heal_us,
            "grace_us": self.grace_us,
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Scenario:
        """Raises ConfigError: it is no scenario."""
        try:
            one = cls(
                int(data["seed"]),
                data["config"],
                data.get("options", {}),
                (),
                int(data["heal_us"]),
                int(data["grace_us"]),
            )
            one.deployed()
            if data.get("version", VERSION) != VERSION:
                raise ConfigError([f"a scenario of version {data['version']}; this software plays version {VERSION}"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError([f"no scenario: {error!r}"]) from error
        return one.with_faults(data.get("faults", []))

    def dump(self) -> str:
        """As JSON."""
        return json.dumps(self.to_data(), indent=1, sort_keys=True) + "\n"
