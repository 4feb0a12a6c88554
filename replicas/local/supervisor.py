"""Acts for a run as a whole: makes faults of ``spe inject`` happen, and restarts nodes for ``spe restart``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import trio

from consistency.faults.kind import Do
from consistency.faults.kinds import KINDS
from replicas.faults.links import LinkFaultMaker
from replicas.faults.model import Fault, one_fault, refuse_unreal
from replicas.faults.runner import FaultRunner, Happening
from replicas.faults.state import Action, Conditions, FaultState
from replicas.local.cluster import Cluster
from replicas.local.polling import Poller
from replicas.local.process import Phase
from replicas.local.rolling import hindrances
from replicas.local.run_dir import SUPERVISOR, RunDirectory
from replicas.producer.service import Service
from spe.errors import ConfigError
from spe.plan.directory import Directory
from spe.status import FaultStatus, SupervisorStatus

#: Time between two attempts to send conditions: a process that is just starting does not listen yet.
_TELL_S = 3.0
_AGAIN_S = 0.1
#: Request of ``spe restart``: a process is stopped properly and started again.  No fault, for nothing fails.
ROLL: Final = "roll"


class Hands:
    """Performs the actions of faults on processes.

    Args:
      state: the faults that hold; has the conditions of each process.
      links: makes links fail.
    """

    def __init__(
        self, cluster: Cluster, poller: Poller, run: RunDirectory, state: FaultState, links: LinkFaultMaker
    ) -> None:
        self._cluster = cluster
        self._poller = poller
        self._run = run
        self._state = state
        self._links = links
        #: Conditions are sent as a whole: for each process in order, so that the last ones are the newest.
        self._telling = {name: trio.Lock() for name in cluster.processes}

    async def perform(self, action: Action) -> str:
        """Performs an action; returns "" or an error."""
        name, cluster = action.process, self._cluster
        if action.do is Do.KILL:
            return "" if await cluster.kill(name) else "it does not run"
        if action.do in (Do.START, Do.RESTART):
            if action.do is Do.RESTART:
                await cluster.kill(name)
            self._state.started(name)
            self._run.write_conditions(name, self._conditions(name))
            await cluster.start(name)
            return ""
        if action.do is Do.FREEZE:
            return "" if cluster.freeze(name) else "it does not run"
        if action.do is Do.RESUME and not cluster.resume(name):
            return ""
        return await self._tell(name)

    async def once(self, fault: Fault) -> str:
        """Causes a fault without duration; returns "" or an error."""
        action = KINDS[fault.kind].once
        assert action is not None
        return self._links.once(action, self._state.pairs(fault))

    async def _tell(self, name: str) -> str:
        """Sends conditions; a frozen or dead process gets them when it runs again."""
        if error := await self._links.apply(self._state):
            return error
        async with self._telling[name]:
            error = ""
            with trio.move_on_after(_TELL_S):
                while self._cluster.processes[name].phase in (Phase.RUNNING, Phase.STARTING):
                    conditions = self._conditions(name)
                    self._run.write_conditions(name, conditions)
                    error = await self._poller.inject(name, conditions.to_data())
                    if not error:
                        return ""
                    await trio.sleep(_AGAIN_S)
            process = self._cluster.processes[name]
            return error if process.alive and process.phase is Phase.RUNNING else ""

    def _conditions(self, name: str) -> Conditions:
        """Returns the faults that a process causes itself."""
        conditions = self._state.conditions(name)
        return conditions if self._links.inside else replace(conditions, cuts=(), delays=())


class Restarts:
    """Stops nodes properly and starts them again, one at a time, and only while others serve their partitions.

    The requester may go away: a stopped node is started all the same.

    Args:
      hands: starts processes.
    """

    def __init__(self, cluster: Cluster, poller: Poller, directory: Directory, hands: Hands) -> None:
        self._cluster = cluster
        self._poller = poller
        self._directory = directory
        self._hands = hands
        self._asked, self._orders = trio.open_memory_channel[tuple[str, trio.MemorySendChannel[str]]](0)

    async def run(self) -> None:
        """Carries out orders, for ever."""
        async for node, reply in self._orders:
            reply.send_nowait(await self._restart(node))

    async def restart(self, node: str) -> str:
        """Restarts a node; returns when the process is started again: "", or why nothing was done."""
        reply, answer = trio.open_memory_channel[str](1)
        await self._asked.send((node, reply))
        return await answer.receive()

    async def _restart(self, node: str) -> str:
        if node not in self._directory.nodes or node not in self._cluster.processes:
            return f"{node} is not a node that this run has started"
        if (phase := self._cluster.processes[node].phase) is not Phase.RUNNING:
            return f"{node} is {phase}, not running"
        if lacking := hindrances(self._directory, await self._poller.nodes(), node):
            return "; ".join(lacking)
        await self._cluster.stop([node], phase=Phase.STOPPED)
        return await self._hands.perform(Action(Do.START, node))


class SupervisorService:
    """Serves connections to the supervisor.

    Args:
      begun_us: when the sources began, wall microseconds; None: not yet.
    """

    def __init__(
        self,
        directory: Directory,
        runner: FaultRunner,
        links: str,
        incarnation: int,
        cluster: Cluster,
        restarts: Restarts,
        begun_us: Callable[[], int | None],
    ) -> None:
        self._directory = directory
        self._links = links
        self._runner = runner
        self._cluster = cluster
        self._restarts = restarts
        self._begun_us = begun_us
        self.incarnation = incarnation

    def service(self) -> Service:
        return Service("the supervisor", self.status)

    async def inject(self, fault: Mapping[str, Any]) -> str:
        if fault.get("kind") == ROLL:
            return await self._restarts.restart(str(fault.get("target")))
        try:
            parsed = one_fault(fault, self._directory)
            refuse_unreal([parsed], self._links)
            return await self._runner.inject(parsed)
        except ConfigError as error:
            return str(error)

    def status(self) -> SupervisorStatus:
        return SupervisorStatus(
            name=SUPERVISOR,
            incarnation=self.incarnation,
            faults=tuple(map(fault_status, self._runner.happenings)),
            phases={name: str(process.phase) for name, process in self._cluster.processes.items()},
            begun_us=self._begun_us(),
        )


def fault_status(happening: Happening) -> FaultStatus:
    """Returns the status of a fault."""
    return FaultStatus(
        fault=str(happening.fault),
        planned_us=happening.planned_us,
        began_us=happening.began_us,
        ended_us=happening.ended_us,
        for_us=happening.fault.for_us,
        errors=tuple(happening.errors),
    )
