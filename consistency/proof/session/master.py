"""Checks that the master of a cluster answers, before Spark does: Spark takes minutes and does not name it."""

from __future__ import annotations

import re
import socket
from typing import Final

from spe.errors import SpeError

_STANDALONE: Final = "spark://"
_KUBERNETES: Final = "k8s://"
_CONNECT_S: Final = 5.0


def check_answers(master: str) -> None:
    """Raises SpeError where no master of a URL listens; other kinds of masters, such as yarn, are not checked."""
    addresses = _addresses(master)
    if addresses and (why := [w for a in addresses if (w := _unreachable(a))]) and len(why) == len(addresses):
        raise SpeError(f"--master {master} does not answer: {'; '.join(why)}")


def _addresses(master: str) -> list[tuple[str, int]]:
    """Returns the addresses of masters: one of them must listen."""
    if master.startswith(_STANDALONE):
        parts, standard = master.removeprefix(_STANDALONE).split(","), 7077
    elif master.startswith(_KUBERNETES):
        rest = master.removeprefix(_KUBERNETES)
        standard = 80 if rest.startswith("http://") else 443
        parts = [re.sub(r"^https?://", "", rest).split("/")[0]]
    else:
        return []
    addresses = []
    for part in parts:
        host, colon, port = part.rpartition(":")
        if colon and not port.isdecimal():
            raise SpeError(f"--master {master}: expected HOST:PORT, got {part!r}")
        addresses.append((host, int(port)) if colon else (part, standard))
    return addresses


def _unreachable(address: tuple[str, int]) -> str:
    try:
        socket.create_connection(address, _CONNECT_S).close()
    except OSError as error:
        return f"{address[0]}:{address[1]}: {error.strerror or error}"
    return ""
