"""May we wait, must we go on, can we correct: the DPC state machine (floor 3)."""
