"""``spe run``: processes of a run are started, supervised and summed up."""
