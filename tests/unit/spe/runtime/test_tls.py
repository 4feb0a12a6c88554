"""Mutual TLS over real sockets: who is accepted, who is refused, and that refusals do not affect others."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import ssl
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from spe.errors import ConfigError, LinkBroken, SpeError
from spe.runtime.certificates import issue
from spe.runtime.network import TcpNetwork, parse_address
from spe.runtime.tls import Tls, TlsNetwork

NOW = datetime.datetime.now(datetime.UTC)
NAMES = ["n1", "source:a b", "client:c", "control"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    issue(tmp_path / "good", "shop", NAMES, 30, NOW)
    return tmp_path / "good"


class Events:
    def __init__(self) -> None:
        self.found: list[tuple[str, dict[str, Any]]] = []

    def event(self, name: str, /, **fields: Any) -> None:
        self.found.append((name, fields))


@asynccontextmanager
async def served(tls: Tls) -> AsyncIterator[tuple[str, list[str], Events]]:
    """An echo server: its address, the certified names of its callers, its trace."""
    callers: list[str] = []
    events = Events()
    network = TlsNetwork(TcpNetwork(hello_s=5), tls, events)

    async def echo(stream: trio.abc.Stream) -> None:
        callers.append(stream.certified)  # type: ignore[attr-defined]
        await stream.send_all(await stream.receive_some(100))

    async with trio.open_nursery() as nursery:
        address = await nursery.start(network.serve, "127.0.0.1:0", echo)
        yield address, callers, events
        nursery.cancel_scope.cancel()


async def ask(tls: Tls, address: str) -> tuple[str, bytes]:
    """The server's certified name, and what it echoes."""
    stream = await TlsNetwork(TcpNetwork(), tls, Events()).connect(address)
    try:
        await stream.send_all(b"hello")
        with trio.fail_after(5):
            try:
                return stream.certified, bytes(await stream.receive_some(100))
            except trio.BrokenResourceError as error:  # in TLS 1.3 a refusal comes with the first read
                raise LinkBroken(str(error.__cause__)) from error
    finally:
        await trio.aclose_forcefully(stream)


def test_keys_are_private_and_existing_files_stay(folder: Path) -> None:
    for key in folder.glob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    again = issue(folder, "shop", [*NAMES, "n2"], 30, NOW)
    assert {i.name: i.new for i in again} == {
        "CA": False, "n1": False, "source:a b": False, "client:c": False, "control": False, "n2": True
    }  # fmt: skip
    after = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert {name: after[name] for name in before} == before
    Tls(folder, "shop", "n2")


def test_a_new_ca_is_reported_as_made(tmp_path: Path) -> None:
    assert {i.name: i.new for i in issue(tmp_path, "shop", ["n1"], 30, NOW)} == {"CA": True, "n1": True}


def test_without_the_key_of_the_ca_nothing_is_issued(folder: Path) -> None:
    (folder / "ca.key").unlink()
    with pytest.raises(SpeError, match=r"ca\.key: there is no such file"):
        issue(folder, "shop", ["n7"], 30, NOW)


async def test_both_ends_know_the_others_certified_name(folder: Path) -> None:
    async with served(Tls(folder, "shop", "n1")) as (address, callers, events):
        assert await ask(Tls(folder, "shop", "source:a b"), address) == ("n1", b"hello")
        assert await ask(Tls(folder, "shop", "supervisor"), address) == ("n1", b"hello")
    assert callers == ["source:a b", "control"]
    assert events.found == []


async def test_a_certificate_of_another_cluster_is_refused(folder: Path, tmp_path: Path) -> None:
    """It is of the same CA, but names no process of this cluster."""
    other = tmp_path / "elsewhere"
    other.mkdir()
    for name in ("ca.pem", "ca.key"):
        shutil.copy(folder / name, other / name)
    issue(other, "elsewhere", NAMES, 30, NOW)
    async with served(Tls(folder, "shop", "n1")) as (address, callers, events):
        with pytest.raises(LinkBroken, match="names nobody of cluster 'elsewhere'"):
            await ask(Tls(other, "elsewhere", "client:c"), address)
        assert await ask(Tls(folder, "shop", "client:c"), address) == ("n1", b"hello")
    assert callers == ["client:c"]
    assert events.found == [("no_tls", {"why": "the certificate names nobody of cluster 'shop'"})]


@pytest.mark.skipif(os.name != "posix", reason="files have no modes")
def test_a_key_that_others_can_read_is_refused(folder: Path) -> None:
    for mode in (0o600, 0o400, 0o640, 0o440):
        (folder / "n1.key").chmod(mode)
        Tls(folder, "shop", "n1")
    for mode in (0o644, 0o604, 0o660, 0o610, 0o601):
        (folder / "n1.key").chmod(mode)
        with pytest.raises(
            ConfigError, match=rf"n1\.key: others can use it \(mode {mode:o}\); expected mode 600, or 640"
        ):
            Tls(folder, "shop", "n1")


@pytest.mark.parametrize("what", ["another CA", "no certificate", "plain text", "old TLS"])
async def test_strangers_are_refused_and_the_server_continues(folder: Path, tmp_path: Path, what: str) -> None:
    other = tmp_path / "other"
    issue(other, "shop", NAMES, 30, NOW)
    async with served(Tls(folder, "shop", "n1")) as (address, callers, events):
        host, port = parse_address(address)
        if what == "another CA":
            with pytest.raises(LinkBroken):
                await ask(Tls(other, "shop", "client:c"), address)
        elif what == "plain text":
            raw = await trio.open_tcp_stream(host, port)
            await raw.send_all(b"GET / HTTP/1.1\r\n\r\n")
            with trio.fail_after(5):
                while await raw.receive_some(100):
                    pass
            await raw.aclose()
        else:
            context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
            context.check_hostname = False
            if what == "old TLS":
                context.load_cert_chain(folder / "n1.pem", folder / "n1.key")
                context.maximum_version = ssl.TLSVersion.TLSv1_2
            stream = trio.SSLStream(await trio.open_tcp_stream(host, port), context)
            with contextlib.suppress(trio.BrokenResourceError), trio.fail_after(5):
                await stream.send_all(b"hello")
            answer = b""
            # Python before 3.11.4 reads an end without close_notify as b"" (gh-95494); later ones raise.
            with contextlib.suppress(trio.BrokenResourceError), trio.fail_after(5):
                answer = bytes(await stream.receive_some(100))
            assert answer == b""
            await trio.aclose_forcefully(stream)
        assert await ask(Tls(folder, "shop", "client:c"), address) == ("n1", b"hello")
    assert callers == ["client:c"]
    assert [name for name, _ in events.found] == ["no_tls"]


async def test_a_server_of_another_ca_is_refused(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    issue(other, "shop", NAMES, 30, NOW)
    async with served(Tls(other, "shop", "n1")) as (address, _callers, _events):
        with pytest.raises(LinkBroken, match=r"certificate|issuer|signed"):
            await ask(Tls(folder, "shop", "client:c"), address)


async def test_a_silent_connection_does_not_block_others(folder: Path) -> None:
    async with served(Tls(folder, "shop", "n1")) as (address, callers, _events):
        host, port = parse_address(address)
        silent = [await trio.open_tcp_stream(host, port) for _ in range(20)]
        assert await ask(Tls(folder, "shop", "client:c"), address) == ("n1", b"hello")
        for one in silent:
            await trio.aclose_forcefully(one)
    assert callers == ["client:c"]


def test_mistakes_in_the_own_certificates_name_the_file(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"n9\.pem: there is no such file"):
        Tls(folder, "shop", "n9")
    shutil.copy(folder / "client-c.pem", folder / "n1.pem")
    with pytest.raises(ConfigError, match=r"n1\.pem and n1\.key: expected a certificate and its key"):
        Tls(folder, "shop", "n1")
    shutil.copy(folder / "client-c.key", folder / "n1.key")
    with pytest.raises(ConfigError, match=r"n1\.pem is the certificate of 'client:c'; expected that of spe://shop/n1"):
        Tls(folder, "shop", "n1")
    with pytest.raises(ConfigError, match=r"expected that of spe://market/"):
        Tls(folder, "market", "client:c")
    (folder / "ca.pem").write_text("nonsense")
    with pytest.raises(ConfigError, match=r"ca\.pem: expected the certificate of the CA"):
        Tls(folder, "shop", "client:c")
    issue(tmp_path / "old", "shop", ["n1"], 10, NOW - datetime.timedelta(days=20))
    with pytest.raises(ConfigError, match=r"n1\.pem: certificate has expired"):
        Tls(tmp_path / "old", "shop", "n1")
    issue(tmp_path / "mixed", "shop", ["n1"], 10, NOW)
    (tmp_path / "mixed" / "ca.pem").write_bytes((tmp_path / "old" / "ca.pem").read_bytes())
    with pytest.raises(ConfigError, match=r"n1\.pem: "):
        Tls(tmp_path / "mixed", "shop", "n1")
