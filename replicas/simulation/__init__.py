"""The whole cluster in one process and in virtual time: real nodes, sources and clients on simulated hosts."""
