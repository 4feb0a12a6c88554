"""``python -m replicas.cli``: the command by which a local cluster starts its processes."""

from replicas.cli import main

main()
