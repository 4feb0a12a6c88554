"""Deterministic operators, SUnion and SOutput: pure, synchronous, no I/O (floor 2)."""
