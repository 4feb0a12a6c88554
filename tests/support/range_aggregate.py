"""Largest − smallest: ``range(price)``."""

import numpy as np

from spe.query.aggregates import AGGREGATES, AggregateFunction, GroupState, Partial

AGGREGATES["range"] = AggregateFunction(
    name="range",
    about="the argument's type; int64 wraps around",
    numeric=True,
    # the engine: states of a group, and the result from their arrays
    states=(GroupState.LARGEST, GroupState.SMALLEST),
    finish=np.subtract,
    # the proof: partial aggregates of rows and of panes, and the result, in Spark SQL
    spark=(Partial("max({x})", "max({x})"), Partial("min({x})", "min({x})")),
    result="{0} - {1}",
)
