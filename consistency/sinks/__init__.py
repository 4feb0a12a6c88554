"""Reads sinks of a real run again in their own formats, and compares them with their recordings."""
