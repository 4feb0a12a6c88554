"""Offline checkers: did a recorded run, simulated or real, keep its promises?  They know nothing of the engine.

What goes in: the :mod:`history <spe.stream.history>` of a run, its plan, and the stable streams that a run
without failures gives.  What comes out: findings, and how much was really checked.  Imports ``spe`` only.
"""
