"""The history of a run of real processes, from its directory: what the checkers judge, as for a simulated run.

It consists of the clients' recordings, the supervisor's notes on processes and faults, and the sources' logs; the
inputs of nodes are not recorded.  Times count from the run's first event.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from consistency.checking.bounds import Bounds
from consistency.checking.node_settings import InForce
from consistency.checking.rows import Reference
from consistency.checking.verdict import Premise, RunVerdict
from consistency.checking.verdict import judge as judge_history
from replicas.cli.reference import logged_inputs
from replicas.client.recorder import read_recording
from replicas.faults.model import one_fault, others, processes_of
from spe.log.announced_settings import announced_folder, read_announced
from spe.log.recording import channel_folder, client_folder
from spe.log.sessions import joined
from spe.plan.delays import source_epoch
from spe.plan.directory import COORDINATOR, Directory
from spe.plan.plan import Plan
from spe.runtime.storage import DiskStorage
from spe.stream.batch import Batch, Boundary
from spe.stream.history import (
    Delivered,
    Event,
    FaultBegan,
    FaultEnded,
    History,
    ProcessDown,
    ProcessUp,
    Sent,
    StateChanged,
)
from spe.stream.ids import Channel
from spe.stream.names import NodeId, NodeState
from spe.stream.times import BEFORE_TIME

#: Delay that an ordinary, busy machine may add to real processes.
NOISE_US: Final = 500_000


def recorded_history(plan: Plan, directory: Directory, folder: Path) -> History:
    """Returns the events of a run.

    Raises:
      LogError: a recording or a source's log is damaged.
    """
    lines = _lines(folder)
    first_us = _first_us(lines)
    begun_us = next((int(line["begun_us"]) for line in lines if line["event"] == "begin"), None)
    events = [
        *_of_the_supervisor(directory, lines),
        *_of_clients(plan, directory, folder),
        *_of_sources(plan, folder, begun_us),
    ]
    return History(_since(first_us, e) for e in sorted(events, key=lambda e: e.at_us))


def judge_recorded(
    plan: Plan, directory: Directory, folder: Path, reference: Reference, *, complete: bool, noise_us: int = NOISE_US
) -> RunVerdict:
    """Judges a run by its clients' recordings: P1 with an allowance for noise, P2, P4, and P3 if the run is complete.

    Raises LogError as :func:`recorded_history`.
    """
    premise = Premise(healed=complete, survivors=complete, quiet=False)
    lines = _lines(folder)
    heard = [
        record.announcement
        for name in directory.clients
        for record in read_announced(DiskStorage(folder), announced_folder(client_folder(name)))
    ]
    return judge_history(
        recorded_history(plan, directory, folder),
        plan,
        directory,
        reference,
        premise=premise,
        bounds=Bounds.of(plan, directory, noise_us=noise_us),
        in_force=InForce.announced(plan, directory, heard, _first_us(lines)),
    )


def _lines(folder: Path) -> list[Mapping[str, Any]]:
    return joined(json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines())


def _first_us(lines: list[Mapping[str, Any]]) -> int:
    return min((int(line["t"]) for line in lines), default=0)


def _since(first_us: int, event: Event) -> Event:
    fields = (getattr(event, name) for name in type(event).__slots__[1:])
    return type(event)(event.at_us - first_us, *fields)


def _of_clients(plan: Plan, directory: Directory, folder: Path) -> Iterator[Event]:
    storage = DiskStorage(folder)
    for name, client in directory.clients.items():
        for channel in (Channel(s, p) for s in client.reads for p in range(plan.partitions_of(s))):
            schema = plan.query.schema_of(channel.stream)
            for change in read_recording(storage, channel_folder(client_folder(name), channel), schema):
                yield Delivered(change.arrived_us, f"client:{name}", channel, change.element)


def _of_sources(plan: Plan, folder: Path, begun_us: int | None) -> Iterator[Event]:
    """Yields when each tuple was due at its source; nothing where tuple time does not follow the clock."""
    inputs = logged_inputs(plan, folder)
    for stream, source in plan.sources.items():
        epoch = source_epoch(source, begun_us)
        if epoch is None:
            continue
        at_us, upto_id, frontier = 0, 0, BEFORE_TIME
        for element in inputs[stream]:
            high = BEFORE_TIME
            if isinstance(element, Batch) and len(element):
                upto_id, high = element.upto_id, element.rows.span()[2]
                at_us = max(at_us, epoch.created_us(high))
            elif isinstance(element, Boundary):
                frontier = element.time
            yield Sent(at_us, Channel(stream, 0), upto_id, high, frontier)


def _of_the_supervisor(directory: Directory, lines: list[Mapping[str, Any]]) -> Iterator[Event]:
    numbers: dict[str, int] = {}
    for line in lines:
        at_us, event = int(line["t"]), line["event"]
        if event == "process_ready" and line["process"] == COORDINATOR:
            yield ProcessUp(at_us, COORDINATOR, int(line["t"]))
        elif event == "process_started" and line["process"] != COORDINATOR:
            host = line["process"]
            yield ProcessUp(at_us, host, int(line["start"]))
            node = NodeId(host)
            for replica in directory.replicas_on(node) + directory.standbys_on(node) if node in directory.nodes else ():
                yield StateChanged(at_us, str(replica), NodeState.RECOVERING, False)
        elif event in ("process_killed", "process_lost", "process_stopped", "process_died"):
            yield ProcessDown(at_us, line["process"])
        elif event == "state":
            yield StateChanged(at_us, line["replica"], NodeState[line["after"]], False)
        elif event in ("fault_began", "fault_ended"):
            fault = {k: v for k, v in line.items() if k not in ("t", "event", "errors")}
            key = json.dumps(fault, sort_keys=True)
            if event == "fault_began":
                numbers[key] = len(numbers) + 1
                hosts, links = _targets(directory, fault)
                yield FaultBegan(at_us, numbers[key], fault["kind"], hosts, links, one_fault(fault, directory).severity)
            else:
                yield FaultEnded(at_us, numbers[key])


def _targets(directory: Directory, fault: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Returns (processes, links) of a recorded fault."""
    if "from" not in fault:
        return tuple(fault.get("target", ())), ()
    known = processes_of(directory)
    links = [(a, b) for a in others(fault["from"], "", known) for b in others(fault["to"], a, known)]
    if not fault.get("one_way"):
        links += [(b, a) for a, b in links]
    return (), tuple(links)
