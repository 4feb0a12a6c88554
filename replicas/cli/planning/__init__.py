"""``spe plan``: which partitions to replicate, and in which order lost ones recover."""
