"""Revoked certificates: a list in the folder of certificates, which running processes reread.

A line has the name of a holder and a time: certificates of that holder whose validity begins earlier are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from spe.errors import ConfigError
from spe.runtime.watched_files import WatchedFiles
from spe.stream.times import parse_timestamp

REVOKED: Final = "revoked.txt"


class RevokedCertificates:
    """The list of a folder; without a list, no certificate is revoked.

    Args:
      now: returns seconds of a clock that only advances.

    Attributes:
      refused: the reason why a new list is not used; "" if there is no such list.

    Raises:
      ConfigError: the list is malformed or unreadable.
    """

    def __init__(self, folder: Path, now: Callable[[], float]) -> None:
        self.path = folder / REVOKED
        self.refused = ""
        self._files = WatchedFiles((self.path,), now)
        self._from_us = _read(self.path)

    def __contains__(self, certificate: tuple[str, int]) -> bool:
        """Is a certificate revoked, given its holder and the microsecond since 1970 from which it is valid?"""
        return certificate[1] < self._from_us.get(certificate[0], certificate[1])

    def renewed(self) -> bool | None:
        """Reads a new list.  None: there is no new list.  False: it is refused, and the old list stays in use."""
        if not self._files.changed():
            return None
        try:
            self._from_us, self.refused = _read(self.path, needed=bool(self._from_us)), ""
        except ConfigError as error:
            self.refused = "; ".join(error.problems)
        return not self.refused


def _read(path: Path, *, needed: bool = False) -> Mapping[str, int]:
    """Reads microseconds since 1970 by holder.  Raises ConfigError, also where the list is missing and ``needed``."""
    from_us: dict[str, int] = {}
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        if isinstance(error, FileNotFoundError) and not needed:
            return from_us
        raise ConfigError([f"{path}: expected a list of revoked certificates: {error}"]) from error
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            name, moment = line.rsplit(maxsplit=1)
            from_us[name] = max(parse_timestamp(moment), from_us.get(name, 0))
        except ValueError:
            what = f"expected a holder and a time, as in 'n7 2026-01-31T12:00:00', got {line!r}"
            raise ConfigError([f"{path}:{number}: {what}"]) from None
    return from_us
