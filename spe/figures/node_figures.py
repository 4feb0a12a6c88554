"""Figures of a node, its replicas, their inputs, and its standbys."""

from __future__ import annotations

from typing import Final

from spe.figures.figure import Figure, timestamp
from spe.status import InputStatus, LoadStatus, LogStatus, NodeStatus, ReplicaStatus, SpillStatus, StandbyStatus
from spe.stream.names import NodeState


def waiting_share(replica: ReplicaStatus) -> float | None:
    """Returns the share of X that the next bucket has waited; None where X is unknown."""
    return replica.waiting_us / replica.x_us if replica.x_us else None


def _operator_events(replica: ReplicaStatus) -> dict[tuple[str, str], float]:
    parts = ((name.rpartition("."), count) for name, count in replica.counters.items())
    return {(operator, event): count for (operator, _, event), count in parts}


#: Figures of a node.
NODE: Final[tuple[Figure[NodeStatus], ...]] = (
    Figure("spe_node_x_seconds", lambda n: None if n.settings is None else n.settings.x_us / 1e6, "X of the node."),
    Figure("spe_node_alpha_ratio", lambda n: None if n.settings is None else n.settings.alpha,
           "Share of X that is spent waiting."),
)  # fmt: skip

#: Figures of its spill files.
SPILL: Final[tuple[Figure[SpillStatus], ...]] = (
    Figure("spe_spill_used_bytes", lambda s: s.used, "Bytes of spill files on disk, or on their way there."),
    Figure("spe_spill_written_pieces_total", lambda s: s.written, "Pieces written to spill files."),
    Figure("spe_spill_read_pieces_total", lambda s: s.read, "Pieces read again from spill files."),
    Figure("spe_spill_refused_pieces_total", lambda s: s.refused,
           "Pieces for which there was no room, or that the disk refused."),
    Figure("spe_spill_damaged_pieces_total", lambda s: s.damaged, "Pieces that could not be read again."),
)  # fmt: skip

#: Figures of a replica.
REPLICA: Final[tuple[Figure[ReplicaStatus], ...]] = (
    Figure("spe_replica_state", lambda r: {state.name: r.state is state for state in NodeState},
           "1 for the state that the replica is in, 0 for the others.", labels=("state",)),
    Figure("spe_replica_installed", lambda r: r.installed, "1 when the replica has the state that it goes on from."),
    Figure("spe_replica_failed", lambda r: r.error is not None, "1 when the replica has stopped for an error."),
    Figure("spe_replica_differences", lambda r: len(r.differs),
           "Outputs whose stable tuples are not those of a partner."),
    Figure("spe_replica_partners", lambda r: len(r.partners), "Other replicas of the partition."),
    Figure("spe_replica_partners_lost", lambda r: sum(state is None for state in r.partners.values()),
           "Other replicas of the partition that do not answer, or do not run it."),
    Figure("spe_replica_x_seconds", lambda r: r.x_us / 1e6 if r.x_us else None, "Share of X of the replica."),
    Figure("spe_replica_waiting_seconds", lambda r: r.waiting_us / 1e6,
           "How long the next bucket has waited for its inputs."),
    Figure("spe_replica_x_waiting_ratio", waiting_share, "The same relative to X: 1 is all of it."),
    Figure("spe_replica_x_used_ratio", lambda r: r.x_used,
           "Of each release: how long its first bucket had waited, relative to X.", is_histogram=True),
    Figure("spe_replica_stable_tuples_total", lambda r: r.stable, "Stable tuples made, by all earlier processes too."),
    Figure("spe_replica_tentative_tuples_total", lambda r: r.tentative, "Tentative tuples made."),
    Figure("spe_replica_corrections_total", lambda r: r.reconciliations, "Corrections that ended."),
    Figure("spe_replica_redone_tuples_total", lambda r: r.redone_rows, "Input tuples that corrections took in."),
    Figure("spe_replica_rebuilt_tuples_total", lambda r: r.rebuilt_rows,
           "Input tuples that were processed again before a correction."),
    Figure("spe_replica_operator_events_total", _operator_events,
           "What operators counted, such as rows that they rejected.", labels=("operator", "event")),
    Figure("spe_replica_x_used_max_ratio", lambda r: None if r.x_used is None else r.x_used.largest,
           "The largest of spe_replica_x_used_ratio."),
    Figure("spe_replica_asks", lambda r: r.asks, "1 while the replica waits for a partner's leave to correct."),
    Figure("spe_replica_suffix_bytes", lambda r: r.suffix_bytes, "Tentative elements that are held for consumers."),
    Figure("spe_replica_held_bytes", lambda r: r.held_bytes,
           "Stable input in memory that waits for another input, or for a correction."),
    Figure("spe_replica_output_fill_ratio", lambda r: r.fill, "Share of the fullest output buffer in use."),
    Figure("spe_replica_largest_step_tuples", lambda r: r.largest_slice, "Input tuples in the largest step."),
    Figure("spe_replica_frontier_timestamp_seconds", lambda r: timestamp(r.frontier),
           "Largest stable boundary of the first output, tuple time."),
    Figure("spe_replica_tentative_frontier_timestamp_seconds", lambda r: timestamp(r.tentative_frontier),
           "The same of tentative boundaries."),
    Figure("spe_replica_inputs_skewed", lambda r: len(r.skew), "Inputs that lag others in tuple time."),
    Figure("spe_replica_inputs_missing", lambda r: len(r.missing),
           "Inputs that lack something, while recovery cannot go on without it."),
)  # fmt: skip

#: Figures of its latest load.
LOAD: Final[tuple[Figure[LoadStatus], ...]] = (
    Figure("spe_replica_load_cpu_ratio", lambda load: load.cpu,
           "Share of a core that the replica needed when it was measured last."),
    Figure("spe_replica_load_memory_bytes", lambda load: load.memory_bytes, "Memory that the replica needed then."),
    Figure("spe_replica_load_network_bytes_per_second", lambda load: load.network_bytes, "Bytes in and out then."),
    Figure("spe_replica_load_tuples_per_second", lambda load: load.rows, "Input tuples then."),
    Figure("spe_replica_snapshot_bytes", lambda load: load.state_bytes, "Size of a snapshot then, about."),
)  # fmt: skip

#: Figures of its checkpoint log.
LOG: Final[tuple[Figure[LogStatus], ...]] = (
    Figure("spe_checkpoint_log_recovery_seconds", lambda log: log.recovery_us / 1e6,
           "What a restart from the checkpoint log would take, as far as is known."),
    Figure("spe_checkpoint_log_kept_bytes", lambda log: log.kept_bytes, "Size of one copy of the checkpoint log."),
    Figure("spe_checkpoint_log_failing", lambda log: bool(log.trouble),
           "1 when a copy of the checkpoint log is not written."),
    Figure("spe_checkpoint_log_written_bytes_total", lambda log: log.written_bytes,
           "Bytes written to one copy of the checkpoint log."),
    Figure("spe_checkpoint_log_rewritten_bytes_total", lambda log: log.rewritten_bytes,
           "How many of these were rewritten."),
)  # fmt: skip

#: Figures of an input of a replica.
INPUT: Final[tuple[Figure[InputStatus], ...]] = (
    Figure("spe_input_connected", lambda i: i.main is not None, "1 when the input is read from somebody."),
    Figure("spe_input_producer", lambda i: None if i.main is None else {i.main: 1},
           "1 for the producer that the input is read from.", labels=("producer",)),
    Figure("spe_input_correcting", lambda i: i.corrections is not None,
           "1 while corrections are read from another producer."),
    Figure("spe_input_frontier_timestamp_seconds", lambda i: timestamp(i.frontier),
           "Largest stable boundary of the input, tuple time."),
    Figure("spe_input_refused_producers", lambda i: len(i.other_logs),
           "Producers that are not read because they do not continue what was read."),
    Figure("spe_input_stable_tuples_total", lambda i: i.position,
           "Stable tuples of the input, by all earlier processes too."),
    Figure("spe_input_switches_total", lambda i: i.switches, "How often the input has got another producer."),
)  # fmt: skip

#: Figures of a standby.
STANDBY: Final[tuple[Figure[StandbyStatus], ...]] = (
    Figure("spe_standby_checkpoints_total", lambda s: s.checkpoints, "Checkpoints that a standby has taken."),
    Figure("spe_standby_failing", lambda s: bool(s.trouble), "1 when the last checkpoint could not be taken."),
)  # fmt: skip
