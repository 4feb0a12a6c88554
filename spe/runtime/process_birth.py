"""Identity of a process of this machine: after a restart of the machine its number may belong to another process."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
#: Index of ``starttime`` in ``/proc/PID/stat``, after the name in parentheses.
_STARTED: Final = 19


def birth_of(pid: int) -> str:
    """A text that is equal for the same process only; "" if there is no such process, or the system does not tell."""
    try:
        boot = _BOOT.read_text().strip()
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return f"{boot} {fields[_STARTED]}"
    except (OSError, IndexError):
        return ""
