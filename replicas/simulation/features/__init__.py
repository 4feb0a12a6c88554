"""Features of random runs, each with its configuration, drawing, running and checking."""
