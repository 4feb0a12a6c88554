"""Deterministic operators, SUnion and SOutput: pure, synchronous, without I/O."""
