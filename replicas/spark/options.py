"""The options of ``format("spe")`` on a running cluster: declared here, and nowhere else."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from replicas.link.connection import TOKEN_VARIABLE
from replicas.local.run_dir import CLUSTER
from replicas.local.run_secret import read_secret
from spe.errors import SpeError
from spe.problems import did_you_mean, one_of
from spe.values import duration_of


def _text(value: str) -> str:
    if not value:
        raise ValueError("expected a name")
    return value


def _choice(*choices: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        if value not in choices:
            raise ValueError(f"expected {one_of(choices)}{did_you_mean(value, choices)}")
        return value

    return check


def _rows(value: str) -> int:
    if not value.isdigit() or not int(value):
        raise ValueError("expected a number of rows, from 1")
    return int(value)


def _seconds(value: str) -> float:
    return duration_of(value) / 1e6


def _cluster(value: str) -> Path:
    path = Path(value)
    if not path.exists():
        addresses = ""
        if re.fullmatch(r"[^/]+:\d+(,[^/]+:\d+)*", value):
            addresses = "; addresses alone do not say what the streams are"
        raise ValueError(f"expected the configuration of the cluster, or the directory of a run{addresses}")
    return path


class Option(NamedTuple):
    """One option.

    Attributes:
      check: parses a text.  Raises ValueError, with the expected form.
      default: None: the option is required.
      about: for people.
    """

    check: Callable[[str], Any]
    default: str | None
    about: str


_COMMON: Final = {
    "cluster": Option(_cluster, None, "the configuration of the cluster, or the directory of a running `spe run`"),
    "patience": Option(_seconds, "60s", "longest time without an answer after which a task or query fails"),
    "token_file": Option(Path, "", "a file with the token of the cluster; else `SPE_TOKEN`"),
}
READING: Final[Mapping[str, Option]] = {
    **_COMMON,
    "output": Option(_text, None, "the output to read"),
    "client": Option(_text, None, "the client of the configuration in whose name it is read"),
    "mode": Option(_choice("stable", "changes"), "stable", "`stable`, or `changes`"),
    "begin": Option(
        _choice("first", "oldest", "now"),
        "first",
        "without a checkpoint: `first`, the tuple with id 1; `oldest`, the oldest one that is kept; `now`",
    ),
    "rows": Option(_rows, "100000", "most rows of a micro-batch"),
}
WRITING: Final[Mapping[str, Option]] = {
    **_COMMON,
    "source": Option(_text, None, "the source to push to"),
    "writer": Option(_text, None, "the name under which the source takes rows: `from: {push: [NAME]}`"),
    "replaces": Option(str, "", "the query whose place this one takes, where a checkpoint was given up"),
}

#: Options that Spark has for every source and sink.
_OF_SPARK: Final = ("path", "checkpointlocation", "queryname", "outputmode", "schema")
_SECRET: Final = re.compile(r"token|password|passwd|secret|credential|(^|[._-])key|certificate|\bpem\b", re.IGNORECASE)


@dataclass(frozen=True)
class ReadOptions:
    """Options of a reader.

    Attributes:
      token_file: Path("") if there is none.
    """

    cluster: Path
    patience: float
    token_file: Path
    output: str
    client: str
    mode: str
    begin: str
    rows: int


@dataclass(frozen=True)
class WriteOptions:
    """Options of a writer.

    Attributes:
      token_file: Path("") if there is none.
      replaces: "" if it replaces no query.
    """

    cluster: Path
    patience: float
    token_file: Path
    source: str
    writer: str
    replaces: str


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Checks the options of a writer.  Raises SpeError, which names the option."""
    return WriteOptions(**_checked(options, WRITING))


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Checks the options of a reader.  Raises SpeError, which names the option."""
    return ReadOptions(**_checked(options, READING))


def _checked(options: Mapping[str, str], known: Mapping[str, Option]) -> dict[str, Any]:
    named = {name.lower(): value for name, value in options.items() if name.lower() not in _OF_SPARK}
    for name in named:
        if name in known:
            continue
        if _SECRET.search(name):
            raise SpeError(
                f"option {name}: Spark shows options on its pages, so no credential is taken from one; set the "
                f"environment variable {TOKEN_VARIABLE} of drivers and executors, or name a file with token_file. "
                "Certificates are those that the configuration names"
            )
        raise SpeError(f"no option {name!r}{did_you_mean(name, known)}; expected {one_of(list(known))}")
    checked = {}
    for name, option in known.items():
        value = named.get(name, option.default)
        if value is None:
            raise SpeError(f"the option {name} is missing: {option.about}")
        if value or name in named:
            try:
                checked[name] = option.check(value)
            except ValueError as error:
                raise SpeError(f"option {name}: {error}, got {value!r}") from None
        else:
            checked[name] = Path() if name == "token_file" else ""
    return checked


def token(token_file: Path, cluster: Path) -> str:
    """Returns the token, looked up where it is used, so that Spark carries none around.

    Args:
      cluster: the directory of a run has the place of its token.

    Raises:
      SpeError: the file cannot be read.
    """
    try:
        if token_file != Path():
            return token_file.read_text().strip()
        if TOKEN_VARIABLE not in os.environ and (file := cluster / CLUSTER).is_file():
            return read_secret(json.loads(file.read_text()).get("secret", ""))
    except OSError as error:
        raise SpeError(f"the token of the cluster cannot be read: {error}") from None
    return os.environ.get(TOKEN_VARIABLE, "")
