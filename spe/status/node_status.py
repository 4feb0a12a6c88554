"""Status of a node: its replicas, inputs and standbys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from spe.status.field_types import Flag, Integer, Many, Number, State, Text
from spe.status.process_status import CommonStatus, HistogramStatus
from spe.stream.ids import PartitionId
from spe.stream.names import UnitId


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

    @property
    def id(self) -> PartitionId:
        return PartitionId(UnitId(self.unit), self.partition)


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

    @property
    def id(self) -> PartitionId:
        return PartitionId(UnitId(self.unit), self.partition)


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
