"""Figures of every process."""

from __future__ import annotations

from typing import Final

from spe.figures.figure import Figure
from spe.status import CertificateStatus, CommonStatus, ServerStatus


def _measured(_: None) -> None:
    """Stands for a value that the process measures itself (spe.runtime.process_figures)."""


#: Figures of a process; the labels of the first, its kind and version, are no figures.
PROCESS: Final[tuple[Figure[CommonStatus], ...]] = (
    Figure("spe_process_info", lambda s: None, "Always 1; the kind of the process and its version are labels."),
    Figure("spe_process_incarnation", lambda s: s.incarnation, "Grows with each start of the process."),
    Figure("spe_directory_version", lambda s: None if s.directory is None else s.directory.number,
           "Number of the directory that the process goes by."),
    Figure("spe_disk_full", lambda s: dict.fromkeys(s.disk_full, 1),
           "1 for each thing that cannot be written for lack of room.", labels=("what",)),
    Figure("spe_server_away", lambda s: dict.fromkeys(s.away, 1), labels=("what",),
           help="1 for each server outside of the cluster that is read or written to and does not answer."),
)  # fmt: skip

#: Figures of the connections to it.
SERVER: Final[tuple[Figure[ServerStatus], ...]] = (
    Figure("spe_server_connections", lambda s: s.connections, "Connections of each peer.", labels=("peer",)),
    Figure("spe_server_connections_sent_away_total", lambda s: s.sent_away,
           "Connections that had to make room for newer ones of the same peer."),
)  # fmt: skip

#: Figures of its certificate.
CERTIFICATE: Final[tuple[Figure[CertificateStatus], ...]] = (
    Figure("spe_certificate_expiry_timestamp_seconds", lambda c: c.expires_us / 1e6,
           "When the certificate of the process expires, seconds since 1970."),
    Figure("spe_certificate_ca_expiry_timestamp_seconds", lambda c: c.ca_expires_us / 1e6,
           "When the first certificate of its CA expires."),
    Figure("spe_certificate_refused", lambda c: bool(c.refused),
           "1 when files of a new certificate are not used; the status says why."),
)  # fmt: skip

#: Figures from the operating system.
SYSTEM: Final[tuple[Figure[None], ...]] = (
    Figure("spe_storage_free_bytes", _measured, "Free room on the disk that holds what the process keeps."),
    Figure("spe_storage_size_bytes", _measured, "Size of that disk."),
    Figure("process_cpu_seconds_total", _measured, "CPU time of the process, user and system."),
    Figure("process_resident_memory_bytes", _measured, "Memory of the process that is in RAM."),
    Figure("process_open_fds", _measured, "Open file descriptors."),
    Figure("process_max_fds", _measured, "Limit of open file descriptors."),
    Figure("process_start_time_seconds", _measured, "When the process began, seconds since 1970."),
)  # fmt: skip
