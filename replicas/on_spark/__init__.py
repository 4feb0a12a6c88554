"""Nodes as long-lived tasks of a Spark job: docs/internals/on-spark.md.

``placement`` decides; ``directory`` carries it out at the driver, with Spark's jobs from ``jobs``; ``task`` runs
on an executor; ``addresses`` lets processes find a node wherever it is.
"""
