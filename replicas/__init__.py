"""Sources, nodes and clients: the processes of a cluster, and the path of a tuple through them."""
