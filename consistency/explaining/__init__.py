"""Explains why an output is tentative, late or silent: a chain from the client to the cause, from statuses.  Pure."""
