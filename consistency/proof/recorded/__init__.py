"""Records of a run, as the proof reads them: logs of sources, recordings of clients, facts."""
