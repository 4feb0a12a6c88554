"""Metrics of a process in the text format of Prometheus, and its health.  Pure; spe.runtime.http_port serves them."""
