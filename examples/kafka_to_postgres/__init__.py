"""From Kafka through a partitioned query into PostgreSQL, with everything killed in turn.  See README.md."""
