"""A simulated run as data: the configuration, the faults, and the seed of all other choices."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from consistency.faults.kind import LinkFaults
from replicas.faults.model import Fault, processes_of, read_faults
from replicas.simulation.world.given_rows import with_rows
from replicas.simulation.world.producer import live_source, pushed_source
from spe.config import load_data
from spe.errors import ConfigError, other_version
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
    """Returns the settings of each node, also if the configuration only lists the nodes."""
    nodes = config["nodes"]
    return dict(nodes) if isinstance(nodes, Mapping) else {name: {} for name in nodes}


@dataclass(frozen=True)
class Scenario:
    """One simulated run.

    Attributes:
      seed: drives the order of tasks, jitter, loss, and all other random choices of the run.
      config: a configuration, as in a YAML file.
      options: options besides the configuration.  ``limits`` and ``timing``: fields of the plan's; ``link``: fields of
        LinkFaults, for every link while nothing is wrong; ``turn_us``: microseconds of each slice of a replica's work;
        ``state_ns``: nanoseconds of a step per row or group held; ``live``: sources whose rows happen once, and how
        (``world.producer.live_source``); ``rows``: rows of sources (``world.given_rows``); ``source_disks``: disks of
        sources may lose or change data, which is outside the fault model.  Features, each with a number from which its
        actions follow: ``moves``, ``settings``, ``joins``, ``row_ns`` (cost of a row on a partition over time),
        ``proofs`` and ``pushes``.
      faults: the faults; times count from the beginning.
      heal_us: time at which everything heals.
      grace_us: time after that to become complete and quiet.
    """

    seed: int
    config: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    heal_us: int = 0
    grace_us: int = 20_000_000

    def deployed(self) -> Deployed:
        """Returns the plan, and its directory of simulated hosts.  Raises ConfigError."""
        plan, directory = load_data(self.config)
        # Without a tail, a client that changes to another replica gets only what rule A2 guarantees.
        limits, timing = {"tail_bytes": 0} | self.options.get("limits", {}), self.options.get("timing", {})
        plan = replace(
            plan,
            sources={n: self._lively(source, n) for n, source in plan.sources.items()},
            limits=replace(plan.limits, **limits),
            timing=replace(plan.timing, **timing) if timing else plan.timing,
        )
        directory = replace(
            directory,
            nodes={n: replace(node, address=f"{n}:1") for n, node in directory.nodes.items()},
            sources={n: f"source-{n}:1" for n in directory.sources},
        )
        return Deployed(plan, directory)

    def newcomers(self) -> dict[str, Node]:
        """Returns the nodes that join, with their first settings.  Raises ConfigError."""
        nodes: dict[str, Node] = {}
        for entry in self.joins():
            if entry["do"] == "join" and entry["node"] not in nodes:
                nodes[entry["node"]] = self.newcomer(entry)
        return nodes

    def newcomer(self, entry: Mapping[str, Any]) -> Node:
        """Returns a node that joins: its own settings, with the defaults of the configuration.  Raises ConfigError."""
        name = entry["node"]
        configured = {**named_nodes(self.config), name: {**entry.get("own", {}), "spare": True}}
        return replace(
            load_data({**self.config, "nodes": configured}).directory.nodes[NodeId(name)], address=f"{name}:1"
        )

    def processes(self) -> list[str]:
        """Returns all processes that faults can target.  Raises ConfigError."""
        return processes_of(self._known())

    def with_faults(self, entries: Any) -> Scenario:
        """Returns the scenario with only the faults in plain data.  Raises ConfigError."""
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
        """Returns the plan alone.  Raises ConfigError."""
        return self.deployed().plan

    def _lively(self, source: Source, name: str) -> Source:
        rows = self.options.get(_ROWS, {}).get(name)
        if rows is not None:
            return with_rows(source, rows)
        if name in self.pushes():
            return pushed_source(source)
        how = self.options.get(_LIVE, {}).get(name)
        return source if how is None else live_source(source, how)

    def link(self) -> LinkFaults:
        return LinkFaults(**self.options.get(_LINK, {}))

    def turn_us(self) -> int:
        return int(self.options.get("turn_us", 0))

    def state_ns(self) -> int:
        return int(self.options.get("state_ns", 0))

    def moves(self) -> Sequence[Mapping[str, Any]]:
        entries: Sequence[Mapping[str, Any]] = self.options.get("moves", ())
        return entries

    def pushes(self) -> Mapping[str, int]:
        entries: Mapping[str, int] = self.options.get("pushes", {})
        return entries

    def proofs(self) -> Sequence[int] | None:
        times: Sequence[int] | None = self.options.get("proofs")
        return times

    def source_disks(self) -> bool:
        return bool(self.options.get("source_disks", False))

    def row_ns(self) -> Sequence[Mapping[str, Any]]:
        entries: Sequence[Mapping[str, Any]] = self.options.get("row_ns", ())
        return entries

    def joins(self) -> Sequence[Mapping[str, Any]]:
        entries: Sequence[Mapping[str, Any]] = self.options.get("joins", ())
        return entries

    def settings(self) -> Sequence[Mapping[str, Any]]:
        entries: Sequence[Mapping[str, Any]] = self.options.get("settings", ())
        return entries

    def to_data(self) -> dict[str, Any]:
        """Returns plain data, the same for the same scenario."""
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
        """Reads plain data.  Raises ConfigError: not a scenario, or one of another version."""
        if why := other_version("the scenario", data.get("version"), VERSION):
            raise ConfigError([why])
        try:
            scenario = cls(
                int(data["seed"]),
                data["config"],
                data.get("options", {}),
                (),
                int(data["heal_us"]),
                int(data["grace_us"]),
            )
            scenario.deployed()
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError([f"no scenario: {error!r}"]) from error
        return scenario.with_faults(data.get("faults", []))

    def dump(self) -> str:
        """Returns JSON."""
        return json.dumps(self.to_data(), indent=1, sort_keys=True) + "\n"
