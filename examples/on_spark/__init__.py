"""Two Spark jobs feed and read a query whose nodes are tasks of Spark, and an executor is killed.  See README.md."""
