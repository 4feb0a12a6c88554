"""Nodes as long-lived tasks of a Spark job: docs/internals/on-spark.md.

``placement`` decides; ``directory`` performs that at the driver, with Spark's jobs from ``jobs``; ``task`` is what runs
on an executor; ``addresses`` lets processes find a node wherever it is.
"""
