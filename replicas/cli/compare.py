"""``spe compare``: compares the results of a run with another run or a table."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from replicas.cli.report import CONSISTENT, INCONSISTENT, UNKNOWN, ReportProgress, start_spark
from spe.errors import SpeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from consistency.proof.recorded.run import Run
    from consistency.proof.two_runs.model import ComparedOutput, Wanted
    from consistency.proof.two_runs.sides import ComparedSide
    from spe.stream.names import StreamId

_RUN_HAS: Final = "cluster.json"
_DATA: Final = "comparison.json"


@dataclass(frozen=True)
class Written:
    """Where the results of a comparison are written.

    Attributes:
      out: folder for comparison.json and all differences as Parquet; None: not written.
      junit: file for CI; None: not written.
    """

    out: Path | None = None
    junit: Path | None = None


def compare(run: str, other: str, wanted: Wanted, written: Written, master: str | None, conf: Mapping[str, str]) -> int:
    """Compares the final rows of a run with those of another run, or with a table.

    Returns:
      CONSISTENT, INCONSISTENT or UNKNOWN, as ``spe report``.

    Raises:
      SpeError: they cannot be compared, or Spark fails.
    """
    from consistency.proof.report.junit import Case, unknown, write_junit
    from consistency.proof.two_runs.decision import text, worst
    from consistency.proof.two_runs.model import SideBySide

    began, suite = time.monotonic(), f"{run} beside {other}"
    try:
        outputs = _found(run, other, wanted, written, master, conf)
    except SpeError as error:
        if written.junit is not None:
            write_junit(written.junit, [(suite, time.monotonic() - began, [unknown(str(error))])])
        raise
    comparison = SideBySide(verdict=worst(o.verdict for o in outputs), outputs=outputs)
    for output in outputs:
        print("\n" + "\n".join(text(output)), flush=True)
    if written.out is not None:
        _write(written.out / _DATA, comparison.model_dump_json(indent=1) + "\n")
        print(f"\ndata    {written.out}")
    if written.junit is not None:
        cases = [Case(o.output, o.verdict, o.reasons, text(o)) for o in outputs]
        write_junit(written.junit, [(suite, time.monotonic() - began, cases)])
    return {"CONSISTENT": CONSISTENT, "INCONSISTENT": INCONSISTENT}.get(str(comparison.verdict), UNKNOWN)


def _found(
    run: str, other: str, wanted: Wanted, written: Written, master: str | None, conf: Mapping[str, str]
) -> list[ComparedOutput]:
    from consistency.proof.session.errors import explained

    _check_before(run, other, wanted)
    tell = ReportProgress(silent=False)
    spark = start_spark(tell, master, conf)
    with explained():
        try:
            return _compared(spark, run, other, wanted, written, tell)
        finally:
            spark.stop()


def _check_before(run: str, other: str, wanted: Wanted) -> None:
    """Checks what needs no Spark.  Raises SpeError."""
    from consistency.proof.recorded.run import Run
    from consistency.proof.storage.folder import check_place, is_remote
    from consistency.proof.two_runs.choice import chosen_client, chosen_key, chosen_outputs

    for place in (run, other):
        check_place(place)
    if not 0 <= wanted.tolerance < 1:
        raise SpeError(f"--tolerance: expected a share from 0 to below 1, got {wanted.tolerance:g}")
    if is_remote(run):
        return
    ours, theirs = Run.open(_local(run, _RUN_HAS)), None
    if is_remote(other):
        return
    path = _local(other)
    if (path / _RUN_HAS).is_file():
        theirs = Run.open(path)
    else:
        _format_here(path, wanted)
    for output in chosen_outputs(ours.plan, wanted, None if theirs is None else theirs.plan):
        chosen_key(ours.plan, output, wanted)
        name = chosen_client(ours.directory, output, wanted.client)
        if theirs is not None:
            chosen_client(theirs.directory, output, "", name)


def _local(place: str, has: str = "") -> Path:
    from consistency.proof.storage.folder import local_path

    path = local_path(place)
    if not path.exists():
        raise SpeError(f"{place}: there is no such file or directory")
    if has and not (path / has).is_file():
        raise SpeError(f"{place} is not the directory of a run: it has no {has}; give the run first, then the table")
    return path


def _format_here(path: Path, wanted: Wanted) -> str:
    from consistency.proof.two_runs.choice import format_of

    names = [str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path.name]
    return format_of(sorted(names), str(path), wanted.format)


def _compared(
    spark: SparkSession, run: str, other: str, wanted: Wanted, written: Written, tell: Callable[[str], None]
) -> list[ComparedOutput]:
    from consistency.proof.storage.remote import opened
    from consistency.proof.storage.tables import freed_at_the_end
    from consistency.proof.two_runs.choice import chosen_client, chosen_key, chosen_outputs, compared
    from consistency.proof.two_runs.judge import compare_output
    from consistency.proof.two_runs.sides import recorded

    outputs = []
    with ExitStack() as stack:
        ours = stack.enter_context(opened(spark, run))
        theirs = stack.enter_context(_other_run(spark, other))
        for output in chosen_outputs(ours.plan, wanted, None if theirs is None else theirs.plan):
            client = chosen_client(ours.directory, output, wanted.client)
            key, schema = chosen_key(ours.plan, output, wanted), ours.plan.query.schema_of(output)
            tell(f"{output}: what {client} received, beside {other}")
            with freed_at_the_end():
                side = recorded(spark, ours, client, output, wanted)
                other_side = _beside(spark, theirs, other, client, output, schema_of=ours, wanted=wanted)
                outputs.append(
                    compare_output(
                        str(output), client, side, other_side, compared(schema, wanted), key, wanted.tolerance,
                        _keeper(written.out, output, other),
                    )
                )  # fmt: skip
            if written.out is not None and not (outputs[-1].missing or outputs[-1].added or outputs[-1].differs):
                _remove(_differences(written.out, output))
    return outputs


def _beside(
    spark: SparkSession,
    theirs: Run | None,
    other: str,
    client: str,
    output: StreamId,
    *,
    schema_of: Run,
    wanted: Wanted,
) -> ComparedSide:
    from consistency.proof.storage.folder import is_remote
    from consistency.proof.storage.hadoop import literal, spark_path
    from consistency.proof.storage.remote import check_spark_reads, folder_of, listed
    from consistency.proof.two_runs.choice import chosen_client, format_of
    from consistency.proof.two_runs.sides import recorded, table

    if theirs is not None:
        return recorded(spark, theirs, chosen_client(theirs.directory, output, "", client), output, wanted)
    if is_remote(other):
        check_spark_reads(spark, other)
        place = PurePosixPath(other)
        names = [str(name if name.name else place.name) for name in listed(folder_of(spark, other))]
        format_, uri = format_of(names, other, wanted.format), other
    else:
        path = _local(other)
        format_, uri = _format_here(path, wanted), literal(spark_path(path))
        if format_ != "parquet" and uri != spark_path(path):  # Spark searches for files again when it derives columns
            raise SpeError(f"{path}: Spark takes it for a pattern; expected a path without any of * ? [ ] {{ }} \\")
    return table(spark, uri, other, format_, schema_of.plan.query.schema_of(output), wanted)


@contextmanager
def _other_run(spark: SparkSession, place: str) -> Iterator[Run | None]:
    """Yields the other run; None where the other side is a table."""
    from consistency.proof.storage.folder import is_remote
    from consistency.proof.storage.remote import folder_of, listed, opened

    if is_remote(place):
        there = PurePosixPath(_RUN_HAS) in listed(folder_of(spark, place))
    else:
        there = (_local(place) / _RUN_HAS).is_file()
    if not there:
        yield None
        return
    with opened(spark, place) as run:
        yield run


def _keeper(out: Path | None, output: StreamId, other: str) -> Callable[[DataFrame], None] | None:
    from consistency.proof.storage.folder import is_remote, local_path
    from consistency.proof.storage.hadoop import spark_path

    if out is None:
        return None
    folder = _differences(out, output)
    if not is_remote(other) and folder.resolve() == local_path(other).resolve():
        raise SpeError(f"{other} would be overwritten with the differences; expected another folder for --out")
    place = spark_path(folder)
    return lambda frame: frame.write.mode("overwrite").parquet(place)


def _differences(out: Path, output: StreamId) -> Path:
    """Returns the folder for the differences of an output."""
    return out / f"{output}.parquet"


def _remove(folder: Path) -> None:
    """Removes the differences of an earlier comparison."""
    if (folder / "_SUCCESS").is_file():  # written by Spark; a table of the user stays
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise SpeError(f"{folder} cannot be removed: {error.strerror}") from error


def _write(file: Path, content: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise SpeError(f"{file} cannot be written: {error.strerror}") from error


def pairs(settings: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Parses ``ATTRIBUTE=COLUMN`` settings.  Raises SpeError."""
    split = [text.partition("=") for text in settings]
    for name, equals, value in split:
        if not name or not equals or not value:
            raise SpeError(f"--columns: expected ATTRIBUTE=COLUMN, got {name + equals + value!r}")
    return tuple((name, value) for name, _, value in split)
