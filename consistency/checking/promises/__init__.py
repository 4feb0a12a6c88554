"""Checkers of the promises to clients (P1 to P4)."""
