"""Measurements, run by hand: ``python -m benchmarks [NAME ...]``.  Ratios within one run are what counts."""
