"""Follows an output from its client upstream to the cause of a delay.

It compares two snapshots of the cluster, a second apart: a stream that does not advance between them is stuck.  If a
producer advances and its consumer does not, the link is the cause; if the producer is stuck too, its input is.
"""

from __future__ import annotations

from functools import cached_property

from consistency.explaining.chain import Chain
from consistency.explaining.facts import BETWEEN_US, Facts, channel_of
from consistency.explaining.model import Cause, CauseKind, Condition, Explanation, Look, short
from consistency.explaining.moving import arriving, moves_on_the_way
from spe.plan.describe import show_duration
from spe.plan.directory import Directory
from spe.plan.nodes import Policy
from spe.plan.plan import Plan
from spe.status import ChannelStatus, InputStatus, ReplicaStatus
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import NodeId, NodeState, StreamId
from spe.stream.times import BEFORE_TIME, END_OF_TIME


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
        self._facts = Facts(plan, directory, before, now)

    def outputs(self, stream: str = "") -> list[tuple[str, Channel]]:
        """Returns channels that clients read, each with its client; the client is "" if it is unreachable."""
        plan, directory, now = self._facts.plan, self._facts.directory, self._facts.now
        wanted = [s for s in plan.query.outputs if stream in ("", s)]
        asked = {n: c for n, c in directory.clients.items() if f"client:{n}" in {**now.statuses, **now.errors}}
        pairs = [(name, s) for name, settings in asked.items() for s in settings.reads if s in wanted]
        pairs += [("", s) for s in wanted if s not in {read for _, read in pairs}]
        return [(name, Channel(s, partition)) for name, s in pairs for partition in range(plan.partitions_of(s))]

    def condition(self, client: str, channel: Channel) -> Condition:
        """Returns the condition of an output, without its causes."""
        return self._facts.condition(client, channel)

    def explain(self, client: str, channel: Channel) -> Explanation:
        """Returns the condition of an output with its causes."""
        plan, now = self._facts.plan, self._facts.now
        chain = Chain(now)
        condition = _Follower(self._facts, chain).follow(client, channel)
        causes = tuple(chain.causes)
        known = {(c.kind, c.processes) for c in causes}
        elsewhere = tuple(c for c in self._wrong if (c.kind, c.processes) not in known)
        moves = moves_on_the_way(plan, now, channel)
        steps, next_ = tuple(chain.steps), tuple(chain.next)
        return Explanation(client, str(channel), condition, steps, causes, next_, elsewhere, moves)

    @cached_property
    def _wrong(self) -> tuple[Cause, ...]:
        """Returns all causes of trouble in the cluster, whatever they affect."""
        chain = Chain(self._facts.now)
        _Follower(self._facts, chain).follow_all()
        return tuple(chain.causes)


class _Follower:
    """Follows what an output waits for; what it meets goes to a chain."""

    def __init__(self, facts: Facts, chain: Chain) -> None:
        self._facts = facts
        self._plan = facts.plan
        self._now = facts.now
        self._chain = chain
        #: Replicas already visited: each is explained once.
        self._known: set[tuple[str, PartitionId]] = set()

    def follow(self, client: str, channel: Channel) -> Condition:
        """Returns the condition of an output; its causes are in the chain."""
        return self._client(client, channel) if client else self._output(channel)

    def follow_all(self) -> None:
        """Follows everything that is wrong."""
        for name in self._now.errors:
            self._chain.down(0, name)
        for name, status in self._now.statuses.items():
            self._chain.disks(name, status.disk_full)
            self._chain.servers(name, status.away)
        coming = arriving(self._now)
        for name in self._now.statuses:
            self._chain.slow_to_answer(name)
        for node, replica in self._now.replicas():
            if replica.state is NodeState.RECOVERING and replica.error is None and (node, str(replica.id)) in coming:
                continue
            if replica.state is not NodeState.STABLE or replica.error is not None:
                self._replica(0, node, replica.id)

    # --- the client ---

    def _client(self, client: str, channel: Channel) -> Condition:
        name = f"client:{client}"
        status, received = self._now.client(client), self._now.channel(client, str(channel))
        if status is None or received is None:
            self._chain.down(0, name)
            self._chain.next[f"when {name} is back, it reads on where its recording and its sinks end"] = None
            self._output(channel, depth=1)
            return Condition.UNKNOWN
        condition = self._facts.condition(client, channel)
        self._chain.step(0, name, self._of_client(condition, received))
        if condition in (Condition.FINE, Condition.ENDED):
            return condition
        if status.disk_full:
            self._chain.disks(name, status.disk_full)
            return condition
        if status.away:
            self._chain.servers(name, status.away)
            return condition
        if received.producer is None:
            for host in self._facts.hosts(self._plan.maker_of(channel)):
                self._unread(1, host, name, self._plan.maker_of(channel))
            return condition
        stuck = self._facts.is_stuck(client, channel, received)
        self._producer(1, channel, received.producer, name, received.frontier, stuck=stuck)
        if received.held and not self._chain.causes:
            self._chain.cause(
                CauseKind.CORRECTING,
                (received.producer, name),
                f"what {name} holds is old; {received.producer} is stable and corrects it",
            )
        return condition

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

    def _output(self, channel: Channel, depth: int = 0) -> Condition:
        """Returns the condition of an output without a client, by the replicas."""
        for host in self._facts.hosts(self._plan.maker_of(channel)):
            self._producer(depth, channel, host, "", BEFORE_TIME, stuck=False)
        return self._facts.condition("", channel)

    def _producer(
        self, depth: int, channel: Channel, producer: str, reader: str, frontier: int, *, stuck: bool
    ) -> None:
        """Explains why a producer has not given the reader more, or that more is under way.

        Args:
          reader: "": no particular one.
          frontier: of the reader; ``stuck``: it does not advance.
        """
        if producer in self._now.errors:
            self._chain.down(depth, producer)
            self._says_who_else(channel, producer, reader)
            return
        reach = self._facts.reach(self._now, producer, channel)
        old = self._facts.reach(self._facts.before, producer, channel)
        behind = 0 if reach is None else reach - max(frontier, BEFORE_TIME)
        moves = reach is not None and old is not None and reach > old
        if reader and reach is not None and behind > self._facts.lag_us(channel) and (stuck or moves):
            self._link(depth, channel, producer, reader, behind, stuck)
            return
        if channel.stream in self._plan.sources:
            self._source(depth, channel.stream, moves=moves)
        else:
            self._replica(depth, producer, self._plan.maker_of(channel))

    def _link(self, depth: int, channel: Channel, producer: str, reader: str, behind_us: int, stuck: bool) -> None:
        """Explains a producer that has what the reader lacks."""
        got = "gets nothing of it" if stuck else "gets it later"
        self._chain.step(
            depth, f"{producer} → {reader}", f"{producer} has {short(behind_us)} more of {channel}; {reader} {got}"
        )
        if self._chain.slow_to_answer(producer) or self._chain.slow_to_answer(reader):
            return
        if self._all_late(reader) and (stuck or not reader.startswith("client:")):
            why = f"{reader} is behind all that it reads: it is overloaded, or everything between them is slow"
            self._chain.overloaded(reader, (reader,), why)
            return
        if reader.startswith("client:"):
            why = f"{reader} takes what {producer} has late: it is slow, or the link between them is cut or slow"
            then = f"{producer} keeps what {reader} has not acknowledged; it gets everything in order"
            self._chain.cause(CauseKind.SLOW, (reader, producer), why, then)
            return
        kind = "cut or far too slow" if stuck else "slow"
        why = f"the link between {producer} and {reader} is {kind}"
        then = f"when it works again, {reader} reads on where it stopped"
        self._chain.cause(CauseKind.LINK, (producer, reader), why, then)

    def _all_late(self, reader: str) -> bool:
        """Does a node lag behind all of several producers?"""
        node = self._now.node(reader)
        inputs = [] if node is None else [i for r in node.replicas for i in r.inputs]
        behind = []
        for input_ in inputs:
            channel = channel_of(input_.channel)
            reach = None if input_.main is None else self._facts.reach(self._now, input_.main, channel)
            behind.append(reach is not None and reach - input_.frontier > self._facts.lag_us(channel))
        return len({input_.main for input_ in inputs}) > 1 and all(behind)

    def _says_who_else(self, channel: Channel, producer: str, reader: str) -> None:
        if channel.stream in self._plan.sources:
            self._chain.next[f"when {producer} is back, what it has logged comes, and all is corrected"] = None
            return
        others = [h for h in self._facts.hosts(self._plan.maker_of(channel)) if h != producer]
        able = [h for h in others if self._facts.serves(h, self._plan.maker_of(channel))]
        heartbeats = show_duration(4 * self._plan.timing.heartbeat_us)
        if able:
            self._chain.next[f"{reader or 'whoever reads it'} switches to {able[0]} within {heartbeats}"] = None
        else:
            names = ", ".join([producer, *others])
            self._chain.next[f"nothing comes until a replica is back: {names}"] = None

    def _replica(self, depth: int, node: str, id: PartitionId) -> None:
        name = f"{id}@{node}"
        status = self._now.replica(node, id)
        if (node, id) in self._known:
            self._chain.step(depth, name, "as above")
            return
        self._known.add((node, id))
        if status is None:
            self._chain.step(depth, name, f"{node} does not run it")
            self._chain.cause(CauseKind.RECOVERING, (node,), f"{node} does not run {id}")
            return
        if status.error is not None:
            self._chain.step(depth, name, f"has stopped: {status.error}")
            then = f"it begins again from a partner's state when {node} is restarted"
            self._chain.cause(CauseKind.FAILED, (node,), f"{name} has stopped: {status.error}", then)
            return
        self._of_state(depth, name, node, id, status)

    def _of_state(self, depth: int, name: str, node: str, id: PartitionId, replica_status: ReplicaStatus) -> None:
        status = self._now.node(node)
        if status is not None:
            self._chain.disks(node, status.disk_full)
        match replica_status.state:
            case NodeState.RECOVERING:
                lacks = f"; it lacks {', '.join(replica_status.missing)}" if replica_status.missing else ""
                self._chain.step(depth, name, f"is RECOVERING{lacks}")
                if not self._inputs(depth + 1, node, replica_status):
                    why = f"{name} takes its state and catches up{lacks}"
                    self._chain.cause(CauseKind.RECOVERING, (node,), why)
                self._chain.next[f"{name} serves when it has caught up"] = None
            case NodeState.STABILIZATION:
                self._chain.step(depth, name, f"is in STABILIZATION; {replica_status.redone_rows:,} rows redone so far")
                then = f"{name} sends an undo and the stable results, then it is STABLE"
                self._chain.cause(CauseKind.CORRECTING, (node,), f"{name} corrects what was tentative", then)
            case NodeState.UP_FAILURE:
                policy = self._facts.waits(node, id).during_failure
                how = "waits (policy suspend)" if policy is Policy.SUSPEND else "goes on without some input"
                self._chain.step(depth, name, f"is in UP_FAILURE: it {how}")
                if not self._inputs(depth + 1, node, replica_status):
                    self._turn(name, node, replica_status)
                self._chain.next[f"{name} corrects when all of its input is there"] = None
            case NodeState.STABLE:
                self._stable(depth, name, node, id, replica_status)

    def _stable(self, depth: int, name: str, node: str, id: PartitionId, status: ReplicaStatus) -> None:
        if status.fill >= 1:
            self._chain.step(depth, name, "is STABLE, and its output buffer is full")
            why = f"the output buffer of {name} is full: somebody does not acknowledge"
            then = "nothing stable leaves until a consumer acknowledges, or is removed"
            self._chain.cause(CauseKind.FULL, (node,), why, then)
            return
        waits = f", and has waited for {short(status.waiting_us)}" if status.waiting_us else ""
        self._chain.step(depth, name, f"is STABLE{waits}")
        if self._inputs(depth + 1, node, status):
            settings = self._facts.waits(node, id)
            left = max(0, settings.alpha_x_us - status.waiting_us)
            then = "waits on" if settings.during_failure is Policy.SUSPEND else "goes on without, tentative"
            self._chain.next[f"in {short(left)} {name} {then}"] = None

    def _turn(self, name: str, node: str, status: ReplicaStatus) -> None:
        """Explains a replica without missing input: it corrects soon."""
        busy = [partner for partner, state in status.partners.items() if state is NodeState.STABILIZATION]
        if status.skew:
            then = "results stay tentative until it catches up, or X is longer"
            self._chain.cause(CauseKind.X, (node,), f"{status.skew[0]}, more than αX waits for at {name}", then)
        elif busy:
            why = f"{name} has all of its input, and waits until {busy[0]} has corrected"
            self._chain.cause(CauseKind.CORRECTING, (node, *busy), why)
        else:
            self._chain.cause(CauseKind.CORRECTING, (node,), f"{name} has all of its input, and is about to correct")

    def _inputs(self, depth: int, node: str, status: ReplicaStatus) -> bool:
        """Follows the inputs that hold up a replica; returns whether there are any."""
        old = self._facts.before.replica(node, status.id)
        earlier = {} if old is None else {i.channel: i for i in old.inputs}
        ahead = max((i.frontier for i in status.inputs), default=BEFORE_TIME)
        follows = False
        for each in status.inputs:
            channel, was = channel_of(each.channel), earlier.get(each.channel)
            if each.frontier >= END_OF_TIME:
                continue
            stuck = was is not None and was.frontier >= each.frontier
            allowed_us = self._facts.lag_us(channel)
            if status.state is NodeState.UP_FAILURE:
                allowed_us = min(allowed_us, self._facts.waits(node, status.id).alpha_x_us)
            behind = min(ahead, END_OF_TIME) - each.frontier if ahead < END_OF_TIME else 0
            if stuck or each.main is None or behind > allowed_us:
                follows = True
                self._input(depth, node, status, each, stuck=stuck, behind_us=behind)
        return follows

    def _input(
        self, depth: int, node: str, status: ReplicaStatus, input_: InputStatus, *, stuck: bool, behind_us: int
    ) -> None:
        channel, who = channel_of(input_.channel), f"{status.unit}/{status.partition}@{node} ← {input_.channel}"
        if input_.other_logs and input_.main is None:
            producer, why = next(iter(input_.other_logs.items()))
            self._chain.step(depth, who, f"does not read {producer}")
            self._chain.cause(CauseKind.OTHER_LOG, (producer, node), why)
            return
        how = "brings nothing new" if stuck else f"is {short(behind_us)} behind another input"
        if input_.main is None:
            self._chain.step(depth, who, "is read from nobody")
            partition = None if channel.stream in self._plan.sources else self._plan.maker_of(channel)
            for maker in self._facts.makers(channel):
                self._unread(depth + 1, maker, node, partition)
            return
        self._chain.step(depth, who, f"{how}, read from {input_.main}")
        count = len(self._chain.causes)
        self._producer(depth + 1, channel, input_.main, node, input_.frontier, stuck=stuck)
        if len(self._chain.causes) == count and not stuck:
            x_us = status.x_us or self._facts.directory.nodes[NodeId(node)].x_us
            why = f"{input_.channel} comes {short(behind_us)} later than other input; X at {node} is {short(x_us)}"
            then = f"an X above {short(round(behind_us * 1.2))} would wait for it: spe set … {node} x=…"
            self._chain.cause(CauseKind.X, (input_.main, node), why, then)

    def _unread(self, depth: int, producer: str, reader: str, id: PartitionId | None) -> None:
        """Explains a producer that should be read, and is not."""
        if producer in self._now.errors:
            self._chain.down(depth, producer)
            self._chain.next[f"when {producer} is back, {reader} reads on where it stopped"] = None
            return
        replica = None if id is None else self._now.replica(producer, id)
        if id is not None and (replica is None or replica.error is not None or replica.state is NodeState.RECOVERING):
            self._replica(depth, producer, id)
            return
        status = self._now.statuses.get(reader)
        error = None if status is None else status.unreachable.get(producer)
        suffix = "" if error is None else f": {error.why}"
        self._chain.step(depth, f"{producer} → {reader}", f"{producer} answers, but {reader} does not reach it{suffix}")
        if self._chain.slow_to_answer(producer):
            return
        link = f"the link between {producer} and {reader}"
        if error is not None and error.kind == "turned away":
            why = f"{link} refuses connections: a firewall, or {reader} has another address of {producer}"
        elif error is not None and error.kind == "refused":
            self._chain.cause(CauseKind.REFUSED, (producer, reader), f"{producer} refuses {reader}: {error.why}")
            return
        else:
            why = f"{link} is cut, or far too slow"
        self._chain.cause(
            CauseKind.LINK, (producer, reader), why, f"when it works again, {reader} reads on where it stopped"
        )

    def _source(self, depth: int, stream: StreamId, *, moves: bool) -> None:
        name, status = f"source:{stream}", self._now.source(stream)
        if status is None:
            self._chain.down(depth, name)
            return
        log = status.log
        if status.disk_full:
            self._chain.step(depth, name, "takes in nothing")
            self._chain.disks(name, status.disk_full)
        elif status.waits_for:
            self._chain.step(depth, name, "takes in nothing")
            self._chain.servers(name, status.waits_for)
        elif log is None:
            self._chain.step(depth, name, "has not opened its log yet")
            self._chain.cause(CauseKind.RECOVERING, (name,), f"{name} opens its log")
        elif log.fault is not None:
            self._chain.step(depth, name, "has failed")
            self._chain.cause(CauseKind.FAILED, (name,), f"{name} has failed: {log.fault}")
        elif not moves and not log.ended:
            note = f" ({log.note})" if log.note else ""
            self._chain.step(depth, name, f"answers, and brings nothing new{note}")
            why = f"{name} logs nothing new: no input comes to it, or its disk hangs{note}"
            then = f"when {name} goes on, what was missing comes, and all is corrected"
            self._chain.cause(CauseKind.QUIET, (name,), why, then)
        else:
            self._chain.step(depth, name, "goes on")
