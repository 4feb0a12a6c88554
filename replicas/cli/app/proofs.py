"""Commands that judge runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from replicas.cli.app.application import app
from replicas.cli.options import Conf, Junit, Master, duration_us
from spe.errors import SpeError

RunDirs = Annotated[
    list[str],
    Parameter(help="Directory or URI of a run, or with --verify a report.json; several runs are also compared."),
]


@app.command(sort_key=11)
def report(
    run_dirs: RunDirs,
    /,
    *,
    master: Master = None,
    conf: Annotated[
        list[str] | None, Parameter(help="A setting of Spark, such as spark.driver.memory=4g; may be repeated.")
    ] = None,
    out: Annotated[
        Path | None, Parameter(help="File that compares several runs; by default comparison.html beside the first run.")
    ] = None,
    junit: Junit = None,
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
    if follow and (verify or wait or junit is not None or out is not None or len(run_dirs) != 1):
        raise SpeError("expected --follow with one run, and without --verify, --junit and --out")
    if follow:
        return _follow(run_dirs[0], every, master, settings)
    return report(run_dirs, master=master, conf=settings, out=out, wait=wait, junit=junit, verify=verify)


def _follow(run_dir: str, every: str | None, master: str | None, settings: dict[str, str]) -> int:
    from replicas.cli.follow import EVERY_US, follow

    every_us = EVERY_US if every is None else duration_us("--every", every)
    return follow(run_dir, every_us=every_us, master=master, conf=settings)


@app.command(sort_key=11)
def archive(
    run_dir: Annotated[Path, Parameter(help="Directory of a run that is over.")],
    to: Annotated[
        str, Parameter(help="Where it goes: s3://BUCKET/KEY, hdfs://HOST/PATH, or a directory; no run may be there.")
    ],
    /,
    *,
    master: Annotated[str | None, Parameter(help="Spark's master, where Spark is needed for the URI.")] = None,
    conf: Conf = None,
) -> int:
    """Copy what the proof reads of a run, and its report, to where it can be proved from.

    Credentials come from where the AWS SDK looks for them: the environment, ~/.aws, the machine's role.
    """
    from replicas.cli.archive import archive
    from replicas.cli.report import parse_conf

    return archive(run_dir, to, master, parse_conf(conf or []))


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class ComparisonOptions:
    """Options of ``spe compare``."""

    output: Annotated[list[str] | None, Parameter(help="Only this output; may be repeated.")] = None
    client: Annotated[str, Parameter(help="Whose rows count, where several clients read an output.")] = ""
    key: Annotated[
        str, Parameter(help="Attributes that make two rows the same result, such as key,window_end; see the reference.")
    ] = ""
    ignore: Annotated[str, Parameter(help="Attributes that are not compared, such as a,b.")] = ""
    tolerance: Annotated[
        float, Parameter(help="By what share of the larger one floats may differ, such as 1e-9; 0: they must be equal.")
    ] = 0.0
    columns: Annotated[
        list[str] | None, Parameter(help="ATTRIBUTE=COLUMN, where a table has another name; may be repeated.")
    ] = None
    time: Annotated[
        str, Parameter(help="Column of a table with the tuple time, to compare it; needed if the run has not ended.")
    ] = ""
    format: Annotated[str, Parameter(help="Of a table: parquet, csv or jsonl; by default by its files' names.")] = ""
    delimiter: Annotated[str, Parameter(help="Of CSV.")] = ","
    out: Annotated[Path | None, Parameter(help="Folder that gets comparison.json, and all differences as Parquet.")] = (
        None
    )
    junit: Junit = None
    master: Master = None
    conf: Conf = None


@app.command(sort_key=11)
def compare(
    run_dir: Annotated[str, Parameter(help="Directory or URI of a run.")],
    other: Annotated[
        str, Parameter(help="What it is to be: another run, or a table: Parquet, CSV with a header, or JSON lines.")
    ],
    /,
    *,
    options: ComparisonOptions = ComparisonOptions(),
) -> int:
    """Compare the final rows of a run with those of another run, or with a table that another engine made.

    Exit status 0: CONSISTENT, 1: INCONSISTENT, 2: UNKNOWN, or they could not be compared.
    """
    from consistency.proof.two_runs.model import Wanted
    from replicas.cli.compare import Written, compare, pairs
    from replicas.cli.report import parse_conf

    wanted = Wanted(
        outputs=tuple(options.output or ()),
        client=options.client,
        key=_names(options.key),
        ignored=_names(options.ignore),
        columns=pairs(options.columns or []),
        time=options.time,
        format=options.format,
        delimiter=options.delimiter,
        tolerance=options.tolerance,
    )
    written = Written(options.out, options.junit)
    return compare(run_dir, other, wanted, written, options.master, parse_conf(options.conf or []))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
