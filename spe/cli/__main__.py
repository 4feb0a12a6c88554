"""``python -m spe.cli``: how a local cluster starts its processes."""

from spe.cli import main

main()
