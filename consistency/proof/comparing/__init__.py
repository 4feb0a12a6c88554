"""The comparison of received tuples with the truth, and its figures."""
