"""Compares one output of a run with what it is to be: figures, the first differences, the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from consistency.proof.comparing.offenders import in_micros, plain_row
from consistency.proof.report.words import moment
from consistency.proof.storage.tables import on_disk
from consistency.proof.truth.stream import TIME, quoted
from consistency.proof.two_runs.choice import window_of
from consistency.proof.two_runs.decision import Found, decide_side_by_side
from consistency.proof.two_runs.match import KIND, OTHER, RUN, differences, in_columns, left_over
from consistency.proof.two_runs.model import (
    ComparedOutput,
    DifferenceKind,
    RowDifference,
    WindowDifferences,
    floats_text,
)
from consistency.proof.two_runs.sides import ComparedSide
from spe.errors import SpeError
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.times import END_OF_TIME

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

#: Rows of each kind, and windows, that are listed.
FIRST: Final = 10
WINDOWS: Final = 20
_WINDOW: Final = "__window"
#: Compared like an attribute where both sides have it.
TUPLE_TIME: Final = "tuple time"


def compare_output(
    output: str,
    client: str,
    run: ComparedSide,
    other: ComparedSide,
    schema: Schema,
    key: Sequence[str],
    tolerance: float,
    keep: Callable[[DataFrame], None] | None = None,
) -> ComparedOutput:
    """What differs between the two sides of one output: in its attributes, and in TUPLE_TIME where both sides have it.

    Args:
      schema: the attributes that are compared.
      keep: gets all differences: ``kind, time_us, run, other``.

    Raises:
      SpeError: the run has not ended, and the table does not say the times of its rows.
    """
    until_us = min(run.until_us, other.until_us)
    ours, theirs = (_before(one, until_us) for one in (run, other))
    if both_timed := run.timed and other.timed:
        schema = Schema((*schema, Attribute(TUPLE_TIME, AttributeType.TIMESTAMP)))
        ours, theirs = (one.withColumn(TUPLE_TIME, F.timestamp_micros(TIME)) for one in (ours, theirs))
    surplus = on_disk(left_over(ours, theirs, schema))
    found = on_disk(differences(surplus, schema, key, tolerance))
    counts = {DifferenceKind(r[KIND]): int(r["count"]) for r in found.groupBy(KIND).count().collect()}
    by = window_of(schema)
    if keep is not None and counts:
        keep(found.select(F.col(KIND).alias("kind"), F.col(TIME).alias("time_us"), F.col(RUN).alias("run"),
                          F.col(OTHER).alias("other")))  # fmt: skip
    timed = by or ("the tuple time" if both_timed else "")
    columns = found.agg(*in_columns(schema, tolerance)).first() if counts.get(DifferenceKind.DIFFERS) else None
    figures = Found(
        run_rows=ours.count(),
        other_rows=theirs.count(),
        missing=counts.get(DifferenceKind.MISSING, 0),
        added=counts.get(DifferenceKind.ADDED, 0),
        differs=counts.get(DifferenceKind.DIFFERS, 0),
        unfinished=[one.name for one in (run, other) if one.until_us < END_OF_TIME],
        until=moment(until_us) if until_us < END_OF_TIME else "",
    )
    verdict, reasons = decide_side_by_side(figures)
    return ComparedOutput(
        output=output,
        client=client,
        run=run.name,
        other=other.name,
        verdict=verdict,
        reasons=reasons,
        key=list(key),
        apart=[*run.apart, *other.apart, *([] if both_timed else [TUPLE_TIME])],
        until=figures.until,
        floats=floats_text(tolerance),
        run_rows=figures.run_rows,
        other_rows=figures.other_rows,
        missing=figures.missing,
        added=figures.added,
        differs=figures.differs,
        columns={} if columns is None else {a.name: int(n) for a, n in zip(schema, columns) if n},
        by=timed,
        windows=_windows(found, by) if counts and timed else [],
        rows=_first(found, schema, by, key) if counts else [],
    )


def _before(side: ComparedSide, until_us: int) -> DataFrame:
    if until_us >= END_OF_TIME:
        return side.frame
    if not side.timed:
        raise SpeError(
            f"the run is final until {moment(until_us)} only, and {side.name} does not say the times of its rows; "
            "name the column that has them with --time"
        )
    return side.frame.where(F.col(TIME) < until_us)


def _window(by: str) -> Column:
    """Of a difference: the attribute ``by`` in microseconds, or the tuple time."""
    if not by:
        return F.col(TIME)
    return F.coalesce(*[F.unix_micros(F.col(f"{side}.{quoted(by)}")) for side in (OTHER, RUN)])


def _windows(found: DataFrame, by: str) -> list[WindowDifferences]:
    kinds = {one: F.count(F.when(F.col(KIND) == one.value, 1)) for one in DifferenceKind}
    grouped = found.groupBy(_window(by).alias(_WINDOW)).agg(*[made.alias(one.value) for one, made in kinds.items()])
    rows = grouped.orderBy(_WINDOW).limit(WINDOWS).collect()
    return [
        WindowDifferences(
            window="unknown" if r[_WINDOW] is None else moment(r[_WINDOW]),
            missing=r["missing"],
            added=r["added"],
            differs=r["differs"],
        )
        for r in rows
    ]


def _first(found: DataFrame, schema: Schema, by: str, key: Sequence[str]) -> list[RowDifference]:
    """The first rows of each kind, by window and key."""
    from pyspark.sql import Window

    keys = [F.coalesce(F.col(f"{OTHER}.{quoted(n)}"), F.col(f"{RUN}.{quoted(n)}")) for n in key]
    order = [_window(by), *keys, *(F.col(side) for side in (OTHER, RUN))]
    number = F.row_number().over(Window.partitionBy(KIND).orderBy(*order))
    first = found.withColumn("__n", number).where(F.col("__n") <= FIRST)
    first = first.withColumns({name: in_micros(first, name, schema) for name in (RUN, OTHER)})
    places = {one.value: at for at, one in enumerate(DifferenceKind)}
    rows: list[Row] = sorted(first.collect(), key=lambda r: (places[r[KIND]], r["__n"]))
    return [
        RowDifference(kind=DifferenceKind(r[KIND]), run=plain_row(r[RUN], schema), other=plain_row(r[OTHER], schema))
        for r in rows
    ]
