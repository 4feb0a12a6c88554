"""``spe run``: starts, supervises and sums up the processes of a run."""
