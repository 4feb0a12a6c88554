"""Commands that prepare a cluster: its configuration, reference results, certificates, logs and sinks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from replicas.cli.app.application import app
from replicas.cli.options import Conf, Config, Data, Target


@app.command(sort_key=0)
def check(config: Config, /, *, data: Data = None) -> int:
    """Validate a configuration and print its plan: fragments, partitions, replicas and X."""
    from replicas.cli.check import check

    return check(config, data)


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
    conf: Conf = None,
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
