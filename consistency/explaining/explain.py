"""Follows an output from its client upstream to the cause of a delay.

It compares two snapshots of the cluster, a second apart: a stream that does not advance between them is stuck.  If a
producer advances and its consumer does not, the link is the cause; if the producer is stuck too, its input is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final, NamedTuple

from consistency.explaining.model import Cause, CauseKind, Condition, Explanation, Look, Step, short
from consistency.explaining.moving import arriving, moves_on_the_way
from spe.figures.cluster_figures import usual_lag_us
from spe.plan.describe import show_duration
from spe.plan.directory import Directory
from spe.plan.nodes import Policy
from spe.plan.plan import Plan
from spe.status import ChannelStatus, InputStatus, ReplicaStatus, UnreachedStatus
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import NodeId, NodeState, StreamId
from spe.stream.times import BEFORE_TIME, END_OF_TIME

#: Minimum time between two snapshots.
BETWEEN_US: Final = 1_000_000
_NOT_KNOWN: Final = UnreachedStatus("silent", "it is not known")
#: Time to answer above which a process is overloaded.
SLOW_ANSWER_US: Final = 300_000


def explain(plan: Plan, directory: Directory, before: Look, now: Look, stream: str = "") -> list[Explanation]:
    """Explains the condition of outputs.

    Args:
      directory: roles of nodes; nodes' own reports of what they run count as well.
      before, now: two snapshots, about ``BETWEEN_US`` apart.  Outputs of unreachable clients are explained, too.
      stream: only this output; "": all.
    """
    explainer = Explainer(plan, directory, before, now)
    return [explainer.explain(*pair) for pair in explainer.outputs(stream)]


def between_us(plan: Plan) -> int:
    """Returns the time between two snapshots in which everything advances that works."""
    slowest = max((plan.boundary_us(s) for s in plan.query.outputs), default=0)
    return max(BETWEEN_US, 2 * (slowest + plan.bucket_us))


class Explainer:
    """Explains outputs one by one, if there are too many to explain all."""

    def __init__(self, plan: Plan, directory: Directory, before: Look, now: Look) -> None:
        self._facts = (plan, directory, before, now)

    def outputs(self, stream: str = "") -> list[tuple[str, Channel]]:
        """Returns channels that clients read, each with its client; the client is "" if it is unreachable."""
        plan, directory, _, now = self._facts
        wanted = [s for s in plan.query.outputs if stream in ("", s)]
        asked = {n: c for n, c in directory.clients.items() if f"client:{n}" in {**now.statuses, **now.errors}}
        pairs = [(name, s) for name, settings in asked.items() for s in settings.reads if s in wanted]
        pairs += [("", s) for s in wanted if s not in {read for _, read in pairs}]
        return [(name, Channel(s, partition)) for name, s in pairs for partition in range(plan.partitions_of(s))]

    def condition(self, client: str, channel: Channel) -> Condition:
        """Returns the condition of an output, without its causes."""
        return _Chain(*self._facts).condition(client, channel)

    def explain(self, client: str, channel: Channel) -> Explanation:
        """Returns the condition of an output with its causes."""
        plan, _, _, now = self._facts
        chain = _Chain(*self._facts)
        condition = chain.follow(client, channel)
        causes = tuple(chain.causes)
        known = {(c.kind, c.processes) for c in causes}
        elsewhere = tuple(c for c in self._wrong if (c.kind, c.processes) not in known)
        moves = moves_on_the_way(plan, now, channel)
        steps, next_ = tuple(chain.steps), tuple(chain.next)
        return Explanation(client, str(channel), condition, steps, causes, next_, elsewhere, moves)

    @cached_property
    def _wrong(self) -> tuple[Cause, ...]:
        """Returns all causes of trouble in the cluster, whatever they affect."""
        chain = _Chain(*self._facts)
        chain.follow_all()
        return tuple(chain.causes)


class _Waits(NamedTuple):
    """Waiting time of a replica, and its policy after that."""

    alpha_x_us: int
    during_failure: Policy


class _Chain:
    """Builds one explanation."""

    def __init__(self, plan: Plan, directory: Directory, before: Look, now: Look) -> None:
        self._plan = plan
        self._directory = directory
        self._before = before
        self._now = now
        self.steps: list[Step] = []
        self.causes: dict[Cause, None] = {}
        self.next: dict[str, None] = {}
        #: Replicas already visited: each is explained once.
        self._known: set[tuple[str, PartitionId]] = set()

    # --- the client ---

    def condition(self, client: str, channel: Channel) -> Condition:
        """Returns the condition of an output."""
        if not client:
            return self._of_replicas(channel)
        status = self._now.channel(client, str(channel))
        return Condition.UNKNOWN if status is None else self._condition(client, channel, status)

    def follow(self, client: str, channel: Channel) -> Condition:
        """Returns the condition of an output; the chain to its causes is in the attributes."""
        return self._client(client, channel) if client else self._output(channel)

    def follow_all(self) -> None:
        """Follows everything that is wrong."""
        for name in self._now.errors:
            self._down(0, name)
        for name, status in self._now.statuses.items():
            for what, why in status.disk_full.items():
                self._disk(name, what, why)
            self._servers(name, status.away)
        coming = arriving(self._now)
        for name in self._now.statuses:
            self._slow_to_answer(name)
        for node, replica in self._now.replicas():
            id = replica.id
            if replica.state is NodeState.RECOVERING and replica.error is None and (node, str(id)) in coming:
                continue
            if replica.state is not NodeState.STABLE or replica.error is not None:
                self._replica(0, node, id)

    def _client(self, client: str, channel: Channel) -> Condition:
        name = f"client:{client}"
        status, received = self._now.client(client), self._now.channel(client, str(channel))
        if status is None or received is None:
            self._down(0, name)
            self.next[f"when {name} is back, it reads on where its recording and its sinks end"] = None
            self._output(channel, depth=1)
            return Condition.UNKNOWN
        condition = self._condition(client, channel, received)
        self._step(0, name, self._of_client(condition, received))
        if condition in (Condition.FINE, Condition.ENDED):
            return condition
        if status.disk_full:
            for what, why in status.disk_full.items():
                self._disk(name, what, why)
            return condition
        if status.away:
            self._servers(name, status.away)
            return condition
        if received.producer is None:
            for host in self._hosts(self._plan.maker_of(channel)):
                self._unread(1, host, name, self._plan.maker_of(channel))
            return condition
        self._producer(
            1, channel, received.producer, name, received.frontier, stuck=self._stuck_client(client, channel, received)
        )
        if received.held and not self.causes:
            self._cause(
                CauseKind.CORRECTING,
                (received.producer, name),
                f"what {name} holds is old; {received.producer} is stable and corrects it",
            )
        return condition

    def _condition(self, client: str, channel: Channel, received: ChannelStatus) -> Condition:
        if received.ended:
            return Condition.ENDED
        if received.held:
            return Condition.TENTATIVE
        if self._stuck_client(client, channel, received):
            silent = received.last_arrival_us is None or self._now.at_us - received.last_arrival_us >= BETWEEN_US
            return Condition.SILENT if silent else Condition.LATE
        if received.delay_us is not None and received.bound_us is not None and received.delay_us > received.bound_us:
            return Condition.LATE
        reach = [r for h in self._hosts(self._plan.maker_of(channel)) if (r := self._reach(self._now, h, channel))]
        if max(reach, default=received.frontier) - received.frontier > self._lag_us(channel):
            return Condition.LATE
        return Condition.FINE

    def _of_client(self, condition: Condition, received: ChannelStatus) -> str:
        read = "reads nobody" if received.producer is None else f"reads {received.producer}"
        match condition:
            case Condition.TENTATIVE:
                return f"{read}, and holds tentative results after id {received.position}"
            case Condition.SILENT if received.last_arrival_us is None:
                return f"{read}, and has received nothing yet"
            case Condition.SILENT:
                ago = max(0, self._now.at_us - (received.last_arrival_us or 0))
                return f"{read}, and has received nothing for {short(ago)}"
            case Condition.LATE:
                late = "" if received.delay_us is None else f"; the delay is {short(received.delay_us)}"
                return f"{read}, and gets results late{late}"
            case Condition.ENDED:
                return "has everything: the stream is over"
        return f"{read}, and gets stable results"

    def _stuck_client(self, client: str, channel: Channel, received: ChannelStatus) -> bool:
        old = self._before.channel(client, str(channel))
        return old is not None and old.frontier >= received.frontier

    def _output(self, channel: Channel, depth: int = 0) -> Condition:
        """Returns the condition of an output without a client, by the replicas."""
        for host in self._hosts(self._plan.maker_of(channel)):
            self._producer(depth, channel, host, "", BEFORE_TIME, stuck=False)
        return self._of_replicas(channel)

    def _of_replicas(self, channel: Channel) -> Condition:
        maker = self._plan.maker_of(channel)
        replicas = [self._now.replica(host, maker) for host in self._hosts(maker)]
        states = [replica.state for replica in replicas if replica is not None and replica.error is None]
        if not states:
            return Condition.SILENT
        return Condition.FINE if NodeState.STABLE in states else Condition.TENTATIVE

    # --- a producer, as somebody reads it ---

    def _producer(
        self, depth: int, channel: Channel, producer: str, reader: str, frontier: int, *, stuck: bool
    ) -> None:
        """Explains why a producer has not given the reader more, or that more is under way.

        Args:
          reader: "": no particular one.
          frontier: of the reader; ``stuck``: it does not advance.
        """
        if producer in self._now.errors:
            self._down(depth, producer)
            self._says_who_else(channel, producer, reader)
            return
        reach, old = self._reach(self._now, producer, channel), self._reach(self._before, producer, channel)
        behind = 0 if reach is None else reach - max(frontier, BEFORE_TIME)
        moves = reach is not None and old is not None and reach > old
        if reader and reach is not None and behind > self._lag_us(channel) and (stuck or moves):
            self._link(depth, channel, producer, reader, behind, stuck)
            return
        if channel.stream in self._plan.sources:
            self._source(depth, channel.stream, moves=moves)
        else:
            self._replica(depth, producer, self._plan.maker_of(channel))

    def _link(self, depth: int, channel: Channel, producer: str, reader: str, behind_us: int, stuck: bool) -> None:
        """Explains a producer that has what the reader lacks."""
        got = "gets nothing of it" if stuck else "gets it later"
        self._step(
            depth, f"{producer} → {reader}", f"{producer} has {short(behind_us)} more of {channel}; {reader} {got}"
        )
        if self._slow_to_answer(producer) or self._slow_to_answer(reader):
            return
        if self._all_late(reader) and (stuck or not reader.startswith("client:")):
            why = f"{reader} is behind all that it reads: it is overloaded, or everything between them is slow"
            self._cause(CauseKind.SLOW, (reader,), why)
            self.next[f"{reader} catches up when it has more CPU, or less to do"] = None
            return
        if reader.startswith("client:"):
            why = f"{reader} takes what {producer} has late: it is slow, or the link between them is cut or slow"
            self._cause(CauseKind.SLOW, (reader, producer), why)
            self.next[f"{producer} keeps what {reader} has not acknowledged; it gets everything in order"] = None
            return
        kind = "cut or far too slow" if stuck else "slow"
        self._cause(CauseKind.LINK, (producer, reader), f"the link between {producer} and {reader} is {kind}")
        self.next[f"when it works again, {reader} reads on where it stopped"] = None

    def _all_late(self, reader: str) -> bool:
        """Does a node lag behind all of several producers?"""
        node = self._now.node(reader)
        inputs = [] if node is None else [i for r in node.replicas for i in r.inputs]
        behind = []
        for input_ in inputs:
            channel = _channel(input_.channel)
            reach = None if input_.main is None else self._reach(self._now, input_.main, channel)
            behind.append(reach is not None and reach - input_.frontier > self._lag_us(channel))
        return len({input_.main for input_ in inputs}) > 1 and all(behind)

    def _says_who_else(self, channel: Channel, producer: str, reader: str) -> None:
        if channel.stream in self._plan.sources:
            self.next[f"when {producer} is back, what it has logged comes, and all is corrected"] = None
            return
        others = [h for h in self._hosts(self._plan.maker_of(channel)) if h != producer]
        able = [h for h in others if self._serves(h, self._plan.maker_of(channel))]
        heartbeats = show_duration(4 * self._plan.timing.heartbeat_us)
        if able:
            self.next[f"{reader or 'whoever reads it'} switches to {able[0]} within {heartbeats}"] = None
        else:
            names = ", ".join([producer, *others])
            self.next[f"nothing comes until a replica is back: {names}"] = None

    # --- a replica ---

    def _replica(self, depth: int, node: str, id: PartitionId) -> None:
        name = f"{id}@{node}"
        status = self._now.replica(node, id)
        if (node, id) in self._known:
            self._step(depth, name, "as above")
            return
        self._known.add((node, id))
        if status is None:
            self._step(depth, name, f"{node} does not run it")
            self._cause(CauseKind.RECOVERING, (node,), f"{node} does not run {id}")
            return
        if status.error is not None:
            self._step(depth, name, f"has stopped: {status.error}")
            self._cause(CauseKind.FAILED, (node,), f"{name} has stopped: {status.error}")
            self.next[f"it begins again from a partner's state when {node} is restarted"] = None
            return
        self._of_state(depth, name, node, id, status)

    def _of_state(self, depth: int, name: str, node: str, id: PartitionId, replica_status: ReplicaStatus) -> None:
        status = self._now.node(node)
        for what, why in {} if status is None else dict(status.disk_full).items():
            self._disk(node, what, why)
        match replica_status.state:
            case NodeState.RECOVERING:
                lacks = f"; it lacks {', '.join(replica_status.missing)}" if replica_status.missing else ""
                self._step(depth, name, f"is RECOVERING{lacks}")
                if not self._inputs(depth + 1, node, replica_status):
                    self._cause(CauseKind.RECOVERING, (node,), f"{name} takes its state and catches up{lacks}")
                self.next[f"{name} serves when it has caught up"] = None
            case NodeState.STABILIZATION:
                self._step(depth, name, f"is in STABILIZATION; {replica_status.redone_rows:,} rows redone so far")
                self._cause(CauseKind.CORRECTING, (node,), f"{name} corrects what was tentative")
                self.next[f"{name} sends an undo and the stable results, then it is STABLE"] = None
            case NodeState.UP_FAILURE:
                policy = self._settings(node, id).during_failure
                how = "waits (policy suspend)" if policy is Policy.SUSPEND else "goes on without some input"
                self._step(depth, name, f"is in UP_FAILURE: it {how}")
                if not self._inputs(depth + 1, node, replica_status):
                    self._turn(name, node, replica_status)
                self.next[f"{name} corrects when all of its input is there"] = None
            case NodeState.STABLE:
                self._stable(depth, name, node, id, replica_status)

    def _stable(self, depth: int, name: str, node: str, id: PartitionId, status: ReplicaStatus) -> None:
        if status.fill >= 1:
            self._step(depth, name, "is STABLE, and its output buffer is full")
            self._cause(CauseKind.FULL, (node,), f"the output buffer of {name} is full: somebody does not acknowledge")
            self.next["nothing stable leaves until a consumer acknowledges, or is removed"] = None
            return
        waits = f", and has waited for {short(status.waiting_us)}" if status.waiting_us else ""
        self._step(depth, name, f"is STABLE{waits}")
        if self._inputs(depth + 1, node, status):
            settings = self._settings(node, id)
            left = max(0, settings.alpha_x_us - status.waiting_us)
            then = "waits on" if settings.during_failure is Policy.SUSPEND else "goes on without, tentative"
            self.next[f"in {short(left)} {name} {then}"] = None

    def _turn(self, name: str, node: str, status: ReplicaStatus) -> None:
        """Explains a replica without missing input: it corrects soon."""
        busy = [partner for partner, state in status.partners.items() if state is NodeState.STABILIZATION]
        if status.skew:
            self._cause(CauseKind.X, (node,), f"{status.skew[0]}, more than αX waits for at {name}")
            self.next["results stay tentative until it catches up, or X is longer"] = None
        elif busy:
            self._cause(
                CauseKind.CORRECTING,
                (node, *busy),
                f"{name} has all of its input, and waits until {busy[0]} has corrected",
            )
        else:
            self._cause(CauseKind.CORRECTING, (node,), f"{name} has all of its input, and is about to correct")

    # --- inputs ---

    def _inputs(self, depth: int, node: str, status: ReplicaStatus) -> bool:
        """Follows the inputs that hold up a replica; returns whether there are any."""
        old = self._before.replica(node, status.id)
        earlier = {} if old is None else {i.channel: i for i in old.inputs}
        ahead = max((i.frontier for i in status.inputs), default=BEFORE_TIME)
        follows = False
        for each in status.inputs:
            channel, was = _channel(each.channel), earlier.get(each.channel)
            if each.frontier >= END_OF_TIME:
                continue
            stuck = was is not None and was.frontier >= each.frontier
            allowed_us = self._lag_us(channel)
            if status.state is NodeState.UP_FAILURE:
                allowed_us = min(allowed_us, self._settings(node, status.id).alpha_x_us)
            behind = min(ahead, END_OF_TIME) - each.frontier if ahead < END_OF_TIME else 0
            if stuck or each.main is None or behind > allowed_us:
                follows = True
                self._input(depth, node, status, each, stuck=stuck, behind_us=behind)
        return follows

    def _input(
        self, depth: int, node: str, status: ReplicaStatus, input_: InputStatus, *, stuck: bool, behind_us: int
    ) -> None:
        channel, who = _channel(input_.channel), f"{status.unit}/{status.partition}@{node} ← {input_.channel}"
        if input_.other_logs and input_.main is None:
            producer, why = next(iter(input_.other_logs.items()))
            self._step(depth, who, f"does not read {producer}")
            self._cause(CauseKind.OTHER_LOG, (producer, node), why)
            return
        how = "brings nothing new" if stuck else f"is {short(behind_us)} behind another input"
        if input_.main is None:
            self._step(depth, who, "is read from nobody")
            makers = self._makers(channel)
            for maker in makers:
                self._unread(
                    depth + 1,
                    maker,
                    node,
                    None if channel.stream in self._plan.sources else self._plan.maker_of(channel),
                )
            return
        self._step(depth, who, f"{how}, read from {input_.main}")
        count = len(self.causes)
        self._producer(depth + 1, channel, input_.main, node, input_.frontier, stuck=stuck)
        if len(self.causes) == count and not stuck:
            x_us = status.x_us or self._directory.nodes[NodeId(node)].x_us
            why = f"{input_.channel} comes {short(behind_us)} later than other input; X at {node} is {short(x_us)}"
            self._cause(CauseKind.X, (input_.main, node), why)
            self.next[f"an X above {short(round(behind_us * 1.2))} would wait for it: spe set … {node} x=…"] = None

    def _unread(self, depth: int, producer: str, reader: str, id: PartitionId | None) -> None:
        """Explains a producer that should be read, and is not."""
        if producer in self._now.errors:
            self._down(depth, producer)
            self.next[f"when {producer} is back, {reader} reads on where it stopped"] = None
            return
        replica = None if id is None else self._now.replica(producer, id)
        if id is not None and (replica is None or replica.error is not None or replica.state is NodeState.RECOVERING):
            self._replica(depth, producer, id)
            return
        status = self._now.statuses.get(reader)
        error = None if status is None else status.unreachable.get(producer)
        suffix = "" if error is None else f": {error.why}"
        self._step(depth, f"{producer} → {reader}", f"{producer} answers, but {reader} does not reach it{suffix}")
        if self._slow_to_answer(producer):
            return
        link = f"the link between {producer} and {reader}"
        if error is not None and error.kind == "turned away":
            why = f"{link} refuses connections: a firewall, or {reader} has another address of {producer}"
        elif error is not None and error.kind == "refused":
            self._cause(CauseKind.REFUSED, (producer, reader), f"{producer} refuses {reader}: {error.why}")
            return
        else:
            why = f"{link} is cut, or far too slow"
        self._cause(CauseKind.LINK, (producer, reader), why)
        self.next[f"when it works again, {reader} reads on where it stopped"] = None

    def _source(self, depth: int, stream: StreamId, *, moves: bool) -> None:
        name, status = f"source:{stream}", self._now.source(stream)
        if status is None:
            self._down(depth, name)
            return
        log = status.log
        if status.disk_full:
            for what, why in status.disk_full.items():
                self._step(depth, name, "takes in nothing")
                self._disk(name, what, why)
        elif status.waits_for:
            self._step(depth, name, "takes in nothing")
            self._servers(name, status.waits_for)
        elif log is None:
            self._step(depth, name, "has not opened its log yet")
            self._cause(CauseKind.RECOVERING, (name,), f"{name} opens its log")
        elif log.fault is not None:
            self._step(depth, name, "has failed")
            self._cause(CauseKind.FAILED, (name,), f"{name} has failed: {log.fault}")
        elif not moves and not log.ended:
            note = f" ({log.note})" if log.note else ""
            self._step(depth, name, f"answers, and brings nothing new{note}")
            self._cause(
                CauseKind.QUIET, (name,), f"{name} logs nothing new: no input comes to it, or its disk hangs{note}"
            )
            self.next[f"when {name} goes on, what was missing comes, and all is corrected"] = None
        else:
            self._step(depth, name, "goes on")

    # --- causes ---

    def _down(self, depth: int, name: str) -> None:
        error = self._now.errors.get(name, _NOT_KNOWN)
        why = error.why
        self._step(depth, name, f"does not answer: {why}")
        if error.kind == "refused":
            self._cause(CauseKind.REFUSED, (name,), f"{name} is refused, or refuses: {why}")
        else:
            self._cause(CauseKind.DOWN, (name,), f"{name} is down, frozen, cut off or far too slow: {why}")

    def _slow_to_answer(self, name: str) -> bool:
        """Explains a process that answers late: it answers every process late."""
        took_us = self._now.took_us.get(name, 0)
        if took_us < SLOW_ANSWER_US:
            return False
        why = f"{name} answers only after {short(took_us)}: it is overloaded, or its machine or disk is slow"
        self._cause(CauseKind.SLOW, (name,), why)
        self.next[f"{name} catches up when it has more CPU, or less to do"] = None
        return True

    def _disk(self, name: str, what: str, why: str) -> None:
        self._cause(CauseKind.DISK, (name,), f"{name} has no room for {what}: {why}")
        self.next[f"{name} goes on by itself when there is room"] = None

    def _servers(self, name: str, away: Mapping[str, str]) -> None:
        for what, why in away.items():
            self._cause(CauseKind.AWAY, (name,), f"{name}: {what}: its server does not answer: {why}")
            self.next[f"{name} goes on by itself when its server answers"] = None

    def _cause(self, kind: CauseKind, processes: tuple[str, ...], why: str) -> None:
        self.causes[Cause(kind, processes, why)] = None

    def _step(self, depth: int, who: str, what: str) -> None:
        self.steps.append(Step(depth, who, what))

    # --- facts ---

    def _hosts(self, id: PartitionId) -> list[str]:
        """Returns the nodes that run a partition, or should."""
        placed = [str(n) for n in self._directory.placement.get(id, ())]
        return list(dict.fromkeys([*placed, *self._now.running(id)]))

    def _makers(self, channel: Channel) -> list[str]:
        if channel.stream in self._plan.sources:
            return [f"source:{channel.stream}"]
        return self._hosts(self._plan.maker_of(channel))

    def _serves(self, node: str, id: PartitionId) -> bool:
        status = self._now.replica(node, id)
        return status is not None and status.error is None and status.state is not NodeState.RECOVERING

    def _reach(self, look: Look, producer: str, channel: Channel) -> int | None:
        """Returns the stable boundary of a producer; None: it is unknown."""
        if channel.stream in self._plan.sources:
            source = look.source(channel.stream)
            return None if source is None or source.log is None else source.log.frontier
        status = look.replica(producer, self._plan.maker_of(channel))
        return None if status is None else status.frontier

    def _lag_us(self, channel: Channel) -> int:
        return usual_lag_us(self._plan, channel.stream)

    def _settings(self, node: str, id: PartitionId) -> _Waits:
        status = self._now.node(node)
        share = self._directory.share(self._plan, id.unit, NodeId(node)) if node in self._directory.nodes else None
        if status is not None and status.settings is not None:
            settings, replica = status.settings, self._now.replica(node, id)
            x_us = replica.x_us if replica is not None and replica.x_us is not None else settings.x_us
            return _Waits(round(settings.alpha * x_us), Policy(settings.during_failure))
        return _Waits(0, Policy.PROCESS) if share is None else _Waits(share.alpha_x_us, share.during_failure)


def _channel(name: str) -> Channel:
    stream, _, partition = name.rpartition("/")
    return Channel(StreamId(stream), int(partition))
