"""Who is there, whom do we read, what do we owe: sources, nodes, clients (floor 4)."""
