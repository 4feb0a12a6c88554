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
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NoReturn

from spe.config.document import Document, LineMark
from spe.config.load import load_document
from spe.config.query import WITHOUT
from spe.config.script import caller, is_reading, make_importable, mistake, note, reading
from spe.errors import ConfigError, RunFailed
from spe.plan.deploy import Deployed
from spe.plan.plan import Plan
from spe.problems import Path as Place
from spe.problems import show_path
from spe.stream.times import parse_duration

Options = dict[str, Any]
#: SQL, or a literal.
Expression = str | int | float | bool


def tumbling(size: str, *, offset: str | None = None, on: str | None = None) -> Options:
    """Consecutive windows of ``size``, over tuple time or a timestamp attribute."""
    return _without_none(tumbling=size, offset=offset, on=on)


def sliding(size: str, slide: str, *, offset: str | None = None, on: str | None = None) -> Options:
    """Windows of ``size``, one beginning every ``slide``."""
    return _without_none(sliding=size, slide=slide, offset=offset, on=on)


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


def _without_none(**options: Any) -> Options:
    """Returns the options that are set, as plain data; the others keep the configuration's defaults."""
    return {k: _plain(v) for k, v in options.items() if v is not None}


def _names(streams: Sequence[Stream | str]) -> list[str]:
    return [s if isinstance(s, str) else s.name for s in streams]


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
        self._head = _without_none(cluster=cluster, bucket=bucket, timing=timing, limits=limits, security=security)
        self._head |= _without_none(metrics=metrics, coordinator=coordinator, recovery=recovery)
        defaults = _without_none(x=x, alpha=alpha, policy=policy, reconcile=reconcile, checkpoint=checkpoint)
        self._head |= _without_none(defaults=defaults or None)
        self._sources: Options = {}
        self._query: Options = {}
        self._outputs: list[str] = []
        self._bounds: dict[str, str] = {}
        self._fragments: Options = {}
        self._nodes: Options = {}
        self._clients: Options = {}
        #: Line of the call for each part, for messages.
        self._marks: dict[Place, LineMark] = {(): caller(__file__)}
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
        options = _without_none(
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
            raise _mistake(("query", name), f"{name!r} has no {key}: {WITHOUT[key]}")
        body[key] = what
        self._written("query", name, kind, key)

    def _new(self, section: str, name: str) -> str:
        for before in (("sources", name), ("query", name)):
            if (mark := self._marks.get(before)) is not None:
                line = f"{mark.file}:{mark.line}"
                raise _mistake((section, name), f"there is a stream {name!r} already ({line}); expected another name")
        self._written(section, name)
        return name

    def _written(self, *place: str | int) -> None:
        """Notes that the current call writes this part of the configuration."""
        self._marks[place] = caller(__file__)

    def outputs(self, *streams: Stream | str, bound: str | None = None) -> Environment:
        """Sets the streams that clients read; by default those that no operator reads.

        Args:
          bound: longest time that a new result of these may take; X of the nodes on the path follows from it.
        """
        for name in _names(streams):
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
        options = _without_none(
            key=key, partitions=partitions, replicas=replicas, standby=standby, checkpoint=checkpoint
        )
        self._fragments[name] = {"operators": _names(operators), **options}
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
        self._nodes[name] = _without_none(
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
        self._clients[name] = _without_none(
            reads=None if reads is None else _names(reads),
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
            "outputs": {n: _without_none(bound=self._bounds.get(n)) for n in self._outputs}
            if self._bounds
            else self._outputs,
            "fragments": self._fragments,
            "nodes": self._nodes,
            "clients": self._clients,
        }
        return {**_plain(self._head), **{k: v for k, v in sections.items() if v}}

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
            raise mistake(caller(__file__), what)
        try:
            duration_us = None if duration is None else parse_duration(duration)
        except ValueError as error:
            raise mistake(caller(__file__), f"duration: {error}") from None
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


def _mistake(place: Place, message: str) -> ConfigError:
    """Returns the error of a mistake in the current call."""
    return mistake(caller(__file__), f"{show_path(place)}: {message}")


def _plain(value: Any) -> Any:
    """Converts mappings and sequences to dicts and lists, as in YAML."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """The stream of a source or of an operator."""

    environment: Environment
    name: str

    def filter(self, where: str, *, name: str | None = None) -> Stream:
        """Selects the tuples for which ``where`` is true."""
        if callable(where):
            what = 'filter takes an expression, such as "price > 100", got a function'
            raise _mistake(("query", name or "filter"), f"{what}; {_OWN}")
        return self.environment.operator(name, "filter", {"from": self.name, "where": where})

    def map(self, compute: Mapping[str, Expression], *, keep: bool = False, name: str | None = None) -> Stream:
        """Computes attributes from expressions; ``keep`` puts the present ones before them."""
        if not isinstance(compute, Mapping):
            got = "a function" if callable(compute) else repr(compute)
            what = f'map takes expressions by attribute, such as {{"total": "price * qty"}}, got {got}'
            raise _mistake(("query", name or "map"), f"{what}; {_OWN}")
        body = {"from": self.name, "compute": dict(compute), **_without_none(keep=keep or None)}
        return self.environment.operator(name, "map", body)

    def union(self, *others: Stream | str, name: str | None = None) -> Stream:
        """Merges this stream and others of the same schema by time."""
        return self.environment.operator(name, "union", [self.name, *_names(others)])

    def key_by(self, *keys: str, **expressions: Expression) -> Keyed:
        """Groups tuples by attributes, and by named expressions."""
        return Keyed(self, {**{k: k for k in keys}, **expressions})

    def window(self, window: Mapping[str, Any]) -> Windowed:
        """Makes windows without groups."""
        return Keyed(self, {}).window(window)

    def join(
        self,
        other: Stream | str,
        on: str | Sequence[Any] | Mapping[str, str],
        *,
        within: str | Sequence[str | int] | None = None,
        window: Mapping[str, Any] | None = None,
        kind: str | None = None,
        where: str | None = None,
        left_time: str | None = None,
        right_time: str | None = None,
        prefix: Sequence[str] | None = None,
        name: str | None = None,
    ) -> Stream:
        """Joins pairs of equal keys ``within`` a time interval, or in the same ``window``."""
        options = _without_none(
            kind=kind,
            on=on,
            window=window,
            within=within,
            left_time=left_time,
            right_time=right_time,
            where=where,
            prefix=prefix,
        )
        return self.environment.operator(name, "join", {"left": self.name, "right": _names([other])[0], **options})

    def top_k(
        self,
        k: int,
        order_by: str | Sequence[str],
        *,
        partition_by: Sequence[str] = (),
        with_ties: bool = False,
        rank_as: str | None = None,
        name: str | None = None,
    ) -> Stream:
        """Ranks tuples of the same time, such as the results of one window; returns the first k."""
        return _top_k(self, None, k, order_by, list(partition_by), with_ties, rank_as, name)

    def process(
        self, path: str, *others: Stream | str, arguments: Mapping[str, Any] | None = None, name: str | None = None
    ) -> Stream:
        """Applies a user-defined operator, ``module:Class``, to this stream and others."""
        body = {"class": path, "from": [self.name, *_names(others)], **_without_none(arguments=arguments)}
        return self.environment.operator(name, "custom", body)

    def on_error(self, what: str) -> Stream:
        """Sets the reaction to rows on which this stream's operator fails: ``stop`` or ``skip``."""
        self.environment.set_choice(self.name, "on_error", what)
        return self

    def rejected(self, *, name: str | None = None) -> Stream:
        """Returns the stream of this operator's rejected rows and results (``on_error``, ``on_late``)."""
        return self.environment.operator(name, "rejected", {"from": self.name})

    def on_late(self, what: str) -> Stream:
        """Sets the reaction to rows late for windows by an attribute: ``count`` or ``reject``."""
        self.environment.set_choice(self.name, "on_late", what)
        return self

    def output(self, *, bound: str | None = None) -> Stream:
        """Makes this stream an output; ``bound`` as in :meth:`Environment.outputs`."""
        self.environment.outputs(self, bound=bound)
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Keyed:
    """A stream in groups."""

    stream: Stream
    group_by: Mapping[str, Expression]

    def window(self, window: Mapping[str, Any]) -> Windowed:
        """Makes windows per group by :func:`tumbling`, :func:`sliding` or :func:`count_window`."""
        return Windowed(self.stream, self.group_by, window)

    def aggregate(self, *_: object, **__: object) -> NoReturn:
        """Refuses: a group needs a window."""
        raise _mistake(("query",), _NO_WINDOW)

    def top_k(self, *_: object, **__: object) -> NoReturn:
        """Refuses: a group needs a window."""
        raise _mistake(("query",), _NO_WINDOW)


_OWN = "use process() for what SQL cannot express"
#: A stream has no end: results per group need a window to be complete.
_NO_WINDOW = 'a group needs a window: key_by(…).window(tumbling("1s")).aggregate(…); also sliding and count_window'


@dataclass(frozen=True, slots=True, eq=False)
class Windowed:
    """A stream in groups and windows."""

    stream: Stream
    group_by: Mapping[str, Expression]
    over: Mapping[str, Any]

    def aggregate(self, name: str | None = None, /, **compute: str) -> Stream:
        """Makes one tuple per group and window: ``n="count(*)"``, ``total="sum(price)"``."""
        body = {"from": self.stream.name, **_without_none(window=self.over, group_by=self.group_by or None)}
        return self.stream.environment.operator(name, "aggregate", {**body, "compute": compute})

    def top_k(
        self,
        k: int,
        order_by: str | Sequence[str],
        *,
        with_ties: bool = False,
        rank_as: str | None = None,
        name: str | None = None,
    ) -> Stream:
        """Ranks each group in each window, and returns the first k; groups are attributes here, not expressions."""
        groups = list(self.group_by)
        if any(self.group_by[g] != g for g in groups):
            what = "a top-k ranks by attributes; compute the expression with map first"
            raise _mistake(("query", name or "topk"), what)
        return _top_k(self.stream, self.over, k, order_by, groups, with_ties, rank_as, name)


def _top_k(
    stream: Stream,
    window: Mapping[str, Any] | None,
    k: int,
    order_by: str | Sequence[str],
    partition_by: list[str],
    with_ties: bool,
    rank_as: str | None,
    name: str | None,
) -> Stream:
    options = _without_none(
        partition_by=partition_by or None, window=window, with_ties=with_ties or None, rank_as=rank_as
    )
    body = {"from": stream.name, "k": k, "order_by": _plain(order_by), **options}
    return stream.environment.operator(name, "topk", body)
