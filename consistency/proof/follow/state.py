"""State between two steps: one small file, replaced as a whole, and a folder with rows of open count windows."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from consistency.proof.comparing.offenders import FIRST
from consistency.proof.follow.readers import ChannelProgress, LogProgress
from consistency.proof.report.follow_model import FollowedStep
from consistency.proof.report.model import Flaw, FlawCount, Offender, Verdict
from spe.errors import SpeError, other_version
from spe.runtime.storage import sync_folder
from spe.stream.times import BEFORE_TIME

#: Below the directory of a run.
FOLDER: Final = "follow"
FILE: Final = "state.json"
VERSION: Final = 1
#: Number of steps listed in follow.json.
LATEST: Final = 20


class Tally(BaseModel):
    """Results for one output at one client, over all steps.

    Attributes:
      truth: number of tuples of a run without failures.
      findings: the first tuples with each flaw, and how many there are.
      wrong_us: tuple time of the first flaw.
      mistyped: attributes received in another type than the truth has, or ids that another client does not have.
      to_come: number of true tuples beyond the client's final output, not received.
      verdict, reasons: set in the end.
    """

    model_config = ConfigDict(extra="forbid")
    truth: int = 0
    findings: list[FlawCount] = []
    wrong_us: int | None = None
    mistyped: list[str] = []
    to_come: int = 0
    verdict: Verdict | None = None
    reasons: list[str] = []

    def is_wrong(self, time_us: int) -> None:
        self.wrong_us = time_us if self.wrong_us is None else min(self.wrong_us, time_us)

    def add(self, flaw: Flaw, count: int, offenders: list[Offender], first_us: int) -> None:
        """Adds tuples with a flaw; ``first_us`` is the time of the first one."""
        known = {f.flaw: f for f in self.findings}
        old = known.get(flaw)
        known[flaw] = FlawCount(
            flaw=flaw,
            count=count + (old.count if old else 0),
            offenders=[*(old.offenders if old else []), *offenders][:FIRST],
        )
        self.findings = [known[f] for f in Flaw if f in known]
        self.is_wrong(first_us)

    @property
    def counts(self) -> dict[Flaw, int]:
        return {finding.flaw: finding.count for finding in self.findings}


class State(BaseModel):
    """State of the proof of a run.

    Attributes:
      fingerprint, origins: the plan, and the identity of each source's log.
      proved_us: everything before was compared, from ``judged_us`` on.
      judged_us: where the proof began because earlier data had been deleted; None: at the first tuple.
      not_judged: a sentence that says so.
      judged_at_us: wall time at which the part before ``judged_us`` was final at the first client.
      first_us: time of the first tuple, or where the proof began.
      logs, channels: by source; by client and channel.
      places: by output, number of tuples of each partition before ``proved_us``.
      tallies: by client and output.
      flaws: by source, the flaw of its log, and the tuple time up to which it was right.
      kept: the folder with the rows of open windows; "" where there are none.
      over: the run ended, and all of it was proved.
    """

    model_config = ConfigDict(extra="forbid")
    version: Literal[1] = VERSION
    fingerprint: str
    origins: dict[str, str]
    proved_us: int = BEFORE_TIME
    judged_us: int | None = None
    not_judged: str = ""
    judged_at_us: int | None = None
    first_us: int | None = None
    steps: int = 0
    seconds: float = 0.0
    logs: dict[str, LogProgress] = {}
    channels: dict[str, dict[str, ChannelProgress]] = {}
    places: dict[str, list[int]] = {}
    tallies: dict[str, dict[str, Tally]] = {}
    flaws: dict[str, tuple[str, int]] = {}
    kept: str = ""
    latest: list[FollowedStep] = []
    over: bool = False

    @property
    def wrong_us(self) -> int | None:
        """Tuple time of the first flaw; None: there is none."""
        times = [t.wrong_us for each in self.tallies.values() for t in each.values() if t.wrong_us is not None]
        return min([*times, *(time for _, time in self.flaws.values())], default=None)


def load_state(folder: Path, fingerprint: str, origins: dict[str, str]) -> State:
    """Reads the state of a proof; a new one begins with an empty state.

    Raises:
      SpeError: it is damaged, of another version, or of another run.
    """
    path = folder / FILE
    anew = f"remove {folder} to prove the run from its beginning"
    try:
        state = State.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return State(fingerprint=fingerprint, origins=origins)
    except OSError as error:
        raise SpeError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        if place == "version" and (why := other_version(path, first["input"], VERSION)):
            raise SpeError(f"{why}; {anew}") from error
        raise SpeError(f"{path} is damaged: {place}: {first['msg']}; {anew}") from error
    if (state.fingerprint, state.origins) != (fingerprint, origins):
        raise SpeError(f"{path} is of another run than the directory that it lies in; {anew}")
    return state


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Locks the proof against other processes.  Raises SpeError where one holds the lock."""
    path = folder / "lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise SpeError(f"{path} cannot be written: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SpeError(f"{path} is in use: another process proves this run") from None
        yield


def sync_below(folder: Path) -> None:
    """Syncs a folder that another program wrote, with its names.  Raises SpeError."""
    try:
        for path in folder.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise SpeError(f"{folder} cannot be written: {error.strerror}") from error


def save_text(path: Path, text: str) -> None:
    """Replaces a file as a whole and syncs it.  Raises SpeError."""
    aside = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise SpeError(f"{path} cannot be written: {error.strerror}") from error
