"""Every process of a local cluster in a network namespace of its own: the kernel's own cuts.  Linux, as root.

    python -m tests.support.namespaces run CONFIG --faults FILE    # ``spe run``, with cuts made by the kernel

A bridge joins the namespaces, so each process has an address of its own, and links fail as they do between machines:
packets vanish, TCP retransmits and times out by itself.  A cut is a blackhole route to one peer in the sender's
namespace, hence one-way by nature; a link that is down loses everything, which is what a machine without power does.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Final
from unittest import mock

import trio

from replicas.cli.app import execute
from replicas.cli.run import run
from replicas.faults.links import LinkMode
from replicas.faults.model import processes_of
from replicas.faults.state import FaultState
from replicas.local.job import Job
from replicas.local.process import ProcessSpec
from spe.errors import SpeError
from spe.plan.directory import Directory
from spe.plan.plan import Plan

#: 10.x.y.0/24 of this process; up to 253 namespaces.
_NET: Final = "10.{}.{}"


def why_not() -> str:
    """Why there can be no namespaces here; "" if there can."""
    if os.name != "posix" or not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no ip command (iproute2)"
    probe = f"spe-probe-{os.getpid()}"
    try:
        _ip("netns", "add", probe)
        _ip("link", "add", f"p{os.getpid()}", "type", "bridge")
    except SpeError as error:
        return f"the kernel does not let us: {error}"
    finally:
        for words in (("netns", "del", probe), ("link", "del", f"p{os.getpid()}")):
            with contextlib.suppress(SpeError):
                _ip(*words)
    return ""


class Namespaces:
    """One namespace per name, joined by a bridge that we stand on as well.  Use :func:`open_namespaces`.

    Attributes:
      addresses: host (no port) by name.
      ours: our own address on the bridge.
    """

    def __init__(self, names: Sequence[str]) -> None:
        pid = os.getpid()
        net = _NET.format(64 + (pid >> 8) % 64, pid % 256)
        self._bridge = f"spe{pid}"
        self._net = net
        self._spaces = {name: f"spe-{pid}-{at}" for at, name in enumerate(names)}
        self.ours = f"{net}.1"
        self.addresses = {name: f"{net}.{at + 2}" for at, name in enumerate(names)}
        self._cuts: set[tuple[str, str]] = set()

    def command(self, name: str, words: Sequence[str]) -> list[str]:
        """``words`` run in the namespace of ``name``; the process keeps its pid (exec)."""
        return ["ip", "netns", "exec", self._spaces[name], *words]

    def set_cuts(self, pairs: Iterable[tuple[str, str]]) -> None:
        """From now on exactly these (sender, receiver) pairs are cut: what the sender sends vanishes."""
        wanted = set(pairs)
        for sender, receiver in sorted(wanted - self._cuts):
            self._route("add", sender, receiver)
        for sender, receiver in sorted(self._cuts - wanted):
            self._route("del", sender, receiver)
        self._cuts = wanted

    def plug(self, name: str, *, up: bool) -> None:
        """Takes the link of a namespace down, or up again; its routes go with the link."""
        self._in(name, "link", "set", "eth0", "up" if up else "down")
        if up:
            for sender, receiver in sorted(c for c in self._cuts if c[0] == name):
                self._in(sender, "route", "replace", "blackhole", f"{self.addresses[receiver]}/32")

    def _route(self, verb: str, sender: str, receiver: str) -> None:
        self._in(sender, "route", verb, "blackhole", f"{self.addresses[receiver]}/32")

    def _in(self, name: str, *words: str) -> None:
        _ip("-n", self._spaces[name], *words)

    def _make(self) -> None:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self.ours}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for at, (name, space) in enumerate(self._spaces.items()):
            cable = self._cable(at)
            _ip("netns", "add", space)
            _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", cable, "master", self._bridge, "up")
            self._in(name, "addr", "add", f"{self.addresses[name]}/24", "dev", "eth0")
            self._in(name, "link", "set", "lo", "up")
            self._in(name, "link", "set", "eth0", "up")

    def _remove(self) -> None:
        for at, space in enumerate(self._spaces.values()):
            # The kernel takes a deleted namespace and its cable apart some time later: a name that is to be
            # free at once goes by hand.
            with contextlib.suppress(SpeError):
                _ip("link", "del", self._cable(at))
            with contextlib.suppress(SpeError):
                _ip("netns", "del", space)
        with contextlib.suppress(SpeError):
            _ip("link", "del", self._bridge)

    def _cable(self, at: int) -> str:
        return f"v{os.getpid()}-{at}"


@contextlib.contextmanager
def open_namespaces(names: Sequence[str]) -> Iterator[Namespaces]:
    """Namespaces that go with the block, however it ends.

    Raises:
      SpeError: the kernel, or ``ip``, says no.
    """
    spaces = Namespaces(names)
    try:
        spaces._make()
        yield spaces
    finally:
        spaces._remove()


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SpeError(f"ip {' '.join(words)}: {done.stderr.strip() or done.returncode}")


class NamespaceLinks:
    """Links that the kernel cuts; see :class:`replicas.faults.links.LinkFaultMaker`."""

    inside = False
    mode = LinkMode.INSIDE

    def __init__(self, spaces: Namespaces) -> None:
        self._spaces = spaces
        self.via: Mapping[str, Mapping[str, str]] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()

    async def apply(self, state: FaultState) -> str:
        links = state.links()
        self._spaces.set_cuts(pair for pair, link in links.items() if link.cut)
        return "namespaces do not delay" if any(link.delay_us for link in links.values()) else ""

    def reset(self, pairs: Sequence[tuple[str, str]]) -> str:
        return "namespaces cannot reset"

    def half_open(self, pairs: Sequence[tuple[str, str]]) -> str:
        return "namespaces forget no connection"


def main(words: Sequence[str]) -> int:
    """A command line in which ``spe run`` starts each process in its namespace."""
    local_addresses, process_specs = run.local_addresses, run.process_specs
    with contextlib.ExitStack() as stack:
        found: list[Namespaces] = []

        def addresses(directory: Directory) -> dict[str, str]:
            found.append(stack.enter_context(open_namespaces(processes_of(directory))))
            # The same ports, each on the address of its own namespace; whoever has none listens on the bridge.
            return {
                name: f"{found[0].addresses.get(name, found[0].ours)}:{address.rpartition(':')[2]}"
                for name, address in local_addresses(directory).items()
            }

        def specs(job: Job) -> list[ProcessSpec]:
            return [replace(s, command=found[0].command(s.name, s.command)) for s in process_specs(job)]

        def links(
            mode: LinkMode, plan: Plan, directory: Directory, addresses: Mapping[str, str], random: Random
        ) -> NamespaceLinks:
            return NamespaceLinks(found[0])

        with mock.patch.multiple(run, local_addresses=addresses, process_specs=specs, open_links=links):
            return execute(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
