"""A simulated run uses no real time, no sockets, no threads, no files and no randomness but its seed's."""

from __future__ import annotations

import ast
import builtins
import importlib
import os
import pkgutil
import random
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

import replicas.simulation
from replicas.simulation.simulate import simulate
from tests.simulation.test_simulate import scenario

PACKAGES = ("spe", "operators", "consistency", "replicas")
MODULES = {
    *("asyncio", "concurrent", "multiprocessing", "os", "secrets", "selectors", "signal", "socket", "subprocess"),
    *("threading", "time", "uuid"),
}
TRIO = {
    *("SocketStream", "from_thread", "open_file", "open_process", "open_signal_receiver", "open_tcp_listeners"),
    *("open_tcp_stream", "run_process", "serve_tcp", "socket", "to_thread"),
}
#: Modules that a simulated run imports, and what they may touch.
ALLOWED = {
    "replicas.checkpoint.log": {"threading"},  # a lock: in a real process records are appended in a thread
    "replicas.simulation.world.clock": {"time"},  # the wall clock that aborts a run
    "spe.connectors.files": {"os"},  # os.path: paths that a configuration names
    "spe.connectors.delta": {"os"},  # the same
    "spe.config.load": {"os"},  # the same
    "spe.config.script": {"os"},  # where a script may import from
    "spe.runtime.network": {
        "os",
        "socket",
        "trio.SocketStream",
        "trio.open_tcp_listeners",
        "trio.open_tcp_stream",
        "trio.socket",
    },  # its constants
    "spe.runtime.tls": {"time"},  # the clock of real networks, of which only the types are imported
}


def touched(source: str) -> set[str]:
    """Real resources that a module names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                names = {alias.name.split(".")[0] for alias in node.names}
                found |= names & (MODULES | {"random"})
            case ast.ImportFrom(module=str(module), level=0):
                top, names = module.split(".")[0], {alias.name for alias in node.names}
                found |= {top} & MODULES
                found |= {f"random.{n}" for n in names - {"Random"} if top == "random"}
                found |= {f"trio.{n}" for n in names & TRIO if top == "trio"}
            case ast.Attribute(value=ast.Name("trio"), attr=attr) if attr in TRIO:
                found.add(f"trio.{attr}")
            case ast.Call(func=ast.Name("open")):
                found.add("open()")
    return found


def modules_of_a_run() -> dict[str, Path]:
    """Modules of this project that importing the simulator imports."""
    for module in pkgutil.walk_packages(replicas.simulation.__path__, "replicas.simulation."):
        importlib.import_module(module.name)
    program = (
        "import sys; from replicas.simulation import simulate; "
        "from replicas.simulation.scenarios import random_scenario; print(*sorted(sys.modules))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    ours = [name for name in loaded if name.partition(".")[0] in PACKAGES]
    return {name: Path(str(sys.modules[name].__file__)) for name in ours}


def test_no_module_of_a_run_names_a_real_resource() -> None:
    modules = modules_of_a_run()
    assert {
        "replicas.node.process",
        "replicas.client.client",
        "replicas.source.proxy",
        "operators.sunion.sunion",
    } <= modules.keys()
    found = {name: touched(path.read_text()) - ALLOWED.get(name, set()) for name, path in modules.items()}
    assert {name: real for name, real in found.items() if real} == {}


@pytest.mark.parametrize(
    ("source", "real"),
    [
        ("import time", "time"),
        ("from time import sleep", "time"),
        ("import random", "random"),
        ("from random import choice", "random.choice"),
        ("async def f():\n    await trio.to_thread.run_sync(print)", "trio.to_thread"),
        ("from trio import open_tcp_stream", "trio.open_tcp_stream"),
        ("def f():\n    return open('x')", "open()"),
    ],
)
def test_use_of_a_real_resource_is_detected(source: str, real: str) -> None:
    assert touched(source) == {real}
    assert touched("from random import Random\nimport trio\ntrio.sleep(1)") == set()


#: Functions that a run must not call.
REAL: list[tuple[Any, str]] = [
    *((time, name) for name in ("time", "time_ns", "sleep")),
    *((socket.socket, name) for name in ("bind", "connect", "listen")),
    *((random, name) for name in ("random", "choice", "randint", "randrange", "shuffle", "getrandbits", "seed")),
    (threading.Thread, "start"),
    (trio.to_thread, "run_sync"),
    (subprocess.Popen, "__init__"),
    (os, "urandom"),
    (uuid, "uuid4"),
    (builtins, "open"),
]


@pytest.fixture
def nothing_real(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of forbidden functions that were called.  Threads that other tests have left, as of Spark, may go on."""
    called: list[str] = []
    here = threading.get_ident()

    def instead(name: str, real: Any) -> Callable[..., Any]:
        def forbidden(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != here:
                return real(*args, **kwargs)
            called.append(name)
            raise AssertionError(f"{name} in a simulated run")

        return forbidden

    for where, name in REAL:
        monkeypatch.setattr(where, name, instead(name, getattr(where, name)))
    return called


def test_a_run_uses_no_real_resource(nothing_real: list[str]) -> None:
    outcome = simulate(scenario(1))
    assert outcome.holds
    assert nothing_real == []


def test_a_run_that_uses_a_real_resource_is_detected(nothing_real: list[str]) -> None:
    with pytest.raises(BaseExceptionGroup) as raised:
        simulate(scenario(1), watch=lambda cluster: time.sleep(0))
    assert raised.group_contains(AssertionError, match="sleep in a simulated run")
    assert nothing_real == ["sleep"]
