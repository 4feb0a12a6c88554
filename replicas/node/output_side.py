"""The output side of a replica: its output logs, and what their consumers have acknowledged.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from operators.rejections import Rejection
from replicas.producer.output_log import OutputLog
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.runtime.spill import Spill
from spe.stream.batch import Batch, Element
from spe.stream.ids import Channel, ReplicaId
from spe.stream.names import NodeState, StreamId
from spe.stream.schema import Schema
from spe.wire.messages.feeds import Ack


class Effects(Protocol):
    """Effects of a replica on the shell, apart from the results of its methods."""

    def wake(self, output: int) -> None:
        """Wakes the subscriptions of an output: they have something to send."""
        ...

    def told(self, state: NodeState, fresh: bool) -> None:
        """Reports a new state, for the trace."""
        ...

    def log_waits(self) -> None:
        """Wakes the writer of the checkpoint log."""
        ...


class OutputSide:
    """Implements consistency.dpc.events.OutputsView, and performs the actions of the manager.

    Args:
      plan: the cluster.
      id: the replica that has the outputs.
      now: monotonic microseconds.
      effects: of the shell.
      shelf: makes a place in spill files for the batches of a schema; None: everything stays in memory.
      changes: numbers the changes of state of all replicas of this process (OutputLog).

    Attributes:
      origin: origin of the outputs (S6); "" until every input was greeted.
      rejections: rows that operators rejected for good and that were not reported yet (U15).
    """

    def __init__(
        self,
        plan: Plan,
        directory: Directory,
        id: ReplicaId,
        now: int,
        effects: Effects,
        shelf: Callable[[Schema], Spill] | None,
        changes: Iterator[int] | None,
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._id = id
        self._effects = effects
        channels = [Channel(stream, id.partition) for stream in plan.unit[id.unit].outputs]
        self.logs = [
            OutputLog(
                channel,
                plan.query.schema_of(channel.stream),
                directory.consumers_of(plan, channel),
                plan.limits,
                None if shelf is None else shelf(plan.query.schema_of(channel.stream)),
                directory.standbys_of(plan, channel),
                changes,
                plan.limits.tail(channel.stream in plan.query.outputs),
            )
            for channel in channels
        ]
        self._log_of = dict(zip(channels, self.logs, strict=True))
        self.origin = ""
        self.tentative_count = 0
        self.rejections: list[Rejection] = []
        #: Largest stable id of each output that a partner has announced.
        self._made_elsewhere = dict.fromkeys(channels, 0)
        #: Time of each consumer's last acknowledgement, and the period in which it was to repeat it.
        self._heard: dict[str, tuple[int, int]] = {}
        self._consumers = {name for c in channels for name in directory.consumers_of(plan, c)}
        #: Incarnation of the process that speaks for each consumer, and how many processes did so before.
        self._speakers: dict[str, tuple[int, int]] = {}
        #: Start time, used for consumers that never acknowledged.
        self._since = now

    def log(self, channel: Channel) -> OutputLog:
        return self._log_of[channel]

    # --- what the unit replica makes ---

    def stable(self, output: int, elements: Sequence[Element]) -> None:
        self.logs[output].append_stable(elements)
        self._effects.wake(output)

    def tentative(self, output: int, elements: Sequence[Element]) -> None:
        self.tentative_count += sum(len(e) for e in elements if isinstance(e, Batch))
        self.logs[output].append_tentative(elements)
        self._effects.wake(output)

    def rejected(self, rejections: Sequence[Rejection]) -> None:
        self.rejections += rejections

    def clear_suffix(self) -> None:
        for log in self.logs:
            log.clear_suffix()

    def announce(self, state: NodeState, fresh: bool) -> None:
        self._effects.told(state, fresh)
        for at, log in enumerate(self.logs):
            log.set_state(state, fresh)
            self._effects.wake(at)

    def full(self) -> bool:
        return True in [log.full for log in self.logs]  # no any(…): it makes a generator, and this runs at every step

    # --- where the rows come from (S6) ---

    def learn_origin(self, origin: str) -> None:
        """Sets the origin; earlier subscribers, greeted without one, are disconnected and subscribe again."""
        assert not self.origin, "S6: outputs have one origin for ever"
        self.origin = origin
        self.close()
        for at, _ in enumerate(self.logs):
            self._effects.wake(at)

    def other_origin(self, consumer: str, theirs: str) -> str | None:
        """Returns why our outputs do not continue what a consumer has read; None: they do (S6)."""
        if not (theirs and self.origin) or theirs == self.origin:
            return None
        return (
            f"{self._id} has read other source logs ({self.origin}) than what {consumer} holds follows from ({theirs})"
            "; restore the logs, or begin all anew (docs/how-to/operate.md, When the folder of a source is lost)"
        )

    def close(self) -> None:
        """Ends all subscriptions."""
        for log in self.logs:
            log.close()

    # --- acknowledgements (A2) ---

    def redirect(self, directory: Directory, now: int) -> None:
        """Changes the consumers: new ones hold the logs from now on, removed ones do not (D3)."""
        self._directory = directory
        consumers: set[str] = set()
        for log in self.logs:
            names = directory.consumers_of(self._plan, log.channel)
            log.set_consumers(names, directory.standbys_of(self._plan, log.channel))
            consumers.update(names)
        for name in consumers - self._consumers:
            self._heard[name] = now, self._plan.timing.heartbeat_us  # a new consumer is not dead
        for name in self._consumers - consumers:
            self._heard.pop(name, None)
            self._speakers.pop(name, None)
        self._consumers = consumers

    def made_elsewhere(self, channel: Channel, id: int) -> None:
        """Notes that a partner has made the stable tuples of an output up to ``id``."""
        self._made_elsewhere[channel] = max(self._made_elsewhere[channel], id)

    def made(self, channel: Channel) -> int:
        """Returns the largest stable id of an output that this replica or a partner is known to have made."""
        return max(self.log(channel).last_id, self._made_elsewhere[channel])

    def speaks(self, consumer: str, incarnation: int, now: int) -> bool:
        """Does this process speak for a consumer?

        The first process does, until it is dead (A2b).  A node's process with a larger incarnation replaces it at once.
        A smaller incarnation is of an older process, or of one that lost its number while its clock is behind (A2).
        """
        speaker = self._speakers.get(consumer)
        if speaker is None and consumer not in self._consumers:
            self._forget_guests(now)
        if speaker is None or (
            incarnation != speaker[0]
            and (self._is_dead(consumer, now) or (incarnation > speaker[0] and not consumer.startswith("client:")))
        ):
            speaker = self._speakers[consumer] = incarnation, 0 if speaker is None else speaker[1] + 1
        return speaker[0] == incarnation

    def _forget_guests(self, now: int) -> None:
        """Forgets dead clients that no log waits for: each may have had a new name."""
        for name in [n for n in self._speakers if n not in self._consumers and self._is_dead(n, now)]:
            del self._speakers[name]
            self._heard.pop(name, None)

    def acknowledged(self, ack: Ack, period_us: int, now: int) -> bool:
        """Takes the acknowledgement of a consumer from the process that speaks for it.

        An id that no replica of the partition is known to have made is ignored; the consumer repeats it.  Where the
        output is full it counts as all that was made: after a restart the consumer may be ahead of all replicas, and a
        full output makes nothing more until it is acknowledged.

        Returns:
          The output was full, and may have room now.
        """
        assert ack.consumer in self._speakers, "A2b: one process speaks for a consumer"
        self._heard[ack.consumer] = now, period_us
        channel = Channel(StreamId(ack.stream), ack.partition)
        log, made = self.log(channel), self.made(channel)
        full = log.full
        if ack.id > made and not full:
            return False
        log.acknowledge(ack.consumer, self._speakers[ack.consumer][1], min(ack.id, made))
        return full

    def make_room(self, now: int) -> list[str]:
        """Evicts, at the cap, dead consumers that have a live sibling further on (A2)."""
        given_up: list[str] = []
        for log in self.logs:
            if log.full:
                consumers = self._directory.consumers_of(self._plan, log.channel)
                dead = {name for name in consumers if self._is_dead(name, now)}
                for name in log.evictable(dead):
                    if log.full:
                        log.evict(name)
                        given_up.append(name)
        return given_up

    def _is_dead(self, consumer: str, now: int) -> bool:
        """Has a consumer not acknowledged for as many of its periods as make a process count as gone (F3)?"""
        timing = self._plan.timing
        at, period_us = self._heard.get(consumer, (self._since, timing.heartbeat_us))
        return now - at > timing.gone_us(period_us)

    def shift(self, gap_us: int, now: int) -> None:
        """Discounts ``gap_us`` during which this process was frozen: consumers were not silent (T1)."""
        self._since = min(self._since + gap_us, now)
        for consumer, (at, period_us) in self._heard.items():
            self._heard[consumer] = min(at + gap_us, now), period_us
