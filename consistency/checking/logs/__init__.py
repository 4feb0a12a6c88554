"""Checkers of logs on disk."""
