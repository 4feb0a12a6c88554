"""Sinks of a real run, read again in their own formats and compared with the recordings beside which they were made."""
