"""Was the promise kept?  Offline checkers of a recorded run, simulated or real; they know nothing of the engine.

What goes in: the :mod:`history <consistency.checking.history>` of a run, its plan, and the stable streams that a run
without failures gives.  What comes out: findings, and how much was really checked.  Imports ``spe`` only.
"""
