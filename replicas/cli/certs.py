"""``spe certs``: makes a CA and certificates for a cluster."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from replicas.faults.model import processes_of
from spe.config import load
from spe.errors import SpeError
from spe.plan.deploy import with_default_client
from spe.runtime.revocation_list import REVOKED
from spe.runtime.tls import CONTROL, holder_of

if TYPE_CHECKING:
    from spe.runtime.certificates import Issued


def certs(
    config: Path, out: Path | None, days: int, *, renew: bool = False, revoked: Sequence[str] = (),
    readers: Sequence[str] = (),
) -> int:  # fmt: skip
    """Makes missing certificates, or renews all but the CA's, and lists all with their expiry.

    Args:
      revoked: holders whose existing certificates are refused from now on; processes of the plan get new ones.
      readers: names of clients that are not in the configuration.
    """
    try:
        from spe.runtime.certificates import issue, revoke
    except ImportError as error:
        raise SpeError(f"spe certs needs the extra tls: pip install '.[tls]' ({error})") from error
    if days < 1:
        raise SpeError(f"--days: expected at least 1, got {days}")
    plan, directory = load(config)
    directory = with_default_client(plan, directory)
    configured = plan.security.certificates
    folder = out if out is not None else Path(configured) if configured is not None else config.parent / "certificates"
    now = datetime.datetime.now(datetime.UTC)
    names = [*processes_of(directory), *sorted(plan.writers), *(f"client:{name}" for name in readers), CONTROL]
    if revoked:
        now, holders = revoke(folder, revoked, now), set(map(holder_of, revoked))
        issue(folder, plan.cluster, [n for n in names if holder_of(n) in holders], days, now, renew=True)
        print(f"revoked in {folder / REVOKED}, which every process needs: {', '.join(revoked)}")
    issued = issue(folder, plan.cluster, names, days, now, renew=renew)
    width = max(len(f.name) for f in issued)
    for each in issued:
        left = (each.expires - now).days
        print(f"{each.name:{width}}  until {each.expires:%Y-%m-%d}  {left:>5} days  {_made(each, now)}")
    print(f"in {folder}; give each process ca.pem and its own .pem and .key, and keep ca.key where none of them runs")
    if renew:
        print("running processes use new files a few seconds after they are there; connections that are open go on")
    if configured is None:
        print(f"to use them: `security: {{certificates: {folder}}}` in {config}")
    return 0


def _made(certificate: Issued, now: datetime.datetime) -> str:
    if certificate.renewed:
        return "renewed"
    if certificate.new:
        return "made"
    return "EXPIRED" if certificate.expires < now else "there already"
