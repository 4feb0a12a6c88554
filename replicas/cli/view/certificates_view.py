"""Certificates that need attention, as the live view and ``spe status`` show them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.text import Text

from spe.status import ProcessStatus
from spe.stream.times import SECOND

#: A warning is shown so many days before a certificate expires, as in the alert rules.
SOON_DAYS: Final = 14
_DAY_US: Final = 86_400 * SECOND


def certificates(statuses: Iterable[ProcessStatus], now_us: int) -> list[Text]:
    """Returns a line for each certificate that expires soon, and for each new one that is refused."""
    lines = []
    for status in statuses:
        certificate = status.certificate
        if certificate is None:
            continue
        days = (certificate.expires_us - now_us) // _DAY_US
        if certificate.expires_us <= now_us:
            lines.append(Text(f"{status.name}: its certificate has expired", style="bold red"))
        elif days < SOON_DAYS:
            lines.append(Text(f"{status.name}: its certificate expires in {days} days", style="yellow"))
        if certificate.refused:
            lines.append(Text(f"{status.name} does not use its new certificate: {certificate.refused}", style="yellow"))
    return lines
