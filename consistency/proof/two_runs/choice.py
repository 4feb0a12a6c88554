"""Chooses the outputs, clients, keys and columns to compare.  Pure; errors name the possible choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from consistency.proof.two_runs.model import Wanted
from spe.errors import SpeError
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.problems import check_known, one_of
from spe.query.windows import WINDOW_END
from spe.stream.names import StreamId
from spe.stream.schema import AttributeType, Schema

#: Formats by the end of a file's name.
_FORMATS: Final[Mapping[str, str]] = {
    ".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl",
}  # fmt: skip
FORMATS: Final = ("parquet", "csv", "jsonl")
#: Columns that a sink adds to the attributes; the first two only if it writes corrections.
SINKS_OWN: Final = ("_kind", "_tentative", "_partition", "_id", "_time")
#: The column that a sink writes the tuple time into.
TIME_OF_SINK: Final = "_time"


def chosen_outputs(plan: Plan, wanted: Wanted, other: Plan | None) -> list[StreamId]:
    """Returns the outputs to compare.

    Args:
      other: plan of the other run; None: the other side is a table.

    Raises:
      SpeError: an output is unknown, missing on the other side, or has another schema there; or options of a table
        are given although the other side is a run.
    """
    known = [str(o) for o in plan.query.outputs]
    for name in wanted.outputs:
        check_known("output", name, known)
    names = list(wanted.outputs) or known
    if other is None:
        if len(names) > 1:
            raise SpeError(f"a table is one output; say which with --output: {one_of(names)}")
        return [StreamId(n) for n in names]
    _check_no_table(wanted)
    theirs = [str(o) for o in other.query.outputs]
    for name in names:
        if name not in theirs:
            raise SpeError(f"the other run has no output {name!r}, only {one_of(theirs)}; choose with --output")
        check_same(name, plan.query.schema_of(StreamId(name)), other.query.schema_of(StreamId(name)), wanted)
    if not wanted.outputs and (more := [name for name in theirs if name not in names]):
        raise SpeError(f"the run has no output {more[0]!r}, which the other run has; choose with --output")
    return [StreamId(n) for n in names]


def _check_no_table(wanted: Wanted) -> None:
    """Raises SpeError where options of a table are given, and the other side is a run."""
    options = {
        "--columns": wanted.columns,
        "--time": wanted.time,
        "--format": wanted.format,
        "--delimiter": wanted.delimiter != Wanted.delimiter,
    }
    if used := [option for option, value in options.items() if value]:
        raise SpeError(f"{used[0]} is for tables; the other side is a run")


def check_same(output: str, ours: Schema, theirs: Schema, wanted: Wanted) -> None:
    """Raises SpeError where the outputs of two runs have other attributes, apart from ignored ones."""
    mine = {a.name: str(a.type) for a in ours if a.name not in wanted.ignored}
    other = {a.name: str(a.type) for a in theirs if a.name not in wanted.ignored}
    for name, type_ in mine.items():
        if name not in other:
            raise SpeError(f"output {output!r} of the other run has no attribute {name!r}; leave it out with --ignore")
        if other[name] != type_:
            raise SpeError(
                f"attribute {name!r} of output {output!r} is {type_}, and {other[name]} in the other run; "
                "leave it out with --ignore"
            )
    if more := [name for name in other if name not in mine]:
        raise SpeError(f"output {output!r} has no attribute {more[0]!r}, which it has in the other run")


def chosen_client(directory: Directory, output: StreamId, wanted: str, preferred: str = "") -> str:
    """Returns the client whose recording of an output is compared.  Raises SpeError, which names the choices.

    Args:
      wanted: the user's choice; "": none.
      preferred: used if it reads the output, and the user chose none.
    """
    readers = [name for name, client in directory.clients.items() if output in client.reads]
    if wanted:
        check_known("client", wanted, list(directory.clients))
        if wanted not in readers:
            raise SpeError(f"client {wanted!r} does not read {output!r}")
        return wanted
    if preferred in readers:
        return preferred
    if len(readers) != 1:
        choices = f"several clients read {output!r}; say whose rows count with --client, {one_of(readers)}"
        raise SpeError(choices if readers else f"no client recorded {output!r}")
    return readers[0]


def chosen_key(plan: Plan, output: StreamId, wanted: Wanted) -> list[str]:
    """Returns the key of a result; by default all attributes but floats if the operator has no key.

    Raises SpeError for a name that is not a compared attribute.
    """
    schema = plan.query.schema_of(output)
    for name in (*wanted.key, *wanted.ignored, *(a for a, _ in wanted.columns)):
        check_known("attribute", name, schema.names)
    if both := [name for name in wanted.key if name in wanted.ignored]:
        raise SpeError(f"attribute {both[0]!r} cannot be of the key and be ignored")
    if wanted.key:
        return list(wanted.key)
    known = plan.query.traits_of(output).key
    key = [name for name in schema.names if name in known and name not in wanted.ignored]
    return key or [a.name for a in schema if a.type is not AttributeType.FLOAT64 and a.name not in wanted.ignored]


def compared(schema: Schema, wanted: Wanted) -> Schema:
    """Returns the attributes to compare.  Raises SpeError where none is left."""
    attributes = tuple(a for a in schema if a.name not in wanted.ignored)
    if not attributes:
        raise SpeError("every attribute is ignored: there is nothing to compare")
    return Schema(attributes)


def window_of(schema: Schema) -> str:
    """Returns the attribute by which differences are counted; "" where there is none."""
    return WINDOW_END if WINDOW_END in schema and schema[WINDOW_END].type is AttributeType.TIMESTAMP else ""


def format_of(names: Sequence[str], where: str, wanted: str) -> str:
    """Returns the format of a table.

    Args:
      names: of its files.
      given: the user's choice; "": by the names.

    Raises:
      SpeError: it is unknown, there is no file, or Spark would leave files out.
    """
    if wanted and wanted not in FORMATS:
        raise SpeError(f"--format: expected {one_of(FORMATS)}, got {wanted!r}")
    files = [n for n in names if not any(_is_hidden(part) for part in PurePosixPath(n).parts)]
    if not files:
        raise SpeError(f"{where} has no files: it is neither a run nor a table")
    _check_folders(files, where)
    if wanted:
        return wanted
    formats = {_FORMATS.get(PurePosixPath(name).suffix) for name in files}
    (format_,) = formats if len(formats) == 1 else (None,)
    if format_ is None:
        raise SpeError(f"{where}: cannot see the format of {files[0]}; say it with --format, {one_of(FORMATS)}")
    return format_


def _is_hidden(part: str) -> bool:
    """Does Spark skip files and folders of this name?"""
    return part.startswith(".") or (part.startswith("_") and "=" not in part)


def _check_folders(files: Sequence[str], where: str) -> None:
    """Raises SpeError unless all files lie in the table's folder, or all in folders of the same partition columns."""
    first = _partition_columns(files[0], where)
    for name in files[1:]:
        if _partition_columns(name, where) != first:
            raise SpeError(f"{where}: {files[0]} and {name} lie in folders of different columns (COLUMN=VALUE)")


def _partition_columns(name: str, where: str) -> list[str]:
    columns = []
    for folder in PurePosixPath(name).parts[:-1]:
        column, equals, _ = folder.partition("=")
        if not equals:
            raise SpeError(
                f"{where}: {name} lies in a folder of its own; expected files in {where} itself, or in folders "
                "COLUMN=VALUE"
            )
        columns.append(column)
    return columns


def columns_of(there: Sequence[str], schema: Schema, wanted: Wanted, where: str) -> tuple[dict[str, str], list[str]]:
    """Returns the column of each attribute, and the columns that are not compared.

    Args:
      there: names of the table's columns.

    Raises:
      SpeError: one is missing; or the table has corrections, which a reader would have to apply.
    """
    if "_kind" in there:
        raise SpeError(
            f"{where} was written by a sink with corrections; expected final rows, as a stable sink or "
            "spe reference --output writes them"
        )
    renamed = dict(wanted.columns)
    names = {a.name: renamed.get(a.name, a.name) for a in schema}
    missing = [column for column in names.values() if column not in there]
    if missing:
        raise SpeError(
            f"{where} has no column {missing[0]!r}; it has: {', '.join(there)}; "
            "name it with --columns ATTRIBUTE=COLUMN, or leave it out with --ignore"
        )
    used = {*names.values(), time_column(there, wanted, where)}
    return names, [c for c in there if c not in used and c not in SINKS_OWN]


def time_column(there: Sequence[str], wanted: Wanted, where: str) -> str:
    """Returns the column with the tuple time; "" if there is none.  Raises SpeError if the chosen one is missing."""
    if wanted.time and wanted.time not in there:
        raise SpeError(f"{where} has no column {wanted.time!r} (--time); it has: {', '.join(there)}")
    return wanted.time or (TIME_OF_SINK if TIME_OF_SINK in there else "")
