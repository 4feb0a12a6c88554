"""Figures of the ends of a query: its sources, and the channels of its clients."""

from __future__ import annotations

from typing import Final

from spe.figures.figure import Figure, seconds, timestamp
from spe.status import ChannelStatus, SourceLogStatus

#: Figures of a source, once its log is open.
SOURCE: Final[tuple[Figure[SourceLogStatus], ...]] = (
    Figure("spe_source_failed", lambda log: log.fault is not None,
           "1 when the source takes in nothing more for an error."),
    Figure("spe_source_ended", lambda log: log.ended, "1 when the input is over."),
    Figure("spe_source_frontier_timestamp_seconds", lambda log: timestamp(log.frontier),
           "Largest boundary of the source, tuple time."),
    Figure("spe_source_late_seconds", lambda log: log.late_by_us / 1e6,
           "Disorder that would have been enough for all tuples that were late."),
    Figure("spe_source_tuples_total", lambda log: log.last_id, "Tuples in the log, by all earlier processes too."),
    Figure("spe_source_malformed_rows_total", lambda log: log.malformed,
           "Rows set aside because they do not fit the schema."),
    Figure("spe_source_refused_rows_total", lambda log: log.refused_ahead,
           "Rows refused because their times lie too far in the future."),
    Figure("spe_source_late_tuples_total", lambda log: log.late, "Tuples stamped later than their event time."),
)  # fmt: skip

#: Figures of a channel of a client.
CHANNEL: Final[tuple[Figure[ChannelStatus], ...]] = (
    Figure("spe_client_stable_tuples_total", lambda c: c.stable, "Stable tuples received."),
    Figure("spe_client_tentative_tuples_total", lambda c: c.tentative, "Tentative tuples received."),
    Figure("spe_client_undone_tuples_total", lambda c: c.undone, "Tentative tuples taken back."),
    Figure("spe_client_switches_total", lambda c: c.switches, "How often the client has got another producer."),
    Figure("spe_client_connected", lambda c: c.producer is not None, "1 when the channel is read from somebody."),
    Figure("spe_client_producer", lambda c: None if c.producer is None else {c.producer: 1},
           "1 for the replica that the channel is read from.", labels=("producer",)),
    Figure("spe_client_tentative", lambda c: c.held, "1 while there are tentative tuples that were not taken back."),
    Figure("spe_client_ended", lambda c: c.ended, "1 when the stream is over."),
    Figure("spe_client_frontier_timestamp_seconds", lambda c: timestamp(c.frontier),
           "Largest stable boundary received, tuple time."),
    Figure("spe_client_last_arrival_timestamp_seconds", lambda c: seconds(c.last_arrival_us),
           "Wall time of the latest arrival, seconds since 1970."),
    Figure("spe_client_delay_seconds", lambda c: seconds(c.delay_us), "Delay of the latest new tuples."),
    Figure("spe_client_delay_max_seconds", lambda c: seconds(c.delay_max_us), "Longest delay of a new tuple."),
    Figure("spe_client_gap_max_seconds", lambda c: c.gap_max_us / 1e6, "Longest time without any arrival."),
    Figure("spe_client_stable_gap_max_seconds", lambda c: c.stable_gap_max_us / 1e6,
           "Longest time without a stable arrival."),
    Figure("spe_client_x_used_max_ratio", lambda c: None if c.x_used is None else c.x_used.largest,
           "The largest of spe_client_x_used_ratio."),
    Figure("spe_client_x_seconds", lambda c: seconds(c.bound_us), "Sum of X along the slowest path to the output."),
    Figure("spe_client_x_used_ratio", lambda c: c.x_used,
           "Delays of new tuples, relative to the sum of X along the path.", is_histogram=True),
)  # fmt: skip
