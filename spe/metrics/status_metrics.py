"""The metrics of each kind of process, made from its status (spe.status)."""

from __future__ import annotations

from typing import Final

from spe.metrics.exposition import Exposition, Kind, Metric
from spe.status import (
    ChannelStatus,
    ClientStatus,
    CoordinatorStatus,
    InputStatus,
    NodeStatus,
    ProcessStatus,
    ReplicaStatus,
    SourceStatus,
)
from spe.stream.names import NodeState
from spe.stream.times import BEFORE_TIME, END_OF_TIME


def _metrics(kind: Kind, **helps: str) -> tuple[Metric, ...]:
    return tuple(Metric(name, kind, text) for name, text in helps.items())


#: All metrics of all processes, in the order of the text.
METRICS: Final = (
    *_metrics(
        "gauge",
        spe_process_info="Always 1; the kind of the process and its version are labels.",
        spe_process_incarnation="Grows with each start of the process.",
        spe_directory_version="Number of the directory that the process goes by.",
        spe_server_connections="Connections of each peer.",
        spe_disk_full="1 for each thing that cannot be written for lack of room.",
        spe_server_away="1 for each server outside of the cluster that is read or written to and does not answer.",
        spe_certificate_expiry_timestamp_seconds="When the certificate of the process expires, seconds since 1970.",
        spe_certificate_ca_expiry_timestamp_seconds="When the first certificate of its CA expires.",
        spe_certificate_refused="1 when files of a new certificate are not used; the status says why.",
        spe_storage_free_bytes="Free room on the disk that holds what the process keeps.",
        spe_storage_size_bytes="Size of that disk.",
    ),
    *_metrics(
        "counter",
        spe_server_connections_sent_away_total="Connections that had to make room for newer ones of the same peer.",
        process_cpu_seconds_total="CPU time of the process, user and system.",
    ),
    *_metrics(
        "gauge",
        process_resident_memory_bytes="Memory of the process that is in RAM.",
        process_open_fds="Open file descriptors.",
        process_max_fds="Limit of open file descriptors.",
        process_start_time_seconds="When the process began, seconds since 1970.",
        spe_node_x_seconds="X of the node.",
        spe_node_alpha_ratio="Share of X that is spent waiting.",
        spe_spill_used_bytes="Bytes of spill files on disk, or on their way there.",
    ),
    *_metrics(
        "counter",
        spe_spill_written_pieces_total="Pieces written to spill files.",
        spe_spill_read_pieces_total="Pieces read again from spill files.",
        spe_spill_refused_pieces_total="Pieces for which there was no room, or that the disk refused.",
        spe_spill_damaged_pieces_total="Pieces that could not be read again.",
    ),
    *_metrics(
        "gauge",
        spe_replica_state="1 for the state that the replica is in, 0 for the others.",
        spe_replica_installed="1 when the replica has the state that it goes on from.",
        spe_replica_failed="1 when the replica has stopped for an error.",
        spe_replica_differences="Outputs whose stable tuples are not those of a partner.",
        spe_replica_partners="Other replicas of the partition.",
        spe_replica_partners_lost="Other replicas of the partition that do not answer, or do not run it.",
        spe_replica_x_seconds="Share of X of the replica.",
        spe_replica_waiting_seconds="How long the next bucket has waited for its inputs.",
        spe_replica_x_waiting_ratio="The same relative to X: 1 is all of it.",
    ),
    *_metrics(
        "histogram",
        spe_replica_x_used_ratio="Of each release: how long its first bucket had waited, relative to X.",
    ),
    *_metrics(
        "counter",
        spe_replica_stable_tuples_total="Stable tuples made, by all earlier processes too.",
        spe_replica_tentative_tuples_total="Tentative tuples made.",
        spe_replica_corrections_total="Corrections that ended.",
        spe_replica_redone_tuples_total="Input tuples that corrections took in.",
        spe_replica_rebuilt_tuples_total="Input tuples that were processed again before a correction.",
        spe_replica_operator_events_total="What operators counted, such as rows that they rejected.",
    ),
    *_metrics(
        "gauge",
        spe_replica_x_used_max_ratio="The largest of spe_replica_x_used_ratio.",
        spe_replica_asks="1 while the replica waits for a partner's leave to correct.",
        spe_replica_suffix_bytes="Tentative elements that are held for consumers.",
        spe_replica_held_bytes="Stable input in memory that waits for another input, or for a correction.",
        spe_replica_output_fill_ratio="Share of the fullest output buffer in use.",
        spe_replica_largest_step_tuples="Input tuples in the largest step.",
        spe_replica_frontier_timestamp_seconds="Largest stable boundary of the first output, tuple time.",
        spe_replica_tentative_frontier_timestamp_seconds="The same of tentative boundaries.",
        spe_replica_inputs_skewed="Inputs that lag others in tuple time.",
        spe_replica_inputs_missing="Inputs that lack something, while recovery cannot go on without it.",
        spe_replica_load_cpu_ratio="Share of a core that the replica needed when it was measured last.",
        spe_replica_load_memory_bytes="Memory that the replica needed then.",
        spe_replica_load_network_bytes_per_second="Bytes in and out then.",
        spe_replica_load_tuples_per_second="Input tuples then.",
        spe_replica_snapshot_bytes="Size of a snapshot then, about.",
        spe_checkpoint_log_recovery_seconds="What a restart from the checkpoint log would take, as far as is known.",
        spe_checkpoint_log_kept_bytes="Size of one copy of the checkpoint log.",
        spe_checkpoint_log_failing="1 when a copy of the checkpoint log is not written.",
        spe_input_connected="1 when the input is read from somebody.",
        spe_input_producer="1 for the producer that the input is read from.",
        spe_input_correcting="1 while corrections are read from another producer.",
        spe_input_frontier_timestamp_seconds="Largest stable boundary of the input, tuple time.",
        spe_input_refused_producers="Producers that are not read because they do not continue what was read.",
    ),
    *_metrics(
        "counter",
        spe_input_stable_tuples_total="Stable tuples of the input, by all earlier processes too.",
        spe_input_switches_total="How often the input has got another producer.",
        spe_checkpoint_log_written_bytes_total="Bytes written to one copy of the checkpoint log.",
        spe_checkpoint_log_rewritten_bytes_total="How many of these were rewritten.",
        spe_standby_checkpoints_total="Checkpoints that a standby has taken.",
    ),
    *_metrics(
        "gauge",
        spe_standby_failing="1 when the last checkpoint could not be taken.",
        spe_source_failed="1 when the source takes in nothing more for an error.",
        spe_source_ended="1 when the input is over.",
        spe_source_frontier_timestamp_seconds="Largest boundary of the source, tuple time.",
        spe_source_late_seconds="Disorder that would have been enough for all tuples that were late.",
    ),
    *_metrics(
        "counter",
        spe_source_tuples_total="Tuples in the log, by all earlier processes too.",
        spe_source_malformed_rows_total="Rows set aside because they do not fit the schema.",
        spe_source_refused_rows_total="Rows refused because their times lie too far in the future.",
        spe_source_late_tuples_total="Tuples stamped later than their event time.",
        spe_client_stable_tuples_total="Stable tuples received.",
        spe_client_tentative_tuples_total="Tentative tuples received.",
        spe_client_undone_tuples_total="Tentative tuples taken back.",
        spe_client_switches_total="How often the client has got another producer.",
    ),
    *_metrics(
        "gauge",
        spe_client_connected="1 when the channel is read from somebody.",
        spe_client_producer="1 for the replica that the channel is read from.",
        spe_client_tentative="1 while there are tentative tuples that were not taken back.",
        spe_client_ended="1 when the stream is over.",
        spe_client_frontier_timestamp_seconds="Largest stable boundary received, tuple time.",
        spe_client_last_arrival_timestamp_seconds="Wall time of the latest arrival, seconds since 1970.",
        spe_client_delay_seconds="Delay of the latest new tuples.",
        spe_client_delay_max_seconds="Longest delay of a new tuple.",
        spe_client_gap_max_seconds="Longest time without any arrival.",
        spe_client_stable_gap_max_seconds="Longest time without a stable arrival.",
        spe_client_x_used_max_ratio="The largest of spe_client_x_used_ratio.",
        spe_client_x_seconds="Sum of X along the slowest path to the output.",
    ),
    *_metrics(
        "histogram",
        spe_client_x_used_ratio="Delays of new tuples, relative to the sum of X along the path.",
    ),
    *_metrics(
        "gauge",
        spe_partition_served="1 when a node runs the partition, answers, and is not recovering.",
        spe_partition_replicas_running="Nodes that run the partition, and answer.",
        spe_standbys_budget="Partitions that may have a standby run by plan.",
        spe_standbys_active="Partitions that have.",
        spe_moves_open="Moves of partitions that are under way, by phase.",
        spe_recovery_value_ratio="What the results are worth while lost partitions come back, 1 is everything.",
        spe_recovery_waiting_partitions="Lost partitions that no node has room for.",
        spe_nodes_joined="Nodes that no configuration names.",
    ),
)
_OVER: Final = ("done", "dropped")


def exposition(status: ProcessStatus, *, version: str = "") -> Exposition:
    """The metrics of a process.  Counters and histograms restart with each incarnation, which is one of their labels.

    Args:
      version: version of the software.
    """
    out = Exposition(METRICS, {"process": status.name}, {"incarnation": str(status.incarnation)})
    out.add("spe_process_info", 1, kind=status.kind, version=version)
    out.add("spe_process_incarnation", status.incarnation)
    for what in status.disk_full:
        out.add("spe_disk_full", 1, what=what)
    for what in status.away:
        out.add("spe_server_away", 1, what=what)
    if (certificate := status.certificate) is not None:
        out.add("spe_certificate_expiry_timestamp_seconds", certificate.expires_us / 1e6)
        out.add("spe_certificate_ca_expiry_timestamp_seconds", certificate.ca_expires_us / 1e6)
        out.add("spe_certificate_refused", bool(certificate.refused))
    if status.directory is not None:
        out.add("spe_directory_version", status.directory.number)
    if status.server is not None:
        out.add("spe_server_connections_sent_away_total", status.server.sent_away)
        for peer, count in status.server.connections.items():
            out.add("spe_server_connections", count, peer=peer)
    match status:
        case NodeStatus():
            _node(out, status)
        case SourceStatus():
            _source(out, status)
        case ClientStatus():
            for channel in status.channels:
                _channel(out, channel)
        case CoordinatorStatus():
            _coordinator(out, status)
    return out


def _node(out: Exposition, status: NodeStatus) -> None:
    if (settings := status.settings) is not None:
        out.add("spe_node_x_seconds", settings.x_us / 1e6)
        out.add("spe_node_alpha_ratio", settings.alpha)
    if (spill := status.spill) is not None:
        out.add("spe_spill_used_bytes", spill.used)
        out.add("spe_spill_written_pieces_total", spill.written)
        out.add("spe_spill_read_pieces_total", spill.read)
        out.add("spe_spill_refused_pieces_total", spill.refused)
        out.add("spe_spill_damaged_pieces_total", spill.damaged)
    for replica in status.replicas:
        labels = {"unit": replica.unit, "partition": str(replica.partition)}
        _replica(out, replica, labels)
        for each in replica.inputs:
            _input(out, each, {**labels, "input": each.channel})
    for standby in status.standbys:
        labels = {"unit": standby.unit, "partition": str(standby.partition)}
        out.add("spe_standby_checkpoints_total", standby.checkpoints, **labels)
        out.add("spe_standby_failing", bool(standby.trouble), **labels)


def _replica(out: Exposition, replica: ReplicaStatus, labels: dict[str, str]) -> None:
    for state in NodeState:
        out.add("spe_replica_state", replica.state is state, **labels, state=state.name)
    out.add("spe_replica_installed", replica.installed, **labels)
    out.add("spe_replica_failed", replica.error is not None, **labels)
    out.add("spe_replica_differences", len(replica.differs), **labels)
    out.add("spe_replica_partners", len(replica.partners), **labels)
    out.add("spe_replica_partners_lost", sum(state is None for state in replica.partners.values()), **labels)
    out.add("spe_replica_waiting_seconds", replica.waiting_us / 1e6, **labels)
    if replica.x_us:
        out.add("spe_replica_x_seconds", replica.x_us / 1e6, **labels)
        out.add("spe_replica_x_waiting_ratio", replica.waiting_us / replica.x_us, **labels)
    out.add_histogram("spe_replica_x_used_ratio", replica.x_used, **labels)
    if replica.x_used is not None:
        out.add("spe_replica_x_used_max_ratio", replica.x_used.largest, **labels)
    out.add("spe_replica_stable_tuples_total", replica.stable, **labels)
    out.add("spe_replica_tentative_tuples_total", replica.tentative, **labels)
    out.add("spe_replica_corrections_total", replica.reconciliations, **labels)
    out.add("spe_replica_redone_tuples_total", replica.redone_rows, **labels)
    out.add("spe_replica_rebuilt_tuples_total", replica.rebuilt_rows, **labels)
    for name, count in replica.counters.items():
        operator, _, counter = name.rpartition(".")
        out.add("spe_replica_operator_events_total", count, **labels, operator=operator, event=counter)
    out.add("spe_replica_asks", replica.asks, **labels)
    out.add("spe_replica_suffix_bytes", replica.suffix_bytes, **labels)
    out.add("spe_replica_held_bytes", replica.held_bytes, **labels)
    out.add("spe_replica_output_fill_ratio", replica.fill, **labels)
    out.add("spe_replica_largest_step_tuples", replica.largest_slice, **labels)
    out.add("spe_replica_frontier_timestamp_seconds", _timestamp(replica.frontier), **labels)
    out.add("spe_replica_tentative_frontier_timestamp_seconds", _timestamp(replica.tentative_frontier), **labels)
    out.add("spe_replica_inputs_skewed", len(replica.skew), **labels)
    out.add("spe_replica_inputs_missing", len(replica.missing), **labels)
    if (load := replica.load) is not None:
        out.add("spe_replica_load_cpu_ratio", load.cpu, **labels)
        out.add("spe_replica_load_memory_bytes", load.memory_bytes, **labels)
        out.add("spe_replica_load_network_bytes_per_second", load.network_bytes, **labels)
        out.add("spe_replica_load_tuples_per_second", load.rows, **labels)
        out.add("spe_replica_snapshot_bytes", load.state_bytes, **labels)
    if (log := replica.log) is not None:
        out.add("spe_checkpoint_log_recovery_seconds", log.recovery_us / 1e6, **labels)
        out.add("spe_checkpoint_log_kept_bytes", log.kept_bytes, **labels)
        out.add("spe_checkpoint_log_failing", bool(log.trouble), **labels)
        out.add("spe_checkpoint_log_written_bytes_total", log.written_bytes, **labels)
        out.add("spe_checkpoint_log_rewritten_bytes_total", log.rewritten_bytes, **labels)


def _input(out: Exposition, input_status: InputStatus, labels: dict[str, str]) -> None:
    out.add("spe_input_connected", input_status.main is not None, **labels)
    if input_status.main is not None:
        out.add("spe_input_producer", 1, **labels, producer=input_status.main)
    out.add("spe_input_correcting", input_status.corrections is not None, **labels)
    out.add("spe_input_frontier_timestamp_seconds", _timestamp(input_status.frontier), **labels)
    out.add("spe_input_refused_producers", len(input_status.other_logs), **labels)
    out.add("spe_input_stable_tuples_total", input_status.position, **labels)
    out.add("spe_input_switches_total", input_status.switches, **labels)


def _source(out: Exposition, status: SourceStatus) -> None:
    if (log := status.log) is None:
        return
    out.add("spe_source_failed", log.fault is not None)
    out.add("spe_source_ended", log.ended)
    out.add("spe_source_frontier_timestamp_seconds", _timestamp(log.frontier))
    out.add("spe_source_late_seconds", log.late_by_us / 1e6)
    out.add("spe_source_tuples_total", log.last_id)
    out.add("spe_source_malformed_rows_total", log.malformed)
    out.add("spe_source_refused_rows_total", log.refused_ahead)
    out.add("spe_source_late_tuples_total", log.late)


def _channel(out: Exposition, channel: ChannelStatus) -> None:
    labels = {"channel": channel.channel}
    out.add("spe_client_stable_tuples_total", channel.stable, **labels)
    out.add("spe_client_tentative_tuples_total", channel.tentative, **labels)
    out.add("spe_client_undone_tuples_total", channel.undone, **labels)
    out.add("spe_client_switches_total", channel.switches, **labels)
    out.add("spe_client_connected", channel.producer is not None, **labels)
    if channel.producer is not None:
        out.add("spe_client_producer", 1, **labels, producer=channel.producer)
    out.add("spe_client_tentative", channel.held, **labels)
    out.add("spe_client_ended", channel.ended, **labels)
    out.add("spe_client_frontier_timestamp_seconds", _timestamp(channel.frontier), **labels)
    out.add("spe_client_last_arrival_timestamp_seconds", _seconds(channel.last_arrival_us), **labels)
    out.add("spe_client_delay_seconds", _seconds(channel.delay_us), **labels)
    out.add("spe_client_delay_max_seconds", _seconds(channel.delay_max_us), **labels)
    out.add("spe_client_gap_max_seconds", channel.gap_max_us / 1e6, **labels)
    out.add("spe_client_stable_gap_max_seconds", channel.stable_gap_max_us / 1e6, **labels)
    out.add("spe_client_x_seconds", _seconds(channel.bound_us), **labels)
    out.add_histogram("spe_client_x_used_ratio", channel.x_used, **labels)
    if channel.x_used is not None:
        out.add("spe_client_x_used_max_ratio", channel.x_used.largest, **labels)


def _coordinator(out: Exposition, status: CoordinatorStatus) -> None:
    for partition in status.partitions:
        out.add("spe_partition_served", partition.served, partition=partition.partition)
        out.add("spe_partition_replicas_running", len(partition.running), partition=partition.partition)
    out.add("spe_standbys_budget", status.activation.budget)
    out.add("spe_standbys_active", len(status.activation.active))
    phases = [move.phase for move in status.moves if move.phase not in _OVER]
    for phase in sorted(set(phases)):
        out.add("spe_moves_open", phases.count(phase), phase=phase)
    out.add("spe_recovery_value_ratio", 1.0 if status.recovery is None else status.recovery.value)
    out.add("spe_recovery_waiting_partitions", 0 if status.recovery is None else len(status.recovery.waits))
    out.add("spe_nodes_joined", len(status.joined))


def _seconds(us: int | None) -> float | None:
    return None if us is None else us / 1e6


def _timestamp(us: int) -> float | None:
    """Seconds; None before the first boundary, and after the end of the stream."""
    return us / 1e6 if BEFORE_TIME < us < END_OF_TIME else None
