"""Certificates that are replaced while a process runs: when new ones are used, which are refused, and what goes on."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from spe.errors import LinkBroken, SpeError
from spe.runtime.certificates import issue
from spe.runtime.network import TcpNetwork
from spe.runtime.tls import Tls, TlsNetwork, TlsStream
from spe.runtime.watched_files import LOOK_S
from spe.stream.times import SECOND

NOW = datetime.datetime.now(datetime.UTC)
NAMES = ["n1", "n2"]
#: Days; the CA has ten times the first.
MONTH, LONG, LONGER = 30, 200, 250


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += LOOK_S  # whoever looks, looks again
        return self.now


class Events(list[tuple[str, dict[str, Any]]]):
    def event(self, name: str, /, **fields: Any) -> None:
        self.append((name, fields))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    issue(tmp_path / "keys", "shop", NAMES, MONTH, NOW)
    return tmp_path / "keys"


def renew(folder: Path, days: int = LONG, names: list[str] = NAMES) -> None:
    issue(folder, "shop", names, days, NOW, renew=True)


def network(folder: Path, name: str) -> tuple[TlsNetwork, Events]:
    events = Events()
    return TlsNetwork(TcpNetwork(), Tls(folder, "shop", name, Clock()), events), events


def expires(found: TlsNetwork | Tls) -> int:
    """Days from now."""
    status = found.status() if isinstance(found, Tls) else found.certificate()
    return round((status.expires_us / SECOND - NOW.timestamp()) / 86_400)


async def echo(stream: trio.abc.Stream) -> None:
    while data := await stream.receive_some(100):
        await stream.send_all(data)


@asynccontextmanager
async def connected(client: TlsNetwork, address: str) -> AsyncIterator[TlsStream]:
    stream = await client.connect(address)
    try:
        yield stream
    finally:
        await trio.aclose_forcefully(stream)


async def answers(stream: TlsStream) -> bool:
    await stream.send_all(b"hello")
    with trio.fail_after(5):
        return bytes(await stream.receive_some(100)) == b"hello"


def serial(stream: TlsStream) -> str:
    """Of the certificate that the other end has shown."""
    found: str = stream._outer.getpeercert()["serialNumber"]  # type: ignore[no-untyped-call]
    return found


async def test_new_connections_use_new_files_and_open_ones_go_on(folder: Path) -> None:
    """1. n2 connects to n1  2. all are renewed  3. n2 connects again: both show new certificates; both streams work"""
    (server, events), (client, _) = network(folder, "n1"), network(folder, "n2")
    async with trio.open_nursery() as nursery:
        address = await nursery.start(server.serve, "127.0.0.1:0", echo)
        async with connected(client, address) as before:
            assert await answers(before)
            assert expires(server) == MONTH

            renew(folder)
            for one in (server, client, server, client):
                one.look()
            async with connected(client, address) as after:
                assert serial(after) != serial(before)
                assert await answers(after)
            assert await answers(before)
        assert (expires(server), expires(client)) == (LONG, LONG)
        assert [name for name, _ in events] == ["certificate_renewed"]
        nursery.cancel_scope.cancel()


async def test_processes_can_be_renewed_in_sequence(folder: Path) -> None:
    (server, _), (client, _) = network(folder, "n1"), network(folder, "n2")
    renew(folder, names=["n1"])
    for _ in range(2):
        server.look()
    assert (expires(server), expires(client)) == (LONG, MONTH)
    async with trio.open_nursery() as nursery:
        address = await nursery.start(server.serve, "127.0.0.1:0", echo)
        async with connected(client, address) as stream:
            assert await answers(stream)
        nursery.cancel_scope.cancel()


def test_files_are_used_after_two_equal_looks(folder: Path) -> None:
    """Half of the files are there at the first look, and all at the second."""
    tls = Tls(folder, "shop", "n1", Clock())
    old = (folder / "n1.pem").read_bytes()
    renew(folder)
    new = (folder / "n1.pem").read_bytes()
    (folder / "n1.pem").write_bytes(old)
    assert tls.renewed() is None
    (folder / "n1.pem").write_bytes(new)
    assert tls.renewed() is None
    assert tls.renewed() is True
    assert tls.renewed() is None
    assert expires(tls) == LONG


def half(folder: Path) -> None:
    renew(folder)
    whole = (folder / "n1.pem").read_bytes()
    (folder / "n1.pem").write_bytes(whole[: len(whole) // 2])


def without_its_key(folder: Path) -> None:
    key = (folder / "n1.key").read_bytes()
    renew(folder)
    (folder / "n1.key").write_bytes(key)


def expired(folder: Path) -> None:
    issue(folder, "shop", NAMES, 1, NOW - datetime.timedelta(days=3), renew=True)


def of_another(folder: Path) -> None:
    for end in (".pem", ".key"):
        shutil.copy(folder / f"n2{end}", folder / f"n1{end}")


def of_another_ca(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    issue(folder, "shop", NAMES, LONG, NOW)


def readable(folder: Path) -> None:
    (folder / "n1.key").chmod(0o644)


def removed(folder: Path) -> None:
    (folder / "n1.key").unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (half, r"n1\.pem and n1\.key: expected a certificate and its key"),
        (without_its_key, r"n1\.pem and n1\.key: expected a certificate and its key: key values mismatch"),
        (expired, r"n1\.pem: certificate has expired"),
        (of_another, r"n1\.pem is the certificate of 'n2'; expected that of spe://shop/n1"),
        (of_another_ca, r"ca\.pem has no CA in common with the one in use"),
        (readable, r"n1\.key: others can use it \(mode 644\)"),
        (removed, r"n1\.key: there is no such file"),
    ],
)
def test_wrong_files_are_refused_once_and_old_certificate_stays(
    folder: Path, tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    shutil.copytree(folder, good := tmp_path / "good")
    one, events = network(folder, "n1")
    spoil(folder)
    for _ in range(4):
        one.look()

    ((name, fields),) = events
    assert name == "certificate_refused"
    assert expires(one) == MONTH
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(fields["why"])
    assert one.certificate().refused == fields["why"]

    renew(good, LONGER)
    for file in good.iterdir():
        shutil.copy(file, folder / file.name)
    for _ in range(3):
        one.look()
    assert (expires(one), one.certificate().refused) == (LONGER, "")


async def test_the_ca_changes_while_both_are_trusted(folder: Path, tmp_path: Path) -> None:
    """1. both CAs in ca.pem  2. certificates of the new one  3. the old CA goes; what still shows it is refused"""
    issue(tmp_path / "new", "shop", NAMES, LONG, NOW)
    (server, events), (client, _) = network(folder, "n1"), network(folder, "n2")
    old = (folder / "ca.pem").read_bytes()
    new = (tmp_path / "new" / "ca.pem").read_bytes()

    def look() -> None:
        for one in (server, client, server, client):
            one.look()

    async with trio.open_nursery() as nursery:
        address = await nursery.start(server.serve, "127.0.0.1:0", echo)
        (folder / "ca.pem").write_bytes(old + new)
        look()
        for end in (".pem", ".key"):
            shutil.copy(tmp_path / "new" / f"n1{end}", folder / f"n1{end}")
        look()
        assert expires(server) == LONG
        async with connected(client, address) as stream:
            assert await answers(stream)

        (folder / "ca.pem").write_bytes(new)
        look()
        assert client.certificate().refused != ""  # its own is of the old CA
        refused = True
        with suppress(LinkBroken, trio.BrokenResourceError):
            async with connected(client, address) as stream:
                refused = not await answers(stream)  # in TLS 1.3 a refusal comes with the first read
        assert refused
        nursery.cancel_scope.cancel()
    assert [name for name, _ in events if name != "no_tls"] == ["certificate_renewed"] * 3


def test_a_certificate_is_valid_no_longer_than_its_ca(folder: Path) -> None:
    renew(folder, days=20 * MONTH)
    assert expires(Tls(folder, "shop", "n1")) == 10 * MONTH
    with pytest.raises(SpeError, match=r"ca\.pem expired on "):
        issue(folder, "shop", NAMES, LONG, NOW + datetime.timedelta(days=365), renew=True)
