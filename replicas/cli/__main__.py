"""``python -m replicas.cli``: how a local cluster starts its processes."""

from replicas.cli import main

main()
