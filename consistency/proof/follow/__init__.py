"""Proves a run while it goes on, one range of tuple time after the other: docs/internals/proof.md."""
