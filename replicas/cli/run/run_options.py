"""Options of ``spe run``, on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from replicas.cli.options import Data
from replicas.local.process_options import LogFormatOption, LogLevelOption
from spe.runtime.log_line import Level, LogFormat


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run."""

    data: Data = None
    run_dir: Annotated[Path | None, Parameter(help="Folder of the run; runs/NAME-TIME by default.")] = None
    faults: Annotated[Path | None, Parameter(help="Faults to inject; see docs/how-to/faults.md.")] = None
    seed: Annotated[int | None, Parameter(help="Seed of the faults; random if not given.")] = None
    duration: Annotated[str | None, Parameter(help="Stop after this long, such as 30s.")] = None
    view: Annotated[bool, Parameter(help="Show a live view if the output is a terminal.", negative="--no-view")] = True
    links: Annotated[
        Literal["inside", "proxy"],
        Parameter(help="What makes links fail: the processes themselves, or proxies between them."),
    ] = "inside"
    log_format: LogFormatOption = LogFormat.TEXT
    log_level: LogLevelOption = Level.INFO
    report: Annotated[bool, Parameter(help="Write a report with Spark at the end, as spe report does.")] = False
    budget: Annotated[
        int | None, Parameter(help="Number of standbys that run from the start, chosen as by spe plan.")
    ] = None
    dashboard: Annotated[
        str, Parameter(help="HOST:PORT of the page that shows the run, with the extra dashboard; off: none.")
    ] = "127.0.0.1:0"
    on: Annotated[
        Literal["here", "spark"], Parameter(help="Where nodes run: on this machine, or as tasks of a Spark cluster.")
    ] = "here"
    master: Annotated[str | None, Parameter(help="With --on spark: Spark's master.")] = None
    conf: Annotated[
        list[str] | None, Parameter(help="With --on spark: a setting of Spark, NAME=VALUE; may be repeated.")
    ] = None
