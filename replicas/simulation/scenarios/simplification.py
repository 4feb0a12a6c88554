"""Simplified configurations of a swarm, each with one thing less, to try whether they still fail.

They have the layout of :mod:`replicas.simulation.scenarios.topologies`.  Not all of them are valid: validate each
before running it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Configuration = Mapping[str, Any]


def simpler_configurations(config: Configuration) -> Iterator[dict[str, Any]]:
    """Yields configurations with one thing less; not all of them are valid."""
    for key in ("limits", "timing", "coordinator"):
        if config.get(key):
            yield {k: v for k, v in config.items() if k != key}
    yield from _with_plainer_coordinator(config)
    defaults = config["defaults"]
    for key in ("checkpoint", "reconcile", "policy"):
        if key in defaults:
            yield {**config, "defaults": {k: v for k, v in defaults.items() if k != key}}
    yield from _with_plainer_nodes(config)
    for name in list(config["clients"])[1:]:
        yield {**config, "clients": {k: v for k, v in config["clients"].items() if k != name}}
    for name, client in config["clients"].items():
        if "sinks" in client:
            plain = {k: v for k, v in client.items() if k != "sinks"}
            yield {**config, "clients": {**config["clients"], name: plain}}
    yield from _without_an_operator(config)
    yield from _without_rejections(config)
    for name, fragment in config["fragments"].items():
        yield from (_with_fragment(config, name, simpler) for simpler in _simpler_fragments(fragment))
    for name, source in config["sources"].items():
        generator = source["from"]["generator"]
        for key in ("burst", "disorder"):
            if generator.get(key, "0ms") != "0ms":
                plain = {"generator": {k: v for k, v in generator.items() if k != key}}
                yield {**config, "sources": {**config["sources"], name: {**source, "from": plain}}}


def _with_plainer_nodes(config: Configuration) -> Iterator[dict[str, Any]]:
    """Yields configurations without settings of single nodes; then without one setting of one node, or without a spare
    one.
    """
    nodes = config["nodes"]
    if not isinstance(nodes, Mapping):
        return
    yield {**config, "nodes": list(nodes)}
    for name, own in nodes.items():
        if "spare" in own:
            yield {**config, "nodes": {other: what for other, what in nodes.items() if other != name}}
        for key in own:
            yield {**config, "nodes": {**nodes, name: {k: v for k, v in own.items() if k != key}}}


def _with_plainer_coordinator(config: Configuration) -> Iterator[dict[str, Any]]:
    """Yields configurations with one setting of the coordinator less."""
    own = config.get("coordinator") or {}
    for key in own:
        yield {**config, "coordinator": {k: v for k, v in own.items() if k != key}}


def _without_rejections(config: Configuration) -> Iterator[dict[str, Any]]:
    """Yields configurations without a rejection stream; with operators that reject no late rows, or that never fail."""
    for stream in [name for name, entry in config["query"].items() if "rejected" in entry]:
        query = {n: e for n, e in config["query"].items() if n != stream}
        outputs = [o for o in config["outputs"] if o != stream]
        yield _without_the_unused({**config, "query": query, "outputs": outputs})
    for name, entry in config["query"].items():
        ((kind, body),) = entry.items()
        plain = {k: v for k, v in body.items() if k not in ("on_late", "on_error")}
        if "bad" in plain.get("arguments", {}):
            plain["arguments"] = {k: v for k, v in plain["arguments"].items() if k != "bad"}
        if plain != body:
            yield {**config, "query": {**config["query"], name: {kind: plain}}}


def _without_an_operator(config: Configuration) -> Iterator[dict[str, Any]]:
    """Yields configurations without an output; then without each operator, whose readers read its input instead."""
    query, outputs = config["query"], config["outputs"]
    for output in outputs if len(outputs) > 1 else ():
        yield _without_the_unused({**config, "outputs": [o for o in outputs if o != output]})
    for name, entry in reversed(query.items()):
        for instead in _inputs_of(entry):
            rest = {n: _renamed(e, name, instead) for n, e in query.items() if n != name}
            renamed = list(dict.fromkeys(instead if o == name else o for o in outputs))
            if set(renamed) <= set(rest):
                yield _without_the_unused({**config, "query": rest, "outputs": renamed})


def _inputs_of(entry: Any) -> list[str]:
    (body,) = entry.values()
    streams = [body["from"]] if "from" in body else [body["left"], body["right"]]
    return [name for stream in streams for name in ([stream] if isinstance(stream, str) else stream)]


def _renamed(entry: Any, old: str, new: str) -> Any:
    if isinstance(entry, dict):
        return {k: _renamed(v, old, new) if k != "compute" else v for k, v in entry.items()}
    if isinstance(entry, list):
        return [_renamed(v, old, new) for v in entry]
    return new if entry == old else entry


def _without_the_unused(config: dict[str, Any]) -> dict[str, Any]:
    """Removes operators, fragments, nodes and sources that no output needs any more."""
    needed = set(config["outputs"])
    for name, entry in reversed(config["query"].items()):  # entries are written before their readers
        if name in needed:
            needed |= set(_inputs_of(entry))
    fragments = {}
    for name, fragment in config["fragments"].items():
        operators = [o for o in fragment["operators"] if o in needed]
        if operators:
            fragments[name] = {**fragment, "operators": operators}
            if "key" in fragment:
                fragments[name]["key"] = {s: k for s, k in fragment["key"].items() if s in needed}
    clients = {
        name: {**client, "reads": [s for s in client["reads"] if s in needed] or config["outputs"]}
        for name, client in config["clients"].items()
    }
    return _without_idle_nodes(
        {
            **config,
            "sources": {s: e for s, e in config["sources"].items() if s in needed},
            "query": {o: e for o, e in config["query"].items() if o in needed},
            "fragments": fragments,
            "clients": clients,
        }
    )


def _without_idle_nodes(config: dict[str, Any]) -> dict[str, Any]:
    """Removes nodes that have lost their work; a spare node had none, and stays with its coordinator."""
    fragments = config["fragments"].values()
    rows = [row for fragment in fragments for row in (*fragment["replicas"], *fragment.get("standby", ()))]
    hosts = {node for row in rows for node in ([row] if isinstance(row, str) else row)}
    nodes = config["nodes"]
    if isinstance(nodes, Mapping):
        return {**config, "nodes": {name: own for name, own in nodes.items() if name in hosts or "spare" in own}}
    return {**config, "nodes": [n for n in nodes if n in hosts]}


def _simpler_fragments(fragment: Any) -> Iterator[dict[str, Any]]:
    """Yields fragments without standbys; with one partition instead of several; with one replica less."""
    replicas = fragment.get("replicas")
    if "standby" in fragment:
        yield {k: v for k, v in fragment.items() if k not in ("standby", "checkpoint")}
    if fragment.get("partitions", 1) > 1:
        rest = {k: v for k, v in fragment.items() if k not in ("partitions", "key")}
        first = {k: rest[k][0] for k in ("replicas", "standby") if isinstance(rest.get(k), list)}
        yield {**rest, **first}
    elif isinstance(replicas, list) and len(replicas) > 1 and all(isinstance(r, str) for r in replicas):
        yield from ({**fragment, "replicas": [r for r in replicas if r != dropped]} for dropped in reversed(replicas))


def _with_fragment(config: Configuration, name: str, fragment: dict[str, Any]) -> dict[str, Any]:
    return _without_idle_nodes({**config, "fragments": {**config["fragments"], name: fragment}})
