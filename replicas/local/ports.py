"""Free addresses on this machine."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Mapping
from typing import Final

from spe.errors import PortInUse
from spe.runtime.network import parse_address

#: Below the range of outgoing connections, so that none is taken while a process restarts.
PORTS: Final = range(20_000, 32_000)


def free_addresses(count: int, host: str = "127.0.0.1") -> list[str]:
    """Returns different addresses that are free now.  Raises PortInUse: there are too few."""
    addresses: list[str] = []
    with contextlib.ExitStack() as held:
        for port in random.SystemRandom().sample(PORTS, len(PORTS)):
            if len(addresses) == count:
                break
            address = f"{host}:{port}"
            with contextlib.suppress(PortInUse):
                held.enter_context(_bound(address))
                addresses.append(address)
    if len(addresses) < count:
        raise PortInUse(f"no {count} free ports in {PORTS.start}-{PORTS.stop} on {host}")
    return addresses


def check_free(addresses: Mapping[str, str]) -> None:
    """Raises PortInUse, with the name, if an address is not free."""
    for name, address in addresses.items():
        try:
            with _bound(address):
                pass
        except PortInUse as error:
            raise PortInUse(f"{name}: {error}") from error


def _bound(address: str) -> socket.socket:
    host, port = parse_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1)
    except OSError as error:
        listener.close()
        raise PortInUse(f"cannot listen on {address}: {error.strerror or error}") from error
    return listener
