"""Logs whose oldest part is deleted once it is proved; a proof advances as ``spe report --follow`` does (E2)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from random import Random
from typing import Final

from consistency.checking.counters import Counters
from consistency.checking.finding import Finding
from replicas.simulation.world.clock import now_us, sleep_until_us
from replicas.simulation.world.cluster import SimCluster
from spe.log.format import Segment
from spe.log.log_start import read_kept
from spe.log.origin import read_identity
from spe.log.proof_progress import PROVED, encode_proved
from spe.log.recording import channel_folder, client_folder
from spe.stream.ids import Channel
from spe.stream.times import SECOND

#: Number of steps of the proof while faults happen.
_COUNTS: Final = (0, 2, 5, 20)
#: A record number that no log reaches.
_ALL: Final = 1 << 40


def random_proofs(random: Random, until_us: int) -> list[int]:
    """Returns the times of the proof's steps."""
    return sorted(random.randrange(SECOND, until_us) for _ in range(random.choice(_COUNTS)))


class Proof:
    """The progress of the proof of a cluster's logs.

    Attributes:
      findings: logs that deleted unproved records.
    """

    def __init__(self, cluster: SimCluster, random: Random, counters: Counters) -> None:
        self.findings: list[Finding] = []
        self._cluster, self._random, self._counters = cluster, random, counters
        plan, directory = cluster.plan, cluster.directory
        #: First required record, by source, and by client and channel.
        self._sources = {s: 1 for s, source in plan.sources.items() if source.retain is not None}
        self._recordings = {
            (name, Channel(s, p)): 1
            for name, client in directory.clients.items()
            if client.retain is not None
            for s in client.reads
            for p in range(plan.partitions_of(s))
        }

    async def run(self, times_us: Sequence[int]) -> None:
        """Advances at these times, up to any segment of each log."""
        for at_us in times_us:
            await sleep_until_us(at_us)
            await self.go_on()

    async def go_on(self, *, ends: bool = False) -> None:
        """Advances once; ``ends``: everything is proved, including future records."""
        for stream, needed in self._sources.items():
            self._sources[stream] = self._next(f"source:{stream}", PurePosixPath(stream), needed, ends)
        for (name, channel), needed in self._recordings.items():
            folder = channel_folder(client_folder(name), channel)
            self._recordings[name, channel] = self._next(f"client:{name}", folder, needed, ends)
        disks = self._cluster.disks
        identities = {s: read_identity(disks[f"source:{s}"], PurePosixPath(s)) for s in self._sources}
        clients: dict[str, dict[str, int]] = {}
        for (name, channel), record in self._recordings.items():
            clients.setdefault(name, {})[str(channel)] = record
        text = encode_proved({s: (identities[s], record) for s, record in self._sources.items()}, clients)
        for host in [*(f"source:{s}" for s in self._sources), *(f"client:{name}" for name in clients)]:
            with suppress(OSError):  # a full disk
                await disks[host].write_atomic(PROVED, text.encode())

    def _next(self, host: str, folder: PurePosixPath, needed: int, ends: bool) -> int:
        disk = self._cluster.disks[host]
        self._counters.add("times that a proof went on")
        if (first := read_kept(disk, folder).first) > needed:
            what = f"{folder}: records from {needed} on are not proved, and the first that is left is {first}"
            self.findings.append(Finding("E2", "what is not proved is kept", now_us(), host, what))
        begins = [segment.first for name in disk.list(folder) if (segment := Segment.parse(name)) is not None]
        return _ALL if ends else max(needed, self._random.choice(begins or [1]))
