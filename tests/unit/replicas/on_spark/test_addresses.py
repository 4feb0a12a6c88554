"""A node on Spark keeps its address, which is a name, wherever it runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from replicas.on_spark.addresses import PLACES, PlacedNetwork, address_of, placed, write_places
from spe.errors import LinkBroken, PortInUse
from spe.runtime.network import TcpNetwork
from spe.runtime.production import production_env


async def told(stream: trio.abc.Stream) -> bytes:
    async with stream:
        return bytes(await stream.receive_some(10))


async def serve(network: PlacedNetwork | TcpNetwork, address: str, text: bytes, nursery: trio.Nursery) -> str:
    async def tell(stream: trio.abc.Stream) -> None:
        await stream.send_all(text)

    async def run(task_status: trio.TaskStatus[str]) -> None:
        await network.serve(address, tell, task_status=task_status)

    found: str = await nursery.start(run)
    return found


async def test_a_connection_goes_to_where_the_node_is_now(tmp_path: Path) -> None:
    network = PlacedNetwork(TcpNetwork(), tmp_path)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            first = await serve(TcpNetwork(), "127.0.0.1:0", b"first", nursery)
            second = await serve(TcpNetwork(), "127.0.0.1:0", b"second", nursery)
            write_places(tmp_path, {"n1": first})
            assert await told(await network.connect(address_of("n1"), 5)) == b"first"
            write_places(tmp_path, {"n1": second})
            assert await told(await network.connect(address_of("n1"), 5)) == b"second"
            assert await told(await network.connect(first, 5)) == b"first"  # any other address is one
            nursery.cancel_scope.cancel()


async def test_a_node_listens_where_its_task_says(tmp_path: Path) -> None:
    network = PlacedNetwork(TcpNetwork(), tmp_path)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            write_places(tmp_path, {"n1": "127.0.0.1:0"})
            at = await serve(network, address_of("n1"), b"me", nursery)
            assert at.startswith("127.0.0.1:")
            assert await told(await TcpNetwork().connect(at, 5)) == b"me"
            nursery.cancel_scope.cancel()


async def test_a_node_without_a_place_cannot_be_reached(tmp_path: Path) -> None:
    network = PlacedNetwork(TcpNetwork(), tmp_path)
    with pytest.raises(LinkBroken, match=f"{PLACES} does not say where n1.node:1 is"):
        await network.connect(address_of("n1"), 5)
    write_places(tmp_path, {})
    with pytest.raises(LinkBroken, match=r"n1\.node:1: it has no place on Spark now"):
        await network.connect(address_of("n1"), 5)
    with pytest.raises(PortInUse, match=r"does not say where n1\.node:1 is"):
        await network.serve(address_of("n1"), trio.aclose_forcefully)


def test_only_the_folder_of_a_run_on_spark_says_where_nodes_are(tmp_path: Path) -> None:
    env = production_env(tmp_path)
    assert placed(env, None) is env
    assert placed(env, tmp_path) is env
    write_places(tmp_path, {})
    assert isinstance(placed(env, tmp_path).network, PlacedNetwork)
