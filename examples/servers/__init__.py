"""Servers of other projects, started here: for the examples, tests and benchmarks."""
