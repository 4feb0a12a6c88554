"""E2: of a source's log nothing is deleted that a configured consumer had not acknowledged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from consistency.checking.counters import Counters
from consistency.checking.finding import Finding
from spe.plan.directory import CONFIGURED, Directory, Version
from spe.plan.plan import Plan
from spe.stream.history import DirectoryApplied, History, LogAcknowledged, LogBehind, LogReleased, ProcessUp
from spe.stream.ids import Channel


def check_retained(
    history: History, plan: Plan, versions: Mapping[Version, Directory], counters: Counters
) -> Iterator[Finding]:
    """Looks at what each source was told since it began, against the directory that it went by.

    Args:
      versions: of the directory; a source that goes by another one is not looked at.
    """
    told: dict[Channel, dict[str, tuple[int, int]]] = {}
    ever: dict[tuple[Channel, str], int] = {}
    by: dict[str, Version] = {}
    for event in history:
        match event:
            case ProcessUp(host=host) if host.startswith("source:"):
                told = {c: acks for c, acks in told.items() if f"source:{c.stream}" != host}
                by.pop(host, None)
            case DirectoryApplied(host=host) if host.startswith("source:"):
                by[host] = Version(event.epoch, event.number)
            case LogAcknowledged(_, channel, consumer, incarnation, id):
                before = told.setdefault(channel, {}).get(consumer, (-1, 0))
                told[channel][consumer] = max(before, (incarnation, id))
                ever[channel, consumer] = max(id, ever.get((channel, consumer), 0))
            case LogReleased(at_us, channel, last_id):
                counters.add("times that a source deleted")
                directory = versions.get(by.get(f"source:{channel.stream}", CONFIGURED))
                for consumer in () if directory is None else directory.consumers_of(plan, channel):
                    id = told.get(channel, {}).get(consumer, (-1, 0))[1]
                    if id < last_id:
                        what = f"ids up to {last_id} are deleted, {consumer} has acknowledged {id}"
                        yield Finding("E2", "what is deleted was acknowledged", at_us, f"source:{channel.stream}", what)
            case LogBehind(at_us, channel, consumer, position, last_id):
                counters.add("times that a consumer needed what was deleted")
                known = ever.get((channel, consumer), 0)
                if 0 < known <= position:
                    what = f"{consumer} needs {position + 1}, had acknowledged {known}; ids up to {last_id} are deleted"
                    yield Finding("E2", "nobody needs what is deleted", at_us, f"source:{channel.stream}", what)
