"""Reads topologies, nodes and rates from YAML; reports every mistake with its line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from replicas.planning.layout import ALL, LEVELS, Place, Placement
from replicas.planning.topology import OperatorDescription, Topology, TopologyError
from spe.config.document import Document, parse
from spe.config.validate import validated
from spe.errors import ConfigError
from spe.plan.plan import Partitioning
from spe.problems import Path, Problems, did_you_mean, one_of
from spe.values import Count, Model, Positive

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_SECTIONS: Final = ("operators", "nodes", "placement", "failures")


class OperatorModel(Model):
    """An operator; see ``OperatorDescription``.

    Attributes:
      tasks: parallelism.
      reads: `{OTHER: split}`, or `one-to-one`, `merge`, `full`. Default: a source.
      rates: tuples per second, one number or one per task. Default: from the inputs.
      selectivity: output per input.
      shares: how a divided stream is divided. Default: evenly.
      join: results need all inputs.
      weight: of a sink against other sinks.
      fails: false: needs no replica.
      output: a sink though others read it. Default: what nobody reads.
      cost: of an active replica, one number or one per task.
    """

    tasks: Count = 1
    reads: dict[str, Literal["one-to-one", "split", "merge", "full"]] = Field(default_factory=dict)
    rates: Amount | list[Amount] | None = None
    selectivity: Amount = 1.0
    shares: list[Amount] | None = None
    join: bool = False
    weight: Amount = 1.0
    fails: bool = True
    output: bool = False
    cost: Positive | list[Positive] = 1.0

    def spec(self, name: str) -> OperatorDescription:
        inputs = {other: Partitioning(kind) for other, kind in self.reads.items()}
        rates = [self.rates] * self.tasks if isinstance(self.rates, float | int) else self.rates
        return OperatorDescription(
            name,
            self.tasks,
            inputs,
            self.join,
            rates,
            self.selectivity,
            self.shares,
            self.weight,
            self.fails,
            self.output,
        )


class MachineModel(Model):
    """A node; its capacity is in the unit of the tasks' costs."""

    capacity: Positive | None = None
    host: str | None = None
    rack: str | None = None
    zone: str | None = None


@dataclass(frozen=True)
class TopologyFile:
    """Content of a file; ``layout`` is None if it has no nodes."""

    topology: Topology
    costs: tuple[float, ...]
    layout: Placement | None


def is_topology(text: str) -> bool:
    """Is the file a topology, not a configuration of a cluster?"""
    data = parse(text, "", Problems()).data
    return isinstance(data, Mapping) and "operators" in data


def read_topology(text: str, name: str) -> TopologyFile:
    """Reads a topology, and its nodes if the file has any.

    Raises:
      ConfigError: with every mistake, as ``file:line: path: what is wrong; what was expected``.
    """
    problems = Problems()
    document = mapping_of(text, name, problems, _SECTIONS)
    section = document.data.get("operators")
    if not isinstance(section, Mapping) or not section:
        problems.add(("operators",), "expected a mapping: NAME: {tasks: 4, reads: {OTHER: merge}}")
        raise ConfigError(document.in_order(problems))
    models = {
        str(key): validated(OperatorModel, {} if entry is None else entry, ("operators", key), problems)
        for key, entry in section.items()
    }
    known = {key: model for key, model in models.items() if model is not None}
    if problems:
        raise ConfigError(document.in_order(problems))
    try:
        topology = Topology([model.spec(key) for key, model in known.items()])
    except TopologyError as error:
        for where, message in error.mistakes:
            problems.add(("operators", where) if where else ("operators",), message)
        raise ConfigError(document.in_order(problems)) from None
    costs: list[float] = []
    for operator in topology.operators:
        cost = known[operator.name].cost
        each = cost if isinstance(cost, list) else [cost] * operator.tasks
        if len(each) != operator.tasks:
            problems.add(("operators", operator.name, "cost"), f"expected {operator.tasks} numbers, got {len(each)}")
        costs += each
    layout = _layout(document.data, topology, None, problems) if "nodes" in document.data else None
    if problems:
        raise ConfigError(document.in_order(problems))
    return TopologyFile(topology, tuple(costs), layout)


def read_layout(text: str, name: str, topology: Topology, homes: Sequence[str | None] | None) -> Placement:
    """Reads nodes with their domains, and the likely failures.

    Args:
      homes: where tasks run, if known without the file.

    Raises:
      ConfigError: with every mistake.
    """
    problems = Problems()
    document = mapping_of(text, name, problems, _SECTIONS[1:])
    layout = _layout(document.data, topology, homes, problems)
    if problems:
        raise ConfigError(document.in_order(problems))
    return layout


def read_rates(text: str, name: str) -> dict[str, list[float]]:
    """Reads tuples per second of each partition by source or unit.  Raises ConfigError."""
    problems = Problems()
    document = mapping_of(text, name, problems, None)
    rates: dict[str, list[float]] = {}
    for key, value in document.data.items():
        numbers = value if isinstance(value, list) else [value]
        if all(isinstance(n, int | float) and not isinstance(n, bool) and 0 <= n < float("inf") for n in numbers):
            rates[str(key)] = [float(n) for n in numbers]
        else:
            problems.add((key,), f"expected a rate of at least 0, or a list with one for each partition, got {value!r}")
    if problems:
        raise ConfigError(document.in_order(problems))
    return rates


def mapping_of(text: str, name: str, problems: Problems, sections: Sequence[str] | None) -> Document:
    """Reads a file whose keys are among these sections, or any if None.  Raises ConfigError if it is no mapping."""
    document = parse(text, name, problems)
    if not problems and not isinstance(document.data, Mapping):
        problems.add((), "expected a mapping" + (f" with the sections {', '.join(sections)}" if sections else ""))
    if problems:
        raise ConfigError(document.in_order(problems))
    for key in document.data if sections else ():
        if key not in (sections or ()):
            problems.add((key,), f"unknown section{did_you_mean(str(key), _SECTIONS)}; expected {one_of(_SECTIONS)}")
    return document


def _layout(
    data: Mapping[str, Any], topology: Topology, homes: Sequence[str | None] | None, problems: Problems
) -> Placement:
    nodes: dict[str, Place] = {}
    section = data.get("nodes")
    if isinstance(section, list) and all(isinstance(n, str) for n in section):
        section = dict.fromkeys(section)
    if not isinstance(section, Mapping) or not section:
        problems.add(("nodes",), "expected a list of names, or a mapping: NAME: {capacity: 4, rack: r1}")
        section = {}
    for key, entry in section.items():
        model = validated(MachineModel, {} if entry is None else entry, ("nodes", key), problems) or MachineModel()
        domains = {level: value for level in LEVELS if (value := getattr(model, level)) is not None}
        nodes[str(key)] = Place(model.capacity, domains)
    places = _homes(data.get("placement"), topology, nodes, homes, problems)
    likely = _likely(data.get("failures"), problems)
    return Placement(nodes, places, likely)


def _homes(
    section: Any,
    topology: Topology,
    nodes: Mapping[str, Place],
    homes: Sequence[str | None] | None,
    problems: Problems,
) -> list[str | None]:
    places: list[str | None] = list(homes) if homes is not None else [None] * topology.tasks
    operators = {o.name: o for o in topology.operators}
    if section is not None and not isinstance(section, Mapping):
        problems.add(("placement",), "expected a mapping: OPERATOR: [node of each task]")
        section = None
    for key, entry in (section or {}).items():
        path: Path = ("placement", key)
        operator = operators.get(str(key))
        each = [entry] if isinstance(entry, str) else entry
        if operator is None:
            hint = did_you_mean(str(key), operators)
            problems.add(path, f"there is no such operator{hint}; expected {one_of(list(operators))}")
        elif not isinstance(each, list) or len(each) != operator.tasks:
            problems.add(path, f"expected a list of {operator.tasks} nodes, one for each task")
        else:
            places[operator.range] = each
    for task, node in enumerate(places):
        name = topology.operators[int(topology.operator_of[task])].name
        path = ("placement", name) if name in (section or {}) else ("nodes",)
        if node is None and topology.fails[task]:
            problems.add(("placement",), f"nothing says where {topology.name_of(task)} runs")
        elif node is not None and node not in nodes:
            hint = did_you_mean(str(node), nodes)
            problems.add(path, f"{topology.name_of(task)} runs on {node!r}, which is no node{hint}")
    return places


def _likely(section: Any, problems: Problems) -> dict[str, float]:
    if section is None:
        return {ALL: 1.0}
    levels = ("node", *LEVELS, ALL)
    if not isinstance(section, Mapping) or not section:
        problems.add(("failures",), "expected a mapping: LEVEL: how likely one of them fails, against the others")
        return {}
    likely = {}
    for key, value in section.items():
        if key not in levels:
            problems.add(("failures", key), f"unknown level{did_you_mean(str(key), levels)}; expected {one_of(levels)}")
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            problems.add(("failures", key), f"expected a number above 0, got {value!r}")
        else:
            likely[str(key)] = float(value)
    return likely
