"""Compares one output of a run with its expected rows: figures, the first differences, the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Row, Window
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

#: Maximum number of rows of each kind, and of windows, in the result.
FIRST: Final = 10
WINDOWS: Final = 20
_WINDOW: Final = "__window"
#: Compared like an attribute if both sides have it.
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
    """Compares the two sides of one output: their attributes, and TUPLE_TIME if both sides have it.

    Args:
      keep: receives all differences: ``kind, time_us, run, other``.

    Raises:
      SpeError: the run has not ended, and the table does not have the times of its rows.
    """
    both_timed, by = run.timed and other.timed, window_of(schema)
    if both_timed:
        schema = Schema((*schema, Attribute(TUPLE_TIME, AttributeType.TIMESTAMP)))
    unequal, figures = _compared(run, other, schema, key, tolerance)
    some = figures.missing + figures.added + figures.differs > 0
    if keep is not None and some:
        keep(unequal.select(F.col(KIND).alias("kind"), F.col(TIME).alias("time_us"), F.col(RUN).alias("run"),
                          F.col(OTHER).alias("other")))  # fmt: skip
    columns = unequal.agg(*in_columns(schema, tolerance)).first() if figures.differs else ()
    timed = by or ("the tuple time" if both_timed else "")
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
        floats=floats_text(tolerance),
        **{name: value for name, value in vars(figures).items() if name != "unfinished"},
        columns={a.name: int(n) for a, n in zip(schema, columns or ()) if n},
        by=timed,
        windows=_windows(unequal, by) if some and timed else [],
        rows=_first(unequal, schema, by, key) if some else [],
    )


def _compared(
    run: ComparedSide, other: ComparedSide, schema: Schema, key: Sequence[str], tolerance: float
) -> tuple[DataFrame, Found]:
    """Returns the differences of two sides, up to the time until which both are final, and their counts."""
    until_us = min(run.until_us, other.until_us)
    ours, theirs = (_before(side, until_us) for side in (run, other))
    if TUPLE_TIME in schema:
        ours, theirs = (side.withColumn(TUPLE_TIME, F.timestamp_micros(TIME)) for side in (ours, theirs))
    unequal = on_disk(differences(on_disk(left_over(ours, theirs, schema)), schema, key, tolerance))
    counts = {DifferenceKind(r[KIND]): int(r["count"]) for r in unequal.groupBy(KIND).count().collect()}
    return unequal, Found(
        run_rows=ours.count(),
        other_rows=theirs.count(),
        missing=counts.get(DifferenceKind.MISSING, 0),
        added=counts.get(DifferenceKind.ADDED, 0),
        differs=counts.get(DifferenceKind.DIFFERS, 0),
        unfinished=[side.name for side in (run, other) if side.until_us < END_OF_TIME],
        until=moment(until_us) if until_us < END_OF_TIME else "",
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
    """Returns the window of a difference: the attribute ``by`` in microseconds, or the tuple time."""
    if not by:
        return F.col(TIME)
    return F.coalesce(*[F.unix_micros(F.col(f"{side}.{quoted(by)}")) for side in (OTHER, RUN)])


def _windows(unequal: DataFrame, by: str) -> list[WindowDifferences]:
    kinds = {kind: F.count(F.when(F.col(KIND) == kind.value, 1)) for kind in DifferenceKind}
    grouped = unequal.groupBy(_window(by).alias(_WINDOW)).agg(*[made.alias(kind.value) for kind, made in kinds.items()])
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


def _first(unequal: DataFrame, schema: Schema, by: str, key: Sequence[str]) -> list[RowDifference]:
    """Returns the first rows of each kind, by window and key."""
    keys = [F.coalesce(F.col(f"{OTHER}.{quoted(n)}"), F.col(f"{RUN}.{quoted(n)}")) for n in key]
    order = [_window(by), *keys, *(F.col(side) for side in (OTHER, RUN))]
    number = F.row_number().over(Window.partitionBy(KIND).orderBy(*order))
    first = unequal.withColumn("__n", number).where(F.col("__n") <= FIRST)
    first = first.withColumns({name: in_micros(first, name, schema) for name in (RUN, OTHER)})
    places = {kind.value: at for at, kind in enumerate(DifferenceKind)}
    rows: list[Row] = sorted(first.collect(), key=lambda r: (places[r[KIND]], r["__n"]))
    return [
        RowDifference(kind=DifferenceKind(r[KIND]), run=plain_row(r[RUN], schema), other=plain_row(r[OTHER], schema))
        for r in rows
    ]
