"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from spe.errors import SpeError
from spe.stream.times import parse_duration

Config = Annotated[Path, Parameter(help="The configuration, a YAML file or a Python script.")]
Target = Annotated[Path, Parameter(help="The configuration, or the directory of a run.")]
RunDir = Annotated[Path, Parameter(help="The directory of a run.")]
NodeName = Annotated[str, Parameter(help="Name of the node.")]
Data = Annotated[Path | None, Parameter(help="Folder that relative paths of data files start from.")]
Json = Annotated[bool, Parameter(help="Print JSON.")]
Wait = Annotated[bool, Parameter(help="Print each phase until all is done.", negative="--no-wait")]
Within = Annotated[str, Parameter(help="How long each wait may take, such as 90s.")]
Master = Annotated[str | None, Parameter(help="Spark's master; all processors of this machine by default.")]
Conf = Annotated[list[str] | None, Parameter(help="A setting of Spark, NAME=VALUE; may be repeated.")]
Junit = Annotated[Path | None, Parameter(help="File that gets the verdicts in the form of JUnit, for CI.")]


def duration_us(option: str, text: str) -> int:
    """Reads a duration; an error names the option."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise SpeError(f"{option}: {error}") from None
