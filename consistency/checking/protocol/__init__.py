"""Checkers of the protocol between processes."""
