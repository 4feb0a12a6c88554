"""Certificates that somebody has to look after, as the live view and ``spe status`` show them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.text import Text

from spe.status import ProcessStatus
from spe.stream.times import SECOND

#: Days before the end on which it is said, as the alert rules do.
SOON_DAYS: Final = 14
_DAY_US: Final = 86_400 * SECOND


def certificates(statuses: Iterable[ProcessStatus], now_us: int) -> list[Text]:
    """A line for each that expires soon, and for each new one that is refused."""
    lines = []
    for status in statuses:
        one = status.certificate
        if one is None:
            continue
        days = (one.expires_us - now_us) // _DAY_US
        if one.expires_us <= now_us:
            lines.append(Text(f"{status.name}: its certificate has expired", style="bold red"))
        elif days < SOON_DAYS:
            lines.append(Text(f"{status.name}: its certificate expires in {days} days", style="yellow"))
        if one.refused:
            lines.append(Text(f"{status.name} does not use its new certificate: {one.refused}", style="yellow"))
    return lines
