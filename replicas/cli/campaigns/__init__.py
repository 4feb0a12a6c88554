"""``spe simulate``: campaigns of simulated runs."""
