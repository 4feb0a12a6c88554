"""A simulated connection under any faults: received bytes are a prefix of those sent, in order."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from consistency.faults.kind import LinkFaults
from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.host import seeded_scheduling
from replicas.simulation.world.network import HostNetwork, SimNetwork
from replicas.simulation.world.pipe import USER_TIMEOUT_S, Pipe
from replicas.simulation.world.stream import WINDOW_BYTES
from tests.support.distribution import Situations

MOMENTS = st.sampled_from([0.0, 0.05, 0.2, 1.0, 5.0, 40.0])


class PipeMachine(RuleBasedStateMachine):
    """A pipe against a model of every byte."""

    def __init__(self) -> None:
        super().__init__()
        self.pipe = Pipe("a", "b")
        self.now = 0.0
        self.sent = b""
        self.taken = b""
        #: Per byte sent and not dropped: its earliest arrival.
        self.due: list[float] = []
        self.stopped_since: float | None = None
        self.ended = False
        self.met = dict.fromkeys(["something is taken while it is stopped", "the end comes", "something waits"], False)

    @rule(seconds=MOMENTS)
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: not self.ended)
    @rule(size=st.integers(1, 50), late=MOMENTS, rate=st.sampled_from([None, 10.0, 1e6]))
    def send(self, size: int, late: float, rate: float | None) -> None:
        data = bytes((len(self.sent) + i) % 251 for i in range(size))
        self.sent += data
        self.due += [self.now + late + (size / rate if rate else 0)] * size
        self.pipe.send(self.now, data, late, rate)

    @precondition(lambda self: not self.ended)
    @rule(late=MOMENTS)
    def end(self, late: float) -> None:
        self.ended = True
        self.pipe.end(self.now, late)

    @rule()
    def stop(self) -> None:
        self.stopped_since = self.now if self.stopped_since is None else self.stopped_since
        self.pipe.stop(self.now)

    @precondition(lambda self: not self.ended)
    @rule(size=st.integers(1, 50))
    def stop_behind_what_has_come(self, size: int) -> None:
        self.send(size, 0.0, None)
        self.stop()

    @rule()
    def go(self) -> None:
        self.stopped_since = None
        self.pipe.go()

    @rule(max_bytes=st.integers(1, 200))
    def take(self, max_bytes: int) -> None:
        data = self.pipe.take(self.now, max_bytes)
        if data is None:
            return
        assert len(data) <= max_bytes
        if not data:
            assert self.ended
            assert self.taken == self.sent, "the end comes after all else"
        arrived = self.now if self.stopped_since is None else self.stopped_since
        for due in self.due[len(self.taken) : len(self.taken) + len(data)]:
            assert due <= arrived
        self.met["something is taken while it is stopped"] |= bool(data) and self.stopped_since is not None
        self.met["the end comes"] |= not data
        self.taken += data

    @invariant()
    def what_was_taken_is_a_prefix_of_what_was_sent(self) -> None:
        assert self.sent.startswith(self.taken)
        assert self.pipe.size == len(self.sent) - len(self.taken)

    @invariant()
    def a_wake_up_is_never_in_the_past(self) -> None:
        assert self.pipe.next_after(self.now) > self.now
        if self.stopped_since is not None:
            assert self.pipe.next_after(self.now) == math.inf
        else:
            assert self.pipe.gives_up_at == math.inf

    def teardown(self) -> None:
        """In the end, with a healthy link, all bytes arrive."""
        self.met["something waits"] = len(self.taken) < len(self.sent)
        PIPES.example(self.met)
        self.pipe.go()
        while data := self.pipe.take(math.inf, 1000):
            self.taken += data
        assert self.taken == self.sent


PIPES = Situations({"something is taken while it is stopped": 0.005, "the end comes": 0.01, "something waits": 0.2})


@PIPES.required
def test_a_pipe_delivers_all_bytes_in_order() -> None:
    run_state_machine_as_test(PipeMachine, settings=settings(max_examples=150, stateful_step_count=30))


LINKS = st.builds(
    LinkFaults,
    cut=st.booleans(),
    delay_us=st.sampled_from([0, 0, 1_000, 300_000]),
    jitter_us=st.sampled_from([0, 0, 500_000]),
    bytes_per_s=st.sampled_from([None, None, 2_000.0]),
    loss=st.sampled_from([0.0, 0.0, 0.3]),
)
PAIRS = (("a", "b"), ("b", "a"))
#: Harmless for a short time: links change, hosts freeze for a moment.
CHANGES = st.tuples(st.just("links"), st.tuples(LINKS, LINKS))
#: After these a connection may be over.
BREAKS = st.tuples(st.sampled_from(["reset", "kill", "power", "lose", "close"]), st.none())
#: Bytes that are read at a time.
READS = (65_536, 1_000, 100_000)
SIZES = st.lists(st.sampled_from([1, 100, 5_000, 300_000]), min_size=1, max_size=12)

Step = tuple[float, tuple[str, Any]]


class Talk:
    """Two hosts send and receive, each at its own pace, during events."""

    def __init__(self, seed: int, sizes: dict[str, list[int]], pause_s: dict[str, float]) -> None:
        self.network = SimNetwork(Random(seed))
        self.random = Random(seed)
        self.sizes, self.pause_s = sizes, pause_s
        self.sent = {"a": b"", "b": b""}
        self.received = {"a": b"", "b": b""}
        self.ended: dict[str, str] = {}
        self.log: list[tuple[float, str, int]] = []

    def run(self, steps: list[Step], heal_at: float) -> None:
        with seeded_scheduling(1):
            trio.run(self._main, steps, heal_at, clock=JumpClock(cpu_s=60))

    async def _main(self, steps: list[Step], heal_at: float) -> None:
        async with trio.open_nursery() as nursery:

            async def serve(stream: trio.abc.Stream) -> None:
                await self._talk("b", stream)

            await nursery.start(HostNetwork(self.network, "b").serve, "b:1", serve)
            stream = await HostNetwork(self.network, "a").connect("b:1")
            nursery.start_soon(self._talk, "a", stream)
            for wait, (kind, what) in steps:
                await trio.sleep(wait)
                self._happen(kind, what, stream)
                if kind == "close":
                    await stream.aclose()
            await trio.sleep_until(heal_at)
            self.network.back("b")
            self.network.set_links({})
            await trio.sleep(2_000)
            nursery.cancel_scope.cancel()

    def _happen(self, kind: str, what: Any, stream: trio.abc.Stream) -> None:
        match kind:
            case "links":
                self.network.set_links(dict(zip(PAIRS, what, strict=True)))
            case "reset":
                self.network.reset("a", "b")
            case "kill" | "power":
                self.network.gone("b", silently=kind == "power")
            case "lose":
                self.network.half_open("a", "b", Random(0))

    async def _talk(self, host: str, stream: trio.abc.Stream) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._do, host, self._send, stream)
            nursery.start_soon(self._do, host, self._receive, stream)

    async def _do(
        self, host: str, what: Callable[[str, trio.abc.Stream], Awaitable[None]], stream: trio.abc.Stream
    ) -> None:
        try:
            await what(host, stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.ended[host] = str(error)
            self.log.append((trio.current_time(), f"{host} {error}", 0))

    async def _send(self, host: str, stream: trio.abc.Stream) -> None:
        for size in self.sizes[host]:
            data = self.random.randbytes(size)
            self.sent[host] += data  # a send that fails may have sent it
            await stream.send_all(data)
            other = "b" if host == "a" else "a"
            under_way = len(self.sent[host]) - len(self.received[other])  # bytes being read at this moment count, too
            assert under_way < WINDOW_BYTES + size + max(READS)
            await trio.sleep(0.1)

    async def _receive(self, host: str, stream: trio.abc.Stream) -> None:
        while data := await stream.receive_some(self.random.choice(READS)):
            self.received[host] += data
            self.log.append((trio.current_time(), host, len(data)))
            await trio.sleep(self.pause_s[host])
        self.ended[host] = "end"


def talks(happenings: st.SearchStrategy[tuple[str, Any]]) -> dict[str, Any]:
    return {
        "seed": st.integers(0, 1 << 16),
        "sizes": st.fixed_dictionaries({"a": SIZES, "b": SIZES}),
        "pause_s": st.fixed_dictionaries({h: st.sampled_from([0.0, 0.05, 2.0]) for h in "ab"}),
        "steps": st.lists(st.tuples(MOMENTS.filter(lambda s: s < USER_TIMEOUT_S), happenings), max_size=8),
    }


ANYTHING = Situations({"something is lost": 0.12, "a cut": 0.16, "all of it arrives": 0.1, "more than a window": 0.04})


def has_cut(steps: list[Step]) -> bool:
    return any(kind == "links" and any(link.cut for link in what) for _, (kind, what) in steps)


def is_whole(talk: Talk) -> bool:
    return all(talk.sent[one] == talk.received[other] for one, other in PAIRS)


@ANYTHING.required
@given(**talks(CHANGES | BREAKS))
@example(
    1, {"a": [300_000, 300_000, 300_000, 300_000, 1], "b": [100]}, {"a": 0.0, "b": 0.05}, [(0.05, ("power", None))]
)
@settings(max_examples=150)
def test_received_bytes_are_always_a_prefix_of_those_sent(
    seed: int, sizes: dict[str, list[int]], pause_s: dict[str, float], steps: list[Step]
) -> None:
    talk = Talk(seed, sizes, pause_s)
    talk.run(steps, heal_at=100)
    ANYTHING.example(
        {
            "something is lost": not is_whole(talk),
            "a cut": has_cut(steps),
            "all of it arrives": is_whole(talk) and steps,
            "more than a window": any(sum(sizes[host]) > WINDOW_BYTES for host in "ab"),
        }
    )
    for one, other in PAIRS:
        assert talk.sent[one].startswith(talk.received[other])
    if any(kind == "reset" for _, (kind, _) in steps) and talk.sent["a"] != talk.received["b"]:
        assert talk.ended, "somebody hears of a connection that broke"


HEALING = Situations({"a cut": 0.16, "a slow link": 0.2, "a lossy link": 0.22})


@HEALING.required
@given(**talks(CHANGES))
@settings(max_examples=100)
def test_all_bytes_arrive_if_links_heal_in_time(
    seed: int, sizes: dict[str, list[int]], pause_s: dict[str, float], steps: list[Step]
) -> None:
    """A link that heals 29 s after it was cut, and is slow, late and lossy meanwhile."""
    talk = Talk(seed, sizes, pause_s)
    short = [(min(wait, 3.0), what) for wait, what in steps]
    talk.run(short, heal_at=sum(wait for wait, _ in short) + 5)
    links = [link for _, (_, what) in steps for link in what]
    HEALING.example(
        {
            "a cut": has_cut(steps),
            "a slow link": any(link.bytes_per_s for link in links),
            "a lossy link": any(link.loss for link in links),
        }
    )
    assert talk.ended == {}
    for one, other in PAIRS:
        assert talk.sent[one] == talk.received[other]


AGAIN = Situations({"chance decides: jitter or loss": 0.2, "a connection breaks": 0.18})


@AGAIN.required
@given(**talks(CHANGES | BREAKS))
@settings(max_examples=25)
def test_the_same_events_give_the_same_run(
    seed: int, sizes: dict[str, list[int]], pause_s: dict[str, float], steps: list[Step]
) -> None:
    logs = []
    for _ in range(2):
        talk = Talk(seed, sizes, pause_s)
        talk.run(steps, heal_at=100)
        logs.append(talk.log)
    links = [link for _, (kind, what) in steps if kind == "links" for link in what]
    AGAIN.example(
        {
            "chance decides: jitter or loss": any(link.jitter_us or link.loss for link in links),
            "a connection breaks": any(kind != "links" for _, (kind, _) in steps),
        }
    )
    assert logs[0] == logs[1]
