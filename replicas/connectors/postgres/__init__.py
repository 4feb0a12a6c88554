"""Sources and sinks of PostgreSQL."""
