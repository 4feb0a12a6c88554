"""The figures of a cluster: what they mean, and how they follow from the statuses of processes.  Pure."""
