"""Addresses on this machine that can be listened on."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Mapping
from typing import Final

from spe.errors import PortInUse
from spe.runtime.network import parse_address

#: Below the range that outgoing connections take theirs from, so that none is taken while a process restarts.
PORTS: Final = range(20_000, 32_000)


def free_addresses(count: int, host: str = "127.0.0.1") -> list[str]:
    """Different addresses that can be listened on now.  Raises PortInUse: there are none."""
    found: list[str] = []
    with contextlib.ExitStack() as held:
        for port in random.SystemRandom().sample(PORTS, len(PORTS)):
            if len(found) == count:
                break
            address = f"{host}:{port}"
            with contextlib.suppress(PortInUse):
                held.enter_context(_bound(address))
                found.append(address)
    if len(found) < count:
        raise PortInUse(f"no {count} free ports in {PORTS.start}-{PORTS.stop} on {host}")
    return found


def check_free(addresses: Mapping[str, str]) -> None:
    """Raises PortInUse, naming whose address it is, where one cannot be listened on."""
    for name, address in addresses.items():
        try:
            with _bound(address):
                pass
        except PortInUse as error:
            raise PortInUse(f"{name}: {error}") from error


def _bound(address: str) -> socket.socket:
    host, port = parse_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((host, port))
        one.listen(1)
    except OSError as error:
        one.close()
        raise PortInUse(f"cannot listen on {address}: {error.strerror or error}") from error
    return one
