"""Commands that run a cluster, or one of its processes."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from replicas.cli.app.application import app
from replicas.cli.options import Data, NodeName, Target, duration_us
from replicas.cli.run.run_options import RunOptions
from replicas.local.process_options import DEFAULTS, JoinOptions, ProcessOptions
from spe.errors import SpeError


@app.command(sort_key=2)
def run(
    config: Annotated[Path | None, Parameter(help="The configuration; not with --continue.")] = None,
    /,
    *,
    continue_: Annotated[
        Path | None, Parameter(name="--continue", help="Directory of a run that is over, and goes on there.")
    ] = None,
    options: RunOptions = RunOptions(),  # noqa: B008
) -> int:
    """Run a whole cluster of real processes on this machine, and compare what clients hold with the reference."""
    from replicas.cli.run.run import run_document
    from replicas.local.continuation import earlier_run
    from spe.config import read_document

    length_us = None if options.duration is None else duration_us("--duration", options.duration)
    if length_us is not None and length_us <= 0:
        raise SpeError(f"--duration: expected a duration above zero, got {options.duration!r}")
    if continue_ is None and config is not None:
        earlier, document = None, read_document(config)
    elif config is not None or continue_ is None:
        raise SpeError("expected either a configuration, or --continue with the directory of a run")
    elif options.data is not None or options.run_dir is not None or options.on == "spark":
        raise SpeError("expected --continue without --data, --run-dir and --on spark")
    else:
        earlier = earlier_run(continue_)
        document = earlier.document
    if options.on != "spark" and (options.master is not None or options.conf):
        raise SpeError("--master and --conf go with --on spark")
    return run_document(document, options, duration_us=length_us, earlier=earlier)[1]


@app.command(sort_key=3)
def node(
    config: Target,
    /,
    *,
    node: NodeName,
    join: Annotated[
        bool, Parameter(negative=(), help="Join a running cluster whose configuration does not name the node.")
    ] = False,
    own: JoinOptions = JoinOptions(),  # noqa: B008
    options: ProcessOptions = DEFAULTS,
) -> int:
    """Run one node."""
    from replicas.cli.run.processes import join_node_process, run_node_process

    own_settings = {f.name: value for f in fields(own) if (value := getattr(own, f.name)) is not None}
    if join:
        return join_node_process(config, node, own_settings, options)
    if own_settings:
        raise SpeError(f"--{next(iter(own_settings))} goes with --join; for a node of the configuration, set it there")
    return run_node_process(config, node, options)


@app.command(sort_key=4)
def source(
    config: Target,
    /,
    *,
    source: Annotated[str, Parameter(help="Name of the source.")],
    data: Data = None,
    options: ProcessOptions = DEFAULTS,
) -> int:
    """Run one source; its log is in STORAGE/sources."""
    from replicas.cli.run.processes import run_source_process

    return run_source_process(config, source, data, options)


@app.command(sort_key=5)
def coordinator(config: Target, /, *, options: ProcessOptions = DEFAULTS) -> int:
    """Run the coordinator, which tells standbys to take over and moves partitions."""
    from replicas.cli.run.processes import run_coordinator_process

    return run_coordinator_process(config, options)


@app.command(sort_key=5)
def client(
    config: Target,
    /,
    *,
    client: Annotated[str, Parameter(help="Name of the client.")] = "",
    print_: Annotated[
        Literal["stable", "corrections", "no"],
        Parameter(name="--print", help="Print changes as JSON lines: final tuples only, or all with their undos."),
    ] = "no",
    start: Annotated[
        Literal["now", "stored", "beginning"] | None,
        Parameter(help="Print as a reader of any name, for which nothing is kept: from where on."),
    ] = None,
    stream: Annotated[list[str] | None, Parameter(help="Streams that a reader reads; by default every output.")] = None,
    options: ProcessOptions = DEFAULTS,
) -> int:
    """Run one client: write its sinks, and record what it receives. With --start: print results from there on."""
    if start is not None:
        from replicas.cli.view.reader import read

        return read(config, client, start, stream or [], print_)
    from replicas.cli.run.processes import run_client_process

    return run_client_process(config, client, print_, options)
