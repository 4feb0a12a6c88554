"""Features of random runs: configuration, drawing, running and checking of each."""
