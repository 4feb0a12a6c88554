"""Compares the results of two runs, or of a run and a user's table."""
