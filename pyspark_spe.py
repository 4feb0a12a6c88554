"""``format("spe")`` for Spark; what it is made of is in replicas/spark."""

# Spark looks for DefaultSource in top-level modules whose names begin with "pyspark_", and nowhere else.
from replicas.spark.source import DefaultSource as DefaultSource
