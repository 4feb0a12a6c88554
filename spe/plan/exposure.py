"""Whether other machines can reach a process, and whether anything protects it."""

from __future__ import annotations

from spe.plan.plan import Security


def is_open(address: str) -> bool:
    """Can other machines reach this address?"""
    host, _, port = address.rpartition(":")
    return port != "0" and host not in ("localhost", "[::1]") and not host.startswith("127.")


def unlocked(security: Security, address: str, token: str) -> str:
    """A warning that other processes may connect, which a process prints at its start; "" if there is none.

    Args:
      address: where the process listens; "" if it only connects.
      token: the secret shared by all processes; "" for none.
    """
    if token:
        return ""
    if security.certificates is not None:
        return "TLS without a token: whoever has stolen one key comes in as its holder"
    if address and is_open(address):
        return f"{address} can be reached from other machines, without TLS or a token: whoever reaches it comes in"
    return ""
