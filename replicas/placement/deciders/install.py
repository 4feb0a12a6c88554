"""Decides which standbys run (rules H1-H7).  Pure: reads the view, returns orders.

A partition is *served* while a node that runs it answers and is not itself recovering.  Where a partition was not
served for ``patience_us``, a standby is ordered to run it.  When all replicas that are meant to run it are STABLE
again, the helpers stand by again, one after the other.  Where no state is left that a partition could start from,
:class:`replicas.placement.deciders.replay.ReplayDecider` makes its upstream partitions replay.  The data path does not
depend on these orders.  A wrong decision costs work, never a tuple: the ids of surplus replicas mark duplicates, and a
missing replica is ordered again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from replicas.placement.deciders.replay import Decision, ReplayDecider, upstream_of
from replicas.placement.view import ClusterView
from spe.status import PartitionStatus
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import NodeId, NodeState

#: An order without answer or effect is repeated after this, or after two heartbeats if longer.
REPEAT_US: Final = 1_000_000
#: How many times longer to wait for a node whose disk may hold a state before a replay.
_FOR_A_STATE: Final = 4


@dataclass(frozen=True, slots=True)
class LostPartition:
    """A partition that no node serves.

    Attributes:
      due_us: time at which a standby should run it, monotonic microseconds.
      able: standbys that can be ordered to run it, in order; those that refused lately only where there are no
        others.
      recovering: nodes that run it and may serve it soon.
      lacking: nodes run it, and none of them has a state to start from.
      others: answering nodes without a role for it; empty while a node with a role may come soon.
    """

    due_us: int
    able: tuple[NodeId, ...]
    recovering: tuple[NodeId, ...]
    lacking: bool
    others: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class Goals:
    """Goals of other deciders: standbys that run without a failure, and places for lost partitions.

    Attributes:
      chosen: standbys that are active replicas by plan (H7).
      coming: standbys that run because a partition moves there.
      restoring: partitions that start there from the node's own checkpoint (L4).
      leaving: source and target of a move that removes the source.
      held: lost partitions, each with the only node that may run it; None: it waits (O1).
    """

    chosen: Mapping[PartitionId, Collection[NodeId]] = field(default_factory=dict)
    coming: Mapping[PartitionId, Collection[NodeId]] = field(default_factory=dict)
    restoring: Collection[PartitionId] = ()
    leaving: Mapping[PartitionId, tuple[NodeId, NodeId]] = field(default_factory=dict)
    held: Mapping[PartitionId, NodeId | None] = field(default_factory=dict)


@dataclass(slots=True)
class _Progress:
    """Progress of the decider with a partition.

    Attributes:
      wanted: standbys that are active replicas by plan.
      wanted_at: time of the last change of ``wanted``.
      mark: frontier of the helpers when all replicas were STABLE; None: not all are.
      asked_at: time at which each order was last given.
      refused_at: time at which each node last refused an order.
    """

    wanted: set[NodeId] = field(default_factory=set)
    wanted_at: int = 0
    mark: int | None = None
    asked_at: dict[Decision, int] = field(default_factory=dict)
    refused_at: dict[NodeId, int] = field(default_factory=dict)


class InstallDecider:
    """Decides which standbys run.

    Args:
      patience_us: how long a partition may be unserved before a standby runs it, where no node of it answers.  Where
        one recovers, or was never heard, ``view.recovery_us`` counts: it may need no help.
    """

    def __init__(self, view: ClusterView, *, patience_us: int) -> None:
        self._view = view
        self._plan = view.plan
        self._patience_us = patience_us
        self._recovery_us = view.recovery_us
        self._repeat_us = max(REPEAT_US, 2 * view.plan.timing.heartbeat_us)
        self._progress: dict[PartitionId, _Progress] = {}
        self._replay = ReplayDecider(view)
        self._replays_at: dict[Decision, int] = {}
        self._goals = Goals()

    # --- news ---

    def refused(self, replica: ReplicaId, now: int) -> None:
        """Notes a refused order: other nodes are preferred for a while."""
        if replica.of in self._view.partitions:
            self._at(replica.of).refused_at[replica.node] = now

    def _at(self, id: PartitionId) -> _Progress:
        return self._progress.setdefault(id, _Progress())

    def aim(self, goals: Goals, now: int) -> None:
        """Sets the goals of the other deciders."""
        self._goals = goals
        self._progress = {id: progress for id, progress in self._progress.items() if id in self._view.partitions}
        for id in self._view.partitions:
            progress, standbys = self._at(id), self._view.directory.standbys[id].nodes
            chosen = set(goals.chosen.get(id, ()))
            if chosen != progress.wanted:
                progress.wanted, progress.wanted_at = chosen, now
            assert progress.wanted <= set(standbys), "H7: actives are standbys of the partition"
            assert set(goals.coming.get(id, ())) <= set(standbys), "D3: a target is a standby until it follows"

    # --- lost partitions ---

    def unserved(self, now: int) -> dict[PartitionId, LostPartition]:
        """Returns the partitions with standbys that no node serves."""
        lost = {}
        for id, partition in self._view.partitions.items():
            if partition.unserved_since is not None:
                due_us = partition.unserved_since + self._patience(id)
                recovering = [
                    n for n in partition.running if now - partition.lacking_since.get(n, now) < self._recovery_us
                ]
                lacking = bool(partition.running) and not recovering
                assert all(s is NodeState.RECOVERING for s in partition.running.values()), (
                    "H5: whoever is not recovering serves"
                )
                able, others = self._willing(id, now), self._others(id, partition.unserved_since, now)
                lost[id] = LostPartition(due_us, tuple(able), tuple(recovering), lacking, others)
        return lost

    def _others(self, id: PartitionId, since: int, now: int) -> tuple[NodeId, ...]:
        """Returns nodes without a role for a partition that could get one.

        Where no standby answers they would have no checkpoint to start from, so standbys are waited for.
        """
        standbys = self._view.directory.standbys[id].nodes
        patience_us = self._patience(id)
        if not any(n in self._view.alive for n in standbys):
            patience_us = max(patience_us, _FOR_A_STATE * self._recovery_us)
        if now - since < patience_us:
            return ()
        directory = self._view.directory
        without = (n for n in directory.nodes if n in self._view.alive and n not in directory.hosts(id))
        return tuple(n for n in without if not self._refused_lately(id, n, now))

    def helper(self, standby: ReplicaId, now: int) -> NodeState | None:
        """Returns the state of a standby that is to run: RECOVERING also before it runs; None: it is given up."""
        node, progress, partition = standby.node, self._at(standby.of), self._view.partitions[standby.of]
        assert node in self._view.directory.standbys[standby.of].nodes, "H7: an active replica by choice is a standby"
        state = partition.running.get(node, NodeState.RECOVERING)
        if now - progress.asked_at.get(Decision("retire", standby), -self._repeat_us) < self._repeat_us:
            state = NodeState.RECOVERING  # its last heartbeat may be older than the order
        if self._view.is_gone(node, now) or (
            state is NodeState.RECOVERING and now - progress.wanted_at >= self._recovery_us
        ):
            return None
        return state

    def spared(self, standby: ReplicaId, now: int) -> bool:
        """Can a partition do without a node: does another node serve it, and this one not run it?

        A node that does not answer may run it: then another one must be STABLE, as before a retirement (H5).
        """
        node, running = standby.node, self._view.partitions[standby.of].running
        others = [state for other, state in running.items() if other != node]
        if node in self._view.alive:
            return node not in running and any(state is not NodeState.RECOVERING for state in others)
        return self._view.is_gone(node, now) and NodeState.STABLE in others

    def unable(self, standbys: Mapping[PartitionId, NodeId], now: int) -> frozenset[PartitionId]:
        """Returns the partitions whose named standby is dead."""
        return frozenset(id for id, node in standbys.items() if self._view.is_gone(node, now))

    # --- orders ---

    def decide(self, now: int) -> list[Decision]:
        """The orders to give now; call it at every heartbeat."""
        decisions = []
        self._replay.look()
        for id in self._view.partitions:
            for decision in self._orders(id, now):
                # A partition upstream of several ones replays once for all of them.
                asked_at = self._replays_at if decision.verb == "replay" else self._at(id).asked_at
                if decision.verb == "retire" and self._is_behind(decision.replica.node):
                    continue
                if now - asked_at.get(decision, now - self._repeat_us) >= self._repeat_us:
                    asked_at[decision] = now
                    decisions.append(decision)
        return decisions

    def _is_behind(self, node: NodeId) -> bool:
        """Does a node follow an older directory?  Then it would refuse orders that the newer one allows."""
        version = self._view.directory.version
        return self._view.versions.get(node, version) < version

    def _orders(self, id: PartitionId, now: int) -> list[Decision]:
        partition, goals, standbys = self._view.partitions[id], self._goals, self._view.directory.standbys[id].nodes
        coming, wanted = set(goals.coming.get(id, ())), self._at(id).wanted
        if None in goals.held.values():  # lost partitions wait for room and come first; a move may make room
            wanted = wanted & partition.running.keys()
        wanted = wanted | coming
        missing = [n for n in standbys if n in wanted and n in self._view.alive and n not in partition.running]
        if missing and partition.unserved_since is None:  # else two might start, or one from an older state
            restores = coming if id in goals.restoring else ()
            return [Decision("restore" if n in restores else "install", ReplicaId(*id, n)) for n in missing]
        if partition.unserved_since is not None:
            return self._restore(id, partition.unserved_since, now)
        return self._retire(id, wanted)

    def _retire(self, id: PartitionId, wanted: Collection[NodeId]) -> list[Decision]:
        """Returns orders for a served partition that unwanted standbys may run."""
        partition, progress, leaving = self._view.partitions[id], self._at(id), self._goals.leaving.get(id)
        standbys = self._view.directory.standbys[id].nodes
        meant = {*self._view.directory.placement[id], *wanted}
        helping = [n for n in standbys if n in partition.running and n not in meant]
        # A recovering helper does not serve and may never be STABLE: it is not waited for, and retires first.
        recovering = [n for n in helping if partition.running[n] is NodeState.RECOVERING]
        replaying = bool(recovering) and self._is_waited_for(id)
        if replaying or any(partition.running.get(n) is not NodeState.STABLE for n in meant):
            recovering = []
        waited_for = set(partition.running).difference(recovering)
        if leaving is not None and leaving[0] in helping:
            source, successor = leaving
            helping = [source]
            meant = {
                n for n in {*meant, successor} if n in self._view.alive or n == successor
            }  # dead nodes did not run it before either
            if not (replaying and partition.running[source] is NodeState.RECOVERING):
                waited_for.discard(source)  # its failure may last
        helping = [n for n in helping if n not in recovering] + recovering
        steady = all(partition.running.get(n) is NodeState.STABLE for n in meant | waited_for)
        if not helping or not steady:
            progress.mark = None
            return []
        # A replica that was frozen is still STABLE when it resumes: it must be as far as the helpers.
        if progress.mark is None:
            progress.mark = max(partition.frontier[n] for n in helping)
        if any(partition.frontier[n] < progress.mark for n in meant):
            return []
        assert helping[-1] not in self._view.directory.placement[id], "H5: only a standby that helped out retires"
        return [Decision("retire", ReplicaId(*id, helping[-1]))]

    def _is_waited_for(self, id: PartitionId) -> bool:
        """Is a downstream partition unserved?  A recovering replica may replay for it (H8)."""
        unserved = (after for after, partition in self._view.partitions.items() if partition.unserved_since is not None)
        return any(id in upstream_of(self._plan, after) for after in unserved)

    def _restore(self, id: PartitionId, since: int, now: int) -> list[Decision]:
        """Returns orders for a partition that no node serves."""
        partition, progress, directory = self._view.partitions[id], self._at(id), self._view.directory
        standbys = directory.standbys[id].nodes
        if now - since < self._patience(id):
            return []
        installs = {n: Decision("install", ReplicaId(*id, n)) for n in standbys}
        asked = max(
            (progress.asked_at.get(installs[n], since) for n in standbys if n in partition.running), default=None
        )
        if asked is not None and now - asked < self._recovery_us:
            return []  # one recovers already: a second would be no faster
        able = self._able(id, now)
        chosen = self._goals.held.get(id, able[0] if able else None)
        if chosen in able:
            return [installs[chosen]]
        # A silent node may return with a state.
        silent = (n for n in directory.hosts(id) if n not in self._view.alive)
        away = any(directory.disk_us(ReplicaId(*id, n)) for n in silent)
        patience_us = self._recovery_us * (_FOR_A_STATE if away else 1)
        lacking = [now - partition.lacking_since.get(n, now) >= patience_us for n in partition.running]
        return self._replay.replays(id, now) if lacking and all(lacking) else []

    def _patience(self, id: PartitionId) -> int:
        """Returns how long a partition may be unserved before a standby runs it."""
        partition = self._view.partitions[id]
        coming = any(n in partition.running or not self._view.was_heard(n) for n in self._view.directory.placement[id])
        return self._recovery_us if coming else self._patience_us

    def _able(self, id: PartitionId, now: int) -> list[NodeId]:
        """Returns the standbys that can be ordered to run a partition, in order."""
        partition = self._view.partitions[id]
        able = [
            n for n in self._view.directory.standbys[id].nodes if n in self._view.alive and n not in partition.running
        ]
        return sorted(able, key=lambda n: self._refused_lately(id, n, now))

    def _willing(self, id: PartitionId, now: int) -> list[NodeId]:
        able = self._able(id, now)
        return [n for n in able if not self._refused_lately(id, n, now)] or able

    def _refused_lately(self, id: PartitionId, node: NodeId, now: int) -> bool:
        return now - self._at(id).refused_at.get(node, now - self._recovery_us) < self._recovery_us

    # --- for people ---

    def status(self) -> list[PartitionStatus]:
        """Returns the status of each partition with standbys: the nodes that run it and those that should."""
        return [
            PartitionStatus(
                partition=str(id),
                running=dict(sorted(partition.running.items())),
                placed=tuple(self._view.directory.placement[id]),
                standbys=tuple(self._view.directory.standbys[id].nodes),
                wanted=tuple(sorted(self._at(id).wanted)),
                served=partition.unserved_since is None,
            )
            for id, partition in self._view.partitions.items()
        ]
