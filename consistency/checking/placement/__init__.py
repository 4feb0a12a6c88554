"""Checkers of the coordinator: moves, orders, recovery."""
