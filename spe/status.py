"""What a process says of itself: to ``spe status``, the live view, and whoever reads the JSON of both.

There is a class for each kind of process, and ``kind`` tells them apart.  On the wire and as JSON a status is a map
with the names of the fields; docs/reference/status.md is made of the docstrings here.

What a peer sends is checked field by field.  A field that is missing or of another type is an error.  One that is not
declared here is left out: a later version may say more to an earlier one without a new version of the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from pydantic import FailFast, Field, PlainSerializer, PlainValidator, TypeAdapter, ValidationError
from pydantic import StrictBool as Flag
from pydantic import StrictInt as Integer
from pydantic import StrictStr as Text

from spe.stream.names import NodeState

T = TypeVar("T")


def _state(value: object) -> NodeState:
    if isinstance(value, NodeState):
        return value
    if isinstance(value, str) and value in NodeState.__members__:
        return NodeState[value]
    raise ValueError(f"expected one of {', '.join(NodeState.__members__)}")


#: By its name.
State: TypeAlias = Annotated[NodeState, PlainValidator(_state), PlainSerializer(lambda state: state.name, str)]
Number: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False)]
#: The first bad entry is enough: a peer may send thousands of them.
Many: TypeAlias = Annotated[tuple[T, ...], FailFast()]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOfOtherLog:
    """A consumer that is not served, because it has read another log (rule S6).

    Attributes:
      reader: its name.
      count: how often it has asked.
      why: how the logs differ.
    """

    reader: Text
    count: Integer
    why: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """Who is connected to a process.

    Attributes:
      connections: connections of each peer that has any now.
      sent_away: connections closed to make room for newer ones of the same peer.
      other_logs: the latest 64 consumers that have read another log.
    """

    connections: Mapping[Text, Integer]
    sent_away: Integer
    other_logs: Many[ReaderOfOtherLog]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramStatus:
    """Counts of values between bounds.

    Attributes:
      bounds: upper ones, ascending.
      counts: values in each interval, the last one above all bounds.
      sum: of all values.
      largest: of all values; 0 where there is none.
    """

    bounds: Many[Number]
    counts: Many[Integer]
    sum: Number
    largest: Number = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryStatus:
    """Version of the directory that a process goes by (docs/internals/directory.md).

    Attributes:
      epoch: of the coordinator that issued it; 0 where the configuration is all there is.
      number: grows with each version.
    """

    epoch: Integer
    number: Integer


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateStatus:
    """The certificate that new connections of a process use.

    Attributes:
      expires_us: when it expires.
      ca_expires_us: when the first certificate of the CA does.
      refused: why the files of a new one are not used; "" where there are none.
    """

    expires_us: Integer
    ca_expires_us: Integer
    refused: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonStatus:
    """What every process says of itself.

    Attributes:
      kind: of the process.
      name: node id, `source:NAME`, `client:NAME`, `coordinator` or `supervisor`.
      incarnation: grows with each start of the process.
      server: who is connected; null if the process was not asked over a connection.
      directory: who runs what, as the process knows it; null as with `server`.
      disk_full: what cannot be written for lack of room, and the disk's error.
      certificate: null without TLS.
      away: servers outside the cluster that do not answer the source or client, and why.
      unreachable: processes that do not answer heartbeats, and why.
    """

    kind: str
    name: Text
    incarnation: Integer
    server: ServerStatus | None = None
    directory: DirectoryStatus | None = None
    disk_full: Mapping[Text, Text] = field(default_factory=dict)
    away: Mapping[Text, Text] = field(default_factory=dict)
    certificate: CertificateStatus | None = None
    unreachable: Mapping[Text, Text] = field(default_factory=dict)

    @property
    def waits_for(self) -> Mapping[str, str]:
        """Of ``away``: those without which the process does not go on."""
        return self.away


# -- nodes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class InputStatus:
    """One input of a replica or a client.

    Attributes:
      channel: stream and partition.
      main: producer that it is read from; null: nobody.
      corrections: producer that corrections are read from beside it; null: nobody.
      position: id of the last stable tuple held.
      frontier: largest stable boundary.
      switches: choices of `main`, the first included.
      other_logs: producers that do not continue what was read, and why.
    """

    channel: Text
    main: Text | None
    corrections: Text | None
    position: Integer
    frontier: Integer
    switches: Integer
    other_logs: Mapping[Text, Text]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStatus:
    """What a replica needed over 10 s in which it was STABLE, or the mean of several such times (rule L1).

    Attributes:
      cpu: share of one core.
      memory_bytes: of its state, and of what waits in its inputs and outputs.
      network_bytes: per second, in and out.
      rows: per second that came in.
      state_bytes: of a snapshot, about.
    """

    cpu: Number
    memory_bytes: Integer
    network_bytes: Integer
    rows: Number
    state_bytes: Integer


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStatus:
    """The checkpoint log of a replica (rule G7): what a restart would take, and what that costs.

    Times to recover are without the start of the process.

    Attributes:
      recovery_us: expected if the replica began again now.
      least_us: the shortest that its share of the time allows for what it has now.
      recovered_us: how long the last one took; null where there was none since the process began.
      expected_us: what had been expected of that one; null as before.
      records: to load (q); a slice counts as 20.
      rows: to replay (u).
      live: pieces of state with a record.
      load_us: per record; assumed until it is measured.
      replay_us: per row, likewise.
      write_us: per record that is rewritten, likewise.
      written_bytes: written, in one copy.
      rewritten_bytes: how many of these were rewritten.
      kept_bytes: on disk now, in one copy.
      trouble: why a copy is not written, or the log not opened; "" where both are.
    """

    recovery_us: Integer
    least_us: Integer
    recovered_us: Integer | None
    expected_us: Integer | None
    records: Integer
    rows: Integer
    live: Integer
    load_us: Number
    replay_us: Number
    write_us: Number
    written_bytes: Integer
    rewritten_bytes: Integer
    kept_bytes: Integer
    trouble: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """A replica that a node runs.

    Attributes:
      unit: that it is a replica of.
      partition: number of the key partition, from 0.
      state: of all of its outputs.
      fresh: while STABILIZATION, new tentative results go on as well.
      installed: it has the state that it goes on from.
      missing: inputs that lack what recovery needs.
      differs: outputs whose stable tuples differ from a partner's, and operators that may be the cause.
      skew: inputs that lag others in tuple time.
      stable: stable tuples made, all outputs together.
      tentative: tentative tuples made.
      suffix_bytes: tentative elements held for consumers.
      frontier: largest stable boundary of the first output.
      tentative_frontier: the same of tentative boundaries.
      reconciliations: corrections that ended.
      redone_rows: stable input tuples that corrections took in.
      rebuilt_rows: input tuples processed again before that, to rebuild a state (`reconcile: undo`).
      largest_slice: input tuples in the largest step.
      inputs: of the replica.
      fill: share of the fullest output buffer in use; 1 is full.
      held_bytes: stable input in memory that waits for another input, or for a correction.
      counters: counters of operators, as `operator.counter`; empty also if an operator failed to give them.
      error: why the replica has stopped; null while it runs.
      load: the latest; null before the first.
      load_age_us: how long ago that was measured.
      log: its checkpoint log; null while it writes none.
      x_us: its share of the X of the node; null where the node does not tell.
      waiting_us: how long the next bucket has waited for its inputs; 0 where none waits.
      x_used: waits of first buckets before their release; 1 is `x_us`.
      partners: state of the partition's other replicas; null if one does not answer, or does not run it.
      asks: it asks a partner for leave to correct.
    """

    unit: Text
    partition: Integer
    state: State
    fresh: Flag
    installed: Flag
    missing: Many[Text]
    differs: Many[Text]
    skew: Many[Text]
    stable: Integer
    tentative: Integer
    suffix_bytes: Integer
    frontier: Integer
    tentative_frontier: Integer
    reconciliations: Integer
    redone_rows: Integer
    rebuilt_rows: Integer
    largest_slice: Integer
    inputs: Many[InputStatus]
    fill: Number
    held_bytes: Integer
    counters: Mapping[Text, Integer]
    error: Text | None
    load: LoadStatus | None = None
    load_age_us: Integer | None = None
    log: LogStatus | None = None
    x_us: Integer | None = None
    waiting_us: Integer = 0
    x_used: HistogramStatus | None = None
    partners: Mapping[Text, State | None] = field(default_factory=dict)
    asks: Flag = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyStatus:
    """A partition that a node stands by for.

    Attributes:
      unit: of the partition.
      partition: its number, from 0.
      checkpoints: taken, the one found on disk counted.
      trouble: why the last one could not be taken; "" where it could.
      positions: id that the newest checkpoint holds of each input, by channel.
      makers: nodes that could give one now.
    """

    unit: Text
    partition: Integer
    checkpoints: Integer
    trouble: Text
    positions: Mapping[Text, Integer]
    makers: Many[Text]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillStatus:
    """What a node keeps on disk for lack of memory.

    Attributes:
      used: bytes on disk, or on their way there.
      written: pieces written.
      read: pieces read again.
      refused: how often there was no room, or the disk refused a write.
      damaged: pieces that could not be read again.
    """

    used: Integer
    written: Integer
    read: Integer
    refused: Integer
    damaged: Integer


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsStatus:
    """What a node goes by now; `spe set` changes it.

    Attributes:
      x_us: X of the node.
      alpha: the share of X that is spent waiting.
      during_failure: policy for new tuples, `process`, `delay` or `suspend`.
      during_stabilization: the same while a replica corrects.
    """

    x_us: Integer
    alpha: Number
    during_failure: Text
    during_stabilization: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus(CommonStatus):
    """A node.

    Attributes:
      settings: null where the node does not tell.
      spill: null where the node spills nothing.
      replicas: that run on it.
      standbys: partitions that it stands by for, and does not run.
    """

    kind: Literal["node"] = "node"
    settings: SettingsStatus | None = None
    spill: SpillStatus | None
    replicas: Many[ReplicaStatus]
    standbys: Many[StandbyStatus]


# -- logs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderStatus:
    """Who needs what `retain` would delete.

    Attributes:
      holder: a replica, standby or client, `spe report --follow`, or a partition whose state is in memory only.
      since_us: wall time since which it does; since the process began, at the longest.
      bytes: how much.
    """

    holder: Text
    since_us: Integer
    bytes: Integer


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingStatus:
    """What a client has recorded, where `retain` says how long it is kept.

    Attributes:
      bytes: on the disk.
      deleted_bytes: so far.
      held: who needs what is due for deletion, the most first.
      archive: why what is due cannot be copied or deleted; "" where it can.
    """

    bytes: Integer
    deleted_bytes: Integer
    held: Many[HolderStatus]
    archive: Text


# -- sources -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLogStatus:
    """What a source has taken in.

    Attributes:
      identity: of the log; another one means another history (rule S6).
      last_id: tuples logged.
      frontier: largest boundary published.
      ended: the input is over.
      note: why the first tuple may take long; "" if nothing is to say.
      fault: why nothing more is taken in; null while all is well.
      malformed: rows that do not fit the schema.
      refused_ahead: rows too far in the future.
      late: tuples stamped later than their event time.
      late_by_us: disorder that would have sufficed for these; 0 if none was late.
      first_id: id of the first tuple in the log.
      first_us: the log is whole from this tuple time on; null if nothing was deleted.
      bytes: of the log.
      held: who needs what is due for deletion, the most first.
      archive: why what is due cannot be copied or deleted; "" where it can.
    """

    identity: Text
    last_id: Integer
    frontier: Integer
    ended: Flag
    note: Text
    fault: Text | None
    malformed: Integer
    refused_ahead: Integer
    late: Integer
    late_by_us: Integer
    first_id: Integer = 1
    first_us: Integer | None = None
    bytes: Integer = 0
    held: Many[HolderStatus] = ()
    archive: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus(CommonStatus):
    """A source.

    Attributes:
      log: null until the log is open.
    """

    kind: Literal["source"] = "source"
    log: SourceLogStatus | None

    @property
    def waits_for(self) -> Mapping[str, str]:
        """Not the sinks of late and rejected rows, for which the log is kept."""
        return {what: why for what, why in self.away.items() if what == "reader"}


# -- clients -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStatus:
    """What a client has received of one channel since its process began.

    Attributes:
      channel: stream and partition.
      producer: replica that it is read from; null: nobody.
      stable: stable tuples received.
      tentative: tentative tuples received.
      undone: tentative tuples taken back.
      switches: arrivals from another producer than before.
      position: id of the last stable tuple.
      frontier: largest stable boundary.
      held: it holds tentative tuples.
      delay_us: Delay_new of the latest new tuples; null where it is not known.
      delay_max_us: the longest of them.
      gap_max_us: longest time between two arrivals, or since the last one.
      stable_gap_max_us: the same of stable arrivals.
      last_arrival_us: wall time of the latest arrival; null before the first.
      ended: the stream is over.
      bound_us: sum of X along the slowest path to the output; null where the client does not tell.
      x_used: delays of new tuples, 1 is `bound_us`; null if unknown.
    """

    channel: Text
    producer: Text | None
    stable: Integer
    tentative: Integer
    undone: Integer
    switches: Integer
    position: Integer
    frontier: Integer
    held: Flag
    delay_us: Integer | None
    delay_max_us: Integer | None
    gap_max_us: Integer
    stable_gap_max_us: Integer
    last_arrival_us: Integer | None
    ended: Flag
    bound_us: Integer | None = None
    x_used: HistogramStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchStatus:
    """A change of the producer that a channel is read from.

    Attributes:
      channel: stream and partition.
      before: producer that was read.
      after: producer that is read instead.
      silence_us: from the last arrival of the one to the first of the other.
      at_us: wall time of the latter.
    """

    channel: Text
    before: Text
    after: Text
    silence_us: Integer
    at_us: Integer


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultStatus:
    """A row of an output, as a client has received it.

    Attributes:
      tentative: it will be undone.
      values: texts, each cut to 40 characters.
    """

    tentative: Flag
    values: Many[Text]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestStatus:
    """The last rows of an output, for people; sinks and `spe client` have all of them.

    Attributes:
      stream: name of the output.
      columns: its first 12 attributes.
      rows: the last 5 that were received, less those that were undone.
    """

    stream: Text
    columns: Many[Text]
    rows: Many[ResultStatus]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatus(CommonStatus):
    """A client of a run; others answer nobody.

    Attributes:
      channels: that it reads.
      switches: the latest 100.
      recording: null where it is kept for ever, or there is none.
      newest: rows of its first 8 outputs.
    """

    kind: Literal["client"] = "client"
    channels: Many[ChannelStatus]
    switches: Many[SwitchStatus]
    recording: RecordingStatus | None = None
    newest: Many[NewestStatus] = ()


# -- the coordinator, and who looks after a run --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """A partition that has standbys.

    Attributes:
      partition: its name.
      running: state of each replica that answers, by node.
      placed: nodes that always run it.
      standbys: nodes that stand by for it, in order.
      wanted: standbys that are to run it though nothing has failed.
      served: a node runs it, answers, and is not recovering.
    """

    partition: Text
    running: Mapping[Text, State]
    placed: Many[Text]
    standbys: Many[Text]
    wanted: Many[Text]
    served: Flag


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationStatus:
    """Which standbys run by plan.

    Attributes:
      budget: partitions that may have a standby run.
      active: partitions that have.
      target: partitions that will have, as decided.
      of: output fidelity of the target if all others fail; null before the first choice.
    """

    budget: Integer
    active: Many[Text]
    target: Many[Text]
    of: Number | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveStatus:
    """A partition that moves, or has moved, from one node to another.

    Attributes:
      number: of the order.
      partition: its name.
      source: the node that it leaves.
      target: the node that it moves to.
      role: of the source, then of the target: `active` or `standby`.
      reason: who wanted it.
      phase: `wait`, `join`, `install`, `follow`, `leave`, then `done` or `dropped`.
      why: what it waits for, or why it was dropped; empty while it goes on.
      began_us: wall time at which it entered each phase.
      predicted_us: how long it was expected to take; null where nothing is known.
      state_from: `partner`, or the target's own `checkpoint` if expected to be sooner.
    """

    number: Integer
    partition: Text
    source: Text
    target: Text
    role: Text
    reason: Text
    phase: Text
    why: Text
    began_us: Mapping[Text, Integer]
    predicted_us: Integer | None
    state_from: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLoad:
    """What a partition has needed in the last 15 minutes (rule L1).

    Attributes:
      partition: its name.
      samples: how many times of 10 s are known; 90 are all.
      mean: over these; of its replicas the largest counts.
    """

    partition: Text
    samples: Integer
    mean: LoadStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedInstallStatus:
    """A partition that comes back once its node has finished the earlier ones.

    Attributes:
      partition: its name.
      node: where it is to run.
    """

    partition: Text
    node: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueStatus:
    """What the results are worth from some time on.

    Attributes:
      after_s: seconds after the plan was made.
      value: from 0 to 1.
    """

    after_s: Number
    value: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryStatus:
    """Partitions that come back in an order, because nodes have too little room for all.

    Attributes:
      goal: `fidelity` or `complete`, as `recovery.value`.
      value: what the results are worth now, from 0 to 1.
      under_way: node of each partition that is being restored.
      planned: what comes next, in order.
      waits: why each partition waits that has no place.
      values: expected over time, if nothing comes or goes; empty before the first plan.
      room: free cores of each node that answers; below 0 if overloaded.
    """

    goal: Text
    value: Number
    under_way: Mapping[Text, Text]
    planned: Many[PlannedInstallStatus]
    waits: Mapping[Text, Text]
    values: Many[ValueStatus]
    room: Mapping[Text, Number]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStatus(CommonStatus):
    """The coordinator.

    Attributes:
      partitions: that have standbys.
      activation: of standbys by plan.
      moves: the newest, in the order in which they were ordered.
      loads: of partitions with known loads.
      recovery: null while there is room for all that is lost.
      joined: addresses of nodes that no configuration names, by name.
    """

    kind: Literal["coordinator"] = "coordinator"
    partitions: Many[PartitionStatus]
    activation: ActivationStatus
    moves: Many[MoveStatus] = ()
    loads: Many[PartitionLoad] = ()
    recovery: RecoveryStatus | None = None
    joined: Mapping[Text, Text] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultStatus:
    """A fault that is planned for a run, or that somebody injected.  Times are wall time.

    Attributes:
      fault: in words.
      planned_us: when it is due; null: somebody asked for it.
      began_us: when it really began; null: not yet.
      ended_us: when it ended; null: not yet, or it does not last.
      for_us: how long it lasts; null: until it is healed.
      errors: what could not be done.
    """

    fault: Text
    planned_us: Integer | None
    began_us: Integer | None
    ended_us: Integer | None
    for_us: Integer | None
    errors: Many[Text]


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorStatus(CommonStatus):
    """Who looks after a run; `spe top` asks it, `spe status` does not.

    Attributes:
      faults: planned and injected ones, in the order of planning.
      phases: what each process of the run is doing: `starting`, `running`, `frozen`, `killed`, `stopped`, `ended` or
        `died`.
      begun_us: wall time at which the sources began; null: not yet.
    """

    kind: Literal["supervisor"] = "supervisor"
    faults: Many[FaultStatus]
    phases: Mapping[Text, Text]
    begun_us: Integer | None


ProcessStatus: TypeAlias = NodeStatus | SourceStatus | ClientStatus | CoordinatorStatus | SupervisorStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """What `spe status --json` prints.

    Attributes:
      processes: status of each process that answered, by name.
      errors: why the others did not, by name.
      metrics: where each process serves metrics and health, if known, by name.
    """

    processes: Mapping[str, Annotated[ProcessStatus, Field(discriminator="kind")]]
    errors: Mapping[str, str]
    metrics: Mapping[str, str] = field(default_factory=dict)


_PROCESS: Final = TypeAdapter[ProcessStatus](Annotated[ProcessStatus, Field(discriminator="kind")])


def status_of(data: object) -> ProcessStatus:
    """The status that a map says; one that is a status already is taken as it is.

    Raises:
      ValueError: it is none: names the field, and says what was expected.
    """
    try:
        return _PROCESS.validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"][1:]))
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from None


def plain(status: object) -> dict[str, Any]:
    """The map that says it, of values that JSON and msgpack have.

    Raises:
      ValueError: something in it is not of the declared type.
    """
    data: dict[str, Any] = _PROCESS.dump_python(status, mode="json", warnings="error")  # type: ignore[arg-type]
    return data
