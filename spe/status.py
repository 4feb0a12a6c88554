"""Status of a process, for ``spe status``, the live view, and readers of their JSON.

There is a class for each kind of process, distinguished by ``kind``.  On the wire and as JSON a status is a map with
the names of the fields; docs/reference/status.md is generated from the docstrings here.

A received status is checked field by field.  A missing field, or one of another type, is an error.  An undeclared field
is ignored: a later version may add fields without a new version of the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from pydantic import FailFast, Field, PlainSerializer, PlainValidator, TypeAdapter, ValidationError
from pydantic import StrictBool as Flag
from pydantic import StrictInt as Integer
from pydantic import StrictStr as Text

from spe.errors import LinkBroken, LinkClosed, NoTls, PeerBusy, SpeError, TurnedAway
from spe.stream.names import NodeState

T = TypeVar("T")
#: Version of ``spe status --json``.
STATUS_VERSION: Final = 1


def _state(value: object) -> NodeState:
    if isinstance(value, NodeState):
        return value
    if isinstance(value, str) and value in NodeState.__members__:
        return NodeState[value]
    raise ValueError(f"expected one of {', '.join(NodeState.__members__)}")


#: A state, by its name.
State: TypeAlias = Annotated[NodeState, PlainValidator(_state), PlainSerializer(lambda state: state.name, str)]
Number: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False)]
#: Validation stops at the first bad entry: a peer may send thousands.
Many: TypeAlias = Annotated[tuple[T, ...], FailFast()]


@dataclass(frozen=True, slots=True)
class UnreachedStatus:
    """Why a process is not reached.

    Attributes:
      kind: `silent`: it does not answer, or the connection broke; `turned away`: its machine, or a firewall, refuses
        connections; `refused`: it answers, and refuses.
      why: the error.
    """

    kind: Literal["silent", "turned away", "refused"]
    why: Text

    @classmethod
    def of(cls, error: SpeError) -> UnreachedStatus:
        if isinstance(error, TurnedAway):
            return cls("turned away", str(error))
        is_silent = isinstance(error, (LinkBroken, LinkClosed)) and not isinstance(error, (PeerBusy, NoTls))
        return cls("silent" if is_silent else "refused", str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOfOtherLog:
    """A consumer that is refused because it has read another log than that of this process (rule S6).

    Attributes:
      reader: its name.
      count: number of its requests.
      why: difference of the logs.
    """

    reader: Text
    count: Integer
    why: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """Connections to a process.

    Attributes:
      connections: number of connections of each connected peer.
      sent_away: connections closed to make room for newer ones of the same peer.
      other_logs: consumers refused because they have read another log, the latest 64.
    """

    connections: Mapping[Text, Integer]
    sent_away: Integer
    other_logs: Many[ReaderOfOtherLog]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramStatus:
    """Counts of values between bounds.

    Attributes:
      bounds: upper bounds, ascending.
      counts: number of values in each interval; the last interval is above all bounds.
      sum: sum of all values.
      largest: largest value; 0 if there is none.
    """

    bounds: Many[Number]
    counts: Many[Integer]
    sum: Number
    largest: Number = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryStatus:
    """Version of a process's directory (docs/internals/directory.md).

    Attributes:
      epoch: epoch of the coordinator that issued it; 0 for the configuration.
      number: grows with each version.
    """

    epoch: Integer
    number: Integer


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateStatus:
    """The certificate that new connections of a process use.

    Attributes:
      expires_us: time of its expiry.
      ca_expires_us: first expiry of a certificate of the CA.
      refused: reason why the files of a new one are not used; "" if there are none.
    """

    expires_us: Integer
    ca_expires_us: Integer
    refused: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonStatus:
    """Fields of the status of every process.

    Attributes:
      kind: kind of the process.
      name: node id, `source:NAME`, `client:NAME`, `coordinator` or `supervisor`.
      incarnation: grows with each start of the process.
      server: connections to it; null if the status was not requested over a connection.
      directory: version of its directory; null as with `server`.
      disk_full: what it cannot write for lack of room, and the disk's error.
      certificate: null without TLS.
      away: servers outside the cluster that do not answer the source or client, and the reason.
      unreachable: processes that do not answer heartbeats, and the reason.
    """

    kind: str
    name: Text
    incarnation: Integer
    server: ServerStatus | None = None
    directory: DirectoryStatus | None = None
    disk_full: Mapping[Text, Text] = field(default_factory=dict)
    away: Mapping[Text, Text] = field(default_factory=dict)
    certificate: CertificateStatus | None = None
    unreachable: Mapping[Text, UnreachedStatus] = field(default_factory=dict)

    @property
    def waits_for(self) -> Mapping[str, str]:
        """Servers in ``away`` without which the process cannot continue."""
        return self.away


# -- nodes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class InputStatus:
    """One input of a replica or a client.

    Attributes:
      channel: stream and partition.
      main: producer that it is read from; null: none.
      corrections: second producer, for corrections; null: none.
      position: id of the last stable tuple held.
      frontier: largest stable boundary.
      switches: number of changes of `main`, the first choice included.
      other_logs: producers that are not read because they have another log, and the reason.
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
    """Load of a replica over 10 s in which it was STABLE, or the mean of several such samples (rule L1).

    Attributes:
      cpu: share of one core.
      memory_bytes: memory of its state and of its input and output buffers.
      network_bytes: bytes per second, in and out.
      rows: input rows per second.
      state_bytes: approximate size of a snapshot.
    """

    cpu: Number
    memory_bytes: Integer
    network_bytes: Integer
    rows: Number
    state_bytes: Integer


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStatus:
    """The checkpoint log of a replica (rule G7): its expected recovery time, and its costs.

    Recovery times do not include the start of the process.

    Attributes:
      recovery_us: expected recovery time if the replica restarted now.
      least_us: shortest recovery time that its share of the time allows for its present state.
      recovered_us: duration of the last recovery; null if there was none.
      expected_us: expected duration of that recovery; null as before.
      records: records to load (q); a slice counts as 20.
      rows: rows to replay (u).
      live: pieces of state with a record.
      load_us: time per record to load; assumed until measured.
      replay_us: time per row to replay, likewise.
      write_us: time per rewritten record, likewise.
      written_bytes: bytes written, in one copy.
      rewritten_bytes: part of these that was rewritten.
      kept_bytes: bytes on disk now, in one copy.
      trouble: reason why a copy is not written, or the log not opened; "" if there is none.
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
      unit: its unit.
      partition: number of the key partition, from 0.
      state: state of all of its outputs.
      fresh: in STABILIZATION, it also makes new tentative results.
      installed: it has its initial state.
      missing: inputs that lack tuples that recovery needs.
      differs: outputs whose stable tuples differ from a partner's, and operators that may be the cause.
      skew: inputs that lag others in tuple time.
      stable: stable tuples made, all outputs together.
      tentative: tentative tuples made.
      suffix_bytes: bytes of tentative elements kept for consumers.
      frontier: largest stable boundary of the first output.
      tentative_frontier: the same for tentative boundaries.
      reconciliations: corrections that ended.
      redone_rows: stable input tuples processed by corrections.
      rebuilt_rows: input tuples reprocessed before corrections to rebuild a state (`reconcile: undo`).
      largest_slice: input tuples in the largest step.
      inputs: its inputs.
      fill: share of the fullest output buffer in use; 1 is full.
      held_bytes: bytes of stable input in memory that waits for another input, or for a correction.
      counters: counters of operators, as `operator.counter`; empty also if an operator failed to give them.
      error: reason why the replica has stopped; null while it runs.
      load: latest load; null before the first sample.
      load_age_us: age of that sample.
      log: its checkpoint log; null while it writes none.
      x_us: its share of the node's X; null if unknown.
      waiting_us: time that the next bucket has waited for its inputs; 0 if none waits.
      x_used: waits of first buckets before their release; 1 is `x_us`.
      partners: states of the other replicas of the partition; null if one does not answer, or does not run it.
      asks: its input is complete again, and it requests a partner's permission to correct.
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
    """A standby of a partition on a node.

    Attributes:
      unit: unit of the partition.
      partition: its number, from 0.
      checkpoints: checkpoints received, the one on disk at the start included.
      trouble: reason why the last one failed; "" if it succeeded.
      positions: id of each input, by channel, up to which the newest checkpoint extends.
      makers: nodes that could send a checkpoint now.
    """

    unit: Text
    partition: Integer
    checkpoints: Integer
    trouble: Text
    positions: Mapping[Text, Integer]
    makers: Many[Text]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillStatus:
    """Spill files of a node, for data that exceeds its memory limits.

    Attributes:
      used: bytes on disk, or waiting to be written.
      written: pieces written.
      read: pieces read back.
      refused: number of refusals for lack of room, or by the disk.
      damaged: pieces that could not be read back.
    """

    used: Integer
    written: Integer
    read: Integer
    refused: Integer
    damaged: Integer


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsStatus:
    """Current settings of a node; `spe set` changes them.

    Attributes:
      x_us: X of the node.
      alpha: share of X that may be spent waiting.
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
      settings: its settings; null if unknown.
      spill: its spill files; null if the node does not spill.
      replicas: replicas that it runs.
      standbys: partitions that it is a standby for, and does not run.
    """

    kind: Literal["node"] = "node"
    settings: SettingsStatus | None = None
    spill: SpillStatus | None
    replicas: Many[ReplicaStatus]
    standbys: Many[StandbyStatus]


# -- logs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderStatus:
    """A holder of log segments that `retain` would delete.

    Attributes:
      holder: a replica, standby or client, `spe report --follow`, or a partition whose state is in memory only.
      since_us: wall time since which it needs them; not before the start of the process.
      bytes: size of these segments.
    """

    holder: Text
    since_us: Integer
    bytes: Integer


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingStatus:
    """The recording of a client with `retain`.

    Attributes:
      bytes: bytes on disk.
      deleted_bytes: bytes deleted so far.
      held: holders of segments that are due, the largest first.
      archive: reason why segments that are due cannot be copied or deleted; "" if they can.
    """

    bytes: Integer
    deleted_bytes: Integer
    held: Many[HolderStatus]
    archive: Text


# -- sources -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLogStatus:
    """The log of a source.

    Attributes:
      identity: identity of the log; another one means another history (rule S6).
      last_id: tuples logged.
      frontier: largest boundary published.
      ended: the input has ended.
      note: hint for users who wait for the first tuple; "" if there is none.
      fault: reason why the source takes no more rows; null if it does.
      malformed: rows left out because they do not fit the schema.
      refused_ahead: rows refused because their times are too far in the future.
      late: tuples stamped later than their event time.
      late_by_us: disorder that would have been enough for all of these; 0 if none was late.
      first_id: id of the first tuple in the log.
      first_us: the log is complete from this tuple time on; null if nothing was deleted.
      bytes: size of the log.
      held: holders of segments that are due, the largest first.
      archive: reason why segments that are due cannot be copied or deleted; "" if they can.
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
      log: its log; null until the log is open.
    """

    kind: Literal["source"] = "source"
    log: SourceLogStatus | None

    @property
    def waits_for(self) -> Mapping[str, str]:
        """Servers in ``away`` except those of sinks for late and rejected rows, for which the log is kept."""
        return {what: why for what, why in self.away.items() if what == "reader"}


# -- clients -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStatus:
    """A channel of a client since the start of its process.

    Attributes:
      channel: stream and partition.
      producer: replica that it is read from; null: none.
      stable: stable tuples received.
      tentative: tentative tuples received.
      undone: tentative tuples that were undone.
      switches: number of changes of the producer between two arrivals.
      position: id of the last stable tuple.
      frontier: largest stable boundary.
      held: the client holds tentative tuples that are not undone.
      delay_us: Delay_new of the latest new tuples; null if unknown.
      delay_max_us: the longest delay.
      gap_max_us: longest time between two arrivals, the present silence included.
      stable_gap_max_us: the same for stable arrivals.
      last_arrival_us: wall time of the latest arrival; null before the first.
      ended: the stream has ended.
      bound_us: sum of X along the slowest path to the output; null if unknown.
      x_used: delays of new tuples; 1 is `bound_us`; null if unknown.
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
      before: previous producer.
      after: new producer.
      silence_us: time from the last arrival of the previous to the first of the new producer.
      at_us: wall time of that first arrival.
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
      tentative: the row is tentative, and will be undone.
      values: values as texts, each cut to 40 characters.
    """

    tentative: Flag
    values: Many[Text]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestStatus:
    """The last rows of an output, for display; sinks and `spe client` have all rows.

    Attributes:
      stream: name of the output.
      columns: its first 12 attributes.
      rows: the last 5 received rows, without undone ones.
    """

    stream: Text
    columns: Many[Text]
    rows: Many[ResultStatus]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatus(CommonStatus):
    """A client of a run; external clients have no status.

    Attributes:
      channels: channels that it reads.
      switches: the latest 100 switches.
      recording: its recording; null if it is kept for ever, or there is none.
      newest: newest rows of its first 8 outputs.
    """

    kind: Literal["client"] = "client"
    channels: Many[ChannelStatus]
    switches: Many[SwitchStatus]
    recording: RecordingStatus | None = None
    newest: Many[NewestStatus] = ()


# -- the coordinator, and the supervisor of a run ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """A partition that has standbys.

    Attributes:
      partition: its name.
      running: state of each replica that answers, by node.
      placed: nodes that always run it.
      standbys: its standby nodes, in order.
      wanted: standbys that are to run it although nothing has failed.
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
    """Standbys that run by plan.

    Attributes:
      budget: partitions that may have a standby run.
      active: partitions that have one.
      target: partitions that will have one, after all pending changes.
      of: output fidelity of the target if all partitions with a single replica fail; null before the first choice.
    """

    budget: Integer
    active: Many[Text]
    target: Many[Text]
    of: Number | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveStatus:
    """A partition that moves, or has moved, from one node to another.

    Attributes:
      number: number of the order.
      partition: its name.
      source: node that it leaves.
      target: node that it moves to.
      role: role of the source, which the target takes: `active` or `standby`.
      reason: origin of the request.
      phase: `wait`, `join`, `install`, `follow`, `leave`, then `done` or `dropped`.
      why: reason of its wait, or why it was dropped; empty while it proceeds.
      began_us: wall time at which each phase began.
      predicted_us: expected duration; null if unknown.
      state_from: `partner`, or `checkpoint` if the target's own one is expected to be faster.
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
    """Load of a partition in the last 15 minutes (rule L1).

    Attributes:
      partition: its name.
      samples: number of known samples of 10 s; 90 at most.
      mean: mean of these; the largest of its replicas counts.
    """

    partition: Text
    samples: Integer
    mean: LoadStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedInstallStatus:
    """A partition to be restored after those before it on its node.

    Attributes:
      partition: its name.
      node: node that is to run it.
    """

    partition: Text
    node: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueStatus:
    """Value of the results from some time on.

    Attributes:
      after_s: seconds after the plan was made.
      value: from 0 to 1.
    """

    after_s: Number
    value: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryStatus:
    """Partitions that are restored in an order, because nodes lack room for all.

    Attributes:
      goal: `fidelity` or `complete`, as `recovery.value`.
      value: present value of the results, from 0 to 1.
      under_way: node of each partition that is being restored.
      planned: next partitions, in order.
      waits: partitions without a place, and the reason.
      values: expected values over time, if no node comes or goes; empty before the first plan.
      room: free cores of each node that answers; below 0 if it is overloaded.
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
      partitions: partitions with standbys.
      activation: standbys that run by plan.
      moves: the newest moves, in the order of their commands.
      loads: known loads of partitions.
      recovery: order of recoveries; null while there is room for all lost partitions.
      joined: addresses of nodes that the configuration does not name, by name.
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
    """A planned or injected fault.  Times are wall time.

    Attributes:
      fault: its description.
      planned_us: planned time; null: injected on request.
      began_us: actual begin; null: not yet.
      ended_us: end; null: not yet, or it does not last.
      for_us: duration; null: until it is healed.
      errors: parts that failed.
    """

    fault: Text
    planned_us: Integer | None
    began_us: Integer | None
    ended_us: Integer | None
    for_us: Integer | None
    errors: Many[Text]


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorStatus(CommonStatus):
    """The supervisor of a run; `spe top` requests it, `spe status` does not.

    Attributes:
      faults: planned and injected faults, in the order of planning.
      phases: phase of each process of the run: `starting`, `running`, `frozen`, `killed`, `stopped`, `ended` or
        `died`.
      begun_us: wall time at which the sources started; null: not yet.
    """

    kind: Literal["supervisor"] = "supervisor"
    faults: Many[FaultStatus]
    phases: Mapping[Text, Text]
    begun_us: Integer | None


ProcessStatus: TypeAlias = NodeStatus | SourceStatus | ClientStatus | CoordinatorStatus | SupervisorStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """Output of `spe status --json`.

    Attributes:
      processes: status of each process that answered, by name.
      errors: reasons why the others did not, by name.
      metrics: known addresses of processes' metrics and health, by name.
      version: version of this format; more fields do not change it.
    """

    processes: Mapping[str, Annotated[ProcessStatus, Field(discriminator="kind")]]
    errors: Mapping[str, str]
    metrics: Mapping[str, str] = field(default_factory=dict)
    version: Integer = STATUS_VERSION


_PROCESS: Final = TypeAdapter[ProcessStatus](Annotated[ProcessStatus, Field(discriminator="kind")])


def status_of(data: object) -> ProcessStatus:
    """Makes a status from a map; returns an existing status unchanged.

    Raises:
      ValueError: the map is no status; the error names the field and the expected value.
    """
    try:
        return _PROCESS.validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"][1:]))
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from None


def plain(status: object) -> dict[str, Any]:
    """Converts a status to a map of values for JSON and msgpack.

    Raises:
      ValueError: a field is not of the declared type.
    """
    data: dict[str, Any] = _PROCESS.dump_python(status, mode="json", warnings="error")  # type: ignore[arg-type]
    return data
