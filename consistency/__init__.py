"""DPC: when a replica waits, goes on tentatively and corrects; and how a run is judged afterwards."""
