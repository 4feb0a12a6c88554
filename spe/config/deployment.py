"""The sections about where and how the query runs: nodes, fragments, clients, timing, limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os.path import normpath
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, create_model, model_validator

from spe.config.validate import validated
from spe.connectors import SINKS
from spe.plan.directory import ANY_ADDRESS, COORDINATOR, ClientSettings, CoordinatorSettings
from spe.plan.nodes import CAPACITY, Checkpoints, Node, Policy, Reconcile
from spe.plan.plan import Limits, Security, Timing
from spe.plan.units import CHECKPOINT_US, DEFAULT_REPLICAS, FragmentSpec
from spe.problems import Problems, did_you_mean, one_of
from spe.stream.names import NodeId, StreamId
from spe.stream.times import SECOND
from spe.values import Address, Model, Names, Positive, PositiveDuration, Size, names_of, size_of

X_US: Final = 2 * SECOND
ALPHA: Final = 0.9
#: The client where none is configured: it reads every output.
ONLY_CLIENT: Final = "client"

PolicyName = Literal["suspend", "delay", "process"]


class PolicyModel(Model):
    """What to do with new tuples during UP_FAILURE and during STABILIZATION; one word sets both."""

    failure: PolicyName | None = None
    stabilization: PolicyName | None = None


def _policy(value: Any) -> Any:
    return {"failure": value, "stabilization": value} if isinstance(value, str) else value


class CheckpointModel(Model):
    """Checkpoints at an interval; without it they are taken on entering UP_FAILURE."""

    every: PositiveDuration | None = None
    disk: bool = False

    @model_validator(mode="after")
    def _interval(self) -> CheckpointModel:
        if self.disk and self.every is None:
            raise ValueError("disk: true needs to know how often to write; expected {every: 5s, disk: true}")
        return self

    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.every, self.disk)


class NodeDefaults(Model):
    """What holds for every node that does not say otherwise."""

    x: PositiveDuration | None = None
    alpha: Annotated[float, Field(gt=0, le=1)] | None = None
    policy: Annotated[PolicyModel, BeforeValidator(_policy)] | None = None
    reconcile: Literal["checkpoint", "undo"] | None = None
    checkpoint: CheckpointModel | None = None


class NodeModel(NodeDefaults):
    """A process that hosts replicas."""

    address: Address = ANY_ADDRESS
    spare: bool = False
    capacity: Positive = CAPACITY
    memory: Size | None = None


class CoordinatorModel(Model):
    """The process that tells standbys to run."""

    address: Address = ANY_ADDRESS
    budget: Annotated[int, Field(ge=0)] = 0
    algorithm: Literal["structure-aware", "greedy"] = "structure-aware"
    adapt: PositiveDuration | None = None
    margin: Annotated[float, Field(ge=0, le=10)] = CoordinatorSettings().margin
    cap: Annotated[float, Field(gt=0, le=1)] = CoordinatorSettings().cap
    balance: PositiveDuration | None = None
    idle: Annotated[float, Field(ge=0, lt=1)] = CoordinatorSettings().idle
    placement: Literal["fixed", "correlated"] = "fixed"

    @model_validator(mode="after")
    def _apart(self) -> CoordinatorModel:
        if self.placement == "correlated" and self.balance is None:
            raise ValueError("placement: correlated follows loads; expected balance: 30s, or another interval")
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
        )


class TimingModel(Model):
    """Periods of the protocol."""

    tick: PositiveDuration = Timing().tick_us
    heartbeat: PositiveDuration = Timing().heartbeat_us
    request: PositiveDuration = Timing().request_us
    connect: PositiveDuration = Timing().connect_us

    def timing(self) -> Timing:
        return Timing(self.tick, self.heartbeat, self.request, self.connect)


def _spill(value: Any) -> int:
    return 0 if value is False or value == "off" else size_of(value)  # YAML reads a bare `off` as false


class LimitsModel(Model):
    """Bounds of everything that can grow."""

    output: Size = Limits().output_bytes
    suffix: Size = Limits().suffix_bytes
    input: Size = Limits().input_bytes
    #: Room for a row of some thousand attributes; more than the default is of no use, for rows and texts are divided.
    frame: Annotated[Size, Field(ge=64 << 10, le=Limits().frame_bytes)] = Limits().frame_bytes
    spill: Annotated[int, BeforeValidator(_spill)] = Limits().spill_bytes

    def limits(self) -> Limits:
        return Limits(self.output, self.suffix, self.input, self.frame, self.spill)


class SecurityModel(Model):
    """Who is let in."""

    certificates: str | None = None
    insecure: bool = False

    def security(self, folder: FilePath) -> Security:
        """``certificates`` starts from the folder of the configuration."""
        return Security(None if self.certificates is None else str(folder / self.certificates), self.insecure)


def _key(value: Any) -> tuple[str, ...] | dict[str, tuple[str, ...]]:
    if isinstance(value, dict):
        return {str(k): names_of(v) for k, v in value.items()}
    return names_of(value)


def _replicas(value: Any) -> int | tuple[tuple[str, ...], ...]:
    """``2``; ``[n1, n2]`` for the one partition; ``[[n1, n2], [n3, n4]]`` for each."""
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


def _rows(nodes: int | tuple[tuple[str, ...], ...]) -> int | tuple[tuple[NodeId, ...], ...]:
    return nodes if isinstance(nodes, int) else tuple(tuple(map(NodeId, row)) for row in nodes)


class FragmentModel(Model):
    """A piece of the query that runs together."""

    operators: Names
    key: Annotated[tuple[str, ...] | dict[str, tuple[str, ...]], BeforeValidator(_key)] | None = None
    partitions: Annotated[int, Field(ge=1, le=1024)] = 1
    replicas: Annotated[int | tuple[tuple[str, ...], ...], BeforeValidator(_replicas)] = DEFAULT_REPLICAS
    standby: Annotated[int | tuple[tuple[str, ...], ...], BeforeValidator(_standbys)] = 0
    checkpoint: PositiveDuration = CHECKPOINT_US

    def spec(self, name: str) -> FragmentSpec:
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
            self.checkpoint,
        )


class SinkKeys(Model):
    """Where a client writes: stable tuples only, or all of them with their corrections."""

    @model_validator(mode="after")
    def _one_kind(self) -> SinkKeys:
        if len([k for k in SINKS if getattr(self, k) is not None]) != 1:
            raise ValueError("expected " + " or ".join(f"{kind}: PATH" for kind in SINKS))
        return self

    def sink(self) -> dict[str, Any]:
        given = self.model_dump(exclude_none=True)
        mode = given.pop("mode")
        ((kind, path),) = given.items()
        return {"kind": kind, "path": path, "mode": mode}


if TYPE_CHECKING:
    SinkModel = SinkKeys
else:
    _mode = (Literal["stable", "corrections"], "stable")
    _types = {kind: (str | None, None) for kind in SINKS}
    SinkModel = create_model("SinkModel", __base__=SinkKeys, **_types, mode=_mode)


class ClientModel(Model):
    """A named consumer."""

    reads: Names | None = None
    sinks: list[SinkModel] = Field(default_factory=list)

    @model_validator(mode="after")
    def _own_files(self) -> ClientModel:
        """Clients may share a path, on machines of their own; the files of one client would be written twice."""
        kinds = [(normpath(s.sink()["path"]), s.sink()["kind"]) for s in self.sinks]
        for folder, _ in {k: None for k in kinds if kinds.count(k) > 1}:
            raise ValueError(f"two sinks of one kind write to {folder!r}; expected a folder for each")
        return self


def read_nodes(section: Any, defaults: Any, replicas: int, problems: Problems) -> dict[NodeId, Node]:
    """All nodes; n1 … where none are configured, as many as the largest number of replicas."""
    default = validated(NodeDefaults, {} if defaults is None else defaults, ("defaults",), problems) or NodeDefaults()
    if section is None:
        section = {f"n{i + 1}": {} for i in range(max(1, replicas))}
    elif isinstance(section, list | tuple) and all(isinstance(n, str) for n in section):
        section = {n: {} for n in section}
    if not isinstance(section, Mapping) or not section:
        problems.add(("nodes",), "expected a list of names, or a mapping: NAME: {address: host:port, x: 2s}")
        return {}
    nodes: dict[NodeId, Node] = {}
    for name, entry in section.items():
        if name == COORDINATOR:
            problems.add(("nodes", name), "is the name of the process that gives orders; expected another one")
        model = validated(NodeModel, {} if entry is None else entry, ("nodes", name), problems)
        model = model or NodeModel()  # its mistakes are noted; fragments may still refer to it
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


def read_fragments(section: Any, problems: Problems) -> tuple[FragmentSpec, ...]:
    if section is None:
        return ()
    if not isinstance(section, Mapping) or not section:
        problems.add(("fragments",), "expected a mapping: NAME: {operators: [...], replicas: 2}")
        return ()
    found = []
    for name, entry in section.items():
        model = validated(FragmentModel, entry, ("fragments", name), problems)
        if model is not None:
            found.append(model.spec(name))
    return tuple(found)


def read_clients(
    section: Any, outputs: Sequence[StreamId], operators: Sequence[StreamId], problems: Problems
) -> dict[str, ClientSettings]:
    """Clients; one that reads everything where none is configured.  ``{}`` means none."""
    if section is None:
        return {ONLY_CLIENT: ClientSettings(ONLY_CLIENT, tuple(outputs))}
    if not isinstance(section, Mapping):
        problems.add(("clients",), "expected a mapping: NAME: {reads: [...], sinks: [...]}")
        return {}
    clients: dict[str, ClientSettings] = {}
    for name, entry in section.items():
        model = validated(ClientModel, {} if entry is None else entry, ("clients", name), problems)
        if model is None:
            continue
        reads = tuple(outputs) if model.reads is None else tuple(map(StreamId, model.reads))
        for i, stream in enumerate(reads):
            if stream not in outputs:
                hint = did_you_mean(stream, outputs)
                inner = (
                    f"{stream!r} is no output; list it in outputs" if stream in operators else f"no output {stream!r}"
                )
                problems.add(("clients", name, "reads", i), f"{inner}{hint}; expected {one_of(list(outputs))}")
        clients[name] = ClientSettings(name, reads, tuple(s.sink() for s in model.sinks))
    return clients
