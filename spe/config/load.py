"""Turns a configuration into a plan and a directory, or reports all its mistakes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any, Final, NamedTuple

from spe.config.accuracy import read_accuracy
from spe.config.clients import read_bounds, read_clients
from spe.config.deployment import (
    CoordinatorModel,
    LimitsModel,
    MetricsModel,
    SecurityModel,
    TimingModel,
    read_defaults,
    read_fragments,
    read_nodes,
)
from spe.config.document import Document, parse
from spe.config.query import find_outputs, read_operators, type_query
from spe.config.recovery import read_recovery
from spe.config.script import read_script
from spe.config.sources import read_source
from spe.config.validate import validated
from spe.connectors import find_sink
from spe.errors import ConfigError
from spe.plan.bounds import with_bounds
from spe.plan.deploy import Deployed, Deployment, check_cover, deploy, place, usable
from spe.plan.directory import COORDINATOR
from spe.plan.nodes import Node
from spe.plan.plan import Plan, Source
from spe.plan.review import Severity, review
from spe.plan.units import DEFAULT_REPLICAS, FragmentSpec
from spe.problems import Path, Problems, did_you_mean, one_of
from spe.query.query import Query
from spe.stream.names import NodeId, StreamId
from spe.stream.schema import Schema
from spe.stream.times import MILLISECOND
from spe.values import duration_of

BUCKET_US: Final = 100 * MILLISECOND
SECTIONS: Final = (
    "cluster",
    "bucket",
    "timing",
    "limits",
    "security",
    "metrics",
    "defaults",
    "sources",
    "query",
    "outputs",
    "fragments",
    "nodes",
    "clients",
    "coordinator",
    "recovery",
    "accuracy",
    "faults",  # read by replicas.faults: a plan does not contain faults
)
#: Names become parts of file names, addresses and messages.
_FORBIDDEN: Final = frozenset("/\\:@ \t\n\"'")
_A_NAME: Final = "expected a name of letters, digits, '_', '-' and '.'"


def load(path: str | os.PathLike[str], data: str | os.PathLike[str] | None = None) -> Deployed:
    """Loads the plan and the directory of a configuration file.

    Args:
      path: a YAML file, or a Python script that makes an :class:`spe.api.Environment`.
      data: folder for relative paths of data files; None: the folder of the configuration.

    Raises:
      ConfigError: with every mistake, as ``file:line: path: mistake; what was expected``.
    """
    return load_document(read_document(path), data)


def read_document(path: str | os.PathLike[str]) -> Document:
    """Reads a configuration file as plain data, without interpreting it.

    Raises:
      ConfigError: the file cannot be read, or is neither YAML nor a script that makes an environment.
    """
    file = FilePath(path)
    try:
        text = file.read_text(encoding="utf-8")
    except IsADirectoryError as error:
        raise ConfigError([f"{file}: is a directory; expected a YAML file or a Python script"]) from error
    except OSError as error:
        raise ConfigError([f"{file}: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{file}: cannot be read: {error}"]) from error
    return read_script(file) if file.suffix == ".py" else _parsed(text, str(path), file.parent)


def load_document(document: Document, data: str | os.PathLike[str] | None = None) -> Deployed:
    """Loads a document of :func:`read_document`, as :func:`load` does."""
    folder = document.home if data is None else FilePath(data)
    problems = Problems(list(document.problems.found))
    deployed = _deployed(document.data, folder, document.home, problems)
    if deployed is not None and not problems:
        for finding in review(*deployed):
            if finding.severity is Severity.ERROR:
                problems.add(where_written(finding.path, document.data), finding.message)
    if deployed is None or problems:
        raise ConfigError(document.in_order(problems))
    return deployed


def load_newcomer(path: str | os.PathLike[str], name: str, own: Mapping[str, Any]) -> Node:
    """Reads a joining node that the configuration does not name; it is a spare, and gets the defaults.

    Args:
      own: its settings, as in ``nodes.NAME``.

    Raises:
      ConfigError: these have mistakes; the error lists them.
    """
    document, problems = read_document(path), Problems()
    _check_names({"nodes": {name: own}}, problems)
    plan, directory = load_document(document)
    nodes = read_nodes(
        {name: {**own, "spare": True}}, read_defaults(document.data.get("defaults"), problems), 1, problems
    )
    if not problems:
        joined = with_bounds(
            plan, directory.with_node(nodes[NodeId(name)]), [NodeId(name)] if "x" in own else [], problems
        )
        nodes = dict(joined.nodes)
    if problems:
        raise ConfigError(Document(f"node {name}", own, home=document.home).in_order(problems))
    return nodes[NodeId(name)]


def load_text(
    text: str,
    name: str = "<text>",
    data: str | os.PathLike[str] | None = None,
    home: str | os.PathLike[str] | None = None,
) -> Deployed:
    """Loads a text, as :func:`load` does; messages use ``name`` as the file, ``home`` is its folder."""
    return load_document(_parsed(text, name, FilePath(home or data or ".")), data or ".")


def load_data(data: Mapping[str, Any], name: str = "<python>", folder: str | os.PathLike[str] = ".") -> Deployed:
    """Loads plain data of the same layout, as :func:`load` does."""
    return load_document(Document(name, data, home=FilePath(folder)))


def load_plan(path: str | os.PathLike[str], data: str | os.PathLike[str] | None = None) -> Plan:
    """Loads the plan alone, as :func:`load` does."""
    return load(path, data).plan


def load_plan_text(
    text: str,
    name: str = "<text>",
    data: str | os.PathLike[str] | None = None,
    home: str | os.PathLike[str] | None = None,
) -> Plan:
    """Loads the plan alone, as :func:`load_text` does."""
    return load_text(text, name, data, home).plan


def load_plan_data(data: Mapping[str, Any], name: str = "<python>", folder: str | os.PathLike[str] = ".") -> Plan:
    """Loads the plan alone, as :func:`load_data` does."""
    return load_data(data, name, folder).plan


def _parsed(text: str, name: str, home: FilePath) -> Document:
    problems = Problems()
    document = parse(text, name, problems)
    document.home, document.problems = home, problems
    if problems and document.data is None:
        raise ConfigError(document.in_order(problems))
    return document


def where_written(path: Path, data: Any) -> Path:
    """Returns the path where a setting of a node or a fragment is written: there, or in ``defaults``."""
    match path:
        case ("nodes" | "fragments" as section, str(name), str(key), *rest):
            entries, defaults = data.get(section), data.get("defaults")
            is_own = isinstance(entries, Mapping) and isinstance(entries.get(name), Mapping) and key in entries[name]
            if not is_own and isinstance(defaults, Mapping) and key in defaults:
                return ("defaults", key, *rest)
    return path


def _deployed(data: Any, folder: FilePath, home: FilePath, problems: Problems) -> Deployed | None:
    if not isinstance(data, Mapping):
        what = "is empty" if data is None else "is no mapping"
        problems.add((), f"{what}; expected sections, at least sources and query: NAME: {{…}}")
        return None
    _check_names(data, problems)
    sources, schemas, addresses = _sources(data.get("sources"), folder, problems)
    specs = read_operators(data.get("query"), problems)
    section = data.get("query")
    typed = type_query(schemas, specs, section, problems) if isinstance(section, Mapping) else {}
    outputs = find_outputs(data.get("outputs"), specs, problems)
    bounds = read_bounds(data.get("outputs"), outputs, problems)
    defaults = read_defaults(data.get("defaults"), problems)
    fragments = read_fragments(data.get("fragments"), defaults, problems)
    nodes = read_nodes(data.get("nodes"), defaults, _most_replicas(fragments), problems)
    clients = read_clients(data.get("clients"), outputs, list(specs), folder, problems)
    settings = _settings(data, problems)
    recovery = read_recovery(data.get("recovery"), outputs, problems)
    made = {name: operator.schema for name, operator in typed.items()}
    accuracy = read_accuracy(data.get("accuracy"), outputs, made, problems)
    cluster, bucket = _cluster(data, problems), _bucket(data, problems)
    if problems or settings is None:
        if _all_read(data.get("fragments"), fragments) and specs:
            check_cover(list(specs), fragments, problems)
            place(fragments, usable(nodes), problems)
        return None
    query = Query(
        {s: schema for s, schema in schemas.items() if schema is not None}, tuple(typed.values()), tuple(outputs)
    )
    deployment = Deployment(
        cluster,
        bucket,
        nodes,
        sources,
        clients,
        fragments,
        settings.timing.timing(),
        settings.limits.limits(),
        settings.security.security(home),
        accuracy,
        replace(settings.coordinator.settings(), configured="coordinator" in data),
        recovery,
        addresses,
        None if defaults.checkpoint is None else defaults.checkpoint.log(),
        settings.metrics.metrics() if "metrics" in data else None,
        bounds,
        frozenset(n for n in nodes if _says_x(data.get("nodes"), n)),
    )
    return deploy(query, deployment, problems)


class _Settings(NamedTuple):
    """The sections of single settings."""

    timing: TimingModel
    limits: LimitsModel
    security: SecurityModel
    metrics: MetricsModel
    coordinator: CoordinatorModel


def _settings(data: Mapping[str, Any], problems: Problems) -> _Settings | None:
    timing = validated(TimingModel, data.get("timing") or {}, ("timing",), problems)
    limits = validated(LimitsModel, data.get("limits") or {}, ("limits",), problems)
    security = validated(SecurityModel, data.get("security") or {}, ("security",), problems)
    metrics = validated(MetricsModel, data.get("metrics") or {}, ("metrics",), problems)
    coordinator = validated(CoordinatorModel, data.get("coordinator") or {}, ("coordinator",), problems)
    if timing is None or limits is None or security is None or metrics is None or coordinator is None:
        return None
    return _Settings(timing, limits, security, metrics, coordinator)


def _says_x(section: Any, node: NodeId) -> bool:
    """Does the configuration give X of this node itself?"""
    entry = section.get(node) if isinstance(section, Mapping) else None
    return isinstance(entry, Mapping) and entry.get("x") is not None


def _check_names(data: Mapping[str, Any], problems: Problems) -> None:
    for key in data:
        if key not in SECTIONS:
            problems.add((key,), f"unknown section{did_you_mean(str(key), SECTIONS)}; expected {one_of(SECTIONS)}")
    for section in ("sources", "query", "fragments", "nodes", "clients"):
        for at, name in _names(data.get(section)):
            if wrong := _wrong_name(str(name)):
                problems.add((section, at), f"{wrong}; {_A_NAME}")
    _check_file_names(data, problems)


def _wrong_name(name: str) -> str:
    """The mistake in a name; "" if there is none.  Invisible characters make two names look alike."""
    if bad := [c for c in name if c in _FORBIDDEN or not c.isprintable()]:
        return f"{name!r} has {min(bad)!r} in it"
    return f"{name!r} is no name" if name in ("", ".", "..") else ""


def _names(entries: Any) -> Iterable[tuple[str | int, Any]]:
    """Returns (place, name) of the entries of a section, which may be a mapping or a list of names."""
    if isinstance(entries, Mapping):
        return [(name, name) for name in entries]
    return enumerate(entries) if isinstance(entries, list) else ()


def _check_file_names(data: Mapping[str, Any], problems: Problems) -> None:
    """Checks that file names (logs, folders, certificates) of processes differ.  Source ``a`` uses ``source-a``."""
    taken = {"ca": "the certificate of the CA", "control": "the command line", "supervisor": "the supervisor"}
    taken[COORDINATOR] = "the coordinator"
    for section, prefix in (("nodes", ""), ("sources", "source-"), ("clients", "client-")):
        for at, name in _names(data.get(section)):
            stem, mine = f"{prefix}{name}", f"{section}.{name}"
            if taken.setdefault(stem, mine) != mine:
                what = f"has the same file names ({stem}) as {taken[stem]}; expected another name"
                problems.add((section, at), what)


def _sources(
    section: Any, folder: FilePath, problems: Problems
) -> tuple[dict[StreamId, Source], dict[StreamId, Schema | None], dict[StreamId, str]]:
    """Reads sources; returns them, their schemas, and their addresses."""
    if not isinstance(section, Mapping) or not section:
        expected = "expected a mapping of sources, indented: NAME: {schema: {…}, time: …, from: {…}}"
        problems.add(("sources",), f"is missing or empty; {expected}" if section is None else expected)
        return {}, {}, {}
    sources: dict[StreamId, Source] = {}
    schemas: dict[StreamId, Schema | None] = {}
    addresses: dict[StreamId, str] = {}
    for name, entry in section.items():
        if name in SECTIONS and isinstance(entry, Mapping) and "from" not in entry:
            problems.add(("sources", name), f"{name} is a section; expected it at the left margin")
            continue
        source, schema, address = read_source(name, entry, ("sources", name), folder, problems)
        schemas[StreamId(name)] = schema
        if source is not None:
            sources[StreamId(name)] = source
            addresses[StreamId(name)] = address
    _check_own_sinks(sources, problems)
    return sources, schemas, addresses


def _check_own_sinks(sources: Mapping[StreamId, Source], problems: Problems) -> None:
    """Checks that no two sinks of late or rejected rows share a place, not even in one source."""
    taken: dict[tuple[str, str], str] = {}
    for name, source in sources.items():
        for what, spec in (("late", source.late), ("rejected", source.rejected)):
            if spec is not None and (declared := find_sink(str(spec["kind"]))) is not None:
                place = declared.kind, declared.place(spec)
                if (other := taken.setdefault(place, f"{name}.{what}")) != f"{name}.{what}":
                    why = f"{other} writes to {place[1]!r}; expected a place for each"
                    problems.add(("sources", name, what), why)
    slots: dict[tuple[str, str], str] = {}
    for name, source in sources.items():
        slot = source.reader.get("slot")
        if slot and (other := slots.setdefault((str(source.reader["connection"]), slot), name)) != name:
            why = f"{other} reads replication slot {slot!r} too; expected a slot for each: {{postgres: {{slot: …}}}}"
            problems.add(("sources", name, "from"), why)


def _most_replicas(fragments: tuple[FragmentSpec, ...]) -> int:
    counts = [f.replicas for f in fragments if isinstance(f.replicas, int)]
    return max(counts, default=DEFAULT_REPLICAS)


def _all_read(section: Any, fragments: tuple[FragmentSpec, ...]) -> bool:
    return isinstance(section, Mapping) and len(section) == len(fragments)


def _cluster(data: Mapping[str, Any], problems: Problems) -> str:
    name = data.get("cluster", "spe")
    if wrong := _wrong_name(name) if isinstance(name, str) else f"got {name!r}":
        problems.add(("cluster",), f"{wrong}; {_A_NAME}")
    return "spe" if wrong else str(name)


def _bucket(data: Mapping[str, Any], problems: Problems) -> int:
    try:
        bucket = duration_of(data.get("bucket", "100ms"))
        if bucket > 0:
            return bucket
        problems.add(("bucket",), f"expected a duration above zero, got {data['bucket']!r}")
    except ValueError as error:
        problems.add(("bucket",), str(error))
    return BUCKET_US


def missing_files(plan: Plan) -> list[str]:
    """Lists data files of the plan's sources that do not exist, as ``sources.NAME: PATH``.

    Not a part of :func:`load_plan`: a node needs the plan, but only a source needs its file.
    """
    return [
        f"sources.{name}: {source.reader['path']}"
        for name, source in plan.sources.items()
        if "path" in source.reader and not FilePath(str(source.reader["path"])).is_file()
    ]
