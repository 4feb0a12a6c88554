"""Revoked certificates: who is refused, that open connections end, and that lists are read again."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from replicas.cli.certs import certs
from spe.errors import ConfigError, LinkBroken, SpeError
from spe.runtime.certificates import issue, revoke
from spe.runtime.revocation_list import REVOKED, RevokedCertificates
from spe.runtime.tls import Tls, TlsStream
from tests.unit.spe.runtime.test_tls_renewal import MONTH, Clock, answers, connected, echo, network

NOW = datetime.datetime.now(datetime.UTC)
CONFIG = """
cluster: shop
sources: {a: {from: {generator: {name: orders, rate: 1, duration: 1s}}}}
query: {q: {filter: {from: a, where: price > 1}}}
security: {certificates: keys}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    issue(tmp_path / "keys", "shop", ["n1", "n2", "source:old"], MONTH, NOW)
    return tmp_path / "keys"


async def answered(stream: TlsStream) -> bool:
    """False also where the connection breaks."""
    with suppress(trio.BrokenResourceError):
        return await answers(stream)
    return False


@pytest.mark.parametrize("server_is_revoked", [False, True])
async def test_a_revoked_holder_is_refused_and_cut_off(folder: Path, server_is_revoked: bool) -> None:
    """1. n2 connects to n1  2. one of them is revoked  3. the open connection ends, and there is no new one"""
    (server, events), (client, _) = network(folder, "n1"), network(folder, "n2")
    async with trio.open_nursery() as nursery:
        address = await nursery.start(server.serve, "127.0.0.1:0", echo)
        async with connected(client, address) as before:
            assert await answers(before)
            revoke(folder, ["n1" if server_is_revoked else "n2"], NOW)
            refuses = client if server_is_revoked else server
            for _ in range(2):
                refuses.look()
            assert not await answered(before)
        with suppress(LinkBroken):
            async with connected(client, address) as stream:
                assert not await answered(stream)
        nursery.cancel_scope.cancel()
    if not server_is_revoked:
        assert [name for name, _ in events] == ["revoked_certificates", "no_tls"]
        assert events[1][1] == {"why": "the certificate of 'n2' is revoked"}


async def test_a_revoked_holder_gets_in_with_a_new_certificate(folder: Path) -> None:
    issue(folder, "shop", ["n2"], MONTH, revoke(folder, ["n2"], NOW), renew=True)
    (server, events), (client, _) = network(folder, "n1"), network(folder, "n2")
    async with trio.open_nursery() as nursery:
        address = await nursery.start(server.serve, "127.0.0.1:0", echo)
        async with connected(client, address) as stream:
            assert await answers(stream)
        nursery.cancel_scope.cancel()
    assert events == []


def test_a_process_does_not_start_with_a_revoked_certificate(folder: Path) -> None:
    revoke(folder, ["n2"], NOW)
    Tls(folder, "shop", "n1")
    with pytest.raises(ConfigError, match=r"n2\.pem is revoked in .*revoked\.txt; expected a newer certificate"):
        Tls(folder, "shop", "n2")


def test_a_certificate_of_a_clock_that_was_ahead_is_revoked(tmp_path: Path) -> None:
    issue(tmp_path, "shop", ["n1"], MONTH, NOW + datetime.timedelta(minutes=10))
    after = revoke(tmp_path, ["n1"], NOW)
    with pytest.raises(ConfigError, match=r"n1\.pem is revoked in"):
        Tls(tmp_path, "shop", "n1")
    issue(tmp_path, "shop", ["n1"], MONTH, after, renew=True)
    Tls(tmp_path, "shop", "n1")


def test_a_malformed_list_is_refused_and_the_old_one_stays(folder: Path) -> None:
    revoke(folder, ["n2"], NOW)
    tls = Tls(folder, "shop", "n1", Clock())
    revoked = tls.revoked
    good = (folder / REVOKED).read_text()
    (folder / REVOKED).write_text(good + "n3\n")
    assert [revoked.renewed() for _ in range(3)] == [None, False, None]
    assert ":3: expected a holder and a time, as in 'n7 2026-01-31T12:00:00', got 'n3'" in tls.status().refused
    assert ("n2", 0) in revoked
    (folder / REVOKED).write_text(good)
    assert [revoked.renewed() for _ in range(3)] == [None, True, None]
    assert tls.status().refused == ""
    (folder / REVOKED).write_text("n3\n")
    with pytest.raises(ConfigError, match=r"revoked\.txt:1: expected a holder and a time"):
        Tls(folder, "shop", "n1")


@pytest.mark.parametrize("lose", [lambda path: path.unlink(), lambda path: (path.unlink(), path.mkdir())])
def test_a_list_that_is_lost_stays_in_use(folder: Path, lose: Callable[[Path], object]) -> None:
    """1. n2 is revoked  2. the list is deleted, or cannot be read  3. n2 is still refused, and the log says so once"""
    revoke(folder, ["n2"], NOW)
    server, events = network(folder, "n1")
    good = (folder / REVOKED).read_bytes()
    lose(folder / REVOKED)
    for _ in range(4):
        server.look()
    assert ("n2", 0) in server._tls.revoked
    ((name, fields),) = events
    assert name == "revoked_refused"
    assert "revoked.txt: expected a list of revoked certificates: " in fields["why"]
    assert server.certificate().refused == fields["why"]
    shutil.rmtree(folder / REVOKED, ignore_errors=True)
    (folder / REVOKED).write_bytes(good)
    for _ in range(2):
        server.look()
    assert [name for name, _ in events] == ["revoked_refused", "revoked_certificates"]


def test_the_latest_time_of_a_holder_counts(tmp_path: Path) -> None:
    (tmp_path / REVOKED).write_text("# a comment\n\nsource:a b 1970-01-01T00:00:02\nsource:a b 1970-01-01T00:00:01\n")
    revoked = RevokedCertificates(tmp_path, Clock())
    assert ("source:a b", 1_999_999) in revoked
    assert ("source:a b", 2_000_000) not in revoked
    assert ("source:b", 0) not in revoked


def test_command_certs_revokes_and_renews_processes_of_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, keys = tmp_path / "c.yaml", tmp_path / "keys"
    config.write_text(CONFIG)
    issue(keys, "shop", ["source:old"], MONTH, NOW)
    assert certs(config, None, MONTH) == 0
    old = (keys / "n1.pem").read_bytes()
    assert certs(config, None, MONTH, revoked=["n1", "source:old"]) == 0
    assert "n1, source:old" in capsys.readouterr().out
    assert (keys / "n1.pem").read_bytes() != old
    Tls(keys, "shop", "n1")
    with pytest.raises(ConfigError, match="is revoked in"):
        Tls(keys, "shop", "source:old")
    with pytest.raises(SpeError, match=r"n99\.pem: there is no such file; expected the name of a process"):
        certs(config, None, MONTH, revoked=["n99"])
