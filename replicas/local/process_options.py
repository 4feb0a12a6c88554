"""Options of every process of a cluster, on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from spe.runtime.log_line import Level, LogFormat

LogFormatOption = Annotated[LogFormat, Parameter(help="Format of log lines on standard error: text, or JSON objects.")]
LogLevelOption = Annotated[Level, Parameter(help="Least important lines that are logged.")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Options of a process; see the module.

    Attributes:
      link: descriptor of the connection to a supervisor.
    """

    storage: Annotated[
        Path | None, Parameter(help="Folder for durable data; by default state/CLUSTER, or the folder of the run.")
    ] = None
    metrics: Annotated[
        str | None, Parameter(help="Where to serve metrics and health: HOST:PORT, a port of this machine, or off.")
    ] = None
    log_format: LogFormatOption = LogFormat.TEXT
    log_level: LogLevelOption = Level.INFO
    link: Annotated[int | None, Parameter(name="--supervisor-fd", show=False)] = None


#: No options.
DEFAULTS = ProcessOptions()


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class JoinOptions:
    """Settings of a node that joins, as a configuration would have them."""

    address: Annotated[
        str | None, Parameter(help="With --join: HOST:PORT of the node; not needed in the directory of a run.")
    ] = None
    capacity: Annotated[float | None, Parameter(help="With --join: cores for partitions, 1 if not given.")] = None
    memory: Annotated[str | None, Parameter(help="With --join: memory for partitions, such as 4GB.")] = None
    x: Annotated[str | None, Parameter(help="With --join: X of the node; by default that of the section defaults.")] = (
        None
    )
