"""Cuts made by the kernel, between network namespaces; needs root, and is skipped without."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.namespaces import Namespaces, open_namespaces, why_not

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=f"no network namespaces: {WHY_NOT}")

SERVER = """
import socket
server = socket.create_server(("0.0.0.0", 5000))
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(b"hello")
    connection.close()
"""
CLIENT = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], 5000), 0.5) as connection:
        print(connection.recv(9).decode())
except OSError:
    print("nothing")
"""


@pytest.fixture
def spaces() -> Iterator[Namespaces]:
    """Namespaces a and b; a server in b answers hello."""
    with open_namespaces(["a", "b"]) as spaces:
        command = spaces.command("b", [sys.executable, "-c", SERVER])
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield spaces
            server.kill()


def ask(spaces: Namespaces) -> str:
    command = spaces.command("a", [sys.executable, "-c", CLIENT, spaces.addresses["b"]])
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_cut_holds_in_either_direction_and_heals(spaces: Namespaces) -> None:
    assert ask(spaces) == "hello"
    for way in (("a", "b"), ("b", "a")):
        spaces.set_cuts([way])
        assert ask(spaces) == "nothing"
        spaces.set_cuts([])
        assert ask(spaces) == "hello"


def test_a_pulled_cable_silences_a_namespace_and_cuts_remain(spaces: Namespaces) -> None:
    spaces.set_cuts([("b", "a")])
    spaces.plug("b", up=False)
    spaces.plug("b", up=True)
    assert ask(spaces) == "nothing"
    spaces.set_cuts([])
    assert ask(spaces) == "hello"


def test_no_namespaces_are_left_behind() -> None:
    for _ in range(5):  # the names can be used again at once
        with contextlib.suppress(ZeroDivisionError), open_namespaces(["a", "b"]) as spaces:
            raise ZeroDivisionError
    left = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
    left += subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert spaces._bridge not in left
    assert spaces._cable(0) not in left
