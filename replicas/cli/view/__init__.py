"""Live views of a cluster in a terminal."""
