"""Clusters whose replicas write a checkpoint log instead of whole checkpoints (rules G1 to G9)."""

from __future__ import annotations

from collections.abc import Mapping
from operator import ge
from pathlib import PurePosixPath
from random import Random
from typing import Any, Final

from consistency.dpc.instance import Instance
from operators.steps import finished
from replicas.checkpoint.log import LogReader
from replicas.checkpoint.state_log import read_state
from replicas.checkpoint.store import decode_snapshot
from replicas.node.replica import Replica
from replicas.simulation.world.disk import SimDisk
from replicas.simulation.world.host import SimCompute
from spe.config import load_data
from spe.errors import SpeError
from spe.plan.log_use import log_use
from spe.stream.history import LogHeld

#: Share of the fragments with a log among those that can write one.
_LOGGED: Final = 0.8
#: Times to recover, and other limits: short times cause much rewriting.
_SETTINGS: Final = (
    {"recovery": "2s"},
    {"recovery": "1ms", "share": "20%"},
    {"recovery": "100us", "share": "100%"},
    {"records": 120, "share": "50%"},
    {"rows": 10, "interval": "10ms", "period": "25ms"},
    {"records": 50, "rows": 40, "share": "100%"},
)


def with_logs(random: Random, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the configuration with logs for most fragments that can write one."""
    plan, _ = load_data(config)
    cannot = {unit.fragment for unit in plan.units if log_use(plan, unit).on_one_path is not None}
    fragments = {
        name: {**fragment, "checkpoint": {"continuous": True, **random.choice(_SETTINGS)}}
        if name not in cannot and random.random() < _LOGGED
        else fragment
        for name, fragment in config["fragments"].items()
    }
    return {**config, "fragments": fragments}


class LeftLog:
    """The log of a replica that is being killed.

    Args:
      folder: folder of the log.
      whole: folder of its checkpoints, which may exist from before it wrote a log.
      disk: disk of its node.
    """

    def __init__(self, replica: Replica, folder: PurePosixPath, whole: PurePosixPath, disk: SimDisk, now: int) -> None:
        self._id, self._plan = replica.id, replica.plan
        self._replica = str(replica.id)
        self._unit = replica.unit
        self._whole = whole
        self._acknowledged = tuple(upto for _, upto in replica.recovery.acks())
        self._folder = folder
        self._disk = disk.power_loss(lambda path, synced, written: synced)
        self._now = now

    @property
    def matters(self) -> bool:
        """Returns whether upstream has forgotten input because of the log, and the disk keeps synced data."""
        return any(self._acknowledged) and self._disk.honest

    async def look(self) -> LogHeld:
        """Rebuilds the state from the log, or from a checkpoint that has more."""
        held = await self._look()
        for path in [p for p in self._disk.files if p.parent == self._whole and p.suffix == ".checkpoint"]:
            snapshot = decode_snapshot(self._plan, self._id.of, self._disk.read(path))
            positions = tuple(int(p) for p in snapshot["positions"])
            if not held.positions or all(map(ge, positions, held.positions)):
                held = LogHeld(self._now, self._replica, self._acknowledged, positions)
        return held

    async def _look(self) -> LogHeld:
        compute = SimCompute()
        try:
            logged = await read_state(await LogReader.open_to_read(self._disk, self._folder), compute)
            if logged is None:
                return LogHeld(self._now, self._replica, self._acknowledged, (), "there is no commit")
            instance = Instance(self._unit, logs=True)
            assert instance.log is not None, "it is made for that"
            finished(instance.log.reconstruct(logged.commit, logged.start, logged.begin, logged.slices))
        except (SpeError, KeyError) as error:
            return LogHeld(self._now, self._replica, self._acknowledged, (), repr(error))
        positions = tuple(int(p) for p in logged.positions[logged.begin])
        return LogHeld(self._now, self._replica, self._acknowledged, positions)
