"""What driver and task say to each other: JSON lines, after both have proved by HMAC that they know the run's secret.

The driver: ``start`` (the process, with these files; ``started`` answers with its address), ``begin_us`` and
``signal`` (as for a local process), ``places`` (where nodes are now).  The task: ``ready`` and ``ended`` of the
process, ``log`` and ``trace``, what it wrote, for the directory of the run.  Both: ``alive``.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Any, Final

import trio

from replicas.local.supervised_process import LineLink
from spe.errors import LinkClosed, RemoteProtocolError

#: Each side says something at least so often.
ALIVE_S: Final = 2.0
#: A task that hears nothing for so long ends, before the driver, which waits longer, starts its node elsewhere.
TASK_PATIENCE_S: Final = 15.0
DRIVER_PATIENCE_S: Final = 20.0
#: To greet each other.
GREET_S: Final = 10.0


def new_secret() -> str:
    """Of a run."""
    return secrets.token_urlsafe(24)


def proof(secret: str, who: str, nonce: str) -> str:
    """That somebody, ``driver`` or ``task``, knows the secret; good for one connection."""
    return hmac.new(secret.encode(), f"{who} {nonce}".encode(), "sha256").hexdigest()


def check_proof(secret: str, who: str, nonce: str, given: object) -> None:
    """Raises RemoteProtocolError: it does not know it."""
    if not isinstance(given, str) or not hmac.compare_digest(proof(secret, who, nonce), given):
        raise RemoteProtocolError(f"the {who} does not know the secret of this run")


async def receive_within(link: LineLink, seconds: float) -> dict[str, Any]:
    """The next message.

    Raises:
      LinkClosed: the other side is gone, or says nothing for so long.
      RemoteProtocolError: it says something else.
    """
    with trio.move_on_after(seconds):
        try:
            return await link.receive()
        except ValueError as error:
            raise RemoteProtocolError(f"expected a line of JSON: {error}") from error
    raise LinkClosed(f"nothing was heard for {seconds:g} s")
