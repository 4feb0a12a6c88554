"""What the coordinator decides: which standbys run (rules H1-H8).  Pure: heartbeats come in, orders come out.

A partition is *served* while a node that runs it answers and is not itself recovering.  Where nobody has served one for
``patience_us``, a standby is told to run it.  When all replicas that are meant to run it are STABLE again, those that
only helped out stand by again, one after the other.  Where nothing is left that a partition could go on from, what lies
before it begins anew from the sources' logs.  The data path knows nothing of all this.  What is decided wrongly costs
work, never a tuple: two replicas too many are two replicas (ids tell duplicates), and one that is missing is
asked for again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from spe.log.origin import combined
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.plan.retention import streams_below
from spe.status import PartitionStatus
from spe.stream.ids import Channel, PartitionId, ReplicaId
from spe.stream.names import NodeId, NodeState, StreamId
from spe.wire.fields import Verb
from spe.wire.messages import OutputStatus

#: An order that was not answered, or had no effect yet, is given again after this, or after two heartbeats if longer.
REPEAT_US: Final = 1_000_000
#: After so long without progress another replica replays, microseconds.
REPLAYS_IN_VAIN_US: Final = 300_000_000
#: How far a replica is that has been told to replay, and has not begun.
_NOT_BEGUN: Final = -1
#: The later a state is here, the better may a replica in it begin anew: it has its input.
_CAN_REPLAY: Final = (NodeState.RECOVERING, NodeState.UP_FAILURE, NodeState.STABILIZATION, NodeState.STABLE)
#: How many times longer to wait for a node whose disk may hold a state before everything begins anew.
_FOR_A_STATE: Final = 4


@dataclass(frozen=True, slots=True)
class Decision:
    """An order to a node."""

    verb: Verb
    replica: ReplicaId


class _Made(NamedTuple):
    """What a replica has made.

    Attributes:
      first: smallest id that it still has in all its outputs.
      origin: of what they are made from; "" while that is not known.
    """

    first: int
    origin: str
    state: NodeState
    frontier: int


@dataclass(frozen=True, slots=True)
class LostPartition:
    """A partition that nobody serves.

    Attributes:
      due_us: from when on a standby should run it, monotonic microseconds.
      able: standbys that can be told to, in the order in which they would be; those that refused lately only where
        there are no others.
      recovering: nodes that run it, and may serve it soon.
      lacking: nodes run it, and none of them has a state to go on from.
      others: nodes that answer and have no role for it; none before it is clear that no node with one comes soon.
    """

    due_us: int
    able: tuple[NodeId, ...]
    recovering: tuple[NodeId, ...]
    lacking: bool
    others: tuple[NodeId, ...] = ()


@dataclass(slots=True)
class _Partition:
    """What is known of one partition.

    Attributes:
      running: state of each replica that answers, by node.
      unserved_since: since when nobody serves it; None: somebody does.
      wanted: standbys that are meant to run though nothing has failed (an active replica by plan).
      coming: the same because the partition moves there.
      restores: they begin from their own checkpoints.
      leaving: the node that a move takes the partition from, and the one that takes its place.
      frontier: stable frontier of each, microseconds of tuple time.
      mark: how far those that helped out were when all seemed well; None: not all is.
      lacking_since: of those that run and can go on from nothing that is left: since when.
      asked_at: when each order was given last.
      refused_at: when a node said last that it does not follow one.
      wanted_at: since when ``wanted`` is as it is.
    """

    unserved_since: int | None
    running: dict[NodeId, NodeState] = field(default_factory=dict)
    wanted: set[NodeId] = field(default_factory=set)
    coming: set[NodeId] = field(default_factory=set)
    restores: bool = False
    leaving: tuple[NodeId, NodeId] | None = None
    frontier: dict[NodeId, int] = field(default_factory=dict)
    mark: int | None = None
    lacking_since: dict[NodeId, int] = field(default_factory=dict)
    asked_at: dict[Decision, int] = field(default_factory=dict)
    refused_at: dict[NodeId, int] = field(default_factory=dict)
    wanted_at: int = 0


class Coordination:
    """See the module.

    Args:
      plan: the cluster.
      now: monotonic microseconds.
      patience_us: how long a partition may be unserved before a standby runs it, where no node of it answers.
      recovery_us: the same where one of them is recovering, or was never heard: it may need nobody's help.
    """

    def __init__(self, plan: Plan, directory: Directory, now: int, *, patience_us: int, recovery_us: int) -> None:
        self._plan = plan
        self._directory = directory
        self._patience_us = patience_us
        self._recovery_us = recovery_us
        self._repeat_us = max(REPEAT_US, 2 * plan.timing.heartbeat_us)
        self._alive: set[NodeId] = set()
        self._heard: set[NodeId] = set()
        #: Since when all nodes are waited for.
        self._begun_at = now
        self._partitions = {id: _Partition(now) for id in directory.standbys}
        self._made: dict[PartitionId, dict[NodeId, _Made]] = {}
        #: Identity of the log of each source that answers, of those that begin with id 1.
        self._logs: dict[StreamId, str] = {}
        self._replays_at: dict[Decision, int] = {}
        #: Of replicas that replay, or were told to: how far they were, and since when; in this look and in the last.
        self._replaying: dict[ReplicaId, tuple[int, int]] = {}
        self._replaying_before: Mapping[ReplicaId, tuple[int, int]] = {}
        self._held: Mapping[PartitionId, NodeId | None] = {}

    def redirect(self, directory: Directory, now: int) -> None:
        """Another directory counts.  Who runs what has its first standbys now, heartbeats have yet to tell."""
        known = self._partitions
        self._directory = directory
        self._partitions = {id: known.get(id) or _Partition(now + self._recovery_us) for id in directory.standbys}
        for id, one in self._partitions.items():
            one.wanted.intersection_update(directory.standbys[id].nodes)
            one.coming.intersection_update(directory.standbys[id].nodes)
            for node in set(one.running).difference(directory.hosts(id)):
                self._runs(one, node, None, now)

    # --- news ---

    def heard(self, node: NodeId, outputs: Iterable[OutputStatus], now: int) -> None:
        """Takes a heartbeat answer, which names everything that the node runs."""
        self._alive.add(node)
        self._heard.add(node)
        told = {Channel(StreamId(o.stream), o.partition): o for o in outputs}
        self._forget(node)
        for channel, output in told.items():
            made = self._made.setdefault(self._plan.maker_of(channel), {})
            first = max(made[node].first if node in made else 0, output.first)
            made[node] = _Made(first, output.origin, NodeState(output.state), output.frontier)
        for id, one in self._partitions.items():
            if node in self._directory.hosts(id):
                self._runs(one, node, told.get(Channel(self._plan.unit[id.unit].outputs[0], id.partition)), now)

    def heard_source(self, output: OutputStatus) -> None:
        """The same of a source."""
        self.lost_source(StreamId(output.stream))
        if output.first == 1:
            self._logs[StreamId(output.stream)] = output.origin

    def lost_source(self, source: StreamId) -> None:
        """A source does not answer any more."""
        self._logs.pop(source, None)

    def lost(self, node: NodeId, now: int) -> None:
        """A node does not answer any more."""
        self._alive.discard(node)
        if not self._alive:
            self._heard.clear()  # we may have been cut off: wait for all nodes again
            self._begun_at = now
        self._forget(node)
        for one in self._partitions.values():
            self._runs(one, node, None, now)

    def _forget(self, node: NodeId) -> None:
        for made in self._made.values():
            made.pop(node, None)

    def _runs(self, one: _Partition, node: NodeId, output: OutputStatus | None, now: int) -> None:
        """What a node tells of a partition; None: it does not run it."""
        if output is None:
            one.running.pop(node, None)
        else:
            one.running[node] = NodeState(output.state)
            one.frontier[node] = output.frontier
        if output is not None and output.lacking:
            one.lacking_since.setdefault(node, now)
        else:
            one.lacking_since.pop(node, None)
        self._judge(one, now)

    def _judge(self, one: _Partition, now: int) -> None:
        if any(state is not NodeState.RECOVERING for state in one.running.values()):
            one.unserved_since = None
        elif one.unserved_since is None:
            one.unserved_since = now

    def refused(self, replica: ReplicaId, now: int) -> None:
        """A node does not follow an order: another one is asked for a while."""
        if (one := self._partitions.get(replica.of)) is not None:
            one.refused_at[replica.node] = now

    def want(self, partition: PartitionId, standbys: Iterable[NodeId], now: int) -> None:
        """From now on these standbys of a partition are to run, whatever happens."""
        one = self._partitions[partition]
        one.wanted, one.wanted_at = set(standbys), now
        assert one.wanted <= set(self._directory.standbys[partition].nodes), "H7: actives are standbys of the partition"

    def bring(
        self,
        coming: Mapping[PartitionId, Collection[NodeId]],
        restoring: Collection[PartitionId] = (),
        leaving: Mapping[PartitionId, tuple[NodeId, NodeId]] = MappingProxyType({}),
    ) -> None:
        """From now on these standbys, and no others, run because a partition moves there.

        Args:
          restoring: partitions that begin there from a checkpoint of the node's own (M7).
          leaving: of a partition, who retires because it moves, and who takes its place.
        """
        for id, one in self._partitions.items():
            one.coming, one.restores, one.leaving = set(coming.get(id, ())), id in restoring, leaving.get(id)
            assert one.coming <= set(self._directory.standbys[id].nodes), "M2: a target is a standby until it follows"

    def hold(self, held: Mapping[PartitionId, NodeId | None]) -> None:
        """From now on these lost partitions, and no others, run on the node that is named only; None: they wait."""
        self._held = held

    def unserved(self, now: int) -> dict[PartitionId, LostPartition]:
        """Partitions that nobody serves, of those that have standbys."""
        found = {}
        for id, one in self._partitions.items():
            if one.unserved_since is not None:
                due_us = one.unserved_since + self._patience(id, one)
                recovering = [n for n in one.running if now - one.lacking_since.get(n, now) < self._recovery_us]
                lacking = bool(one.running) and not recovering
                able, others = self._willing(id, one, now), self._others(id, one, one.unserved_since, now)
                found[id] = LostPartition(due_us, tuple(able), tuple(recovering), lacking, others)
        return found

    def _others(self, id: PartitionId, one: _Partition, since: int, now: int) -> tuple[NodeId, ...]:
        """Nodes without a role for a partition that could get one.

        Where no standby answers they would have no checkpoint to begin with, so those are waited for.
        """
        standbys = self._directory.standbys[id].nodes
        patience_us = self._patience(id, one)
        if not any(n in self._alive for n in standbys):
            patience_us = max(patience_us, _FOR_A_STATE * self._recovery_us)
        if now - since < patience_us:
            return ()
        without = (n for n in self._directory.nodes if n in self._alive and n not in self._directory.hosts(id))
        return tuple(n for n in without if not self._refused_lately(one, n, now))

    def wanted(self) -> Mapping[PartitionId, frozenset[NodeId]]:
        return {id: frozenset(one.wanted) for id, one in self._partitions.items() if one.wanted}

    def helper(self, standby: ReplicaId, now: int) -> NodeState | None:
        """State of a standby that is to run: RECOVERING also before it does; None: it does not come, as it seems."""
        node, one = standby.node, self._partitions[standby.of]
        state = one.running.get(node, NodeState.RECOVERING)
        if now - one.asked_at.get(Decision("retire", standby), -self._repeat_us) < self._repeat_us:
            state = NodeState.RECOVERING  # its last news may be old
        if self._gone(node, now) or (state is NodeState.RECOVERING and now - one.wanted_at >= self._recovery_us):
            return None
        return state

    def spared(self, standby: ReplicaId, now: int) -> bool:
        """Does a partition do without what a node may run of it: somebody else serves it, and it does not run it?

        A node that does not answer may run it: then somebody else must be STABLE, as before it would retire (H5).
        """
        node, running = standby.node, self._partitions[standby.of].running
        others = [state for other, state in running.items() if other != node]
        if node in self._alive:
            return node not in running and any(state is not NodeState.RECOVERING for state in others)
        return self._gone(node, now) and NodeState.STABLE in others

    def unable(self, standbys: Mapping[PartitionId, NodeId], now: int) -> frozenset[PartitionId]:
        """Partitions whose standby here is dead."""
        return frozenset(id for id, node in standbys.items() if self._gone(node, now))

    def _gone(self, node: NodeId, now: int) -> bool:
        """A node does not answer, and is not one that may be about to start."""
        return node not in self._alive and (node in self._heard or now - self._begun_at >= self._recovery_us)

    # --- orders ---

    def decide(self, now: int, behind: Collection[NodeId] = ()) -> list[Decision]:
        """The orders to give now; call it at every heartbeat.

        Args:
          behind: nodes that go by an older directory; they would not follow what the newer one allows.
        """
        assert self._alive <= self._heard, "H5: who answers was heard"
        found = []
        self._replaying_before, self._replaying = self._replaying, {}
        for id, one in self._partitions.items():
            for decision in self._of(id, one, now):
                # What is upstream of several partitions begins anew once for all of them.
                asked_at = self._replays_at if decision.verb == "replay" else one.asked_at
                if decision.verb == "retire" and decision.replica.node in behind:
                    continue
                if now - asked_at.get(decision, now - self._repeat_us) >= self._repeat_us:
                    asked_at[decision] = now
                    found.append(decision)
        return found

    def _of(self, id: PartitionId, one: _Partition, now: int) -> list[Decision]:
        standbys = self._directory.standbys[id].nodes
        wanted = one.wanted
        if None in self._held.values():  # what nobody serves waits for room, and comes first; a move may make some
            wanted = wanted & one.running.keys()
        wanted = wanted | one.coming
        missing = [n for n in standbys if n in wanted and n in self._alive and n not in one.running]
        if missing and one.unserved_since is None:  # otherwise two might begin, or one from less
            return [
                Decision("restore" if one.restores and n in one.coming else "install", ReplicaId(*id, n))
                for n in missing
            ]
        if one.unserved_since is not None:
            return self._restore(id, one, one.unserved_since, now)
        meant = {*self._directory.placement[id], *wanted}
        helping = [n for n in standbys if n in one.running and n not in meant]
        # A helper that recovers serves nobody, and may never be STABLE: it is not waited for, and retires first.
        recovering = [n for n in helping if one.running[n] is NodeState.RECOVERING]
        replaying = bool(recovering) and self._is_waited_for(id)
        if replaying or any(one.running.get(n) is not NodeState.STABLE for n in meant):
            recovering = []
        waited_for = set(one.running).difference(recovering)
        if one.leaving is not None and one.leaving[0] in helping:
            source, successor = one.leaving
            helping = [source]
            meant = {
                n for n in {*meant, successor} if n in self._alive or n == successor
            }  # for the dead it did not run before either
            if not (replaying and one.running[source] is NodeState.RECOVERING):
                waited_for.discard(source)  # its failure may last
        helping = [n for n in helping if n not in recovering] + recovering
        steady = all(one.running.get(n) is NodeState.STABLE for n in meant | waited_for)
        if not helping or not steady:
            one.mark = None
            return []
        # A replica that was frozen is STABLE when it goes on: it must be as far as those that helped out meanwhile.
        if one.mark is None:
            one.mark = max(one.frontier[n] for n in helping)
        if any(one.frontier[n] < one.mark for n in meant):
            return []
        return [Decision("retire", ReplicaId(*id, helping[-1]))]

    def _is_waited_for(self, id: PartitionId) -> bool:
        """Is there a partition behind it that nobody serves?  Whoever recovers may replay for that (H8)."""
        unserved = (after for after, one in self._partitions.items() if one.unserved_since is not None)
        return any(id in _before(self._plan, after) for after in unserved)

    def _restore(self, id: PartitionId, one: _Partition, since: int, now: int) -> list[Decision]:
        """Orders for a partition that no node serves."""
        standbys = self._directory.standbys[id].nodes
        if now - since < self._patience(id, one):
            return []
        installs = {n: Decision("install", ReplicaId(*id, n)) for n in standbys}
        asked = max((one.asked_at.get(installs[n], since) for n in standbys if n in one.running), default=None)
        if asked is not None and now - asked < self._recovery_us:
            return []  # one recovers already: a second one would be no faster
        able = self._able(id, one, now)
        chosen = self._held.get(id, able[0] if able else None)
        if chosen in able:
            return [installs[chosen]]
        # A node that is away may hold a state, and come back with it.
        away = any(
            n not in self._alive and self._directory.disk_us(ReplicaId(*id, n)) for n in self._directory.hosts(id)
        )
        patience_us = self._recovery_us * (_FOR_A_STATE if away else 1)
        lacking = [now - one.lacking_since.get(n, now) >= patience_us for n in one.running]
        return self._replays(id, now) if lacking and all(lacking) else []

    def _patience(self, id: PartitionId, one: _Partition) -> int:
        """How long a partition may be unserved before a standby runs it."""
        coming = any(n in one.running or n not in self._heard for n in self._directory.placement[id])
        return self._recovery_us if coming else self._patience_us

    def _able(self, id: PartitionId, one: _Partition, now: int) -> list[NodeId]:
        """Standbys that can be told to run it, the first one first."""
        able = [n for n in self._directory.standbys[id].nodes if n in self._alive and n not in one.running]
        return sorted(able, key=lambda n: self._refused_lately(one, n, now))

    def _willing(self, id: PartitionId, one: _Partition, now: int) -> list[NodeId]:
        able = self._able(id, one, now)
        return [n for n in able if not self._refused_lately(one, n, now)] or able

    def _refused_lately(self, one: _Partition, node: NodeId, now: int) -> bool:
        return now - one.refused_at.get(node, now - self._recovery_us) < self._recovery_us

    def _replays(self, id: PartitionId, now: int) -> list[Decision]:
        """The last resort: one replica of everything before it begins anew, unless one still has its beginning.

        None does while a source does not answer, or has another log than the one that it was made from: what is missing
        could not be made again, and the state would be lost as well (S6).  Nor below a source whose log is not kept for
        ever: its first rows may go meanwhile (E5).
        """
        read = {i.stream for i in self._plan.unit[id.unit].inputs}
        if any(
            s.retain is not None and read & streams_below(self._plan, name) for name, s in self._plan.sources.items()
        ):
            return []
        found, origins = [], dict[PartitionId, str]()
        for before in _before(self._plan, id):
            origin = self._origin_of(before, origins)
            made = {n: one for n, one in self._made.get(before, {}).items() if one.origin in ("", origin)}
            if not made:
                return []
            if (node := self._to_replay(before, made, now)) is not None:
                found.append(Decision("replay", ReplicaId(*before, node)))
        for decision in found:
            self._replaying.setdefault(decision.replica, (_NOT_BEGUN, now))
        return found

    def _to_replay(self, id: PartitionId, made: Mapping[NodeId, _Made], now: int) -> NodeId | None:
        """Which of the replicas of a partition is to begin anew; None: one has its beginning, or makes it, or none can.

        One that was told to and stands still for long is left as it is: it may be cut off from the sources.
        """
        in_vain = {n for n, one in made.items() if self._replays_in_vain(ReplicaId(*id, n), one, now)}
        if any(one.first == 1 and n not in in_vain for n, one in made.items()):
            return None
        left = [n for n, one in made.items() if one.first > 1]
        told = [n for n in left if ReplicaId(*id, n) in self._replaying]
        best = [n for n in told if n not in in_vain] or [n for n in left if n not in in_vain] or left
        return max(best, key=lambda n: (_CAN_REPLAY.index(made[n].state), n), default=None)

    def _replays_in_vain(self, replica: ReplicaId, made: _Made, now: int) -> bool:
        """Has it been told to begin anew, or begun, without any progress for long?  It waits for what is before it."""
        known = self._replaying.get(replica) or self._replaying_before.get(replica)
        begun = made.first == 1
        if (begun and made.state is not NodeState.RECOVERING) or (not begun and known is None):
            return False
        upstream = (self._made.get(before, {}).values() for before in _before(self._plan, replica.of))
        states = [{one.state for one in made if one.first == 1} for made in upstream]
        waits = {NodeState.RECOVERING} in states
        progress = made.frontier if begun else _NOT_BEGUN
        since = now if known is None or known[0] != progress or waits else known[1]
        self._replaying[replica] = progress, since
        return now - since >= REPLAYS_IN_VAIN_US

    def _origin_of(self, id: PartitionId, known: dict[PartitionId, str]) -> str:
        """The origin of what the sources' logs give now; "" where one of them does not answer, or not from id 1 on."""
        if id not in known:
            plan = self._plan
            known[id] = combined(
                [
                    self._logs.get(c.stream, "")
                    if c.stream in plan.sources
                    else self._origin_of(plan.maker_of(c), known)
                    for c in plan.unit[id.unit].channels_in(id.partition)
                ]
            )
        return known[id]

    # --- for people ---

    def status(self) -> list[PartitionStatus]:
        """Each partition that has standbys: who runs it, and who is meant to."""
        return [
            PartitionStatus(
                partition=str(id),
                running=dict(sorted(one.running.items())),
                placed=tuple(self._directory.placement[id]),
                standbys=tuple(self._directory.standbys[id].nodes),
                wanted=tuple(sorted(one.wanted)),
                served=one.unserved_since is None,
            )
            for id, one in self._partitions.items()
        ]


def _before(plan: Plan, id: PartitionId) -> tuple[PartitionId, ...]:
    """The partitions that one reads, directly or through others."""
    found: dict[PartitionId, None] = {}
    waiting = [id]
    while waiting:
        of = waiting.pop()
        for channel in plan.unit[of.unit].channels_in(of.partition):
            if channel.stream not in plan.sources and (maker := plan.maker_of(channel)) not in found:
                found[maker] = None
                waiting.append(maker)
    return tuple(found)
