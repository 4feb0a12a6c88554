"""The workloads of the two queries of the PPA paper, made by Spark at any scale; a row depends on seed and number only.

* Requests of a web server, for the top-100 pages: pages by a Zipf law, load that swells and falls over the day.
* Locations of users on road segments, for incidents: segments by a Zipf law, 20,000 locations a second, and accidents
  during which the cars of a segment crawl.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from consistency.proof.truth.stream import TIME
from spe.errors import SpeError
from spe.problems import did_you_mean, one_of
from spe.stream.schema import Schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Names and schemas; ``ts`` is the event time of both.
WORKLOADS: Final = {
    "requests": Schema.of(ts="timestamp!", page="int64!", bytes="int64!", status="int64!"),
    "locations": Schema.of(ts="timestamp!", user="int64!", segment="int64!", speed="float64!"),
}
#: Rows per second of event time.
RATES: Final = {"requests": 1_000, "locations": 20_000}
PAGES: Final = 20_000
USERS: Final = 100_000
SEGMENTS: Final = 1_000
#: Exponents of the Zipf laws.
_PAGE_SKEW: Final = 0.9
_SEGMENT_SKEW: Final = 0.5
_DAY_US: Final = 86_400_000_000
#: How long an accident lasts; each segment may have one in each such stretch of time.
_ACCIDENT_US: Final = 60_000_000
_ACCIDENT_SHARE: Final = 0.01
_SECOND_US: Final = 1_000_000


def workload(spark: SparkSession, name: str, rows: int, seed: int) -> DataFrame:
    """TIME and the attributes of a workload, ``rows`` of them, in order of time.

    Raises:
      SpeError: there is no such workload.
    """
    if name not in WORKLOADS:
        raise SpeError(f"no workload {name!r}{did_you_mean(name, list(WORKLOADS))}; expected {one_of(list(WORKLOADS))}")
    ids = spark.range(rows)
    if name == "requests":
        return _requests(spark, ids, seed)
    return _locations(spark, ids, seed)


def _drawn(seed: int, what: str, *of: Column | str) -> Column:
    """A number in [0, 1) that follows from the seed, what it is for, and columns."""
    return F.pmod(F.xxhash64(F.lit(seed), F.lit(what), *of), F.lit(1 << 53)).cast("double") / float(1 << 53)


def _ranks(spark: SparkSession, frame: DataFrame, draw: Column, count: int, skew: float, name: str) -> DataFrame:
    """Adds ``name``: 0, 1, 2, … with probability proportional to 1/(rank + 1)^skew.

    The law is cut into 4,096 equal shares of probability; a share holds the ranks that it touches.
    """
    shares = 4096
    every = Window.orderBy("rank")
    weight = F.pow(F.col("rank") + 1.0, F.lit(-skew))
    weighed = spark.range(count).toDF("rank").withColumn("weight", weight).coalesce(1)
    total = F.sum("weight").over(Window.partitionBy())
    law = weighed.withColumn("upto", F.sum("weight").over(every) / total).withColumn(
        "from", F.col("upto") - F.col("weight") / total
    )
    places = law.select(
        F.col("rank").alias(name),
        F.col("from").alias("__from"),
        F.when(F.col("rank") == count - 1, F.lit(2.0)).otherwise(F.col("upto")).alias("__upto"),
        F.explode(
            F.sequence(F.floor(F.col("from") * shares), F.least(F.floor(F.col("upto") * shares), F.lit(shares - 1)))
        ).alias("__share"),
    )
    drawn = frame.withColumn("__draw", draw).withColumn("__share", F.floor(F.col("__draw") * shares))
    met = drawn.join(F.broadcast(places), "__share").where(
        (F.col("__draw") >= F.col("__from")) & (F.col("__draw") < F.col("__upto"))
    )
    return met.drop("__share", "__draw", "__from", "__upto")


def _requests(spark: SparkSession, ids: DataFrame, seed: int) -> DataFrame:
    """Twice the load at midday as at midnight on average, by letting time run unevenly."""
    even = F.col("id") * (_SECOND_US // RATES["requests"])
    day = 2 * 3.141592653589793 / _DAY_US
    swing = F.round(F.sin(even * day) * (_DAY_US / 20)).cast("long")
    time = even + swing
    frame = _ranks(spark, ids, _drawn(seed, "page", "id"), PAGES, _PAGE_SKEW, "page")
    size = F.floor(F.lit(200) + _drawn(seed, "bytes", "page") * 20_000 * (_drawn(seed, "size", "id") + 0.5))
    status = F.when(_drawn(seed, "status", "id") < 0.96, 200).otherwise(
        F.when(F.col("id") % 5 == 0, 500).otherwise(404)
    )
    return frame.select(
        time.alias(TIME),
        F.timestamp_micros(time).alias("ts"),
        F.col("page"),
        size.cast("long").alias("bytes"),
        status.cast("long").alias("status"),
    )


def _locations(spark: SparkSession, ids: DataFrame, seed: int) -> DataFrame:
    """A user stays on a segment for a stretch of time; where an accident is, all crawl."""
    time = F.col("id") * (_SECOND_US // RATES["locations"])
    stretch = F.floor(time / _ACCIDENT_US)
    user = F.floor(_drawn(seed, "user", "id") * USERS).cast("long")
    frame = ids.select("id", time.alias(TIME), stretch.alias("__stretch"), user.alias("user"))
    placed = _ranks(spark, frame, _drawn(seed, "segment", "user", "__stretch"), SEGMENTS, _SEGMENT_SKEW, "segment")
    accident = _drawn(seed, "accident", "segment", "__stretch") < _ACCIDENT_SHARE
    free = F.lit(60.0) + _drawn(seed, "limit", "segment") * 60.0
    noise = F.round(_drawn(seed, "speed", "id") * 20.0 - 10.0, 1)
    speed = F.when(accident, F.abs(noise)).otherwise(F.round(free + noise, 1))
    return placed.select(TIME, F.timestamp_micros(F.col(TIME)).alias("ts"), "user", "segment", speed.alias("speed"))
