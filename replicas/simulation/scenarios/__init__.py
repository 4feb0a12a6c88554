"""Scenarios: configurations and faults, drawn at random or read, and shrunk."""
