"""Messages between driver and task: JSON lines, after both have proved by HMAC that they know the run's secret.

Driver: ``start`` (the process, with these files; ``started`` answers with its address), ``begin_us`` and
``signal`` (as for a local process), ``places`` (addresses of nodes).  Task: ``ready`` and ``ended`` of the
process, ``log`` and ``trace``, its output for the directory of the run.  Both: ``alive``.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Any, Final

import trio

from replicas.local.supervised_process import LineLink
from spe.errors import LinkClosed, RemoteProtocolError

#: Maximum time between two messages of a side.
ALIVE_S: Final = 2.0
#: Silence after which a task ends, before the driver, which waits longer, starts its node elsewhere.
TASK_PATIENCE_S: Final = 15.0
DRIVER_PATIENCE_S: Final = 20.0
#: Time to greet each other.
GREET_S: Final = 10.0


def new_secret() -> str:
    """Returns a secret for a run."""
    return secrets.token_urlsafe(24)


def proof(secret: str, who: str, nonce: str) -> str:
    """Returns a proof that a side, ``driver`` or ``task``, knows the secret; valid for one connection."""
    return hmac.new(secret.encode(), f"{who} {nonce}".encode(), "sha256").hexdigest()


def check_proof(secret: str, who: str, nonce: str, answer: object) -> None:
    """Raises RemoteProtocolError: the other side does not know the secret."""
    if not isinstance(answer, str) or not hmac.compare_digest(proof(secret, who, nonce), answer):
        raise RemoteProtocolError(f"the {who} does not know the secret of this run")


async def receive_within(link: LineLink, seconds: float) -> dict[str, Any]:
    """Returns the next message.

    Raises:
      LinkClosed: the other side is gone, or silent for so long.
      RemoteProtocolError: it sent something else.
    """
    with trio.move_on_after(seconds):
        try:
            return await link.receive()
        except ValueError as error:
            raise RemoteProtocolError(f"expected a line of JSON: {error}") from error
    raise LinkClosed(f"nothing was heard for {seconds:g} s")
