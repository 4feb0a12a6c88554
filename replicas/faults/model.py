"""Faults as data: kind, process or link, time, and duration.  See docs/how-to/faults.md.

    - {at: 5s, kind: kill, target: n1, for: 3s}
    - {at: 10s, kind: cut, from: source:a, to: all, for: 5s}

A file is YAML (so JSON as well): a list of faults, or a mapping with the list under ``faults``.  ``at`` counts from the
moment at which the sources begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from consistency.faults.kind import FaultKind, Maker
from consistency.faults.kinds import HEAL, KINDS
from spe.config.document import Document, parse
from spe.config.validate import validated
from spe.errors import ConfigError
from spe.plan.describe import show_duration
from spe.plan.directory import COORDINATOR, Directory
from spe.problems import Path, Problems, did_you_mean, one_of
from spe.stream.names import NodeState
from spe.values import Length, Model, Names, PositiveDuration

#: In the place of a name: every other process of the cluster.  (In YAML and shells an asterisk has other meanings.)
ALL: Final = "all"


#: ``reads:CLIENT``: the node that a client reads (the first of its channels) at the moment of the fault.
READS: Final = "reads:"
#: ``state:STABILIZATION``: a node with a replica in that state; the fault waits a while for one.
STATE: Final = "state:"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
      at_us: when it begins, microseconds after the sources begin.
      first: the processes affected; one end of the links of a cut or delay.  () for heal: everything.
      second: the other end of the links; ``all`` stands for every other process.  () for faults of processes.
      one_way: only traffic from ``first`` to ``second`` is held or delayed.
      by_us: by how much traffic is late (delay); how long a client takes (lag), or a sync (slow-disk); how far
        a clock is off (skew).
      jitter_us: additional random lateness of traffic, at most (delay).
      amount: bytes per second (slow), share of sends (loss), times slower (busy).
      for_us: it ends after this; None: when healed, or never.
      change: the changed part of the plan with which a process is started again (replan).
    """

    kind: str
    first: tuple[str, ...] = ()
    second: tuple[str, ...] = ()
    one_way: bool = False
    by_us: int = 0
    for_us: int | None = None
    at_us: int = 0
    jitter_us: int = 0
    amount: float = 0.0
    change: str = ""

    @property
    def severity(self) -> float:
        """Severity, in the unit of its kind, as the history of a run has it."""
        return self.amount or float(self.by_us + self.jitter_us)

    def __str__(self) -> str:
        """Formats it as ``spe inject`` takes it: ``cut source:a n1 for 5s``."""
        text = self.kind
        if self.first:
            text += f" {','.join(self.first)}"
        if self.second and (self.second != (ALL,) or self.one_way):
            text += f" {'→' if self.one_way else '↔'} {','.join(self.second)}"
        if self.by_us:
            text += f" by {show_duration(self.by_us)}"
        if self.amount:
            text += f" {KINDS[self.kind].amount} {self.amount:g}"
        if self.change:
            text += f" with another {self.change}"
        return text if self.for_us is None else f"{text} for {show_duration(self.for_us)}"

    def to_data(self) -> dict[str, Any]:
        """Returns it as in a fault file."""
        data: dict[str, Any] = {"at": show_duration(self.at_us), "kind": self.kind}
        if self.second:
            data |= {"from": list(self.first), "to": list(self.second)}
        elif self.first:
            data["target"] = list(self.first)
        if self.one_way:
            data["one_way"] = True
        if self.by_us:
            data["by"] = show_duration(self.by_us)
        if self.jitter_us:
            data["jitter"] = show_duration(self.jitter_us)
        if self.amount:
            data[str(KINDS[self.kind].amount)] = self.amount
        if self.change:
            data["change"] = self.change
        if self.for_us is not None:
            data["for"] = show_duration(self.for_us)
        return data


def real_kinds(links: str) -> dict[str, FaultKind]:
    """Returns the kinds that real processes support, by who makes links fail (``spe run --links``)."""
    makers = {Maker.PROCESSES, Maker(links)}
    return {name: kind for name, kind in KINDS.items() if kind.maker in makers}


def _known_kind(name: Any) -> Any:
    if not isinstance(name, str) or name not in KINDS:
        *names, last = map(repr, KINDS)
        raise ValueError(f"expected {', '.join(names)} or {last}, got {name!r}")
    return name


_SUCH_AS: Final = {"by": ", such as by: 200ms", "change": ": query, bucket, limits, timing or checkpoints"}


class FaultModel(Model):
    """A fault as it is written in a file."""

    at: Length | None = None
    kind: Annotated[str, BeforeValidator(_known_kind)]
    target: Names | None = None
    from_: Names | None = Field(default=None, alias="from")
    to: Names | None = None
    one_way: bool | None = None
    by: PositiveDuration | None = None
    jitter: PositiveDuration | None = None
    bytes_per_second: Annotated[float, Field(gt=0)] | None = None
    share: Annotated[float, Field(gt=0, lt=1)] | None = None
    times: Annotated[float, Field(gt=1)] | None = None
    change: Literal["query", "bucket", "limits", "timing", "checkpoints"] | None = None
    for_: PositiveDuration | None = Field(default=None, alias="for")

    @model_validator(mode="after")
    def _fits(self) -> FaultModel:
        kind = KINDS[self.kind]
        present = {f.alias or n for n, f in FaultModel.model_fields.items() if getattr(self, n) is not None}
        stray = sorted(present - {"at", "kind", *kind.fields})
        if stray:
            raise ValueError(f"{stray[0]!r} does not go with {self.kind}; expected {one_of(kind.fields)}")
        if self.target is not None and present & {"from", "to"}:
            raise ValueError("expected target, or from and to, not both")
        if ("from" in present) != ("to" in present):
            raise ValueError(f"expected from and to, got {'from' if 'from' in present else 'to'} alone")
        if self.target is None and self.from_ is None and self.kind != HEAL:
            raise ValueError(f"{self.kind} needs {'target, or from and to' if kind.of_links else 'a target'}")
        for needed in kind.needs:
            if needed not in present:
                raise ValueError(f"{self.kind} needs {needed}{_SUCH_AS.get(needed, '')}")
        if self.one_way and self.from_ is None:
            raise ValueError("one_way needs from and to")
        return self

    def fault(self) -> Fault:
        second = self.to or ()
        if self.target is not None and KINDS[self.kind].of_links and self.kind != HEAL:
            second = (ALL,)
        return Fault(
            self.kind,
            self.target or self.from_ or (),
            second,
            bool(self.one_way),
            self.by or 0,
            self.for_,
            self.at or 0,
            self.jitter or 0,
            self.bytes_per_second or self.share or self.times or 0.0,
            self.change or "",
        )


def processes_of(directory: Directory) -> list[str]:
    """Returns all possible targets: node ids, ``source:NAME``, ``client:NAME``, ``coordinator``."""
    named = [
        *directory.nodes,
        *(f"source:{s}" for s in directory.sources),
        *(f"client:{c}" for c in directory.clients),
    ]
    return [*named, COORDINATOR] if directory.coordinated else named


def load_faults(path: FilePath, directory: Directory) -> list[Fault]:
    """Reads the faults of a file, in order of time.

    Raises:
      ConfigError: with every mistake and its line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: cannot be read: {error}"]) from error
    return load_faults_text(text, str(path), directory)


def load_faults_text(text: str, name: str, directory: Directory) -> list[Fault]:
    """Works as :func:`load_faults`, for a text; ``name`` stands in messages for the file."""
    problems = Problems()
    document = parse(text, name, problems)
    faults: list[Fault] = []
    if not problems or document.data is not None:
        data: Any = document.data
        path: Path = ()
        if isinstance(data, Mapping):
            for key in data:
                if key != "faults":
                    problems.add((key,), "unknown key; expected faults: [...], or a list of faults and nothing else")
            data, path = data.get("faults"), ("faults",)
        faults = read_faults(data, path, directory, problems)
    if problems:
        raise ConfigError(document.in_order(problems))
    return faults


def configured_faults(document: Document, directory: Directory) -> list[Fault]:
    """Reads the ``faults`` section of a configuration that :func:`spe.config.load_document` has accepted.

    Raises:
      ConfigError: as :func:`load_faults`.
    """
    problems = Problems()
    section = document.data.get("faults")
    faults = [] if section is None else read_faults(section, ("faults",), directory, problems)
    if problems:
        raise ConfigError(document.in_order(problems))
    return faults


def one_fault(data: Mapping[str, Any], directory: Directory) -> Fault:
    """Reads a fault that happens now.  Raises ConfigError."""
    problems = Problems()
    fault = _read_fault(dict(data), (), processes_of(directory), problems)
    if fault is None or problems:
        raise ConfigError([p.message for p in problems.found])
    return fault


def read_faults(
    data: Any, path: Path, directory: Directory, problems: Problems, *, source_disks: bool = False
) -> list[Fault]:
    """Reads faults from plain data, in order of time; mistakes go to ``problems``.

    Args:
      source_disks: disks of sources may lie, which is outside the fault model.
    """
    if not isinstance(data, list | tuple):
        problems.add(path, "expected a list of faults, such as - {at: 5s, kind: kill, target: n1}")
        return []
    known = processes_of(directory)
    faults = []
    for i, entry in enumerate(data):
        if isinstance(entry, Mapping) and "at" not in entry:
            problems.add((*path, i), "at is missing; expected when it happens, such as at: 5s")
        fault = _read_fault(entry, (*path, i), known, problems, source_disks)
        if fault is not None:
            faults.append(fault)
    return sorted(faults, key=lambda f: f.at_us)


def _read_fault(
    entry: Any, path: Path, known: Sequence[str], problems: Problems, source_disks: bool = False
) -> Fault | None:
    model = validated(FaultModel, entry, path, problems)
    if model is None:
        return None
    before = len(problems.found)
    names = {}
    for field, listed in (("target", model.target), ("from", model.from_), ("to", model.to)):
        if listed is not None:
            field_names = tuple(_name(n, known, (*path, field), model.kind, problems) for n in listed)
            names["from_" if field == "from" else field] = field_names
            refused = [n for n in field_names if not _may_suffer(KINDS[model.kind], n, source_disks)]
            if refused and len(problems.found) == before:
                problems.add((*path, field), KINDS[model.kind].refusal.format(refused[0]))
    return None if len(problems.found) > before else model.model_copy(update=names).fault()


def _may_suffer(kind: FaultKind, process: str, source_disks: bool) -> bool:
    role = process.partition(":")[0]
    role = role if role in ("source", "client", COORDINATOR) else "node"
    return role in kind.targets or (role == "source" and source_disks and kind.harm is not None)


def _name(name: str, known: Sequence[str], path: Path, kind: str, problems: Problems) -> str:
    """Returns the full name of a process; ``a`` stands for ``source:a`` if no other process has that name."""
    if name in known or (name == ALL and KINDS[kind].of_links):
        return name
    if name.startswith(READS) and f"client:{name.removeprefix(READS)}" in known:
        return name
    if name.startswith(STATE) and name.removeprefix(STATE) in NodeState.__members__:
        return name
    alike = [k for k in known if k.partition(":")[2] == name]
    if len(alike) == 1:
        return alike[0]
    problems.add(path, f"no process {name!r}{did_you_mean(name, known)}; expected {one_of(list(known))}")
    return name


def refuse_unreal(faults: Iterable[Fault], links: str) -> None:
    """Raises ConfigError for faults that real processes do not support."""
    possible = real_kinds(links)
    kinds = dict.fromkeys(f.kind for f in faults if f.kind not in possible)
    if kinds:
        wrong = [
            f"{kind} is for simulation only (spe simulate)"
            if KINDS[kind].maker is Maker.SIMULATION
            else f"{kind} needs other links than {links}: --links proxy"
            for kind in kinds
        ]
        raise ConfigError(wrong)


def others(names: Iterable[str], than: str, known: Iterable[str]) -> list[str]:
    """Returns the processes that a name list means for ``than``: ``all`` is every other one."""
    wanted = set(names)
    return [k for k in known if k != than and (ALL in wanted or k in wanted)]
