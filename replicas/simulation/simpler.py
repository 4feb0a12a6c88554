"""Configurations of a swarm with one thing less, to try whether a failure is still there.

They are laid out as :mod:`replicas.simulation.topologies` writes them.  Not all that come out of this can be run: who
tries them has to validate them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Configuration = Mapping[str, Any]


def simpler_configurations(config: Configuration) -> Iterator[dict[str, Any]]:
    """The configuration with one thing less; not all of them are right."""
    for key in ("limits", "timing"):
        if config.get(key):
            yield {k: v for k, v in config.items() if k != key}
    defaults = config.get("defaults", {})
    for key in ("checkpoint", "reconcile", "policy"):
        if key in defaults:
            yield {**config, "defaults": {k: v for k, v in defaults.items() if k != key}}
    for name in list(config.get("clients", {}))[1:]:
        yield {**config, "clients": {k: v for k, v in config["clients"].items() if k != name}}
    yield from _without_an_operator(config)
    for name, fragment in config.get("fragments", {}).items():
        yield from (_with_fragment(config, name, simpler) for simpler in _simpler_fragments(fragment))
    for name, source in config["sources"].items():
        generator = source["from"].get("generator")
        for key in ("burst", "disorder"):
            if isinstance(generator, dict) and generator.get(key, "0ms") != "0ms":
                plain = {"generator": {k: v for k, v in generator.items() if k != key}}
                yield {**config, "sources": {**config["sources"], name: {**source, "from": plain}}}


def _without_an_operator(config: Configuration) -> Iterator[dict[str, Any]]:
    """Each operator left out: its readers read what it reads."""
    query = config["query"]
    for name, entry in reversed(query.items()):
        inputs = _inputs_of(entry)
        for instead in inputs:
            rest = {n: _renamed(e, name, instead) for n, e in query.items() if n != name}
            outputs = [instead if o == name else o for o in config.get("outputs", [])]
            if set(outputs) <= set(rest):
                yield _without_the_unused({**config, "query": rest, "outputs": list(dict.fromkeys(outputs))}, name)


def _inputs_of(entry: Any) -> list[str]:
    (body,) = entry.values()
    if isinstance(body, list):
        return [str(b) for b in body]
    given = [body["from"]] if "from" in body else [body["left"], body["right"]]
    return [name for one in given for name in ([one] if isinstance(one, str) else one)]


def _renamed(entry: Any, old: str, new: str) -> Any:
    if isinstance(entry, dict):
        return {k: _renamed(v, old, new) if k != "compute" else v for k, v in entry.items()}
    if isinstance(entry, list):
        return [_renamed(v, old, new) for v in entry]
    return new if entry == old else entry


def _without_the_unused(config: dict[str, Any], gone: str) -> dict[str, Any]:
    """Without fragments, nodes and sources that have nothing to do any more."""
    query = config["query"]
    read = {name for entry in query.values() for name in _inputs_of(entry)}
    fragments = {}
    for name, fragment in config.get("fragments", {}).items():
        operators = [o for o in fragment["operators"] if o != gone]
        if operators:
            fragments[name] = {**fragment, "operators": operators}
            if "key" in fragment:
                fragments[name]["key"] = {s: k for s, k in fragment["key"].items() if s != gone}
    hosts = {n for f in fragments.values() for row in f["replicas"] for n in ([row] if isinstance(row, str) else row)}
    clients = {
        name: {**client, "reads": [s for s in client.get("reads", []) if s in config["outputs"]] or config["outputs"]}
        for name, client in config.get("clients", {}).items()
    }
    return {
        **config,
        "sources": {s: e for s, e in config["sources"].items() if s in read},
        "fragments": fragments,
        "nodes": [n for n in config["nodes"] if n in hosts],
        "clients": clients,
    }


def _simpler_fragments(fragment: Any) -> Iterator[dict[str, Any]]:
    """One partition instead of many; one replica less."""
    replicas = fragment.get("replicas")
    if fragment.get("partitions", 1) > 1:
        rest = {k: v for k, v in fragment.items() if k not in ("partitions", "key")}
        yield rest if isinstance(replicas, int) else {**rest, "replicas": replicas[0]}
    elif isinstance(replicas, list) and len(replicas) > 1 and all(isinstance(r, str) for r in replicas):
        yield {**fragment, "replicas": replicas[:-1]}


def _with_fragment(config: Configuration, name: str, fragment: dict[str, Any]) -> dict[str, Any]:
    changed = {**config, "fragments": {**config["fragments"], name: fragment}}
    hosts = {
        n
        for f in changed["fragments"].values()
        for row in (f["replicas"] if isinstance(f["replicas"], list) else [])
        for n in ([row] if isinstance(row, str) else row)
    }
    return {**changed, "nodes": [n for n in config["nodes"] if n in hosts]}
