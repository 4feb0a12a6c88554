"""Sinks that write Delta tables."""
