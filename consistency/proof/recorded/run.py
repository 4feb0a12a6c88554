"""Opens and checks a run's directory: the plan, the sources' logs, the clients' recordings.

Checks that need not read the data are made here: missing files, another plan, a log whose acknowledged part is cut.
The data themselves are checked while Spark reads them (``consistency.proof.recorded.table_source``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Final

from consistency.proof.agreement import disagreements
from consistency.proof.recorded.query_file import Reading, read
from spe import RUN_VERSION
from spe.config import load
from spe.errors import SpeError, other_version
from spe.log.announced_settings import RecordedAnnouncement, announced_folder, read_announced
from spe.log.format import HEADER_BYTES, Segment, check_version
from spe.log.issued_directories import IssuedVersion, MadeMove, read_issued, read_moves
from spe.log.log_start import need_judged
from spe.log.origin import combined, read_identity, signature_of
from spe.log.provenance import PROVENANCE, read_provenance
from spe.log.recording import channel_folder, client_folder
from spe.log.recovery import kept_segments, live_segments
from spe.log.sessions import joined
from spe.log.source_log import source_folder
from spe.plan.deploy import with_default_client, with_origins, without_external
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.runtime.process_birth import birth_of
from spe.runtime.storage import DiskStorage
from spe.stream.ids import Channel
from spe.stream.names import StreamId

#: A process id that no process has.
_NOBODY: Final = 2**31 - 1
_CONFIG: Final = "config.yaml"
_CLUSTER: Final = "cluster.json"
_EVENTS: Final = "events.jsonl"
_SUMMARY: Final = "summary.json"
#: Below the directory of a run.
REPORT_FOLDER: Final = "report"


@dataclass(frozen=True)
class Run:
    """A run that can be judged.

    Attributes:
      path: the folder of the run.
      plan, directory: the plan and its placement, by the run's own copy of the configuration.
      facts: written by the supervisor at the start: versions, command line, seed.
      events: states, faults and processes with their times, in order; ``t`` is wall time in microseconds.
      summary: written by the supervisor in the end; empty for a run that was broken off.
      origin: URI of the directory on another file system, with the small files in ``path``; "" where it holds all.
    """

    path: Path
    plan: Plan
    directory: Directory
    facts: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Mapping[str, Any], ...] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""

    @classmethod
    def open(cls, path: Path, origin: str = "") -> Run:
        """Opens the directory of a run.

        Raises:
          SpeError: it is no such directory, or something is missing or damaged; names it.
          ConfigError: its configuration cannot be read any more (data files or modules that were moved).
        """
        if not path.is_dir():
            raise SpeError(f"{path}: there is no such directory")
        facts = _read_json(path / _CLUSTER, "the directory of a run has one from its start on")
        if not isinstance(facts, dict) or not {"data", "fingerprint"} <= facts.keys():
            raise SpeError(f"{path / _CLUSTER} is damaged: it does not name the data and the fingerprint of the plan")
        if why := other_version(path / _CLUSTER, facts.get("version"), RUN_VERSION):
            raise SpeError(why)
        if not (path / _CONFIG).is_file():
            raise SpeError(f"{path} is incomplete: there is no {_CONFIG}, the copy of the configuration that was run")
        plan, directory = load(path / _CONFIG, facts["data"])
        plan, directory = with_origins(plan, facts.get("origins", {})), with_default_client(plan, directory)
        if plan.fingerprint != facts["fingerprint"]:
            raise SpeError(
                f"{path} ran another plan ({facts['fingerprint']}) than its {_CONFIG} says now ({plan.fingerprint}): "
                "the copy was changed, or this is another release"
            )
        summary = _read_json(path / _SUMMARY, "") if (path / _SUMMARY).is_file() else {}
        own = _without_rejected(plan, without_external(directory))
        run = cls(path, plan, own, facts, tuple(joined(_read_events(path / _EVENTS))), summary, origin)
        if differing := disagreements(run.reading, plan, directory):
            raise SpeError(f"{path} ran another query than its {_CONFIG} says, read a second time: {differing[0]}")
        run.check()
        return run

    @cached_property
    def reading(self) -> Reading:
        """The copy of the configuration, read by a reader that is independent of the engine."""
        try:
            return read((self.path / _CONFIG).read_text(encoding="utf-8"))
        except ValueError as error:
            raise SpeError(f"{self.path}: {error}") from error

    def check(self) -> None:
        """Raises SpeError where a source's log or a client's recording is missing, incomplete or of another run."""
        for stream in self.plan.sources:
            self._check_version(self.source_path(stream), self.source_segments(stream))
        for name, channel in self.recordings():
            folder = self.path / channel_folder(client_folder(name), channel)
            if not folder.is_dir():
                raise SpeError(f"{self.path} is incomplete: there is no {folder}, what client {name!r} received")
            self._check_version(folder, live_segments([p.name for p in folder.iterdir()]))
        self._check_origins()

    def _check_version(self, folder: Path, segments: list[Segment]) -> None:
        """Raises LogCorrupt for a log of another version; a file that is no log is reported where it is read."""
        for segment in segments:
            try:
                with (folder / segment.name).open("rb") as file:
                    check_version(file.read(HEADER_BYTES), folder / segment.name)
            except FileNotFoundError:
                continue  # `retain` has deleted it since; if it is needed, its reader reports that

    def _check_origins(self) -> None:
        """Raises SpeError where a recording comes from other source logs than those of the run (rule S6).

        A recording without origins is judged by its rows alone.
        """
        if self.origin:
            return  # on another file system; small files may be missing here
        known: dict[Channel, str] = {}
        for stream in self.plan.sources:
            identity = read_identity(self.storage, source_folder(stream))
            known[Channel(stream, 0)] = identity
        for unit in self.plan.units:
            for partition in range(unit.partitions):
                made = combined([known[c] for c in unit.channels_in(partition)])
                known |= {Channel(stream, partition): made for stream in unit.outputs}
        for name, channel in self.recordings():
            recorded = read_provenance(self.storage, client_folder(name) / PROVENANCE).get(str(channel))
            if recorded is not None and recorded.origin and recorded.origin != known[channel]:
                raise SpeError(
                    f"{self.path}: what client {name!r} received of {channel} comes from other source logs "
                    f"({recorded.origin}) than those of the run ({known[channel] or 'one of which has no identity'}): "
                    "a source's folder was replaced"
                )

    def signature_flaws(self, stream: StreamId) -> list[str]:
        """Returns a sentence if the log of a source began with other settings than the configuration's copy has."""
        signed = signature_of(read_identity(self.storage, source_folder(stream)))
        if signed in ("", self.directory.signature):
            return []
        return [
            f"its log began with other settings of nodes (X, α, policies) than {_CONFIG} has: that was changed since"
        ]

    def source_path(self, stream: StreamId) -> Path:
        """Returns the folder of a source's log."""
        return self.path / source_folder(stream)

    def source_segments(self, stream: StreamId) -> list[Segment]:
        """Returns the segments of a source's log, in order.  Raises SpeError where there are none, or not all."""
        folder = self.source_path(stream)
        if not folder.is_dir():
            raise SpeError(f"{self.path} is incomplete: there is no {folder}, the log of source {stream!r}")
        _, segments = kept_segments(DiskStorage(folder), PurePosixPath())
        if not segments:
            raise SpeError(f"{self.path} is incomplete: {folder}, the log of source {stream!r}, is empty")
        return segments

    def need_whole(self) -> None:
        """Raises LogCut where the beginning of a log or a recording was deleted: without it there is no verdict."""
        folders = [self.source_path(s) for s in self.plan.sources]
        folders += [self.recording_path(*recording) for recording in self.recordings()]
        for folder in folders:
            need_judged(DiskStorage(folder), PurePosixPath(), folder)

    def channels(self, output: StreamId) -> list[Channel]:
        """Returns the partitions of an output stream."""
        return [Channel(output, p) for p in range(self.plan.partitions_of(output))]

    def recordings(self) -> Iterator[tuple[str, Channel]]:
        """Yields (client, channel) of every expected recording."""
        for name, client in self.directory.clients.items():
            for output in client.reads:
                yield from ((name, channel) for channel in self.channels(output))

    def recording_path(self, client: str, channel: Channel) -> Path:
        """Returns the folder of a client's recording of one channel."""
        return self.path / channel_folder(client_folder(client), channel)

    def announced(self, client: str) -> list[RecordedAnnouncement]:
        """Returns X and waits as a client recorded them; [] if it recorded none.  Raises LogCorrupt."""
        return list(read_announced(self.storage, announced_folder(client_folder(client))))

    def issued(self) -> list[IssuedVersion]:
        """Returns versions of the directory; [] where the coordinator's folder is elsewhere.  Raises LogCorrupt."""
        return read_issued(self.storage, self.plan.fingerprint)

    def moves(self) -> list[MadeMove]:
        """Returns partitions that moved; [] where the coordinator's folder is elsewhere.  Raises LogCorrupt."""
        return read_moves(self.storage, self.plan.fingerprint)

    @property
    def going_on(self) -> bool:
        """Does the supervisor still run, on this machine, and has not reported the end of the run?"""
        if self.summary or self.origin:
            return False
        pid = int(self.facts.get("pid", 0)) or _NOBODY
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            pass
        noted, now = self.facts.get("birth"), birth_of(pid)
        return not (noted and now) or noted == now

    @property
    def where(self) -> str:
        """The directory, as Spark and the user name it."""
        return self.origin or str(self.path)

    @property
    def storage(self) -> DiskStorage:
        """The directory, as the storage from which logs are read."""
        return DiskStorage(self.path)

    def relative(self, folder: Path) -> PurePosixPath:
        """Returns a folder of the run, as ``storage`` names it."""
        return PurePosixPath(folder.relative_to(self.path))


def _without_rejected(plan: Plan, directory: Directory) -> Directory:
    """Removes rejected rows from what clients read: they are not judged."""
    taken = {o.name for o in plan.query.operators if o.spec.TAKES_REJECTED}
    clients = {n: replace(c, reads=tuple(s for s in c.reads if s not in taken)) for n, c in directory.clients.items()}
    return replace(directory, clients=clients)


def _read_json(path: Path, why: str) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise SpeError(f"{path.parent} is not the directory of a run: it has no {path.name}; {why}") from None
    except (OSError, ValueError) as error:
        raise SpeError(f"{path} is damaged: {error}") from error


def _read_events(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yields the supervisor's notes.  The last line of a run that was broken off may be torn; others must be valid."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError as error:
        raise SpeError(f"{path} cannot be read: {error.strerror}; it holds the run's faults and states") from error
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
            if not isinstance(event["t"], int) or not isinstance(event["event"], str):
                raise ValueError("t is a number and event a word")
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                return
            raise SpeError(f"{path}:{number}: expected an event with t and event, got {line[:80]!r}") from error
        yield event
