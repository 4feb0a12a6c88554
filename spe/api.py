"""A query in Python: the same configuration as the YAML file, written with a builder::

    env = Environment("shop")
    orders = env.source("orders", generator("orders", rate=500), disorder="200ms")
    large = orders.filter("price * qty >= 100", name="large")
    totals = large.key_by("key").window(tumbling("1s")).aggregate("totals", n="count(*)", revenue="sum(price * qty)")
    env.outputs(totals)

    if __name__ == "__main__":
        env.run()

The builder only makes plain data in the YAML's layout, so both forms are equivalent: they have the same reader, the
same messages, and the same plan and fingerprint.  ``env.to_yaml()`` is the file; ``spe check`` and every
other command that reads a configuration take the script itself.  A mistake is a ConfigError that names the line of
the call.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from spe.api_streams import Keyed, Options, Stream, Windowed, names, plain, without_none, wrong
from spe.config.document import Document, LineMark
from spe.config.load import load_document
from spe.config.query import WITHOUT
from spe.config.script import caller, is_reading, make_importable, mistake, note, reading
from spe.errors import RunFailed
from spe.plan.deploy import Deployed
from spe.plan.plan import Plan
from spe.problems import Path as Place
from spe.stream.times import parse_duration

__all__ = [
    "Environment", "Keyed", "Stream", "Windowed", "count_window", "csv", "generator", "jsonl", "parquet", "push",
    "sliding", "stdin", "tcp", "tumbling",
]  # fmt: skip


def tumbling(size: str, *, offset: str | None = None, on: str | None = None) -> Options:
    """Consecutive windows of ``size``, over tuple time or a timestamp attribute."""
    return without_none(tumbling=size, offset=offset, on=on)


def sliding(size: str, slide: str, *, offset: str | None = None, on: str | None = None) -> Options:
    """Windows of ``size``, one beginning every ``slide``."""
    return without_none(sliding=size, slide=slide, offset=offset, on=on)


def count_window(count: int) -> Options:
    """Windows of ``count`` tuples of a group."""
    return {"count": count}


def generator(name: str, **options: Any) -> Options:
    """Generated rows: ``rate``, ``keys``, ``seed``, ``skew``, ``disorder``, ``duration``, ``count``, ``start``."""
    return {"generator": {"name": name, **options}}


def csv(path: str, **options: Any) -> Options:
    """A CSV file: ``columns``, ``delimiter``, ``quote``, ``header``, ``null``, ``timestamps``."""
    return {"csv": path, **options}


def jsonl(path: str, **options: Any) -> Options:
    """A file of JSON lines: ``columns``, ``timestamps``."""
    return {"jsonl": path, **options}


def parquet(path: str, **options: Any) -> Options:
    """A Parquet file: ``columns``, ``sort`` (a column to replay by, such as an arrival sequence)."""
    return {"parquet": path, **options}


def tcp(address: str, **options: Any) -> Options:
    """Lines sent to ``host:port``: ``format`` (jsonl, csv) and the options of the format."""
    return {"tcp": address, **options}


def stdin(**options: Any) -> Options:
    """Lines on standard input: ``format`` (jsonl, csv) and the options of the format."""
    return {"stdin": True, **options}


def push(*writers: str) -> Options:
    """Batches pushed by Spark queries of these names."""
    return {"push": list(writers)}


class Environment:
    """A cluster and the query that runs on it.

    Args:
      cluster: name of the cluster, checked on every connection.
      bucket: width of the SUnions' buckets, tuple time.
      x, alpha, policy, reconcile, checkpoint: defaults of the nodes.
      timing, limits, security, metrics, coordinator, recovery: as in the configuration.
    """

    def __init__(
        self,
        cluster: str = "spe",
        *,
        bucket: str | None = None,
        x: str | None = None,
        alpha: float | None = None,
        policy: str | Mapping[str, str] | None = None,
        reconcile: str | None = None,
        checkpoint: Mapping[str, Any] | None = None,
        timing: Mapping[str, str] | None = None,
        limits: Mapping[str, str | int] | None = None,
        security: Mapping[str, str | bool] | None = None,
        metrics: Mapping[str, str | int] | None = None,
        coordinator: Mapping[str, str | int | float] | None = None,
        recovery: Mapping[str, str | Mapping[str, Any]] | None = None,
    ) -> None:
        self._head = without_none(cluster=cluster, bucket=bucket, timing=timing, limits=limits, security=security)
        self._head |= without_none(metrics=metrics, coordinator=coordinator, recovery=recovery)
        defaults = without_none(x=x, alpha=alpha, policy=policy, reconcile=reconcile, checkpoint=checkpoint)
        self._head |= without_none(defaults=defaults or None)
        self._sources: Options = {}
        self._query: Options = {}
        self._outputs: list[str] = []
        self._bounds: dict[str, str] = {}
        self._fragments: Options = {}
        self._nodes: Options = {}
        self._clients: Options = {}
        #: Line of the call for each part, for messages.
        self._marks: dict[Place, LineMark] = {(): caller()}
        note(self)

    def source(
        self,
        name: str,
        reader: Mapping[str, Any],
        schema: Mapping[str, str] | None = None,
        *,
        time: str | None = None,
        disorder: str | None = None,
        boundary: str | None = None,
        replay: Mapping[str, Any] | None = None,
        on_malformed: str | None = None,
        address: str | None = None,
        ahead: str | None = None,
        watermark: str | None = None,
        idle: str | Mapping[str, str] | None = None,
        retain: Mapping[str, str] | None = None,
        late: Mapping[str, Any] | None = None,
        rejected: Mapping[str, Any] | None = None,
    ) -> Stream:
        """Adds a source; ``reader`` is made by :func:`generator`, :func:`csv` and so on."""
        options = without_none(
            schema=schema,
            time=time,
            disorder=disorder,
            boundary=boundary,
            replay=replay,
            on_malformed=on_malformed,
            address=address,
            ahead=ahead,
            watermark=watermark,
            idle=idle,
            retain=retain,
            late=late,
            rejected=rejected,
        )
        self._sources[self._new("sources", name)] = {**options, "from": dict(reader)}
        return Stream(self, name)

    def operator(self, name: str | None, kind: str, body: Any) -> Stream:
        """Adds an operator in the form of the configuration; unnamed ones are numbered by kind."""
        if name is None:
            name = f"{kind}_{1 + sum(kind in entry for entry in self._query.values())}"
        self._query[self._new("query", name)] = {kind: body}
        return Stream(self, name)

    def set_choice(self, name: str, key: str, what: str) -> None:
        """Sets ``on_error`` or ``on_late`` of an operator that was added as a mapping."""
        kind, body = next(iter(self._query.get(name, {}).items()), ("", None))
        if not isinstance(body, dict):
            raise wrong(("query", name), f"{name!r} has no {key}: {WITHOUT[key]}")
        body[key] = what
        self._written("query", name, kind, key)

    def _new(self, section: str, name: str) -> str:
        for before in (("sources", name), ("query", name)):
            if (mark := self._marks.get(before)) is not None:
                line = f"{mark.file}:{mark.line}"
                raise wrong((section, name), f"there is a stream {name!r} already ({line}); expected another name")
        self._written(section, name)
        return name

    def _written(self, *place: str | int) -> None:
        """Notes that the current call writes this part of the configuration."""
        self._marks[place] = caller()

    def outputs(self, *streams: Stream | str, bound: str | None = None) -> Environment:
        """Sets the streams that clients read; by default those that no operator reads.

        Args:
          bound: longest time that a new result of these may take; X of the nodes on the path follows from it.
        """
        for name in names(streams):
            self._written("outputs", len(self._outputs))
            self._written("outputs", name)
            self._outputs.append(name)
            if bound is not None:
                self._bounds[name] = bound
        return self

    def fragment(
        self,
        name: str,
        operators: Sequence[Stream | str],
        *,
        key: str | Sequence[str] | Mapping[str, Any] | None = None,
        partitions: int | None = None,
        replicas: int | Sequence[Any] | None = None,
        standby: int | Sequence[Any] | None = None,
        checkpoint: str | Mapping[str, Any] | None = None,
    ) -> Environment:
        """Adds a fragment: operators that run together; without fragments all do."""
        options = without_none(
            key=key, partitions=partitions, replicas=replicas, standby=standby, checkpoint=checkpoint
        )
        self._fragments[name] = {"operators": names(operators), **options}
        self._written("fragments", name)
        return self

    def node(
        self,
        name: str,
        address: str | None = None,
        *,
        x: str | None = None,
        alpha: float | None = None,
        policy: str | Mapping[str, str] | None = None,
        reconcile: str | None = None,
        checkpoint: Mapping[str, Any] | None = None,
        spare: bool | None = None,
        capacity: float | None = None,
        memory: str | int | None = None,
    ) -> Environment:
        """Adds a node, a process that hosts replicas."""
        self._nodes[name] = without_none(
            address=address,
            x=x,
            alpha=alpha,
            policy=policy,
            reconcile=reconcile,
            checkpoint=checkpoint,
            spare=spare,
            capacity=capacity,
            memory=memory,
        )
        self._written("nodes", name)
        return self

    def client(
        self,
        name: str,
        reads: Sequence[Stream | str] | None = None,
        sinks: Sequence[Mapping[str, Any]] = (),
        external: bool = False,
    ) -> Environment:
        """Adds a client; without any, one reads all outputs.  ``external``: a program of yours, such as Spark."""
        self._clients[name] = without_none(
            reads=None if reads is None else names(reads),
            sinks=sinks or None,
            external=external or None,
        )
        self._written("clients", name)
        return self

    def data(self) -> Options:
        """Returns the configuration as plain data, in the YAML's layout."""
        sections = {
            "sources": self._sources,
            "query": self._query,
            "outputs": {n: without_none(bound=self._bounds.get(n)) for n in self._outputs}
            if self._bounds
            else self._outputs,
            "fragments": self._fragments,
            "nodes": self._nodes,
            "clients": self._clients,
        }
        return {**plain(self._head), **{k: v for k, v in sections.items() if v}}

    def document(self) -> Document:
        """Returns the configuration with the line of each call; its home is the folder of the script."""
        script = Path(self._marks[()].file)
        home = script.parent if script.is_file() else Path()
        return Document(str(script), self.data(), marks=dict(self._marks), home=home)

    def to_yaml(self) -> str:
        """Returns the configuration as the text of a file."""
        return self.document().to_yaml()

    def plan(self, data: str | os.PathLike[str] | None = None) -> Plan:
        """Makes the plan.  Raises ConfigError with every mistake, as ``file:line: path: mistake``.

        Args:
          data: folder for relative paths of data files; None: the folder of the script.
        """
        return self.deployed(data).plan

    def deployed(self, data: str | os.PathLike[str] | None = None) -> Deployed:
        """Makes the plan and its directory, as :meth:`plan`."""
        return load_document(self.document(), data)

    def run(
        self,
        *,
        data: str | os.PathLike[str] | None = None,
        run_dir: str | os.PathLike[str] | None = None,
        faults: str | os.PathLike[str] | None = None,
        seed: int | None = None,
        duration: str | None = None,
        view: bool = True,
        links: Literal["inside", "proxy"] = "inside",
        report: bool = False,
        budget: int | None = None,
    ) -> Path:
        """Runs the cluster as real processes on this machine until all sources have ended, as ``spe run`` does.

        The options are those of ``spe run``.  The call belongs under ``if __name__ == "__main__":``, since other
        commands that read the script, such as ``spe check``, execute it.

        Returns:
          The directory of the run.

        Raises:
          ConfigError: the configuration has mistakes, or the script is only being read.
          RunFailed: the clients' results are incomplete, or differ from the reference run.
          SpeError: the run could not start.
          KeyboardInterrupt, SystemExit: the run was ended by Ctrl-C, or by another signal.
        """
        if is_reading():
            what = 'env.run() while the script is read; expected it under `if __name__ == "__main__":`'
            raise mistake(caller(), what)
        try:
            duration_us = None if duration is None else parse_duration(duration)
        except ValueError as error:
            raise mistake(caller(), f"duration: {error}") from None
        # The command line imports everything, so it is imported only when needed.
        command = import_module("replicas.cli.run.run")
        document = self.document()
        make_importable(document.home)
        with reading():
            options = command.RunOptions(
                data=None if data is None else Path(data),
                run_dir=None if run_dir is None else Path(run_dir),
                faults=None if faults is None else Path(faults),
                seed=seed,
                view=view,
                links=links,
                report=report,
                budget=budget,
            )
            folder, status = command.run_document(document, options, duration_us=duration_us)
        if status == command.INTERRUPTED:
            raise KeyboardInterrupt
        if status == command.TERMINATED:
            raise SystemExit(status)
        if status:
            raise RunFailed(f"the run was not as expected, see {folder / 'summary.json'}")
        return Path(folder)
