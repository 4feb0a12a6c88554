"""E2: a source's log is deleted only as far as every configured consumer has acknowledged it."""

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
    """Compares each deletion with the acknowledgements that the source received since it began.

    Args:
      versions: of the directory; a source with an unknown version is skipped.
    """
    acknowledged: dict[Channel, dict[str, tuple[int, int]]] = {}
    ever: dict[tuple[Channel, str], int] = {}
    by: dict[str, Version] = {}
    for event in history:
        match event:
            case ProcessUp(host=host) if host.startswith("source:"):
                acknowledged = {c: acks for c, acks in acknowledged.items() if f"source:{c.stream}" != host}
                by.pop(host, None)
            case DirectoryApplied(host=host) if host.startswith("source:"):
                by[host] = Version(event.epoch, event.number)
            case LogAcknowledged(_, channel, consumer, incarnation, id):
                before = acknowledged.setdefault(channel, {}).get(consumer, (-1, 0))
                acknowledged[channel][consumer] = max(before, (incarnation, id))
                ever[channel, consumer] = max(id, ever.get((channel, consumer), 0))
            case LogReleased(at_us, channel, last_id):
                counters.add("times that a source deleted")
                directory = versions.get(by.get(f"source:{channel.stream}", CONFIGURED))
                for consumer in () if directory is None else directory.consumers_of(plan, channel):
                    id = acknowledged.get(channel, {}).get(consumer, (-1, 0))[1]
                    if id < last_id:
                        what = f"ids up to {last_id} are deleted, {consumer} has acknowledged {id}"
                        yield Finding(
                            "E2", "deleted records were acknowledged", at_us, f"source:{channel.stream}", what
                        )
            case LogBehind(at_us, channel, consumer, position, last_id):
                counters.add("times that a consumer needed what was deleted")
                known = ever.get((channel, consumer), 0)
                if 0 < known <= position:
                    what = f"{consumer} needs {position + 1}, had acknowledged {known}; ids up to {last_id} are deleted"
                    yield Finding("E2", "deleted records are not needed", at_us, f"source:{channel.stream}", what)
