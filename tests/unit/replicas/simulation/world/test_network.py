"""Simulated connections behave as TCP when links, processes and hosts fail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest
import trio

from consistency.faults.kind import LinkFaults
from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.network import HostNetwork, SimNetwork
from replicas.simulation.world.pipe import USER_TIMEOUT_S
from replicas.simulation.world.stream import WINDOW_BYTES
from spe.errors import LinkBroken, PortInUse
from spe.runtime.network import CONNECT_S

THERE, BACK = ("a", "b"), ("b", "a")
CUT = LinkFaults(cut=True)


@pytest.fixture
def clock() -> JumpClock:
    return JumpClock(cpu_s=20)


def connect(network: SimNetwork, address: str = "b:1") -> Awaitable[trio.abc.Stream]:
    return HostNetwork(network, "a").connect(address)


@asynccontextmanager
async def serving(
    network: SimNetwork, handler: Callable[[trio.abc.Stream], Awaitable[None]] | None = None
) -> AsyncIterator[trio.MemoryReceiveChannel[trio.abc.Stream]]:
    """Host b listens at b:1; its ends of connections arrive in the channel, unless a handler takes them."""
    put, accepted = trio.open_memory_channel[trio.abc.Stream](10)

    async def keep(stream: trio.abc.Stream) -> None:
        put.send_nowait(stream)
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        await nursery.start(HostNetwork(network, "b").serve, "b:1", handler or keep)
        yield accepted
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def connected(network: SimNetwork) -> AsyncIterator[tuple[trio.abc.Stream, trio.abc.Stream]]:
    async with serving(network) as accepted:
        near = await connect(network)
        yield near, await accepted.receive()


async def silent_s(stream: trio.abc.Stream, longest: float = 1000.0) -> float:
    """Seconds until something comes, or the connection breaks."""
    began = trio.current_time()
    with trio.move_on_after(longest):
        with suppress(trio.BrokenResourceError):
            await stream.receive_some()
    return trio.current_time() - began


async def test_a_cut_holds_bytes_and_releases_them_in_order(clock: JumpClock) -> None:
    network = SimNetwork()
    async with connected(network) as (near, far):
        network.set_links({THERE: CUT})
        await near.send_all(b"one ")
        await near.send_all(b"two")
        assert await silent_s(far, 5) == 5
        network.set_links({})
        assert await far.receive_some() == b"one two"


async def test_a_cut_of_one_way_leaves_the_other_alone(clock: JumpClock) -> None:
    network = SimNetwork()
    async with connected(network) as (near, far):
        network.set_links({THERE: CUT})
        await far.send_all(b"hello")
        assert await near.receive_some() == b"hello"


async def test_bytes_that_arrived_before_a_cut_can_be_read(clock: JumpClock) -> None:
    network = SimNetwork()
    async with connected(network) as (near, far):
        await near.send_all(b"before")
        network.set_links({THERE: CUT})
        await near.send_all(b"after")
        assert await far.receive_some() == b"before"
        assert await silent_s(far, 5) == 5


async def test_bytes_in_transit_at_a_cut_are_held(clock: JumpClock) -> None:
    late = LinkFaults(delay_us=100_000)
    network = SimNetwork(base=late)
    async with connected(network) as (near, far):
        await near.send_all(b"under way")
        await trio.sleep(0.05)
        network.set_links({THERE: CUT})
        assert await silent_s(far, 5) == 5
        network.set_links({})
        assert await far.receive_some() == b"under way"


@pytest.mark.parametrize("waits_to", ["send", "receive"])
async def test_a_sender_without_acknowledgement_gives_up(clock: JumpClock, waits_to: str) -> None:
    network = SimNetwork()
    async with connected(network) as (near, _):
        network.set_links({THERE: CUT, BACK: CUT})
        await trio.sleep(7)
        began = trio.current_time()
        await near.send_all(bytes(WINDOW_BYTES))
        with pytest.raises(trio.BrokenResourceError, match="timed out"):
            await (near.send_all(b"more") if waits_to == "send" else near.receive_some())
        assert trio.current_time() - began == USER_TIMEOUT_S


async def test_an_idle_connection_outlives_any_cut(clock: JumpClock) -> None:
    network = SimNetwork()
    async with connected(network) as (near, far):
        network.set_links({THERE: CUT, BACK: CUT})
        await trio.sleep(1000)
        network.set_links({})
        await near.send_all(b"still here")
        assert await far.receive_some() == b"still here"


async def test_a_sender_waits_for_a_slow_reader_without_limit(clock: JumpClock) -> None:
    """Back-pressure: the kernel acknowledges although the window is closed."""
    network = SimNetwork()
    async with connected(network) as (near, far), trio.open_nursery() as nursery:
        await near.send_all(bytes(WINDOW_BYTES))
        nursery.start_soon(near.send_all, b"x")
        await trio.sleep(1000)
        assert nursery.child_tasks
        await far.receive_some(WINDOW_BYTES)
        assert await far.receive_some() == b"x"


async def test_a_write_to_an_end_that_gave_up_fails_after_the_heal(clock: JumpClock) -> None:
    network = SimNetwork()
    async with connected(network) as (near, far):
        network.set_links({THERE: CUT, BACK: CUT})
        await near.send_all(b"lost")
        with pytest.raises(trio.BrokenResourceError):
            await near.receive_some()
        network.set_links({})
        assert await silent_s(far, 100) == 100, "half open: what was given up never comes"
        await far.send_all(b"anybody?")
        with pytest.raises(trio.BrokenResourceError, match="reset"):
            await far.receive_some()


async def test_a_killed_process_closes_after_its_sent_bytes(clock: JumpClock) -> None:
    network = SimNetwork(base=LinkFaults(delay_us=100_000))
    async with connected(network) as (near, far):
        await far.send_all(b"last words")
        network.gone("b")
        began = trio.current_time()
        assert await near.receive_some() == b"last words"
        with pytest.raises(trio.BrokenResourceError, match="reset"):
            await near.receive_some()
        assert trio.current_time() - began == pytest.approx(0.1)
        with pytest.raises(LinkBroken, match="refused"):
            await connect(network)


async def test_a_kill_behind_a_cut_is_noticed_after_the_heal(clock: JumpClock) -> None:
    network = SimNetwork()
    async with connected(network) as (near, _):
        network.set_links({THERE: CUT, BACK: CUT})
        network.gone("b")
        assert await silent_s(near, 5) == 5
        await near.send_all(b"is fine yet")
        network.set_links({})
        assert await silent_s(near) == 0


async def test_a_host_without_power_closes_and_answers_nothing(clock: JumpClock) -> None:
    network = SimNetwork()
    async with connected(network) as (near, far):
        await far.send_all(b"in the wire's end")
        network.gone("b", silently=True)
        assert await near.receive_some() == b"in the wire's end", "it had arrived"
        assert await silent_s(near, 1000) == 1000
        began = trio.current_time()
        with pytest.raises(LinkBroken, match="no answer"):
            await connect(network)
        assert trio.current_time() - began == pytest.approx(CONNECT_S)


async def test_a_host_with_power_again_resets_old_connections(clock: JumpClock) -> None:
    network = SimNetwork()
    async with connected(network) as (near, _):
        network.gone("b", silently=True)
        await near.send_all(b"held")
        assert await silent_s(near, 5) == 5
        network.back("b")
        with pytest.raises(trio.BrokenResourceError, match="reset"):
            await near.receive_some()
        with pytest.raises(LinkBroken, match="refused"):
            await connect(network)


async def test_a_half_open_connection_stays_so_and_new_ones_work(clock: JumpClock) -> None:
    network = SimNetwork()
    async with serving(network) as accepted:
        near = await connect(network)
        far = await accepted.receive()
        network.half_open("a", "b", Random(0))
        await near.send_all(b"into the void")
        network.set_links({})
        assert await silent_s(far, 20) == 20
        assert await silent_s(near, 100) == pytest.approx(10)
        again = await connect(network)
        await again.send_all(b"heard")
        assert await (await accepted.receive()).receive_some() == b"heard"


async def test_single_half_open_connection_leaves_others_running(clock: JumpClock) -> None:
    network = SimNetwork()
    async with serving(network) as accepted:
        pairs = []
        for _ in range(3):
            near = await connect(network)
            pairs.append((near, await accepted.receive()))
        assert not network.half_open("a", "c", Random(1))
        assert network.half_open("b", "a", Random(1))
        network.set_links({})
        silent = 0
        for near, far in pairs:
            await near.send_all(b"there")
            await far.send_all(b"back")
            if await silent_s(far, 5) == 5:
                silent += 1
                assert await silent_s(near, 5) == 5
        assert silent == 1
        assert [network.half_open("a", "b", Random(1)) for _ in range(3)] == [True, True, False]


async def test_a_reset_breaks_both_ends_at_once(clock: JumpClock) -> None:
    network = SimNetwork()
    async with connected(network) as (near, far), trio.open_nursery() as nursery:

        async def wait() -> None:
            assert await silent_s(far) == 3

        nursery.start_soon(wait)
        await trio.sleep(3)
        network.reset("a", "b")
        with pytest.raises(trio.BrokenResourceError, match="reset"):
            await near.send_all(b"x")


async def test_a_close_follows_sent_bytes_and_resets_later_ones(clock: JumpClock) -> None:
    network = SimNetwork()
    async with connected(network) as (near, far):
        await near.send_all(b"bye")
        await near.aclose()
        assert await far.receive_some() == b"bye"
        assert await far.receive_some() == b""
        await far.send_all(b"wait!")
        with pytest.raises(trio.BrokenResourceError, match="reset"):
            await far.send_all(b"wait!")
        with pytest.raises(trio.ClosedResourceError):
            await near.receive_some()


async def test_a_waiting_sender_notices_a_reset_behind_unread_bytes(clock: JumpClock) -> None:
    network = SimNetwork(base=LinkFaults(delay_us=100_000))
    async with connected(network) as (near, far):
        await far.send_all(b"unread")
        await near.send_all(bytes(WINDOW_BYTES))
        await trio.sleep(1)
        network.gone("b")
        with pytest.raises(trio.BrokenResourceError, match="reset"):
            await near.send_all(b"x")


async def test_an_accepted_stream_closes_with_its_handler(clock: JumpClock) -> None:
    async def handler(stream: trio.abc.Stream) -> None:
        await stream.send_all(b"hi")

    network = SimNetwork()
    async with serving(network, handler):
        near = await connect(network)
        assert await near.receive_some() == b"hi"
        assert await near.receive_some() == b""


@pytest.mark.parametrize("pair", [THERE, BACK])
async def test_a_connect_without_answer_times_out_as_in_production(clock: JumpClock, pair: tuple[str, str]) -> None:
    network = SimNetwork()
    async with serving(network):
        network.set_links({pair: CUT})
        with pytest.raises(LinkBroken, match="no answer"):
            await connect(network)
        assert trio.current_time() == pytest.approx(CONNECT_S)


async def test_a_connect_takes_one_round_trip(clock: JumpClock) -> None:
    network = SimNetwork(base=LinkFaults(delay_us=50_000))
    async with serving(network):
        await connect(network)
        assert trio.current_time() == pytest.approx(0.1)
        network.set_links({THERE: LinkFaults(delay_us=600_000)})
        with pytest.raises(LinkBroken, match="no answer"):
            await connect(network)


async def test_a_link_may_refuse_one_host_only(clock: JumpClock) -> None:
    network = SimNetwork()
    async with serving(network):
        network.set_links({}, {THERE})
        with pytest.raises(LinkBroken, match="refused"):
            await connect(network)
        await HostNetwork(network, "c").connect("b:1")


async def test_an_address_is_taken_until_its_listener_ends(clock: JumpClock) -> None:
    network = SimNetwork()
    async with serving(network):
        with pytest.raises(PortInUse, match="b:1"):
            await HostNetwork(network, "c").serve("b:1", trio.abc.Stream.aclose, task_status=trio.TASK_STATUS_IGNORED)
    with pytest.raises(LinkBroken, match="refused"):
        await connect(network)
    async with serving(network):
        await connect(network)


async def test_bandwidth_limits_bytes_per_second(clock: JumpClock) -> None:
    network = SimNetwork()
    async with connected(network) as (near, far):
        network.set_links({THERE: LinkFaults(bytes_per_s=1000)})
        for _ in range(10):
            await near.send_all(bytes(500))
        began = trio.current_time()
        arrived = []
        while len(arrived) < 10:
            await far.receive_some()
            arrived.append(trio.current_time() - began)
        assert arrived == pytest.approx([0.5 * i for i in range(1, 11)])


async def test_bytes_leave_at_once_when_the_bandwidth_limit_ends(clock: JumpClock) -> None:
    network = SimNetwork()
    async with connected(network) as (near, far):
        network.set_links({THERE: LinkFaults(bytes_per_s=1000)})
        for _ in range(10):
            await near.send_all(bytes(500))
        began = trio.current_time()
        await trio.sleep(0.6)
        network.set_links({})
        arrived = 0
        while arrived < 5000:
            arrived += len(await far.receive_some())
        assert trio.current_time() - began == pytest.approx(0.6)


async def test_loss_delays_by_retransmissions_and_keeps_the_order(clock: JumpClock) -> None:
    network = SimNetwork(Random(3))
    async with connected(network) as (near, far):
        network.set_links({THERE: LinkFaults(loss=0.3)})
        delays, received = [], b""
        for i in range(200):
            began = trio.current_time()
            await near.send_all(bytes([i]))
            received += await far.receive_some()
            delays.append(round(trio.current_time() - began, 6))
    assert received == bytes(range(200))
    lost = [d for d in delays if d]
    assert 40 <= len(lost) <= 80
    assert set(delays) <= {0.0, 0.2, 0.6, 1.4, 3.0, 6.2}
