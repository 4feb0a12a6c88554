"""Checks of a hello and its answer against our own plan, token and version."""

from __future__ import annotations

import hmac

from spe.errors import PeerBusy, PeerRefused, RemoteProtocolError
from spe.wire.messages.connection import PROTOCOL, Hello, Refused, VersionRange, Welcome
from spe.wire.messages.feeds import NotReady
from spe.wire.messages.message import Message, expect


def check_hello(
    hello: Hello,
    *,
    cluster: str,
    fingerprint: str,
    token: str,
    name: str,
    incarnation: int,
    directory: tuple[int, int] = (0, 0),
) -> Welcome | Refused:
    """Returns the answer to a hello.

    Args:
      cluster, fingerprint, token: of our own plan and configuration.
      name, incarnation, directory: ours, for the welcome.
    """
    theirs = VersionRange(hello.lowest, hello.highest)
    version = PROTOCOL.common(theirs)
    if version is None:
        return Refused(f"no common protocol: the peer speaks {theirs}, {name} speaks {PROTOCOL}; upgrade the older one")
    if not hmac.compare_digest(
        hello.token.encode(), token.encode()
    ):  # checked before the rest: strangers learn nothing else
        return Refused("the token does not match")
    if hello.cluster != cluster:
        return Refused(f"this is cluster {cluster!r}, not {hello.cluster!r}")
    anonymous = hello.role == "control" and not hello.fingerprint
    if hello.fingerprint != fingerprint and not anonymous:
        return Refused(
            f"the plan is another one: fingerprint {hello.fingerprint or '(none)'}, {name} has {fingerprint};"
            " both sides need the same query, schema, partition counts and bucket width"
        )
    return Welcome(version, name, incarnation, *directory)


def check_welcome(answer: Message, name: str | None) -> Welcome:
    """Checks the answer to our hello.

    Args:
      name: expected name of the peer; None: any.

    Raises:
      PeerRefused: the peer refused, or has another name.
      PeerBusy: the peer has no room for us now.
      RemoteProtocolError: the answer is neither Welcome nor Refused, or has a version that we did not offer.
    """
    if isinstance(answer, Refused):
        raise PeerRefused(answer.reason)
    if isinstance(answer, NotReady):
        raise PeerBusy(answer.reason)
    welcome = expect(answer, Welcome)
    if not PROTOCOL.lowest <= welcome.version <= PROTOCOL.highest:
        raise RemoteProtocolError(f"{welcome.name} wants to speak version {welcome.version}, we speak {PROTOCOL}")
    if name is not None and welcome.name != name:
        raise PeerRefused(f"expected {name!r} at this address, found {welcome.name!r}")
    return welcome
