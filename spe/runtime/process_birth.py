"""When a process of this machine began: after the machine was restarted, another one may have its number."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
#: Place of ``starttime`` in ``/proc/PID/stat``, behind the name in parentheses.
_STARTED: Final = 19


def birth_of(pid: int) -> str:
    """Equal for the same process only, whatever the clock says; "" where there is none, or the system does not say."""
    try:
        boot = _BOOT.read_text().strip()
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return f"{boot} {fields[_STARTED]}"
    except (OSError, IndexError):
        return ""
