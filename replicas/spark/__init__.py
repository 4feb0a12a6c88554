"""A Spark query as a client or writer of a running cluster: ``format("spe")`` (docs/how-to/spark.md)."""
