"""D2: directories never go back: versions of a process grow, over restarts as far as its disk stored them."""

from __future__ import annotations

from collections.abc import Iterator

from consistency.checking.counters import Counters
from consistency.checking.finding import Finding
from consistency.faults.kinds import kind_of
from spe.plan.directory import CONFIGURED, Version
from spe.stream.history import DirectoryApplied, FaultBegan, History, ProcessUp


def check_directories(history: History, counters: Counters) -> Iterator[Finding]:
    """Yields findings of D2."""
    #: Current version of each process since it began.
    current: dict[str, Version] = {}
    #: Version that its disk surely holds, by file: a process with another plan begins with another.
    stored: dict[tuple[str, str], Version] = {}
    forgetful: set[str] = set()
    for event in history:
        match event:
            case ProcessUp(_, host):
                current.pop(host, None)
            case FaultBegan(_, _, kind, hosts) if kind_of(kind).harm is not None:
                forgetful.update(hosts)
            case DirectoryApplied(at_us, host, epoch, number, safe, file):
                version = Version(epoch, number)
                if version != CONFIGURED:
                    counters.add("versions of the directory applied")
                begins = host not in current
                before = (
                    (CONFIGURED if host in forgetful else stored.get((host, file), CONFIGURED))
                    if begins
                    else current[host]
                )
                if version < before:
                    how = "begins with" if begins else "takes"
                    what = f"it {how} version {version}, after {before}"
                    yield Finding("D2", "directories never go back", at_us, host, what)
                current[host] = version
                if safe:
                    stored[host, file] = max(version, stored.get((host, file), CONFIGURED))
