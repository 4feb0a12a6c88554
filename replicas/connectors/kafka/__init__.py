"""Sources and sinks of Kafka."""
