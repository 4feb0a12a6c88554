"""The sections of results: outputs with their bounds, and clients with their sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, create_model, model_validator

from spe.config.connectors import with_installed
from spe.config.retention import RetainModel
from spe.config.validate import validated
from spe.connectors import SINKS, find_sink
from spe.connectors.declaration import SinkDeclaration
from spe.connectors.installed_connectors import SINKS_GROUP
from spe.plan.deploy import ONLY_CLIENT
from spe.plan.directory import ClientSettings
from spe.problems import Path, Problems, did_you_mean, one_of
from spe.stream.names import StreamId
from spe.values import Model, Names, PositiveDuration


class OutputModel(Model):
    """A stream that clients read.

    Attributes:
      bound: longest time that a new result may take; X of the nodes on the way follows from it.
    """

    bound: PositiveDuration | None = None


class SinkKeys(Model):
    """The place and mode of a client's sink."""

    SINKS: ClassVar[Mapping[str, SinkDeclaration]] = SINKS

    mode: Literal["stable", "current", "corrections"] = "stable"

    @model_validator(mode="after")
    def _fits(self) -> SinkKeys:
        if len([k for k in self.SINKS if getattr(self, k) is not None]) != 1:
            raise ValueError(
                "expected " + " or ".join(f"{k}: {declared.written}" for k, declared in self.SINKS.items())
            )
        self.declared.check(self.value, self.mode)
        return self

    @property
    def declared(self) -> SinkDeclaration:
        return next(sink for kind, sink in self.SINKS.items() if getattr(self, kind) is not None)

    @property
    def value(self) -> Any:
        """The value of the kind's key."""
        return getattr(self, self.declared.kind)

    def sink(self) -> dict[str, Any]:
        """Returns the dict for ``spe.plan.directory.ClientSettings.sinks``."""
        return {"kind": self.declared.kind, **self.declared.sink(self.value), "mode": self.mode}

    def place(self) -> tuple[str, str]:
        return self.declared.kind, self.declared.place(self.sink())


if TYPE_CHECKING:
    SinkModel = SinkKeys
else:
    _types = {kind: (sink.value | None, None) for kind, sink in SINKS.items()}
    SinkModel = create_model("SinkModel", __base__=SinkKeys, **_types)


class ClientModel(Model):
    """A named consumer."""

    reads: Names | None = None
    sinks: list[SinkModel] = Field(default_factory=list)
    external: bool = False
    retain: RetainModel | None = None

    @model_validator(mode="after")
    def _own_files(self) -> ClientModel:
        """Checks that one client does not write a file twice; clients on different machines may share a path."""
        if self.external and self.sinks:
            raise ValueError("an external client is a program of yours, which has no sinks; expected no sinks")
        if self.external and self.retain is not None:
            raise ValueError("an external client is a program of yours, which records nothing; expected no retain")
        places = [s.place() for s in self.sinks]
        for _, place in {p: None for p in places if places.count(p) > 1}:
            raise ValueError(f"two sinks of one kind write to {place!r}; expected a place for each")
        return self


def read_bounds(section: Any, outputs: Sequence[StreamId], problems: Problems) -> dict[StreamId, int]:
    """Reads the bounds of outputs: the longest time that a new result may take."""
    if not isinstance(section, Mapping):
        return {}
    bounds: dict[StreamId, int] = {}
    for name in outputs:
        entry = section.get(name)
        model = validated(OutputModel, {} if entry is None else entry, ("outputs", str(name)), problems)
        if model is not None and model.bound is not None:
            bounds[name] = model.bound
    return bounds


def _kinds_of_sinks(entry: Any, path: Path, problems: Problems) -> frozenset[str] | None:
    """Returns the kinds that the sinks of a client may have; None: one is unknown, which is reported."""
    sinks = entry.get("sinks") if isinstance(entry, Mapping) else None
    known: set[str] = set(SINKS)
    for at, written in enumerate(sinks if isinstance(sinks, list | tuple) else ()):
        kinds = with_installed("sink", written, SINKS, ("mode",), SINKS_GROUP, find_sink, (*path, at), problems)
        if kinds is None:
            return None
        known.update(kinds)
    return frozenset(known)


@cache
def _client_model(kinds: frozenset[str]) -> type[ClientModel]:
    """Returns the model of a client that may have these sinks."""
    if kinds <= SINKS.keys():
        return ClientModel
    sinks = {
        kind: declared for kind in [*SINKS, *sorted(kinds - SINKS.keys())] if (declared := find_sink(kind)) is not None
    }
    others: Any = {kind: (declared.value | None, None) for kind, declared in sinks.items() if kind not in SINKS}
    model = create_model("SinkModel", __base__=SinkModel, **others)
    model.SINKS = sinks
    return create_model("ClientModel", __base__=ClientModel, sinks=(list[model], Field(default_factory=list)))  # type: ignore[valid-type]


def read_clients(
    section: Any, outputs: Sequence[StreamId], operators: Sequence[StreamId], folder: FilePath, problems: Problems
) -> dict[str, ClientSettings]:
    """Reads the clients; by default one that reads everything.  ``{}`` means none.

    Args:
      folder: folder for relative paths of archives.
    """
    if section is None:
        return {ONLY_CLIENT: ClientSettings(ONLY_CLIENT, tuple(outputs))}
    if not isinstance(section, Mapping):
        problems.add(("clients",), "expected a mapping: NAME: {reads: [...], sinks: [...]}")
        return {}
    clients: dict[str, ClientSettings] = {}
    for name, entry in section.items():
        kinds = _kinds_of_sinks(entry, ("clients", name, "sinks"), problems)
        model = None
        if kinds is not None:
            model = validated(_client_model(kinds), {} if entry is None else entry, ("clients", name), problems)
        if model is None:
            continue
        reads = tuple(outputs) if model.reads is None else tuple(map(StreamId, model.reads))
        for i, stream in enumerate(reads):
            if stream not in outputs:
                hint = did_you_mean(stream, outputs)
                inner = (
                    f"{stream!r} is no output; list it in outputs" if stream in operators else f"no output {stream!r}"
                )
                problems.add(("clients", name, "reads", i), f"{inner}{hint}; expected {one_of(list(outputs))}")
        retain = None if model.retain is None else model.retain.retain(folder)
        clients[name] = ClientSettings(name, reads, tuple(s.sink() for s in model.sinks), model.external, retain)
    return clients
