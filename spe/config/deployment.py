"""The sections for the deployment of the query: nodes, fragments, timing, limits."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from math import inf
from pathlib import Path as FilePath
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from spe.config.validate import validated
from spe.plan.describe import show_duration
from spe.plan.directory import ANY_ADDRESS, COORDINATOR, CoordinatorSettings
from spe.plan.log_targets import SHARE, Continuous
from spe.plan.nodes import CAPACITY, Checkpoints, Node, Policy, Reconcile
from spe.plan.plan import Limits, MetricsSettings, Security, Timing
from spe.plan.units import CHECKPOINT_US, DEFAULT_REPLICAS, LOG_US, FragmentSpec
from spe.problems import Path, Problems
from spe.stream.names import NodeId, StreamId
from spe.stream.times import SECOND
from spe.values import (
    Address,
    Count,
    Model,
    Names,
    Positive,
    PositiveDuration,
    Share,
    Size,
    duration_of,
    names_of,
    size_of,
)

X_US: Final = 2 * SECOND
ALPHA: Final = 0.9

_LOGGED: Final = "{continuous: true, recovery: 2s}"

PolicyName = Literal["suspend", "delay", "process"]


class PolicyModel(Model):
    """Policies for new tuples during UP_FAILURE and during STABILIZATION; one word sets both."""

    failure: PolicyName | None = None
    stabilization: PolicyName | None = None


def _policy(value: Any) -> Any:
    return {"failure": value, "stabilization": value} if isinstance(value, str) else value


class CheckpointModel(Model):
    """Checkpoints at an interval, or a log of changes; by default a checkpoint on entering UP_FAILURE.

    Attributes:
      every: interval of whole checkpoints.
      disk: they are written to disk.
      continuous: a log instead of whole checkpoints.
      recovery: time to recover, without the start of the process. If `share` allows, 10% of it is for rows that
        upstream keeps. Default: required.
      share: of its time that a replica may spend on rewriting. Default: `5%`.
      groups: open groups that a partition is expected to have: a record each, times the panes of a window.
        Default: unknown.
      records: for experiments, instead of `recovery`: most records to load.
      rows: the same: most rows to replay.
      interval: for experiments, instead of `share`: so much of each `period` goes into rewriting.
      period: see `interval`.
    """

    every: PositiveDuration | None = None
    disk: bool = False
    continuous: bool = False
    recovery: PositiveDuration | None = None
    share: Share | None = None
    groups: Count | None = None
    records: Count | None = None
    rows: Count | None = None
    interval: PositiveDuration | None = None
    period: PositiveDuration | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> CheckpointModel:
        of_log = self._given("recovery", "share", "groups", "records", "rows", "interval", "period")
        if of_log and not self.continuous:
            raise ValueError(f"{of_log[0]} is for a checkpoint log; expected {_LOGGED}")
        if self.disk and self.every is None and not self.continuous:
            raise ValueError("disk: true needs to know how often to write; expected {every: 5s, disk: true}")
        if self.continuous:
            self._check_log()
        return self

    def _check_log(self) -> None:
        if whole := self._given("every", "disk"):
            raise ValueError(
                f"continuous: true writes what changes, and {whole[0]} is for whole checkpoints; expected {_LOGGED}, "
                "or {every: 5s, disk: true}"
            )
        limits = self._given("records", "rows")
        if self.recovery is None and not limits:
            raise ValueError(f"continuous: true needs the time to recover in; expected {_LOGGED}")
        if self.recovery is not None and limits:
            raise ValueError(f"{limits[0]} follows from recovery; expected one of them")
        if (self.interval is None) != (self.period is None):
            raise ValueError("interval and period go together: so much of each period goes into rewriting")
        if self.interval is not None and self.share is not None:
            raise ValueError("expected either share, or interval and period")
        if self.interval is not None and self.period is not None and self.interval > self.period:
            raise ValueError("interval is more than period; expected at most the whole of it")

    def _given(self, *names: str) -> list[str]:
        return [name for name in names if getattr(self, name) not in (None, False)]

    def checkpoints(self) -> Checkpoints:
        """Returns the checkpoints of a node."""
        return Checkpoints(self.every, self.disk)

    def log(self) -> Continuous | None:
        """Returns the log of a fragment; None: no log."""
        if not self.continuous:
            return None
        share, period = self.share or SHARE, SECOND
        if self.interval is not None and self.period is not None:
            share, period = self.interval / self.period, self.period
        return Continuous(self.recovery, share, period, self.groups, self.records, self.rows)


class NodeDefaults(Model):
    """Defaults of nodes.

    Attributes:
      x: how long a result may be held back. Default: `2s`.
      alpha: share of X that is spent waiting. Default: `0.9`.
      policy: `suspend`, `delay`, `process`; one word sets failure and stabilization. Default: `process`.
      reconcile: or `undo`: how a replica returns to the state before a failure. Default: `checkpoint`.
      checkpoint: `{every: 200ms}`: at that interval; `{every: 5s, disk: true}`: on disk.
        Default: when a failure begins.
    """

    x: PositiveDuration | None = None
    alpha: Annotated[float, Field(gt=0, le=1)] | None = None
    policy: Annotated[PolicyModel, BeforeValidator(_policy)] | None = None
    reconcile: Literal["checkpoint", "undo"] | None = None
    checkpoint: CheckpointModel | None = None


class NodeModel(NodeDefaults):
    """A process that hosts replicas.

    Attributes:
      address: `host:port`. Default: any free port.
      spare: nothing is placed on it; partitions may move there.
      capacity: cores for partitions; what is planned fills `coordinator.cap` of it.
      memory: bytes, such as `2GB`, in the same way. Default: not looked at.
    """

    address: Address = ANY_ADDRESS
    spare: bool = False
    capacity: Positive = CAPACITY
    memory: Size | None = None


class CoordinatorModel(Model):
    """The process that activates standbys.

    Attributes:
      address: required on several machines. Default: any port under `spe run`.
      budget: standbys that run all the time, chosen by the planner.
      algorithm: or `greedy`.
      adapt: how often measured rates are considered. Default: never.
      margin: relative gain of OF that another choice must have.
      cap: share of a node's cores and memory that may be filled.
      balance: how often loads are looked at, such as `30s`. Default: only when asked.
      idle: share of all capacity below which it is tried to do with one node fewer.
      placement: of standbys; `correlated`: they move to where load falls when their partition's rises.
      spread: with `correlated`, by how much the load of a node's standbys may be above the mean of all, as share of it.
        Default: no bound.
    """

    address: Address = ANY_ADDRESS
    budget: Annotated[int, Field(ge=0)] = 0
    algorithm: Literal["structure-aware", "greedy"] = "structure-aware"
    adapt: PositiveDuration | None = None
    margin: Annotated[float, Field(ge=0, le=10)] = CoordinatorSettings().margin
    cap: Annotated[float, Field(gt=0, le=1)] = CoordinatorSettings().cap
    balance: PositiveDuration | None = None
    idle: Annotated[float, Field(ge=0, lt=1)] = CoordinatorSettings().idle
    placement: Literal["fixed", "correlated"] = "fixed"
    spread: Annotated[float, Field(gt=0, le=100)] | None = None

    @model_validator(mode="after")
    def _apart(self) -> CoordinatorModel:
        if self.placement == "correlated" and self.balance is None:
            raise ValueError("placement: correlated follows loads; expected balance: 30s, or another interval")
        if self.spread is not None and self.placement != "correlated":
            raise ValueError("spread bounds where standbys move; expected placement: correlated with it")
        if self.idle >= self.cap:
            raise ValueError(f"idle must be below cap ({self.cap:g}), or nodes would drain and fill up in turns")
        return self

    def settings(self) -> CoordinatorSettings:
        return CoordinatorSettings(
            self.address,
            self.budget,
            self.algorithm,
            self.adapt,
            self.margin,
            self.cap,
            balance_us=self.balance,
            idle=self.idle,
            placement=self.placement,
            spread=inf if self.spread is None else self.spread,
        )


class TimingModel(Model):
    """Periods of the protocol.

    Attributes:
      tick: how often deadlines are judged.
      heartbeat: period of heartbeats; more than 3 misses are a failure.
      request: how often a partner is asked for leave to reconcile.
      connect: longest time to connect, and for the first answers.
    """

    tick: PositiveDuration = Timing().tick_us
    heartbeat: PositiveDuration = Timing().heartbeat_us
    request: PositiveDuration = Timing().request_us
    connect: PositiveDuration = Timing().connect_us

    def timing(self) -> Timing:
        return Timing(self.tick, self.heartbeat, self.request, self.connect)


def _size_or_off(value: Any) -> int:
    return 0 if value is False or value == "off" else size_of(value)  # YAML reads a bare `off` as false


class LimitsModel(Model):
    """Bounds of everything that can grow.

    Attributes:
      output: memory per output for stable elements; beyond half of it they spill.
      tail: memory per output for acknowledged results, for readers that come later; `off`: none. Default: `1MiB`.
      suffix: tentative suffix per output.
      input: memory per SUnion; beyond a quarter of it redo data spill.
      frame: largest frame, from `64KiB` to `16MiB`; must not be smaller at a reader than at its producer.
      spill: spill files per process; `off`: none. Default: `4GiB`.
    """

    output: Size = Limits().output_bytes
    tail: Annotated[int, BeforeValidator(_size_or_off)] = Limits().tail_bytes
    suffix: Size = Limits().suffix_bytes
    input: Size = Limits().input_bytes
    #: Room for a row of some thousand attributes; more than the default is useless, since rows and texts are divided.
    frame: Annotated[Size, Field(ge=64 << 10, le=Limits().frame_bytes)] = Limits().frame_bytes
    spill: Annotated[int, BeforeValidator(_size_or_off)] = Limits().spill_bytes

    def limits(self) -> Limits:
        return Limits(self.output, self.suffix, self.input, self.frame, self.spill, tail_bytes=self.tail)


class SecurityModel(Model):
    """How processes authenticate each other."""

    certificates: str | None = None
    insecure: bool = False

    def security(self, folder: FilePath) -> Security:
        """Returns the settings; ``certificates`` is relative to the folder of the configuration."""
        return Security(None if self.certificates is None else str(folder / self.certificates), self.insecure)


def _bind(value: Any) -> str:
    try:
        return str(ip_address(value)) if isinstance(value, str) and value != "localhost" else str(value)
    except ValueError:
        raise ValueError(
            f"expected an IP address of this machine, such as 127.0.0.1 or 0.0.0.0, got {value!r}"
        ) from None


class MetricsModel(Model):
    """Address at which every process serves its metrics and health."""

    port: Annotated[int, Field(ge=0, le=65_535)] = MetricsSettings().port
    bind: Annotated[str, BeforeValidator(_bind)] = MetricsSettings().bind

    def metrics(self) -> MetricsSettings:
        return MetricsSettings(self.port, self.bind)


def _key(value: Any) -> tuple[str, ...] | dict[str, tuple[str, ...]]:
    if isinstance(value, dict):
        return {str(k): names_of(v) for k, v in value.items()}
    return names_of(value)


def _replicas(value: Any) -> int | tuple[tuple[str, ...], ...]:
    """Reads ``2``; ``[n1, n2]`` for the only partition; ``[[n1, n2], [n3, n4]]`` for each."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    if isinstance(value, list | tuple) and value:
        if all(isinstance(v, str) for v in value):
            return (tuple(value),)
        if all(isinstance(v, list | tuple) and all(isinstance(n, str) for n in v) for v in value):
            return tuple(tuple(v) for v in value)
    raise ValueError(f"expected a number, [node, …], or [[node, …], …] with one list per partition, got {value!r}")


def _standbys(value: Any) -> int | tuple[tuple[str, ...], ...]:
    return 0 if value == 0 and not isinstance(value, bool) else _replicas(value)


def _checkpoint(value: Any) -> Any:
    """Expands ``2s`` to ``{every: 2s}``."""
    if isinstance(value, dict):
        return value
    try:
        duration_of(value)
    except ValueError as error:
        raise ValueError(f"{error}; or a mapping, such as {_LOGGED}") from None
    return {"every": value}


def _rows(nodes: int | tuple[tuple[str, ...], ...]) -> int | tuple[tuple[NodeId, ...], ...]:
    return nodes if isinstance(nodes, int) else tuple(tuple(map(NodeId, row)) for row in nodes)


class FragmentModel(Model):
    """A piece of the query that runs together."""

    operators: Names
    key: Annotated[tuple[str, ...] | dict[str, tuple[str, ...]], BeforeValidator(_key)] | None = None
    partitions: Annotated[int, Field(ge=1, le=1024)] = 1
    replicas: Annotated[int | tuple[tuple[str, ...], ...], BeforeValidator(_replicas)] = DEFAULT_REPLICAS
    standby: Annotated[int | tuple[tuple[str, ...], ...], BeforeValidator(_standbys)] = 0
    checkpoint: Annotated[CheckpointModel | None, BeforeValidator(_checkpoint)] = None

    def spec(self, name: str, default: CheckpointModel | None = None) -> FragmentSpec:
        """Returns the specification.

        Args:
          default: checkpoint settings of fragments without their own.
        """
        checkpoint = self.checkpoint or CheckpointModel()
        log = (self.checkpoint or default or checkpoint).log()
        key: Any = self.key
        if isinstance(self.key, dict):
            key = {StreamId(s): k for s, k in self.key.items()}
        return FragmentSpec(
            name,
            tuple(map(StreamId, self.operators)),
            self.partitions,
            key,
            _rows(self.replicas),
            _rows(self.standby),
            checkpoint.every or (CHECKPOINT_US if log is None else LOG_US),
            log,
        )


def read_defaults(section: Any, problems: Problems) -> NodeDefaults:
    """Reads the defaults of nodes and fragments."""
    return validated(NodeDefaults, {} if section is None else section, ("defaults",), problems) or NodeDefaults()


def read_nodes(section: Any, default: NodeDefaults, replicas: int, problems: Problems) -> dict[NodeId, Node]:
    """Reads all nodes; by default n1, n2, …, as many as the largest number of replicas."""
    if section is None:
        section = {f"n{i + 1}": {} for i in range(max(1, replicas))}
    elif isinstance(section, list | tuple) and all(isinstance(n, str) for n in section):
        for i, name in enumerate(section):
            if name in section[:i]:
                problems.add(("nodes", i), f"{name!r} is listed twice")
        section = {n: {} for n in section}
    if not isinstance(section, Mapping) or not section:
        problems.add(("nodes",), "expected a list of names, or a mapping: NAME: {address: host:port, x: 2s}")
        return {}
    nodes: dict[NodeId, Node] = {}
    for name, entry in section.items():
        if name == COORDINATOR:
            problems.add(("nodes", name), "is the name of the process that gives orders; expected another one")
        model = validated(NodeModel, {} if entry is None else entry, ("nodes", name), problems)
        model = model or NodeModel()  # its mistakes are reported; fragments may still refer to it
        if model.checkpoint is not None and model.checkpoint.continuous:
            problems.add(
                ("nodes", name, "checkpoint", "continuous"),
                "belongs to a fragment, or in defaults to all fragments; "
                f"expected fragments: {{NAME: {{checkpoint: {_LOGGED}}}}}",
            )
        nodes[NodeId(name)] = _node(name, model, default)
    return nodes


def _node(name: str, own: NodeModel, default: NodeDefaults) -> Node:
    policies = [p for p in (own.policy, default.policy) if p is not None]
    failure = next((p.failure for p in policies if p.failure is not None), "process")
    stabilization = next((p.stabilization for p in policies if p.stabilization is not None), "process")
    return Node(
        id=NodeId(name),
        address=own.address,
        x_us=own.x or default.x or X_US,
        alpha=own.alpha or default.alpha or ALPHA,
        during_failure=Policy(failure),
        during_stabilization=Policy(stabilization),
        reconcile=Reconcile(own.reconcile or default.reconcile or Reconcile.CHECKPOINT),
        checkpoints=(own.checkpoint or default.checkpoint or CheckpointModel()).checkpoints(),
        spare=own.spare,
        capacity=own.capacity,
        memory=own.memory,
    )


def read_fragments(section: Any, default: NodeDefaults, problems: Problems) -> tuple[FragmentSpec, ...]:
    if section is None:
        return ()
    if not isinstance(section, Mapping) or not section:
        problems.add(("fragments",), "expected a mapping: NAME: {operators: [...], replicas: 2}")
        return ()
    specs = []
    for name, entry in section.items():
        model = validated(FragmentModel, entry, ("fragments", name), problems)
        if model is not None:
            _check_effect(name, entry, model, problems)
            specs.append(model.spec(name, default.checkpoint))
    return tuple(specs)


def _check_effect(name: str, entry: Mapping[str, Any], model: FragmentModel, problems: Problems) -> None:
    """Checks that a fragment's checkpoint settings have an effect: they are for standbys, nodes have their own."""
    checkpoint = model.checkpoint
    if checkpoint is None or checkpoint.continuous:
        return
    every = show_duration(checkpoint.every or 10 * SECOND)
    instead = f"defaults: {{checkpoint: {{every: {every}, disk: true}}}}"
    if checkpoint.disk:
        path: Path = ("fragments", name, "checkpoint", "disk")
        problems.add(path, f"belongs to nodes; expected {instead}, or the same of a node")
    elif checkpoint.every is not None and not (model.standby if isinstance(model.standby, int) else any(model.standby)):
        path = ("fragments", name, "checkpoint", *(("every",) if isinstance(entry["checkpoint"], Mapping) else ()))
        problems.add(
            path,
            "has no effect: it is the interval of standbys' checkpoints, and the fragment has no standby; expected "
            f"standby: 1 as well, {instead} for what each node writes to its own disk, or a log, checkpoint: {_LOGGED}",
        )
