"""The commands and their options.  Each command imports what it needs when it is called."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from cyclopts import App, CycloptsError, Parameter

from consistency.faults.kind import Maker
from consistency.faults.kinds import KINDS
from replicas.local.process_options import DEFAULTS, LogFormatOption, LogLevelOption, ProcessOptions
from spe import __version__
from spe.errors import ConfigError, OperatorFailed, SpeError
from spe.runtime.log_line import Level, LogFormat
from spe.stream.times import parse_duration

DONE: Final = 0
NOT_AS_EXPECTED: Final = 1
USERS_MISTAKE: Final = 2
#: Errors of a disk that is full or read-only, or of a name that is too long: the user's to solve.
_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG})
INTERRUPTED: Final = 130

Config = Annotated[Path, Parameter(help="The configuration, a YAML file or a Python script.")]
Target = Annotated[Path, Parameter(help="The configuration, or the directory of a run.")]
RunDir = Annotated[Path, Parameter(help="The directory of a run.")]
Data = Annotated[Path | None, Parameter(help="Folder that relative paths of data files start from.")]
Wait = Annotated[bool, Parameter(help="Print each phase until all is done.", negative="--no-wait")]
Within = Annotated[str, Parameter(help="How long each wait may take, such as 90s.")]


def _fault_kinds(maker: Maker) -> str:
    return ", ".join(sorted(name for name, kind in KINDS.items() if kind.maker is maker))


app = App(
    name="spe",
    help="A replicated stream processor: tentative results during failures, correct results afterwards. "
    "The environment variable SPE_TOKEN is the secret that all processes of a cluster share.",
    version=__version__,
    default_parameter=Parameter(negative=()),
    help_format="plaintext",
)


@app.command(sort_key=0)
def check(config: Config, /, *, data: Data = None) -> int:
    """Validate a configuration and print its plan: fragments, partitions, replicas and X."""
    from replicas.cli.check import check

    return check(config, data)


@app.command(sort_key=9)
def ingest(
    config: Config,
    out: Annotated[Path, Parameter(help="Folder for the logs; each is in sources/NAME below it.")],
    /,
    *,
    source: Annotated[list[str] | None, Parameter(help="Only these sources; all by default.")] = None,
    data: Data = None,
    make: Annotated[
        str | None, Parameter(help="Make a workload instead of reading files: requests or locations.")
    ] = None,
    rows: Annotated[int, Parameter(help="How many tuples to make.")] = 1_000_000,
    seed: Annotated[int, Parameter(help="Seed of the generated workload; the same seed gives the same log.")] = 1,
    master: Annotated[str | None, Parameter(help="Spark's master; this machine by default.")] = None,
    conf: Annotated[list[str] | None, Parameter(help="A setting of Spark, NAME=VALUE; may be repeated.")] = None,
) -> int:
    """Sort the files of sources by time with Spark, and write them as source logs."""
    from replicas.cli.ingest import ingest

    return ingest(config, out, data, source or [], make, rows, seed, master, conf or [])


@app.command(sort_key=9)
def restore(
    folder: Annotated[Path, Parameter(help="The directory of a run, or the --storage of a source or client.")], /
) -> int:
    """Bring back from the archive what `retain` has deleted of logs and recordings, while nobody writes them."""
    from replicas.cli.restore import restore

    return restore(folder)


@app.command(sort_key=9)
def forget(
    target: Target, process: Annotated[str, Parameter(help="client:NAME, or source:NAME for its own sinks.")], /
) -> int:
    """Let the sinks of a stopped process begin anew: remove its rows and its position from their servers.

    Of PostgreSQL and Delta tables all rows are removed; what was sent to Kafka or by HTTP stays there.
    """
    from replicas.cli.forget import forget

    return forget(target, process)


@app.command(sort_key=10)
def certs(
    config: Config,
    /,
    *,
    out: Annotated[
        Path | None, Parameter(help="Folder for the certificates; by default that of the section security.")
    ] = None,
    days: Annotated[
        int, Parameter(help="Days for which certificates are valid; the CA is valid ten times as long.")
    ] = 365,
    renew: Annotated[bool, Parameter(help="Replace certificates and keys, but not the CA.", negative="")] = False,
    revoke: Annotated[
        list[str] | None, Parameter(help="Refuse the certificates that this holder has so far; may be repeated.")
    ] = None,
    reader: Annotated[
        list[str] | None, Parameter(help="Also for clients of these names, which the configuration does not have.")
    ] = None,
) -> int:
    """Make a CA and a certificate for each process of a cluster; existing files are kept."""
    from replicas.cli.certs import certs

    return certs(config, out, days, renew=renew, revoked=revoke or (), readers=reader or ())


@app.command(sort_key=1)
def reference(
    config: Target,
    /,
    *,
    data: Data = None,
    run_dir: Annotated[Path | None, Parameter(help="Compute from the source logs of this run.")] = None,
    output: Annotated[
        Path | None, Parameter(help="FILE.jsonl, or a folder as a stable sink of a client writes it.")
    ] = None,
    format: Annotated[
        Literal["jsonl", "parquet"], Parameter(help="Format of the files in an output folder.")
    ] = "jsonl",
) -> int:
    """Compute the results of a run without failures in one process; print them as JSON lines, or write them."""
    from replicas.cli.reference import reference

    return reference(config, data, run_dir, output, format)


@app.command(sort_key=2)
def run(
    config: Annotated[Path | None, Parameter(help="The configuration; not with --continue.")] = None,
    /,
    *,
    continue_: Annotated[
        Path | None, Parameter(name="--continue", help="Directory of a run that is over, and goes on there.")
    ] = None,
    data: Data = None,
    run_dir: Annotated[Path | None, Parameter(help="Folder of the run; runs/NAME-TIME by default.")] = None,
    faults: Annotated[Path | None, Parameter(help="Faults to inject; see docs/how-to/faults.md.")] = None,
    seed: Annotated[int | None, Parameter(help="Seed of the faults; random if not given.")] = None,
    duration: Annotated[str | None, Parameter(help="Stop after this long, such as 30s.")] = None,
    view: Annotated[bool, Parameter(help="Show a live view if the output is a terminal.", negative="--no-view")] = True,
    links: Annotated[
        Literal["inside", "proxy"],
        Parameter(help="What makes links fail: the processes themselves, or proxies between them."),
    ] = "inside",
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = Level.INFO,
    report: Annotated[bool, Parameter(help="Write a report with Spark at the end, as spe report does.")] = False,
    budget: Annotated[
        int | None, Parameter(help="Number of standbys that run from the start, chosen as by spe plan.")
    ] = None,
    dashboard: Annotated[
        str, Parameter(help="HOST:PORT of the page that shows the run, with the extra dashboard; off: none.")
    ] = "127.0.0.1:0",
    on: Annotated[
        Literal["here", "spark"], Parameter(help="Where nodes run: on this machine, or as tasks of a Spark cluster.")
    ] = "here",
    master: Annotated[str | None, Parameter(help="With --on spark: Spark's master.")] = None,
    conf: Annotated[
        list[str] | None, Parameter(help="With --on spark: a setting of Spark, NAME=VALUE; may be repeated.")
    ] = None,
) -> int:
    """Run a whole cluster of real processes on this machine, and compare what clients hold with the reference."""
    from replicas.cli.run.run import run_document
    from replicas.local.continuation import earlier_run
    from spe.config import read_document

    length = None if duration is None else _duration("--duration", duration)
    if length is not None and length <= 0:
        raise SpeError(f"--duration: expected a duration above zero, got {duration!r}")
    if continue_ is None and config is not None:
        earlier, document = None, read_document(config)
    elif config is not None or continue_ is None:
        raise SpeError("expected either a configuration, or --continue with the directory of a run")
    elif data is not None or run_dir is not None or on == "spark":
        raise SpeError("expected --continue without --data, --run-dir and --on spark")
    else:
        earlier = earlier_run(continue_)
        document = earlier.document
    spark = None
    if on == "spark":
        from replicas.cli.report import parse_conf
        from replicas.local.spark_job import SparkOptions

        spark = SparkOptions(master, parse_conf(conf or []))
    elif master is not None or conf:
        raise SpeError("--master and --conf go with --on spark")
    return run_document(
        document,
        data=data,
        run_dir=run_dir,
        faults=faults,
        seed=seed,
        duration_us=length,
        view=view,
        links=links,
        logs=(log_format, log_level.name.lower()),
        report=report,
        budget=budget,
        dashboard=dashboard,
        spark=spark,
        earlier=earlier,
    )[1]


@app.command(sort_key=3)
def node(
    config: Target,
    /,
    *,
    node: Annotated[str, Parameter(help="Name of the node.")],
    join: Annotated[
        bool, Parameter(negative=(), help="Join a running cluster whose configuration does not name the node.")
    ] = False,
    address: Annotated[
        str | None, Parameter(help="With --join: HOST:PORT of the node; not needed in the directory of a run.")
    ] = None,
    capacity: Annotated[float | None, Parameter(help="With --join: cores for partitions, 1 if not given.")] = None,
    memory: Annotated[str | None, Parameter(help="With --join: memory for partitions, such as 4GB.")] = None,
    x: Annotated[
        str | None, Parameter(help="With --join: X of the node; by default that of the section defaults.")
    ] = None,
    options: ProcessOptions = DEFAULTS,
) -> int:
    """Run one node."""
    from replicas.cli.run.processes import join_node_process, run_node_process

    own = {"address": address, "capacity": capacity, "memory": memory, "x": x}
    options_to_join = {name: value for name, value in own.items() if value is not None}
    if join:
        return join_node_process(config, node, options_to_join, options)
    if options_to_join:
        raise SpeError(
            f"--{next(iter(options_to_join))} goes with --join; for a node of the configuration, set it there"
        )
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
def coordinator(
    config: Target,
    /,
    *,
    options: ProcessOptions = DEFAULTS,
) -> int:
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


@app.command(sort_key=6)
def status(target: Target, /, *, json: Annotated[bool, Parameter(help="Print JSON.")] = False) -> int:
    """Show the state of each process of a running cluster."""
    from replicas.cli.control import status

    return status(target, json)


@app.command(sort_key=6)
def top(target: Target, /) -> int:
    """Show a running cluster as it changes, as spe run does, until Ctrl-C or the end of the run."""
    from replicas.cli.top import top

    return top(target)


@app.command(sort_key=6)
def dashboard(
    target: Target,
    /,
    *,
    bind: Annotated[
        str, Parameter(help="HOST:PORT to serve at; only this machine reaches the default, on any free port.")
    ] = "127.0.0.1:0",
    faults: Annotated[bool, Parameter(help="Faults can be injected into a run.", negative="--no-faults")] = True,
) -> int:
    """Serve a page that shows a running cluster, until Ctrl-C or the end of the run.  Needs the extra dashboard."""
    from replicas.cli.dashboard.command import dashboard

    return dashboard(target, bind, faults=faults)


@app.command(sort_key=7)
def restart(
    run_dir: RunDir,
    /,
    *nodes: Annotated[str, Parameter(help="Only these.")],
    rolling: Annotated[bool, Parameter(negative=(), help="Restart all nodes, one after the other.")] = False,
    within: Within = "60s",
) -> int:
    """Restart nodes of a run one after the other, each while another replica of what it runs is STABLE."""
    from replicas.cli.restart import restart

    if not rolling and not nodes:
        raise SpeError("expected nodes, or --rolling for all; spe inject RUN restart NODE restarts a node at once")
    return restart(run_dir, nodes, _duration("--within", within))


@app.command(sort_key=7)
def wait(
    target: Target,
    node: Annotated[str, Parameter(help="Name of the node.")],
    /,
    *,
    partners: Annotated[
        bool,
        Parameter(
            negative=(), help="Wait until other nodes are STABLE for all of its partitions, so that it may stop."
        ),
    ] = False,
    within: Within = "60s",
) -> int:
    """Wait until a node is STABLE.  The exit status is 1 if it took too long."""
    from replicas.cli.restart import wait

    return wait(target, node, partners=partners, within_us=_duration("--within", within))


@app.command(name="explain-stall", sort_key=6)
def explain_stall(
    target: Target,
    output: Annotated[str, Parameter(help="Only this output; all by default.")] = "",
    /,
    *,
    json: Annotated[bool, Parameter(help="Print JSON.")] = False,
) -> int:
    """Say why an output of a running cluster is tentative, late or silent now, and what will happen next.

    Exit status 0: every output is stable or has ended, 1: one is not.
    """
    from replicas.cli.explain_stall import explain_stall

    return explain_stall(target, output, json)


@app.command(sort_key=7)
def inject(
    run_dir: RunDir,
    kind: Annotated[
        str,
        Parameter(help=f"{_fault_kinds(Maker.PROCESSES)}; with --links proxy {_fault_kinds(Maker.PROXY)}"),
    ],
    /,
    *names: Annotated[str, Parameter(help="The process, or the two ends of a link; 'all' is everybody else.")],
    for_: Annotated[str | None, Parameter(name="--for", help="How long, such as 5s; by default until healed.")] = None,
    by: Annotated[str | None, Parameter(help="Delay to add, such as 200ms.")] = None,
    one_way: Annotated[bool, Parameter(help="Only in the direction from the first end to the second.")] = False,
) -> int:
    """Inject a fault into a run, such as: spe inject runs/x cut source:a n1 --for 5s"""
    from replicas.cli.control import inject

    for option, text in (("--for", for_), ("--by", by)):
        if text is not None:
            _duration(option, text)
    return inject(run_dir, kind, names, for_, by, one_way)


@app.command(sort_key=7)
def move(
    target: Target,
    partition: Annotated[str, Parameter(help="The partition, as spe status shows it, such as u1/0.")],
    source: Annotated[str, Parameter(help="Node that runs it now.")],
    to: Annotated[str, Parameter(help="Node that is to run it.")],
    /,
    *,
    wait: Wait = True,
) -> int:
    """Move a partition of a running cluster from one node to another, without a gap."""
    from replicas.cli.move import move

    return move(target, partition, source, to, wait=wait)


@app.command(sort_key=7)
def drain(target: Target, node: Annotated[str, Parameter(help="The node to empty.")], /, *, wait: Wait = True) -> int:
    """Move all partitions and standbys of a node to other nodes."""
    from replicas.cli.move import drain

    return drain(target, node, wait=wait)


@app.command(sort_key=7)
def leave(target: Target, node: Annotated[str, Parameter(help="A node that is drained and stopped.")], /) -> int:
    """Remove a node that has joined a running cluster."""
    from replicas.cli.move import leave

    return leave(target, node)


@app.command(sort_key=7)
def balance(
    target: Target,
    /,
    *,
    dry_run: Annotated[bool, Parameter(negative=(), help="Only say what would move.")] = False,
    wait: Wait = True,
) -> int:
    """Move partitions away from nodes that use more than coordinator.cap of their cores or memory."""
    from replicas.cli.move import balance

    return balance(target, dry_run=dry_run, wait=wait)


@app.command(sort_key=7)
def cancel(target: Target, number: Annotated[int, Parameter(help="Number of the move.")], /) -> int:
    """Take back a move that is under way."""
    from replicas.cli.move import cancel

    return cancel(target, number)


@app.command(name="set", sort_key=7)
def set_(
    target: Target,
    node: Annotated[str, Parameter(help="Name of the node.")],
    /,
    *changes: Annotated[
        str, Parameter(help="Such as x=4s, alpha=0.7 or policy=delay; x=file restores the value of the file.")
    ],
    wait: Annotated[bool, Parameter(help="Wait until the node has applied them.", negative="--no-wait")] = True,
) -> int:
    """Change X, α or the policy of a node of a running cluster."""
    from replicas.cli.set import set_node

    return set_node(target, node, changes, wait=wait)


@app.command(sort_key=7)
def end(
    target: Target,
    source: Annotated[str, Parameter(help="A source that programs push to.")],
    /,
    *,
    writer: Annotated[str, Parameter(help="End what this one pushes; all by default.")] = "",
) -> int:
    """End the stream of a source that is pushed to, behind the batches that it has.

    Call it when the Spark query is through: later batches are refused.  When all sources have ended, a run ends.
    """
    from replicas.cli.end import end

    return end(target, source, writer)


@app.command(sort_key=8)
def simulate(
    config: Annotated[Path | None, Parameter(help="The configuration; random ones if not given.")] = None,
    /,
    *,
    seeds: Annotated[
        str | None, Parameter(help="Number of runs, or a range of seeds: 100, 200:300.  20 if not given.")
    ] = None,
    faults: Annotated[Path | None, Parameter(help="These faults instead of random ones.")] = None,
    duration: Annotated[str | None, Parameter(help="Faults happen within this time, such as 30s.")] = None,
    replay: Annotated[Path | None, Parameter(help="Replay the scenario in this file.")] = None,
    shrink: Annotated[
        bool | None,
        Parameter(help="Reduce failing scenarios; by default for runs, not for replays.", negative="--no-shrink"),
    ] = None,
    data: Data = None,
    processes: Annotated[int | None, Parameter(help="Runs at the same time; one per core by default.")] = None,
    with_: Annotated[
        str | None,
        Parameter(
            name="--with",
            help="Features of every random run, as moves,shortage; seldom: of what is met least.",
        ),
    ] = None,
) -> int:
    """Run a cluster in virtual time under random faults; check that every promise is kept."""
    from replicas.cli.campaigns.simulate import replay as play_again
    from replicas.cli.campaigns.simulate import run_simulate

    if replay is not None:
        if config is not None or seeds is not None or faults is not None or with_ is not None:
            raise SpeError("expected --replay without CONFIG, --seeds, --faults and --with: the scenario has them")
        return play_again(replay, shrink=bool(shrink))
    return run_simulate(
        config,
        data=data,
        seeds=seeds,
        faults=faults,
        length_us=None if duration is None else _duration("--duration", duration),
        shrink=shrink is not False,
        processes=processes,
        features=with_ or "",
    )


@app.command(sort_key=9)
def sweep(
    config: Config,
    /,
    *,
    x: Annotated[str, Parameter(help="Values of X, such as 500ms,1s,2s; bare numbers are seconds.")],
    faults: Annotated[
        Path | None, Parameter(help="Faults to play instead of a cut; see docs/how-to/faults.md.")
    ] = None,
    cut: Annotated[str | None, Parameter(help="Process that is cut off; by default the first source.")] = None,
    for_: Annotated[str, Parameter(name="--for", help="How long it is cut off.")] = "10s",
    plot: Annotated[Path | None, Parameter(help="Also draw a plot into this SVG file.")] = None,
    data: Data = None,
    seed: Annotated[int, Parameter(help="Seed of all random choices.")] = 0,
) -> int:
    """Compare delay and tentative results of a failure for several values of X, in virtual time."""
    from replicas.cli.sweep import lengths_of_x, run_sweep

    if faults is not None and cut is not None:
        raise SpeError("expected --faults or --cut, not both")
    return run_sweep(
        config,
        lengths_of_x(x),
        data=data,
        faults=faults,
        cut=cut,
        for_us=_duration("--for", for_),
        seed=seed,
        plot=plot,
    )


@app.command(sort_key=9)
def plan(
    target: Annotated[Path, Parameter(help="A configuration, or a topology file; see docs/how-to/planning.md.")],
    /,
    *,
    budget: Annotated[
        float | None, Parameter(help="What active replicas may cost together; each costs 1 by default.")
    ] = None,
    lost: Annotated[
        str | None, Parameter(help="Plan the recovery from the loss of these nodes, such as n1,n2.")
    ] = None,
    arrive: Annotated[
        list[str] | None,
        Parameter(help="With --lost: nodes that come (back), such as n7@10s.", consume_multiple=True),
    ] = None,
    algorithm: Annotated[
        Literal["structure-aware", "exact", "dynamic", "greedy", "dp", "best-density", "operator-centric"] | None,
        Parameter(help="How partitions are chosen; the last three for --lost with --value complete."),
    ] = None,
    domains: Annotated[
        Path | None, Parameter(help="YAML file with nodes, their capacities and domains, and likely failures.")
    ] = None,
    rates: Annotated[
        Path | None, Parameter(help="YAML file with measured tuples per second, by source or unit.")
    ] = None,
    loads: Annotated[
        Path | None, Parameter(help="With --lost: YAML file with loads and install times, by source or unit.")
    ] = None,
    value: Annotated[
        Literal["fidelity", "complete"] | None,
        Parameter(help="With --lost: what is to be large; by default as the configuration says."),
    ] = None,
    until: Annotated[str | None, Parameter(help="With --lost: end of the area under the value, such as 60s.")] = None,
    seconds: Annotated[float, Parameter(help="Time limit of the exact planner; it then reports the gap.")] = 10.0,
    plot: Annotated[Path | None, Parameter(help="Also draw the curve into this SVG file.")] = None,
    data: Data = None,
) -> int:
    """Choose the partitions to replicate within a budget, or the order in which lost ones come back."""
    if (budget is None) == (lost is None):
        raise SpeError("expected either --budget or --lost")
    if budget is not None:
        from replicas.cli.plan import plan

        of_lost = {"--arrive": arrive, "--loads": loads, "--value": value, "--until": until}
        if misplaced := [name for name, option_value in of_lost.items() if option_value is not None]:
            raise SpeError(f"{misplaced[0]} goes with --lost, not with --budget")
        return plan(target, budget, algorithm or "structure-aware", domains, rates, seconds, plot, data)
    from replicas.cli.plan_recovery import RecoveryOptions, plan_recovery

    until_us = None if until is None else _duration("--until", until)
    options = RecoveryOptions(
        lost or "", arrive or (), algorithm, domains, rates, loads, value, until_us, seconds, plot, data
    )
    return plan_recovery(target, options)


@app.command(sort_key=11)
def report(
    run_dirs: Annotated[
        list[str],
        Parameter(help="Directory or URI of a run, or with --verify a report.json; several runs are also compared."),
    ],
    /,
    *,
    master: Annotated[str | None, Parameter(help="Spark's master; all processors of this machine by default.")] = None,
    conf: Annotated[
        list[str] | None, Parameter(help="A setting of Spark, such as spark.driver.memory=4g; may be repeated.")
    ] = None,
    out: Annotated[
        Path | None, Parameter(help="File that compares several runs; by default comparison.html beside the first run.")
    ] = None,
    junit: Annotated[Path | None, Parameter(help="File that gets the verdicts in the form of JUnit, for CI.")] = None,
    verify: Annotated[
        bool, Parameter(help="Check that reports are right about their runs: by digests, then by computing them again.")
    ] = False,
    follow: Annotated[
        bool, Parameter(help="Prove a run while it goes on, step by step; Ctrl-C ends it, the next start continues.")
    ] = False,
    every: Annotated[str | None, Parameter(help="With --follow: least tuple time of a step; 1m by default.")] = None,
    wait: Annotated[bool, Parameter(show=False)] = False,
) -> int:
    """Compare what clients received with what Spark computes from the source logs.

    Exit status 0: CONSISTENT, 1: INCONSISTENT, 2: UNKNOWN, or the run could not be judged.
    With --verify 0: all is as the reports say, 1: something differs, 2: a report could not be verified.
    """
    from replicas.cli.report import parse_conf, report

    if verify and out is not None:
        raise SpeError("expected --verify without --out: it compares no runs")
    settings = parse_conf(conf or [])
    if every is not None and not follow:
        raise SpeError("expected --every with --follow only")
    if follow:
        from replicas.cli.follow import EVERY_US
        from replicas.cli.follow import follow as follow_run

        if verify or wait or junit is not None or out is not None or len(run_dirs) != 1:
            raise SpeError("expected --follow with one run, and without --verify, --junit and --out")
        every_us = EVERY_US if every is None else _duration("--every", every)
        return follow_run(run_dirs[0], every_us=every_us, master=master, conf=settings)
    return report(run_dirs, master=master, conf=settings, out=out, wait=wait, junit=junit, verify=verify)


@app.command(sort_key=11)
def archive(
    run_dir: Annotated[Path, Parameter(help="Directory of a run that is over.")],
    to: Annotated[
        str, Parameter(help="Where it goes: s3://BUCKET/KEY, hdfs://HOST/PATH, or a directory; no run may be there.")
    ],
    /,
    *,
    master: Annotated[str | None, Parameter(help="Spark's master, where Spark is needed for the URI.")] = None,
    conf: Annotated[list[str] | None, Parameter(help="A setting of Spark, NAME=VALUE; may be repeated.")] = None,
) -> int:
    """Copy what the proof reads of a run, and its report, to where it can be proved from.

    Credentials come from where the AWS SDK looks for them: the environment, ~/.aws, the machine's role.
    """
    from replicas.cli.archive import archive
    from replicas.cli.report import parse_conf

    return archive(run_dir, to, master, parse_conf(conf or []))


@app.command(sort_key=11)
def compare(
    run_dir: Annotated[str, Parameter(help="Directory or URI of a run.")],
    other: Annotated[
        str, Parameter(help="What it is to be: another run, or a table: Parquet, CSV with a header, or JSON lines.")
    ],
    /,
    *,
    output: Annotated[list[str] | None, Parameter(help="Only this output; may be repeated.")] = None,
    client: Annotated[str, Parameter(help="Whose rows count, where several clients read an output.")] = "",
    key: Annotated[
        str, Parameter(help="Attributes that make two rows the same result, such as key,window_end; see the reference.")
    ] = "",
    ignore: Annotated[str, Parameter(help="Attributes that are not compared, such as a,b.")] = "",
    tolerance: Annotated[
        float, Parameter(help="By what share of the larger one floats may differ, such as 1e-9; 0: they must be equal.")
    ] = 0.0,
    columns: Annotated[
        list[str] | None, Parameter(help="ATTRIBUTE=COLUMN, where a table has another name; may be repeated.")
    ] = None,
    time: Annotated[
        str, Parameter(help="Column of a table with the tuple time, to compare it; needed if the run has not ended.")
    ] = "",
    format: Annotated[str, Parameter(help="Of a table: parquet, csv or jsonl; by default by its files' names.")] = "",
    delimiter: Annotated[str, Parameter(help="Of CSV.")] = ",",
    out: Annotated[
        Path | None, Parameter(help="Folder that gets comparison.json, and all differences as Parquet.")
    ] = None,
    junit: Annotated[Path | None, Parameter(help="File that gets the verdicts in the form of JUnit, for CI.")] = None,
    master: Annotated[str | None, Parameter(help="Spark's master; all processors of this machine by default.")] = None,
    conf: Annotated[list[str] | None, Parameter(help="A setting of Spark, NAME=VALUE; may be repeated.")] = None,
) -> int:
    """Compare the final rows of a run with those of another run, or with a table that another engine made.

    Exit status 0: CONSISTENT, 1: INCONSISTENT, 2: UNKNOWN, or they could not be compared.
    """
    from consistency.proof.two_runs.model import Wanted
    from replicas.cli.compare import Written, compare, pairs
    from replicas.cli.report import parse_conf

    wanted = Wanted(
        outputs=tuple(output or ()),
        client=client,
        key=_names(key),
        ignored=_names(ignore),
        columns=pairs(columns or []),
        time=time,
        format=format,
        delimiter=delimiter,
        tolerance=tolerance,
    )
    return compare(run_dir, other, wanted, Written(out, junit), master, parse_conf(conf or []))


def run_command(command: Callable[[], Any]) -> int:
    """Runs a command; prints a short message for a user's mistake, and a traceback for any other error."""
    try:
        return int(command())
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except BaseException as error:
        if _is_interrupt(error):
            print("spe: interrupted", file=sys.stderr)
            return INTERRUPTED
        mistakes = list(_mistakes(error))
        if not mistakes:
            raise
        from spe.runtime.log_line import Level, is_configured, say

        for text in dict.fromkeys(mistakes):
            say(text if is_configured() else f"spe: {text}", Level.ERROR, event="ended")
        return USERS_MISTAKE


def execute(arguments: Sequence[str]) -> int:
    """Parses and runs a command line; returns the exit status."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # to find user-defined operators in the current directory
    try:
        command, bound, _ = app.parse_args(list(arguments), exit_on_error=False, print_error=False, help_on_error=False)
    except CycloptsError as error:
        print(f"spe: {error}\nTry: {' '.join(('spe', *(error.command_chain or ()), '--help'))}", file=sys.stderr)
        return USERS_MISTAKE
    if command.__module__.startswith("cyclopts"):  # --help and --version print by themselves
        command(*bound.args, **bound.kwargs)
        return DONE
    from spe.config.script import reading

    with reading():  # a user's module that a process imports must not run a cluster
        return run_command(lambda: command(*bound.args, **bound.kwargs))


def _is_interrupt(error: BaseException) -> bool:
    """Returns whether an error is Ctrl-C; inside a nursery, trio raises it as part of a group."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)


def _mistakes(error: BaseException) -> Iterator[str]:
    """Yields the messages for an error that was caused outside of this program; nothing if the program is at fault."""
    if isinstance(error, BaseExceptionGroup):
        parts = [list(_mistakes(e)) for e in error.exceptions]
        if all(parts):
            yield from (text for part in parts for text in part)
    elif isinstance(error, ConfigError):
        yield "\n  ".join(
            ["the configuration has mistakes:", *error.problems] if len(error.problems) > 1 else error.problems
        )
    elif isinstance(error, OperatorFailed):
        yield f"{error}\n{error.where()}".rstrip()
    elif isinstance(error, SpeError | FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
        yield str(error)
    elif isinstance(error, OSError) and error.errno in _DISK:
        yield f"{error.filename}: {error.strerror}" if error.filename is not None else str(error.strerror)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _duration(option: str, text: str) -> int:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise SpeError(f"{option}: {error}") from None
